"""Estimates what tensors have to receive if an op between them finds them with incompatible shardings.

This is an estimate for propagation, which knows neither machine nor plan: in bytes, for one axis at a time, and one op
at a time. The axis splits the factor, or none, for which the op's tensors receive least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.mesh import AxisRef
from ir.ops import OPS, FactorKind
from ir.program import Value
from ir.sharding import local_shape
from passes.cost.model import received_bytes
from passes.factors import factors_of_dims
from passes.propagation.nodes import Node, State


def bytes_between(node: Node, states: Mapping[Value, State], iterations: Mapping[Value, int]) -> float:
    """Bytes that a device receives so that the node's tensors can be sharded as `states` has them.

    What a loop computes in each iteration, `iterations` times, is received as often.
    """
    split: list[dict[AxisRef, int]] = []
    for position, (value, tensor) in enumerate(zip(node.tensors, node.relation.sides, strict=True)):
        found = factors_of_dims(node.relation.rule, tensor, node.axes(position, states[value]))
        split.append({axis: f for f, axes in found.items() for axis in axes})
    total, factors = 0.0, node.relation.rule.factors
    for axis in {axis for mine in split for axis in mine}:
        wanted = [mine.get(axis) for mine in split]
        splittable = (f for f in wanted if f is not None and factors[f].kind is not FactorKind.NEED_REPLICATION)
        at = (None, *dict.fromkeys(splittable))
        total += min(_bytes_along(node, axis, f, wanted, states, iterations) for f in at)
    return total


def _bytes_along(
    node: Node,
    axis: AxisRef,
    at: int | None,
    wanted: list[int | None],
    states: Mapping[Value, State],
    iterations: Mapping[Value, int],
) -> float:
    """The bytes that the tensors receive if the axis splits the factor `at` of the op, and the factors `wanted` of each
    tensor."""
    total = 0.0
    given = len(node.relation.rule.operands)
    for position, (value, tensor, f) in enumerate(zip(node.tensors, node.relation.sides, wanted, strict=True)):
        if f == at:
            continue
        has = any(at in dim for dim in tensor)
        whole = local_bytes(value, states[value]) * (axis.size if f is not None else 1)
        received = 0.0
        if position < given or not node.relation.rule.results:
            received = _moved(axis, whole, f is not None, has)
        if position >= given or not node.relation.rule.results:
            pending = at is not None and not has
            received = max(received, _reduced(axis, whole, f) if pending else _moved(axis, whole, has, f is not None))
        total += received * iterations.get(value, 1)
    return total


def _moved(axis: AxisRef, whole: float, is_split: bool, is_needed_split: bool) -> float:
    """The bytes to go from one dim split over the axis to another, or to none. Cutting a whole tensor takes none."""
    if not is_split:
        return 0.0
    kind = "all_to_all" if is_needed_split else "all_gather"
    return received_bytes(kind, axis.size, math.ceil(whole / axis.size))


def _reduced(axis: AxisRef, whole: float, f: int | None) -> float:
    """The bytes to reduce partial results over the axis, and to split the result's factor `f` over it, if any."""
    return received_bytes("all_reduce" if f is None else "reduce_scatter", axis.size, math.ceil(whole))


def repeating(nodes: Sequence[Node]) -> Mapping[Value, int]:
    """The values that are made elementwise of fewer elements than they have, such as a mask that is broadcast, and of
    how many: these are what is sent. The nodes are in the order of the program."""
    made_of: dict[Value, int] = {}
    for node in nodes:
        if node.op is None or len(node.op.results) != 1:
            continue
        opdef, result = OPS[node.op.name], node.op.result
        if not (opdef.made_anywhere or opdef.keeps_dims or opdef.family == "elementwise"):
            continue
        size = sum(made_of.get(v, v.type.size) for v in set(node.op.operands))
        if size < result.type.size:
            made_of[result] = size
    return made_of


def local_bytes(value: Value, state: State) -> float:
    """The size of a device's shard."""
    return value.dtype.nbytes * math.prod(local_shape(value.shape, state.axes))
