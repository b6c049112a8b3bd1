"""Pads the groups of an op with groups of zeros if their number is not a multiple of the number of devices.

The groups and the features of each share a dim, whose shards must consist of whole groups. Shards of the usual size
need not. With the added groups they do, and the box exchanges of a pad and of a slice move features to the devices of
their groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import axes_size
from ir.ops import OPS
from ir.ops.declaration import Groups
from ir.program import Op, Value
from ir.types import TensorType
from passes.factors import factor_rule, factors_of_dims
from passes.partition.registry import Surroundings, rewrites

_MOST = 2
"""The largest factor by which the number of groups may grow."""


@rewrites(*(name for name, opdef in OPS.items() if opdef.groups is not None))
def with_even_groups(op: Op, at: Surroundings) -> Sequence[Op]:
    """Ops that compute the same; the op itself if its groups are a multiple of the devices."""
    groups_of = OPS[op.name].groups
    groups = groups_of(op) if groups_of is not None else None
    added = -groups.count % _devices(op, groups, at) if groups is not None else 0
    if groups is None or not added or added > (_MOST - 1) * groups.count:
        return (op,)
    b, result = RegionBuilder(span=op.span, cause=op.cause), op.result
    operands = [_with_groups(b, v, d, groups.count, added) for v, d in zip(op.operands, groups.dims, strict=True)]
    attrs = {**op.attrs, groups.name: groups.count + added}
    (more,) = b.append(op.name, operands, attrs, names=(result.name,), shardings=(result.sharding,))
    b.op("slice", more, name=result.name, start=(0,) * result.type.rank, limit=result.shape)
    return b.in_place_of(op)


def _devices(op: Op, groups: Groups, at: Surroundings) -> int:
    """The number that the groups must be a multiple of for their dims to stay split; 1 if they need no padding."""
    rule = factor_rule(op)
    assert rule is not None
    devices, some_lost = 1, False
    for value, tensor in zip((*op.operands, op.result), (*rule.operands, *rule.results), strict=True):
        for factors, axes in zip(tensor, at.wanted(value).axes, strict=True):
            if len(factors) < 2:
                continue
            found = factors_of_dims(rule, (factors,), (axes,))
            lost = sum(map(len, found.values())) < len(axes)
            devices = math.lcm(devices, axes_size(axes if lost else found.get(groups.factor, ())))
            some_lost = some_lost or lost
    return devices if some_lost else 1


def _with_groups(b: RegionBuilder, x: Value, dim: int, groups: int, added: int) -> Value:
    """The tensor with groups added behind those of a dim."""
    zero = b.op("constant", name="fill", value=0, type=TensorType((), x.dtype))
    high = tuple(added * (n // groups) if d == dim else 0 for d, n in enumerate(x.shape))
    return b.op("pad", x, zero, name=x.name, sharding=x.sharding, low=(0,) * x.type.rank, high=high)
