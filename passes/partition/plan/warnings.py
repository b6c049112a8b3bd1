"""The warnings of a plan: ops that exceed the memory limit (W002), and operands that are gathered because their op
cannot be split along their dims (W001)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ir.diagnostics import Diagnostic
from ir.ops import FactorRule
from ir.ops.opaque import is_opaque
from ir.program import Op, Value
from passes.factors import other_rules
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.splits import can_stay_split
from passes.partition.plan.values import Values
from passes.partition.strategy import Strategy
from passes.signatures import signature_of


@dataclass(eq=False, slots=True)
class Warnings:
    """The warnings of what was planned so far: of memory, and of gathers, once for each sharding that a value is
    `gathered` to."""

    found: list[Diagnostic] = field(default_factory=list[Diagnostic])
    gathered: set[tuple[Value, ClosedSharding]] = field(default_factory=set[tuple[Value, ClosedSharding]])

    def warn_of(self, op: Op, strategy: Strategy, values: Values, memory_limit: int) -> None:
        """Warns of the op, split by a strategy for which its operands are not resharded yet."""
        rule = signature_of(op).rule
        assert rule is not None
        if strategy.excess:
            self.found.append(_beyond_memory(op, strategy.excess, memory_limit))
        operands = [values.partitioned[v] for v in op.operands]
        for position, dim in _dims_needed_whole(op, rule, strategy, operands):
            key = value, sharding = op.operands[position], strategy.operands[position]
            moved, made_again = values.received(value, sharding)
            if moved and key not in self.gathered:
                self.gathered.add(key)
                how = f"dim {dim} is split ({operands[position].wanted.spell(values.facts.shardings.mesh)})"
                self.found.append(_gathers(op, value, how, moved, made_again=made_again))


def _beyond_memory(op: Op, excess: int, limit: int) -> Diagnostic:
    """W002: the op takes `excess` bytes more on each device than the limit."""
    return Diagnostic(
        "W002",
        f"{op.name} takes {limit + excess:,} bytes on each device, and the limit is {limit:,}",
        op.span,
        notes=("these are its operands and results, and what they are made from",),
        help="split its operands and results over more axes, or raise the limit",
        severity="warning",
    )


def _dims_needed_whole(
    op: Op, rule: FactorRule, strategy: Strategy, operands: Sequence[PartitionedValue]
) -> Iterator[tuple[int, int]]:
    """The operands, each with a dim, that lose axes because the op cannot be split along that dim."""
    for position, (partitioned, sharding) in enumerate(zip(operands, strategy.operands, strict=True)):
        if sharding in partitioned.shardings or partitioned.recompute is not None:
            continue
        views, split = (rule, *other_rules(op)), partitioned.wanted.axes
        for dim, axes in enumerate(split):
            lost = op.operands[position].shape[dim] > 1 and not sharding.used.issuperset(axes)
            if lost and not any(can_stay_split(op, view, position, split, dim) for view in views):
                yield position, dim


def _gathers(op: Op, value: Value, how: str, moved: int, *, made_again: bool) -> Diagnostic:
    """W001: each device receives `moved` bytes of an operand, which is split as `how` says, or of the values that it is
    `made_again` from."""
    name, way = op.name, f"split another dim of {value.name} before this op"
    if sum(size > 1 for size in value.shape) == 1:
        way = f"{value.name} has no other dim: reshape it to several rows, if {name} may work on each by itself"
    if is_opaque(op):
        name = f"{op.name} {op.attrs['target']}"
        if op.attrs["function"] is not None and not op.attrs["rule"]:
            way += ", or call it in jax.shard_map, with the shards of each device"
        else:
            way += f", or register its factors: spmdc.register_rule({op.attrs['target']!r}, …)"
    of_others = [f"the bytes are of what {value.name} is computed again from"] if made_again else []
    return Diagnostic(
        "W001",
        f"{name} gathers {value.name}: {moved} bytes to each device",
        op.span,
        notes=(f"{how}, and {name} works along it", *of_others),
        help=way,
        severity="warning",
    )
