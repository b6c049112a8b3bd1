"""Ops that slide a window over a tensor: reduce_window, and select_and_scatter, its gradient where it takes extremes.

Windows have up to five settings a dim: size, stride, padding before and after (negative padding removes elements), base
dilation (holes between the operand's elements) and window dilation (holes between the window's). Padding and holes have
the reduction's identity; select_and_scatter has an operand for its padding value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir.literals import flattened
from ir.ops.creation import check_numbers
from ir.ops.declaration import (
    AttrDef,
    Attrs,
    FactorRule,
    InKernels,
    Linearity,
    OwnPadding,
    TypeRuleError,
    Types,
    Unclaimed,
    declare,
    largest,
    updated,
)
from ir.ops.reduction import check_reducible, identity_of, linear_in_its_kind, reduction_kind
from ir.ops.rule_helpers import ints_attr, windows_along
from ir.program import Op
from ir.sharding import REDUCTION_KINDS
from ir.types import TensorType, pred


@dataclass(frozen=True, slots=True)
class Window:
    """The window along one dim."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    dilation: int = 1

    @property
    def extent(self) -> int:
        """The number of elements from the window's first to its last, holes included."""
        return dilated(self.size, self.dilation)

    @property
    def is_pointwise(self) -> bool:
        """Whether each result depends only on the operand's element at the same index."""
        return self.size == 1 and (self.stride, self.low, self.high, self.base_dilation) == (1, 0, 0, 1)

    def padded(self, n: int) -> int:
        """The number of elements of a dim of size n, with holes and padding."""
        return dilated(n, self.base_dilation) + self.low + self.high

    def count(self, n: int) -> int:
        """The number of windows that fit in a dim of size n."""
        room = self.padded(n) - self.extent
        return room // self.stride + 1 if room >= 0 else 0


def dilated(n: int, dilation: int) -> int:
    """The size of n elements with dilation - 1 holes between neighbours."""
    return (n - 1) * dilation + 1 if n else 0


def windows(
    attrs: Attrs, sizes: Sequence[int], base: str = "base_dilation", dilation: str = "window_dilation"
) -> tuple[Window, ...]:
    """The window of each dim, of these sizes; the default of settings is one, of paddings zero.

    `base` and `dilation` are the names of the attributes with the dilations. Raises TypeRuleError if a list has another
    length, or a size, stride or dilation is not positive.
    """
    rank = len(sizes)
    settings: list[tuple[int, ...]] = []
    for name, default in (("stride", 1), ("padding_low", 0), ("padding_high", 0), (base, 1), (dilation, 1)):
        given = ints_attr(attrs, name) if name in attrs else ()
        values = given or (default,) * rank
        if len(values) != rank:
            raise TypeRuleError(f"{name}={list(values)} must have a number for each of the window's {rank} dims")
        if default == 1 and min(values, default=1) < 1:
            raise TypeRuleError(f"{name}={list(values)} must be positive in every dim")
        settings.append(values)
    if min(sizes, default=1) < 1:
        raise TypeRuleError(f"the window {list(sizes)} must be positive in every dim")
    return tuple(Window(*dim) for dim in zip(sizes, *settings, strict=True))


def windowed_sizes(sizes: Sequence[int], given: Sequence[Window]) -> tuple[int, ...]:
    """The number of windows of each dim. Raises TypeRuleError if padding removes more elements than there are."""
    for d, (n, w) in enumerate(zip(sizes, given, strict=True)):
        if w.padded(n) < 0:
            raise TypeRuleError(f"padding by {w.low} and {w.high} leaves {w.padded(n)} elements of window dim {d}")
    return tuple(w.count(n) for n, w in zip(sizes, given, strict=True))


def window_of(op: Op) -> tuple[Window, ...]:
    """The windows of a reduce_window or select_and_scatter."""
    return windows(op.attrs, ints_attr(op.attrs, "window"))


