"""How the values of a program's entry are sharded, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ir.program import Program, Value
from ir.spelling.printer import print_type
from passes.propagation.reasons import Propagated, Reason
from spmdc.reports.why import spell_value


@dataclass(frozen=True, slots=True)
class Placement:
    """A value, its type with its sharding, and the reason in a few words."""

    name: str
    type: str
    is_annotated: bool
    because: str


def placements(source: Program, propagated: Propagated) -> list[Placement]:
    """The parameters and results of ops of the entry, in program order. `source` is the program before propagation."""
    before, after = source.main.body, propagated.program.main.body
    values = [*zip(before.params, after.params, strict=True)]
    for op, placed in zip(before.ops, after.ops, strict=True):
        values.extend(zip(op.results, placed.results, strict=True))
    return [_placement(source.entry, value, placed, propagated) for value, placed in values]


def _placement(function: str, value: Value, placed: Value, propagated: Propagated) -> Placement:
    shown = print_type(placed.type, placed.sharding)
    if value.sharding is not None:
        return Placement(value.name, shown, True, f"annotated{_line(value)}")
    reasons = [r for dim in range(value.type.rank) for r in propagated.reasons.get(((function, value.name), dim), ())]
    because = "; ".join(dict.fromkeys(_because(r) for r in reasons))
    return Placement(value.name, shown, False, because or "nothing asks for a split")


def _because(reason: Reason) -> str:
    if reason.source is None:
        return reason.how
    return f"{reason.how} from {spell_value(reason.source)}"


def _line(value: Value) -> str:
    return f", line {value.span.line}" if value.span is not None else ""
