"""What it takes to split an op along a dim in which its elements depend on their neighbours.

A factor of kind WINDOW or SCAN can be split if its op has an entry here, which says what that costs; the op's file in
this folder writes it. `Need` is the common form: the box of an operand that a device needs to compute its shard of
the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.mesh import axes_size
from ir.ops import FactorKind, FactorRule
from ir.ops.convolution import ConvolutionDims, convolution_windows
from ir.ops.rules import int_attr, ints_attr
from ir.ops.window import Window, window_of
from ir.program import Op
from ir.sharding import shard_size
from passes.blocks import blocks_of, leading
from passes.cost import communication_seconds
from passes.partition.exchange import Box, exchange_seconds
from passes.partition.local import Axes, Layout


@dataclass(frozen=True, slots=True)
class Need:
    """Of dim `dim` of operand `operand`, dilated by `dilation`, each device needs a box.

    Nothing from `limit` on is needed: boxes that reach there belong to the padding of an uneven result.
    """

    operand: int
    dim: int
    box: Box
    dilation: int = 1
    limit: int | None = None

    def extent(self, n: int) -> int:
        """How many elements of a dim of size n the boxes are of."""
        n = dilated(n, self.dilation)
        return n if self.limit is None else min(n, self.limit)


Needs = Callable[[Op, int, Axes], Sequence[Need]]
"""The needs of an op whose result is split over axes along one of its dims."""


def dilated(n: int, dilation: int) -> int:
    """The size of a dim whose elements are set `dilation` apart."""
    return (n - 1) * dilation + 1 if n else 0


def slice_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result is every stride-th element of a box."""
    size = shard_size(op.result.shape[dim], axes)
    stride = (ints_attr(op.attrs, "stride") or (1,) * (dim + 1))[dim]
    start = ints_attr(op.attrs, "start")[dim]
    last = start + stride * (op.result.shape[dim] - 1)
    return (Need(0, dim, Box(start, stride * size, max(0, stride * (size - 1) + 1)), limit=last + 1),)


def pad_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result is a box of the operand, shifted by the padding before it."""
    size = shard_size(op.result.shape[dim], axes)
    gap = (ints_attr(op.attrs, "interior") or (0,) * (dim + 1))[dim]
    return (Need(0, dim, Box(-ints_attr(op.attrs, "low")[dim], size, size), gap + 1),)


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


def cover(operand: int, dim: int, box: Box, dilation: int) -> Cover:
    """How a device gets a box of a dim whose elements are set `dilation` apart (GShard, section A.4, Figure 13).

    Where boxes begin alike between two elements, only elements travel and the op makes the holes, after a padding that
    is the same everywhere. Otherwise shards are dilated before the exchange.
    """
    if dilation == 1 or box.size == 0 or box.step % dilation:
        return Cover(Need(operand, dim, box, dilation))
    first, last = -(-box.start // dilation), (box.start + box.size - 1) // dilation
    count = max(1, last - first + 1)
    low = first * dilation - box.start
    high = box.size - low - dilated(count, dilation)
    return Cover(Need(operand, dim, Box(first, box.step // dilation, count)), low, high, dilation)


def window_cover(operand: int, dim: int, window: Window, size: int) -> Cover:
    """The elements that `size` windows see, on each device the next ones; of no windows none."""
    length = window.stride * (size - 1) + window.extent if size else 0
    return cover(operand, dim, Box(-window.low, window.stride * size, length), window.base_dilation)


def reduce_window_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result has as many windows as elements."""
    size = shard_size(op.result.shape[dim], axes)
    return (window_cover(0, dim, window_of(op)[dim], size).need,)


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
    chunk = shard_size(op.result.shape[dim], axes)
    stride, holes = (window.stride, 1) if chunk % window.stride == 0 else (1, window.stride)
    first = (window.low - window.size) // stride + 1
    last = (chunk + window.low - 1) // stride
    count = max(1, last - first + 1)
    begin, length = stride * first - window.low, stride * (count - 1) + window.size
    start, end = min(begin, 0), max(begin + length, chunk)
    return Touching(
        Need(0, dim, Box(start, chunk, end - start)),
        Need(1, dim, Box(first, chunk // stride, count), holes),
        stride,
        -start,
        start - begin,
        begin + length - end,
    )


def select_and_scatter_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result adds up what the windows that touch it scatter."""
    found = touching(op, dim, axes)
    return found.operand, found.source


def convolution_needs(op: Op, dim: int, axes: Axes) -> Sequence[Need]:
    """A shard of the result has as many windows as elements; all of the kernel is there."""
    dims = ConvolutionDims.of(op.attrs)
    spatial = dims.out_spatial.index(dim)
    window = convolution_windows(op.attrs, op.operands[1].shape)[spatial]
    return (window_cover(0, dims.lhs_spatial[spatial], window, shard_size(op.result.shape[dim], axes)).need,)


def kernel_cover(op: Op, spatial: int, axes: Axes) -> Cover:
    """What a part of the kernel sees of lhs in all windows of a spatial dim."""
    dims = ConvolutionDims.of(op.attrs)
    window = convolution_windows(op.attrs, op.operands[1].shape)[spatial]
    size, count = shard_size(window.size, axes), op.result.shape[dims.out_spatial[spatial]]
    length = window.stride * (count - 1) + dilated(size, window.dilation) if count else 0
    start, step = -window.low, size * window.dilation
    if any(ints_attr(op.attrs, "window_reversal")[spatial : spatial + 1]):
        start, step = start + (window.size - size) * window.dilation, -step
    return cover(0, dims.lhs_spatial[spatial], Box(start, step, length), window.base_dilation)


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
    devices = axes_size(axes)
    if op.name in SCANS:
        shape = operands[0].local_shape(op.operands[0].shape)
        total = math.prod(shape) // max(1, shape[int_attr(op.attrs, "dim")]) * op.operands[0].dtype.nbytes
        return communication_seconds("all_gather", devices, total)
    seconds = 0.0
    for need in _needs(op, rule, factor, axes):
        value = op.operands[need.operand]
        shape = operands[need.operand].local_shape(value.shape)
        n, chunk = need.extent(value.shape[need.dim]), shape[need.dim] * need.dilation
        if op.name == "reshape":
            n, chunk = (run_length(op, s, need.dim) for s in (value.shape, shape))
        row = math.prod(shape) // max(1, chunk) * need.dilation * value.dtype.nbytes
        seconds += exchange_seconds(n, axes, need.box, row, chunk)
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