def _windows_of(attrs: Attrs, operand: TensorType) -> tuple[Window, ...]:
    sizes = ints_attr(attrs, "window")
    if len(sizes) != operand.rank:
        raise TypeRuleError(f"window={list(sizes)} must have a number for each of the operand's {operand.rank} dims")
    return windows(attrs, sizes)


def _infer_reduce_window(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    check_reducible(attrs["kind"], operand)
    return (operand.with_shape(windowed_sizes(operand.shape, _windows_of(attrs, operand))),)


def _factors(op: Op) -> FactorRule:
    """One factor for each dim, which all tensors share: parallel if each window is one element."""
    return windows_along(op, op.operands[0].shape, [d for d, w in enumerate(window_of(op)) if not w.is_pointwise])


def _flops(op: Op) -> int:
    return max(v.type.size for v in (*op.operands, *op.results)) * math.prod(ints_attr(op.attrs, "window"))


_SETTINGS = tuple(
    AttrDef(name, "ints", default=(), required=False)
    for name in ("stride", "padding_low", "padding_high", "base_dilation", "window_dilation")
)


def _terms(op: Op, bounds: Sequence[float]) -> float:
    return largest(op, bounds) * (math.prod(ints_attr(op.attrs, "window")) if op.attrs["kind"] == "sum" else 1)


def _padded_with(op: Op) -> float | int | bool | None:
    kind = reduction_kind(op.attrs)
    return identity_of(kind, op.result.dtype) if kind is not None else None


declare(
    "reduce_window",
    "window",
    1,
    _infer_reduce_window,
    _factors,
    (
        AttrDef("window", "ints"),
        *_SETTINGS,
        AttrDef("kind", "word", default="sum", required=False, choices=REDUCTION_KINDS),
    ),
    linear=linear_in_its_kind,
    flops=_flops,
    terms=_terms,
    doc="The reduction of each window, as stablehlo.reduce_window. 16-bit floats are summed in f32.",
    padding=OwnPadding(lambda op: range(op.result.type.rank), _padded_with, "base_dilation"),
    in_kernels=InKernels.WINDOW,
)

SELECTIONS = ("GE", "GT", "LE", "LT")


def _infer_select_and_scatter(types: Types, attrs: Attrs) -> Types:
    operand, source = types
    if operand.dtype == pred or not operand.dtype.is_ordered or source.dtype != operand.dtype:
        raise TypeRuleError(
            "operand and source must be integers or floats of one element type, and are "
            f"{operand.dtype} and {source.dtype}"
        )
    check_reducible("sum", source)
    if isinstance(attrs["padding_value"], tuple):
        raise TypeRuleError("padding_value must be one number")
    if attrs["padding_value"] is not None:
        check_numbers(flattened(attrs["padding_value"]), operand.dtype)
    wanted = windowed_sizes(operand.shape, _windows_of(attrs, operand))
    if source.shape != wanted:
        raise TypeRuleError(f"the source must have an element for each window, {list(wanted)}, and is {source}")
    return (operand,)


def padding_value(op: Op) -> float | int | None:
    """The padding value of a select_and_scatter; None if padding is never selected."""
    value = op.attrs["padding_value"]
    assert value is None or isinstance(value, float | int), value
    return value


declare(
    "select_and_scatter",
    "window",
    2,
    _infer_select_and_scatter,
    _factors,
    (
        AttrDef("window", "ints"),
        *_SETTINGS[:3],
        AttrDef("select", "word", default="GE", required=False, choices=SELECTIONS),
        AttrDef("padding_value", "value", required=False, doc="what padding holds, which may be selected then"),
    ),
    linear=(Linearity(("sum",), (1,)),),
    flops=_flops,
    terms=updated,
    unclaimed=(Unclaimed(("prod", "max", "min"), "only where windows do not overlap"),),
    doc=(
        "Adds each element of the source to zeros, at the element of the operand that its window selects: an "
        "element stays selected while it compares so to those behind it in the window. Padding is never selected, "
        "unless a padding_value says what it holds: then what it is given is dropped."
    ),
)
