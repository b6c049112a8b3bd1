"""What it takes to split an op along a dim in which its elements depend on their neighbours.

A factor of kind WINDOW or SCAN can be split if its op has an entry here, which says what that costs; the op's file in
this folder writes it. `Need` is the common form: the box of an operand that a device needs to compute its shard of
the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ir.mesh import axes_in_groups, axes_size
from ir.ops import FactorKind, FactorRule
from ir.ops.boxes import Boxes
from ir.ops.convolution import ConvolutionDims, convolution_windows
from ir.ops.reshape_blocks import blocks_of, leading
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.ops.window import Window, window_of
from ir.program import Op
from ir.sharding import shard_size
from passes.cost.model import communication_seconds
from passes.partition.closed_sharding import Axes, Layout
from passes.partition.exchange.box_exchange import Box, boxes_of, exchanges_seconds

FEW = 8
"""Devices whose totals, or candidates, are gathered at a time."""


@dataclass(frozen=True, slots=True)
class Need:
    """Of dim `dim` of operand `operand`, dilated by `dilation`, each device needs a box.

    Where it needs only some of the box, these are the `parts`, in which wanted elements lie at equal distances; the box
    is made of them.
    """

    operand: int
    dim: int
    box: Box
    dilation: int = 1
    parts: tuple[Box, ...] = ()

    @property
    def exchanges(self) -> tuple[Box, ...]:
        """The boxes that are exchanged."""
        return self.parts or (self.box,)

    def extent(self, n: int) -> int:
        """How many elements of a dim of size n the boxes are of."""
        return dilated(n, self.dilation)


Needs = Callable[[Op, int, Axes], Sequence[Need]]
"""The needs of an op whose result is split over axes along one of its dims."""


def dilated(n: int, dilation: int) -> int:
    """The size of a dim whose elements are set `dilation` apart."""
    return (n - 1) * dilation + 1 if n else 0


def receivers_of(n: int, axes: Axes) -> int:
    """The devices whose shards of a dim of size n are not all padding."""
    return -(-n // max(1, shard_size(n, axes)))


def slice_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result is every stride-th element of a box."""
    n = op.result.shape[dim]
    size = shard_size(n, axes)
    stride = (ints_attr(op.attrs, "stride") or (1,) * (dim + 1))[dim]
    start = ints_attr(op.attrs, "start")[dim]
    length = max(0, stride * (size - 1) + 1)
    end = start + stride * (n - 1) + 1
    return (Need(0, dim, Box(start, stride * size, length, stride, start % stride, end, receivers_of(n, axes))),)


def pad_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result is a box of the operand, shifted by the padding before it."""
    n = op.result.shape[dim]
    size = shard_size(n, axes)
    gap = (ints_attr(op.attrs, "interior") or (0,) * (dim + 1))[dim]
    low = ints_attr(op.attrs, "low")[dim]
    box = Box(-low, size, size, end=n - low, receivers=receivers_of(n, axes))
    return (whole_or_spread(0, dim, box, (Box(*_ends(box), gap + 1, 0, box.end, box.receivers),), gap + 1),)


def reverse_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """Boxes come from the other end, which moves padding back behind the last element."""
    n = op.result.shape[dim]
    size = shard_size(n, axes)
    return (Need(0, dim, Box(n - size, -size, size)),)


def concatenate_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result may have a part of every operand."""
    size = shard_size(op.result.shape[dim], axes)
    needs: list[Need] = []
    offset = 0
    for position, value in enumerate(op.operands):
        needs.append(Need(position, dim, Box(-offset, size, size)))
        offset += value.shape[dim]
    return needs


def reshape_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """Of a block in row-major order, the run that the result's shard is; the dim is the block's first that is split."""
    source, target = op.operands[0].shape, op.result.shape
    block = next(b for b in blocks_of(source, target) if dim in b.target)
    head = leading(source, block.source)
    assert head is not None
    size = shard_size(target[dim], axes) * math.prod(target[dim + 1 : block.target.stop])
    return (Need(0, head, Box(0, size, size)),)


