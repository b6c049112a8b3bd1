"""The differences between two plans of a program, and their costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.ops.resharding import is_reshard
from ir.program import Program, Value, walk
from ir.spelling.printer import print_attrs, print_mesh, print_type
from passes.partition.write.cost import OpCost, PlanCost
from spmdc.reports.cost_text import cost_text, sum_text


def plan_differences(programs: tuple[Program, Program], costs: tuple[PlanCost, PlanCost]) -> str:
    """A line for each op that differs between two plans, and their total costs."""
    rows = [_rows(program, cost) for program, cost in zip(programs, costs, strict=True)]
    lines: list[str] = []
    for key in dict.fromkeys((*rows[0], *rows[1])):
        pair = [side.get(key, []) for side in rows]
        same = {row.details for row in pair[0]} & {row.details for row in pair[1]}
        for mark, side, others in zip("-+", pair, reversed(pair), strict=True):
            lines.extend(f"{mark} {row.shown(others)}" for row in side if row.details not in same)
    sums = [sum_text(c) for c in costs]
    return "\n".join([*(lines or ["the plans are the same"]), f"- {sums[0]}", f"+ {sums[1]}"])


@dataclass(frozen=True, slots=True)
class _Row:
    """Something of a plan: in `text` as it is shown where that differs, in `details` with all that may. Values are
    called as in the source there, without the numbers that a plan adds to their names."""

    text: str
    details: str
    cost: OpCost | None = None

    def shown(self, others: Sequence[_Row]) -> str:
        text = self.details if any(row.text == self.text for row in others) else self.text
        return text if self.cost is None else f"{text}  # {cost_text(self.cost)}"


def _rows(program: Program, cost: PlanCost) -> Mapping[tuple[str, str], list[_Row]]:
    """The meshes, the signatures and the ops of a plan, by the function and what they declare or make."""
    found: dict[tuple[str, str], list[_Row]] = {}

    def add(where: str, what: str, text: str, details: str, cost: OpCost | None = None) -> None:
        found.setdefault((where, what), []).append(_Row(text, details, cost))

    for mesh in program.meshes:
        add("", mesh.name, print_mesh(mesh), print_mesh(mesh))
    for function in program.functions.values():
        for param in function.params:
            text = f"parameter {param.name}: {print_type(param.type, param.sharding)}"
            add(function.name, f"parameter {param.name}", text, text)
        for result, value in zip(function.results, function.body.results, strict=True):
            text = f"result {result.name}: {print_type(result.type, result.sharding)}"
            add(function.name, f"result {result.name}", text, f"{text} = {_plain(value)}")
        for op in walk(function.body):
            made = op.operands[0].name if is_reshard(op) else ", ".join(v.name for v in op.results)
            how = f"reshard({op.attrs['steps']})" if is_reshard(op) else f"{op.name} {op.strategy}".rstrip()
            given = ", ".join([*map(_plain, op.operands), print_attrs(op, program.meshes)])
            types = ", ".join(print_type(v.type, v.sharding) for v in op.results)
            returned = "".join(f"; returns {', '.join(map(_plain, region.results))}" for region in op.regions)
            details = f"{made}: {types} = {op.name}({given.strip(', ')}) {op.strategy}".rstrip() + returned
            if is_reshard(op):
                details = f"{made}: {how}"
            add(function.name, made, f"{made}: {how}", details, cost.ops.get(op, OpCost(0.0, 0, 0)))
    return found


def _plain(value: Value) -> str:
    """The name of a value without the number that a plan added to it."""
    return re.sub(r"(\.\d+)+$", "", value.name)
