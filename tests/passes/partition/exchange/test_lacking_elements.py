"""Along a split dim, the worst device receives the elements that it needs and lacks, and no more.

What a device needs is worked out element by element from what the ops mean, not from how they are partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from drawn import examples
from hypothesis import event, given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.ops.window import Window
from ir.program import Program, Result, Value
from ir.sharding import Sharding
from ir.types import TensorType, f32
from ir.verify.program import check
from spmdc.testing import check_equivalence

Uses = Callable[[int], Iterator[tuple[int, int]]]
"""For an element of the result: the operands that it is computed from, and their elements."""


@dataclass(frozen=True)
class Case:
    """An op along one split dim: the program, the sizes of its operands and of its result, and what it uses."""

    program: Program
    devices: int
    sizes: tuple[int, ...]
    count: int
    uses: Uses

    def lacking(self, *, padding: bool = False) -> int:
        """Elements that the worst device needs and does not hold.

        With `padding`, a device that has elements of the result needs what its padding would be computed from, too, up
        to the last element that is needed for anything.
        """
        chunks = [-(-n // self.devices) for n in self.sizes]
        share = -(-self.count // self.devices)
        everything = [use for element in range(self.count) for use in self.uses(element)]
        ends = [max((k for o, k in everything if o == operand), default=-1) for operand in range(len(self.sizes))]
        lacking = []
        for device in range(-(-self.count // share)):
            end = share * (device + 1)
            mine = range(share * device, end if padding else min(end, self.count))
            needed = {(o, k) for element in mine for o, k in self.uses(element) if k <= ends[o]}
            lacking.append(sum(k // chunks[o] != device for o, k in needed))
        return max(lacking)


class Writer:
    """Builds the program of a case: operands of those sizes, split over all devices, and an op on them."""

    def __init__(self, devices: int, *sizes: int) -> None:
        self.mesh = Mesh((("d", devices),))
        self.sizes = sizes
        self.b = RegionBuilder()
        self.x = [self.operand(f"x{k}", (n,)) for k, n in enumerate(sizes)]

    def operand(self, name: str, shape: tuple[int, ...], dim: int = 0) -> Value:
        return self.b.param(name, TensorType(shape, f32), self.split(len(shape), dim))

    def split(self, rank: int, dim: int = 0) -> Sharding:
        return Sharding.of(self.mesh, *("d" if d == dim else None for d in range(rank)))

    def case(self, y: Value, uses: Uses, dim: int = 0) -> Case:
        result = Result("r", y.type, self.split(y.type.rank, dim))
        params = self.b.params
        program = Program((self.mesh,), {"main": self.b.function("main", (y,), (result,))})
        check(program)
        sizes = tuple(max(p.shape) for p in params if p.sharding is not None and any(p.sharding.axes))
        assert sizes == self.sizes
        return Case(program, self.mesh.size, sizes, y.shape[dim], uses)


DEVICES = st.integers(2, 8)
SIZES = st.integers(1, 24)


@st.composite
def slices(draw: st.DrawFn) -> Case:
    devices, n = draw(DEVICES), draw(SIZES)
    start = draw(st.integers(0, n - 1))
    limit, stride = draw(st.integers(start + 1, n)), draw(st.integers(1, 5))
    w = Writer(devices, n)
    y = w.b.op("slice", w.x[0], start=(start,), limit=(limit,), stride=(stride,))
    return w.case(y, lambda r: iter([(0, start + stride * r)]))


@st.composite
def pads(draw: st.DrawFn) -> Case:
    devices, n = draw(DEVICES), draw(SIZES)
    gap = draw(st.integers(0, 3))
    room = (n - 1) * (gap + 1) + 1
    low = draw(st.integers(-room + 1, 6))
    high = draw(st.integers(-room - low + 1 if low < 0 else -room + 1, 6))
    w = Writer(devices, n)
    zero = w.b.op("constant", value=0.0, type=TensorType((), f32))
    y = w.b.op("pad", w.x[0], zero, low=(low,), high=(high,), interior=(gap,))

    def uses(r: int) -> Iterator[tuple[int, int]]:
        position = r - low
        if 0 <= position < room and position % (gap + 1) == 0:
            yield 0, position // (gap + 1)

    return w.case(y, uses)


@st.composite
def reverses(draw: st.DrawFn) -> Case:
    devices, n = draw(DEVICES), draw(SIZES)
    w = Writer(devices, n)
    return w.case(w.b.op("reverse", w.x[0], dims=(0,)), lambda r: iter([(0, n - 1 - r)]))


@st.composite
def concatenations(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 12), min_size=2, max_size=4))
    w = Writer(draw(DEVICES), *sizes)
    elements = [(operand, k) for operand, n in enumerate(sizes) for k in range(n)]
    return w.case(w.b.op("concatenate", *w.x, dim=0), lambda r: iter(elements[r : r + 1]))


@st.composite
def windows(draw: st.DrawFn, n: int, *, dilations: bool = True, largest: int = 6) -> Window:
    """Settings with which at least one window fits."""
    size, dilation = draw(st.integers(1, largest)), draw(st.integers(1, 3)) if dilations else 1
    base, stride = draw(st.integers(1, 3)) if dilations else 1, draw(st.integers(1, 4))
    extent, room = (size - 1) * dilation + 1, (n - 1) * base + 1
    low = draw(st.integers(-min(2, room - 1), extent + 1))
    least = max(extent - room - low, -min(2, room - 1 + min(low, 0)))
    return Window(size, stride, low, draw(st.integers(least, least + extent + 2)), base, dilation)


def seen(window: Window, n: int, q: int) -> Iterator[int]:
    """The elements of a dim of size n that window q sees."""
    for t in range(window.size):
        position = window.stride * q + window.dilation * t - window.low
        if position % window.base_dilation == 0 and 0 <= position < n * window.base_dilation:
            yield position // window.base_dilation


def settings_of(w: Window, *names: str) -> dict[str, Any]:
    values = w.stride, w.low, w.high, w.base_dilation, w.dilation
    return {name: (value,) for name, value in zip(names, values, strict=False)}


@st.composite
def reductions(draw: st.DrawFn) -> Case:
    n = draw(SIZES)
    window = draw(windows(n))
    w = Writer(draw(DEVICES), n)
    given = settings_of(window, "stride", "padding_low", "padding_high", "base_dilation", "window_dilation")
    y = w.b.op("reduce_window", w.x[0], window=(window.size,), kind="max", **given)
    return w.case(y, lambda q: ((0, k) for k in seen(window, n, q)))


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    n = draw(SIZES)
    window, flipped = draw(windows(n)), draw(st.integers(0, 1))
    w = Writer(draw(DEVICES))
    w.sizes = (n,)
    x = w.operand("x", (1, n, 1), 1)
    kernel = w.b.param("kernel", TensorType((window.size, 1, 1), f32), Sharding.replicate(w.mesh, 3))
    given = settings_of(window, "stride", "padding_low", "padding_high", "lhs_dilation", "rhs_dilation")
    y = w.b.op(
        "convolution", x, kernel, lhs_batch=0, lhs_feature=2, lhs_spatial=(1,), rhs_input=1, rhs_output=2,
        rhs_spatial=(0,), out_batch=0, out_feature=2, out_spatial=(1,), window_reversal=(flipped,), **given,
    )  # fmt: skip
    return w.case(y, lambda q: ((0, k) for k in seen(window, n, q)), 1)


@st.composite
def scatters(draw: st.DrawFn) -> Case:
    n = draw(SIZES)
    window = draw(windows(n, dilations=False).filter(lambda w: 0 <= w.low < w.size))
    count = window.count(n)
    w = Writer(draw(DEVICES), n, count)
    given = settings_of(window, "stride", "padding_low", "padding_high")
    y = w.b.op("select_and_scatter", *w.x, window=(window.size,), **given)

    def uses(r: int) -> Iterator[tuple[int, int]]:
        for q in range(count):
            elements = set(seen(window, n, q))
            if r in elements:
                yield 1, q
                yield from ((0, k) for k in elements)

    return w.case(y, uses)


OPS = {
    "slice": slices(),
    "pad": pads(),
    "reverse": reverses(),
    "concatenate": concatenations(),
    "reduce_window": reductions(),
    "convolution": convolutions(),
    "select_and_scatter": scatters(),
}


@pytest.mark.parametrize("name", OPS)
def test_the_worst_device_receives_what_it_lacks(name: str) -> None:
    @settings(max_examples=examples(25))
    @given(OPS[name])
    def exact(case: Case) -> None:
        q = spmdc.partition(case.program)
        least, most = case.lacking(), case.lacking(padding=True)
        event(f"lacking: {'nothing' if not least else 'some'}, {'exact' if least == most else 'bounded'}")
        assert 4 * least <= q.received_bytes() <= 4 * most, q.text()
        check_equivalence(case.program)

    exact()
