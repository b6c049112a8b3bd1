"""argmax and argmin over split dims, which compare the candidates of the devices, and scans, which continue from device
to device: only the totals of earlier shards are sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_in_groups
from ir.ops.layout import slice_along
from ir.ops.reduction import COMBINES, CUMULATIVE, identity_of, reduction_kind
from ir.ops.rule_helpers import int_attr
from ir.program import Op, Value
from ir.types import s32
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.context import OpContext
from passes.partition.exchange.candidates import exchanged_candidates, groups_of_candidates
from passes.partition.exchange.halo import GATHER_FANOUT
from passes.partition.registry import partitions
from passes.partition.shards import mask, shard_index, splat, uneven_dims
from passes.partition.strategy import candidate_axes


@partitions("reduce")
def reduce(c: OpContext) -> Sequence[Value]:
    """Sums and the like stay partial. For argmax and argmin the candidates of a few devices at a time are gathered and
    reduced again, so that what a device receives grows with the logarithm of the number of devices; or each device gets
    the candidates of a part of the result."""
    if reduction_kind(c.op.attrs) is not None:
        return c.emit(*c.operands, **c.op.attrs)
    axes = candidate_axes(c.rule, dict(c.strategy.factors))
    results = c.emit(*_without_padding(c), **c.op.attrs)
    if not axes:
        return results
    for group in groups_of_candidates(c.strategy, axes):
        with c.because("candidates", group, *c.op.operands):
            rows = [c.builder.op("reshape", v, name=v.name, shape=(1, *v.shape)) for v in results]
            candidates = exchanged_candidates(c.builder, c.rule, c.strategy, rows, group, 0)
            results = c.emit(*candidates, dims=(0,), kind=c.op.attrs["kind"])
    return results


def _without_padding(c: OpContext) -> list[Value]:
    """The operands with padding of the reduced dims masked: values that lose every comparison, and indices that lose
    every tie."""
    kept = {f for tensor in c.rule.results for dim in tensor for f in dim}
    largest = c.op.attrs["kind"] == "argmax"
    masked: list[Value] = []
    for i, (value, sharding, local) in enumerate(zip(c.op.operands, c.strategy.operands, c.operands, strict=True)):
        dims = [d for d in uneven_dims(value.shape, sharding) if c.rule.operands[i][d][0] not in kept]
        worst = value.dtype.lowest if largest and i == 0 else value.dtype.highest
        masked.append(mask(c.builder, local, c.op, i, sharding, dims, worst))
    return masked


def scan_seconds(machine: Machine, op: Op, axes: Axes, operand: ClosedSharding) -> float:
    """Time of exchanging the totals of a scan whose dim is split over `axes`."""
    shape = operand.local_shape(op.operands[0].shape)
    totals = math.prod(shape) // max(1, shape[int_attr(op.attrs, "dim")])
    total = math.ceil(totals * op.operands[0].dtype.nbytes)
    groups = axes_in_groups(axes, GATHER_FANOUT)
    return sum(communication_seconds(machine, "all_gather", group, total) for group in groups)


@partitions(*CUMULATIVE, scan_seconds=scan_seconds)
def scan(c: OpContext) -> Sequence[Value]:
    """Scans locally, then adds up the totals of the devices before (after, in reverse), a few at a time: first of
    neighbouring devices, then of groups of them."""
    dim, reverse = int_attr(c.op.attrs, "dim"), bool(c.op.attrs["reverse"])
    sharding, shape = c.strategy.operands[0], c.op.operands[0].shape
    axes = sharding.axes[dim]
    if not axes or 0 in c.operands[0].shape:
        return c.emit(c.operands[0], **c.op.attrs)
    b, x = c.builder, c.operands[0]
    kind = CUMULATIVE[c.op.name]
    combine = COMBINES[kind]
    neutral = identity_of(kind, x.dtype)
    if dim in uneven_dims(shape, sharding):
        x = mask(b, x, c.op, 0, sharding, (dim,), neutral)
    (local,) = c.emit(x, **c.op.attrs)
    total = _last(b, local, dim, at=0 if reverse else local.shape[dim] - 1)
    before: Value | None = None
    for group in axes_in_groups(axes, GATHER_FANOUT):
        with c.because("totals", group, *c.op.operands):
            totals = b.op("all_gather", total, name="totals", axes=group, dim=0)
            index = b.op("broadcast_in_dim", shard_index(b, group), name="index", shape=totals.shape, dims=())
            number = b.op("iota", name="number", type=totals.type.with_dtype(s32), dim=0)
            counts = b.op("compare", number, index, name="counts", direction="GT" if reverse else "LT")
            some = b.op("select", counts, totals, splat(b, neutral, totals.type), name="totals")
            found = b.op("reduce", some, name="before", dims=(0,), kind=kind)
            before = found if before is None else b.op(combine, found, before, name="before")
            total = b.op("reduce", totals, name="total", dims=(0,), kind=kind)
            total = b.op("reshape", total, name="total", shape=(1, *total.shape))
    assert before is not None
    kept = tuple(d for d in range(local.type.rank) if d != dim)
    before = b.op("broadcast_in_dim", before, name="before", shape=local.shape, dims=kept)
    return (b.op(combine, before, local, name=c.op.result.name),)


def _last(b: RegionBuilder, scanned: Value, dim: int, at: int) -> Value:
    """The last element of a device's scan, at `at`, with a new first dim of size 1 and without `dim`."""
    total = b.op("slice", scanned, name="total", **slice_along(scanned.shape, dim, at, at + 1))
    rest = tuple(n for d, n in enumerate(scanned.shape) if d != dim)
    return b.op("reshape", total, name="total", shape=(1, *rest))