@dataclass(frozen=True, slots=True)
class Cover:
    """A need, and what an op does to the box to have the elements that it works on: holes, and padding around them."""

    need: Need
    low: int = 0
    high: int = 0
    base_dilation: int = 1

    def local(self, window: Window) -> Window:
        """The window that slides over the box. Where all it meets lies between holes alike, it makes none."""
        every, gaps = self.base_dilation, (window.stride, window.dilation if window.size > 1 else 0)
        if every > 1 and self.low == 0 and all(gap % every == 0 for gap in gaps):
            stride, dilation = (max(1, gap // every) for gap in gaps)
            return replace(window, stride=stride, dilation=dilation, low=0, high=0, base_dilation=1)
        return replace(window, low=self.low, high=self.high, base_dilation=every)


def _ends(box: Box) -> tuple[int, int, int]:
    return box.start, box.step, box.size


def whole_or_spread(operand: int, dim: int, box: Box, parts: Sequence[Box], dilation: int) -> Need:
    """A need of all of a box, or of some of it."""
    plain = len(parts) == 1 and parts[0].every == 1 and _ends(parts[0]) == _ends(box)
    return Need(operand, dim, parts[0] if plain else box, dilation, () if plain else tuple(parts))


@dataclass(frozen=True, slots=True)
class Seen:
    """The elements that a device's part of a window op sees: of each of `count` runs, `length` elements.

    A run's elements lie `stride` apart. The runs begin `between` apart, the first of them on device i at
    start + step · i, where `step` is a multiple of `stride`. Runs may meet.
    """

    start: int
    step: int
    stride: int
    length: int
    between: int
    count: int

    @property
    def size(self) -> int:
        """From the first element to behind the last."""
        return self.stride * (self.length - 1) + self.between * (self.count - 1) + 1 if self.length else 0

    def parts(self, dilation: int, end: int, receivers: int) -> tuple[Box, ...]:
        """Boxes in which the real ones of these elements lie at equal distances, if only every `dilation`-th is real.

        One box where that is all of them, and where there are too many runs to tell.
        """
        if not self.size:
            return (Box(self.start, self.step, 0),)
        hull = Box(self.start, self.step, self.size, dilation, 0, end, receivers)
        solid = self.stride <= self.count if self.between == 1 else self.stride == 1 and self.between <= self.length
        if solid or self.count > _MAX_RUNS:
            return (_aligned(hull),)
        classes: dict[int, list[tuple[int, int]]] = {}
        for k in range(self.count):
            first = self.between * k
            classes.setdefault(first % self.stride, []).append((first, first + self.stride * self.length))
        merged = [run for runs in classes.values() for run in _merged(runs)]
        if sum((b - a) // self.stride for a, b in merged) == self.size:
            return (_aligned(hull),)
        parts = [self._part(a, b - a - self.stride + 1, dilation, end, receivers) for a, b in merged]
        return tuple(part for part in parts if part is not None and part.size) or (Box(self.start, self.step, 0),)

    def _part(self, offset: int, size: int, dilation: int, end: int, receivers: int) -> Box | None:
        start, every = self.start + offset, math.lcm(self.stride, dilation)
        phases = [u for u in range(0, every, dilation) if (u - start) % self.stride == 0]
        return _aligned(Box(start, self.step, size, every, phases[0], end, receivers)) if phases else None


_MAX_RUNS = 64


def _aligned(box: Box) -> Box:
    """The box from its first wanted element on, if that lies at the same place on all devices."""
    if box.step % box.every:
        return box
    before = (box.phase - box.start) % box.every
    return replace(box, start=box.start + before, size=max(0, box.size - before))


def _merged(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of one length in rising order, those that meet as one."""
    merged: list[tuple[int, int]] = []
    for first, end in runs:
        if merged and first <= merged[-1][1]:
            first, _ = merged.pop()
        merged.append((first, end))
    return merged


def cover(operand: int, dim: int, seen: Seen, dilation: int, end: int, receivers: int) -> Cover:
    """How a device gets the elements of a dim, set `dilation` apart (GShard, section A.4, Figure 13).

    Where boxes begin alike between two elements that are wanted, the op makes the holes between them, after a padding
    that is the same everywhere. Otherwise they are made before it.
    """
    box = Box(seen.start, seen.step, seen.size, end=end, receivers=receivers)
    parts = seen.parts(dilation, end, receivers)
    part = parts[0]
    if len(parts) > 1 or part.size == 0 or part.step % part.every:
        return Cover(whole_or_spread(operand, dim, box, parts, dilation))
    low, count = part.start - box.start, -(-part.size // part.every)
    return Cover(Need(operand, dim, part, dilation), low, box.size - low - dilated(count, part.every), part.every)


def window_cover(operand: int, dim: int, window: Window, n: int, axes: Axes) -> Cover:
    """The elements that a device's part of n windows sees."""
    size = shard_size(n, axes)
    seen = Seen(-window.low, window.stride * size, window.stride, size, window.dilation, window.size)
    end = window.stride * (n - 1) - window.low + window.extent
    return cover(operand, dim, seen, window.base_dilation, end, receivers_of(n, axes))


def reduce_window_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result has as many windows as elements."""
    return (window_cover(0, dim, window_of(op)[dim], op.result.shape[dim], axes).need,)


@dataclass(frozen=True, slots=True)
class Touching:
    """The windows that touch a shard of a select_and_scatter's result, along one dim.

    `source` is a box of them, `operand` a box of the elements that they see and of the shard, which begins `shard`
    elements into it; `low` and `high` are what lies in the box beside the windows, as (negative) padding.
    """

    operand: Need
    source: Need
    stride: int
    shard: int
    low: int
    high: int


def touching(op: Op, dim: int, axes: Axes) -> Touching:
    """If windows do not begin alike in all shards, there is one at each element, of which most scatter nothing."""
    window = window_of(op)[dim]
    n, real = op.result.shape[dim], op.operands[1].shape[dim]
    chunk, behind = shard_size(n, axes), window.stride * (real - 1) - window.low + window.size
    receivers = max(1, receivers_of(n, axes) if behind >= n else -(-behind // chunk))
    stride, holes = (window.stride, 1) if chunk % window.stride == 0 else (1, window.stride)
    first = (window.low - window.size) // stride + 1
    last = (chunk + window.low - 1) // stride
    count = max(1, last - first + 1)
    begin, length = stride * first - window.low, stride * (count - 1) + window.size
    start, end = min(begin, 0), max(begin + length, chunk)
    touch = (n - 1 + window.low) // window.stride * holes + 1
    box = Box(start, chunk, end - start, end=behind, receivers=receivers)
    return Touching(
        whole_or_spread(0, dim, box, (box,) if holes == 1 else _seen_by_touching(window, box, chunk), 1),
        _source_need(dim, Box(first, chunk // stride, count, end=touch, receivers=receivers), holes),
        stride,
        -start,
        start - begin,
        begin + length - end,
    )


def _seen_by_touching(window: Window, box: Box, chunk: int) -> Sequence[Box]:
    """What windows see that begin elsewhere in each shard: each its elements, as far apart as the windows."""
    size, stride = window.size, window.stride
    if min(size, stride) > _MAX_RUNS:
        return (box,)
    parts: list[Box] = []
    for k in range(min(size, stride)):
        alike = (size - 1 - k) // stride * stride
        length = chunk + size - 1 + alike
        parts.append(replace(box, start=k + 1 - size, size=length, every=stride, phase=k - window.low))
    return parts


def _source_need(dim: int, box: Box, holes: int) -> Need:
    return whole_or_spread(1, dim, box, (replace(box, every=holes),), holes)


def select_and_scatter_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result adds up what the windows that touch it scatter."""
    found = touching(op, dim, axes)
    return found.operand, found.source


def convolution_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result has as many windows as elements; all of the kernel is there."""
    dims = ConvolutionDims.of(op.attrs)
    spatial = dims.out_spatial.index(dim)
    window = convolution_windows(op.attrs, op.operands[1].shape)[spatial]
    return (window_cover(0, dims.lhs_spatial[spatial], window, op.result.shape[dim], axes).need,)


def kernel_cover(op: Op, spatial: int, axes: Axes) -> Cover:
    """What a part of the kernel sees of lhs in all windows of a spatial dim."""
    dims = ConvolutionDims.of(op.attrs)
    window = convolution_windows(op.attrs, op.operands[1].shape)[spatial]
    size, count = shard_size(window.size, axes), op.result.shape[dims.out_spatial[spatial]]
    start, step = -window.low, size * window.dilation
    if any(ints_attr(op.attrs, "window_reversal")[spatial : spatial + 1]):
        start, step = start + (window.size - size) * window.dilation, -step
    seen = Seen(start, step, window.dilation, size, window.stride, count)
    end = window.stride * (count - 1) - window.low + window.extent
    return cover(0, dims.lhs_spatial[spatial], seen, window.base_dilation, end, receivers_of(window.size, axes))


NEEDS: dict[str, Needs] = {
    "concatenate": concatenate_needs,
    "convolution": convolution_needs,
    "pad": pad_needs,
    "reduce_window": reduce_window_needs,
    "reshape": reshape_needs,
    "reverse": reverse_needs,
    "select_and_scatter": select_and_scatter_needs,
    "slice": slice_needs,
}
"""Ops that exchange boxes."""

SCANS = ("cumsum", "cummax", "cummin", "cumprod")
"""Ops that add up what the devices before hold."""


def can_split_along(op: Op, rule: FactorRule, factor: int) -> bool:
    """Whether the op can be split along a WINDOW or SCAN factor."""
    return op.name in SCANS or _is_kernel(rule, factor) or (op.name in NEEDS and _result_dim(rule, factor) is not None)


def seconds_along(op: Op, rule: FactorRule, factor: int, axes: Axes, operands: Sequence[Layout]) -> float:
    """Time of the communication that splitting such a factor over `axes` takes, beyond bringing operands there."""
    if op.name in SCANS:
        shape = operands[0].local_shape(op.operands[0].shape)
        totals = math.prod(shape) // max(1, shape[int_attr(op.attrs, "dim")])
        total = math.ceil(totals * op.operands[0].dtype.nbytes)
        return sum(communication_seconds("all_gather", axes_size(g), total) for g in axes_in_groups(axes, FEW))
    boxes: list[Boxes] = []
    rows: list[int] = []
    for need in _needs(op, rule, factor, axes):
        value = op.operands[need.operand]
        shape = operands[need.operand].local_shape(value.shape)
        n, chunk = need.extent(value.shape[need.dim]), shape[need.dim] * need.dilation
        if op.name == "reshape":
            n, chunk = (run_length(op, s, need.dim) for s in (value.shape, shape))
        row = math.ceil(math.prod(shape) * need.dilation * value.dtype.nbytes) // max(1, chunk)
        boxes.extend(boxes_of(n, axes, box, chunk) for box in need.exchanges)
        rows.extend(row for _ in need.exchanges)
    return exchanges_seconds(boxes, rows, axes)


def candidates_seconds(rule: FactorRule, factor: int, axes: Axes, sizes: Sequence[float]) -> float:
    """Time of the communication of candidates, of which each device has so many bytes a result, if `axes` split a
    factor whose partial results only the op can combine. All results' travel at once."""
    seconds = 0.0
    found = (rule.factors[f] for dim in rule.results[0] for f in dim)
    kept = next((f.size for f in found if f.kind is FactorKind.WHOLE), 1)
    held = shard_size(rule.factors[factor].size, axes)
    for group in axes_in_groups(axes, FEW):
        have = min(kept, held)
        seconds += communication_seconds("all_gather", axes_size(group), math.ceil(sum(sizes) * have / max(1, kept)))
        held = have * axes_size(group)
    return seconds


def run_length(op: Op, shape: Sequence[int], dim: int) -> int:
    """Elements in row-major order of the block of a reshape that begins with the operand's `dim`, in a shard."""
    block = next(b for b in blocks_of(op.operands[0].shape, op.result.shape) if dim in b.source)
    return math.prod(shape[d] for d in block.source)


def _needs(op: Op, rule: FactorRule, factor: int, axes: Axes) -> Sequence[Need]:
    if _is_kernel(rule, factor):
        dims = ConvolutionDims.of(op.attrs)
        spatial = next(i for i, d in enumerate(dims.rhs_spatial) if rule.operands[1][d] == (factor,))
        return (kernel_cover(op, spatial, axes).need,)
    dim = _result_dim(rule, factor)
    assert dim is not None
    return NEEDS[op.name](op, dim, axes)


def _is_kernel(rule: FactorRule, factor: int) -> bool:
    """Whether it is a spatial dim of a convolution's kernel, a part of which yields a part of each sum."""
    return rule.factors[factor].kind is FactorKind.WINDOW and rule.factors[factor].reduction is not None


def _result_dim(rule: FactorRule, factor: int) -> int | None:
    return next((d for d, factors in enumerate(rule.results[0]) if factors == (factor,)), None)
