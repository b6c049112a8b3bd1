"""The shardings of what a loop computes its next values from, if these are carried in other shardings than propagated.

Propagation has one sharding for a carried value and for all that goes with it, such as the parts of inputs that are
added to it. Where a loop carries the value in another one, those parts are wanted in that one too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ir.ops.layout import is_annotation
from ir.program import Region, Value
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.recompute import is_made_of_parts
from passes.partition.plan.wanted_by_users import read_for
from passes.signatures import signature_of


def wanted_with(
    body: Region,
    carried: Mapping[int, ClosedSharding],
    wanted: Callable[[Value], ClosedSharding],
    annotated: Collection[str],
) -> Mapping[Value, ClosedSharding]:
    """The shardings in which the values of a body are wanted, if its results are carried in those: of the results, and
    of what they are made from by ops that combine elements at one place, or arrange them in another way. It has only
    those that are `wanted` otherwise; for a value that is reached in two ways, the first. Values whose names are
    `annotated` keep their shardings, and so do those that would only be gathered: what is made of them is gathered
    rather than each of these."""
    makers = {v: op for op in body.ops for v in op.results}
    found: dict[Value, ClosedSharding] = {}
    pending = [(body.results[i], sharding) for i, sharding in carried.items() if sharding.is_plain]
    while pending:
        value, sharding = pending.pop()
        op, now = makers.get(value), wanted(value)
        if op is None or value in found or _is_gathered(now, sharding):
            continue
        if is_annotation(op) or value.name in annotated:
            continue
        found[value] = sharding
        rule = signature_of(op).rule
        if rule is not None and len(op.results) == 1 and is_made_of_parts(op):
            pending.extend((v, read_for(sharding, rule, i, wanted(v))) for i, v in enumerate(op.operands))
    return found


def _is_gathered(now: ClosedSharding, sharding: ClosedSharding) -> bool:
    """Whether a tensor has this sharding already, or is only gathered to have it."""
    return all(have[: len(axes)] == axes for have, axes in zip(now.axes, sharding.axes, strict=True))
