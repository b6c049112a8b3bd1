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
from ir.ops import FactorRule
from ir.ops.rules import int_attr, ints_attr
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


NEEDS: dict[str, Needs] = {
    "concatenate": concatenate_needs,
    "pad": pad_needs,
    "reshape": reshape_needs,
    "reverse": reverse_needs,
    "slice": slice_needs,
}
"""Ops that exchange boxes."""

SCANS = ("cumsum", "cummax", "cummin", "cumprod")
"""Ops that add up what the devices before hold."""


def can_split_along(op: Op, rule: FactorRule, factor: int) -> bool:
    """Whether the op can be split along a WINDOW or SCAN factor."""
    return op.name in SCANS or (op.name in NEEDS and _result_dim(rule, factor) is not None)


def seconds_along(op: Op, rule: FactorRule, factor: int, axes: Axes, operands: Sequence[Layout]) -> float:
    """Time of the communication that splitting such a factor over `axes` takes, beyond bringing operands there."""
    devices = axes_size(axes)
    if op.name in SCANS:
        shape = operands[0].local_shape(op.operands[0].shape)
        total = math.prod(shape) // max(1, shape[int_attr(op.attrs, "dim")]) * op.operands[0].dtype.nbytes
        return communication_seconds("all_gather", devices, total)
    dim = _result_dim(rule, factor)
    assert dim is not None
    seconds = 0.0
    for need in NEEDS[op.name](op, dim, axes):
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


def _result_dim(rule: FactorRule, factor: int) -> int | None:
    return next((d for d, factors in enumerate(rule.results[0]) if factors == (factor,)), None)
