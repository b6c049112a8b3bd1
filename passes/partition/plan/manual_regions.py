"""Manual regions: their bodies are partitioned along the free axes (GShard, section 3.2).

Values cross the boundary without communication: a shard along the manual axes, split further along free ones, is the
same on both sides. There is one exception. If the manual axes cut a dim unevenly, cutting it along manual and free axes
at once, as around the region, gives other shards than one cut after the other. Such a dim is not split along free axes
where it crosses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.manual import Manual, region_axes
from ir.mesh import Axes
from ir.program import Op, Value
from ir.sharding import Sharding
from ir.types import TensorType
from passes.partition.closed_sharding import ClosedSharding, is_aligned
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.planner import Planner, partitions_region


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A value at the boundary, with its sharding on the mesh around the region and on the free axes inside."""

    outside: ClosedSharding
    inside: ClosedSharding


@partitions_region("manual")
def manual(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Reshards the operands to the shardings that the region takes, and what it returns to those of its results."""
    (region,) = op.regions
    axes = region_axes(op)
    inner = RegionBuilder(b.names)
    p.draft.times[inner] = p.draft.runs(b)
    operands: list[Value] = []
    for operand, param in zip(op.operands, region.params, strict=True):
        assert param.of is not None
        crossing = _crossing(p, param.sharding, param.of, axes)
        cause = Cause("manual_operand", op.name, name=param.name)
        operands.append(p.values.reshard_to(operand, crossing.outside, op.span, cause))
        own = inner.param(param.name, param.type, p.shardings.spelled(crossing.outside), span=param.span, of=param.of)
        p.values.partitioned[param] = PartitionedValue(param, crossing.inside, {crossing.inside: own}, inner)
    p.ops(inner, region.ops)
    results: list[Value] = []
    outs: list[tuple[Value, ClosedSharding]] = []
    for returned, result in zip(region.results, op.results, strict=True):
        crossing = _still_partial(p, returned, _crossing(p, result.sharding, result.type, axes))
        cause = Cause("manual_result", op.name, name=result.name)
        results.append(p.values.reshard_to(returned, crossing.inside, op.span, cause))
        outs.append((result, crossing.outside))
    p.add_whole(b, op, operands, outs, regions=(inner.region(*results),))


def _still_partial(p: Planner, returned: Value, wanted: _Crossing) -> _Crossing:
    """The wanted crossing, with reductions along free axes pending if the value exists only so, so that other values
    may be added before the reduction."""
    shardings = p.values.partitioned[returned].shardings
    if wanted.inside in shardings:
        return wanted
    for have in shardings:
        pending = (*wanted.outside.partial, *have.partial)
        if have.partial and have.without_partial() == wanted.inside and len({kind for _, kind in pending}) == 1:
            return _Crossing(replace(wanted.outside, partial=p.sub_axes.in_order(pending)), have)
    return wanted


def _crossing(p: Planner, sharding: Sharding | None, type: TensorType, manual: Manual) -> _Crossing:
    closed = p.shardings.closed(sharding, type)
    outside: list[Axes] = []
    inside: list[Axes] = []
    for n, axes in zip(type.shape, closed.axes, strict=True):
        own = tuple(a for a in axes if a.name in manual)
        free = axes[len(own) :]
        crosses = is_aligned(n, own, free)
        outside.append(axes if crosses else own)
        inside.append(free if crosses else ())
    pending = tuple((a, kind) for a, kind in closed.partial if a.name not in manual)
    return _Crossing(
        ClosedSharding(tuple(outside), closed.partial, closed.order), ClosedSharding(tuple(inside), pending)
    )
