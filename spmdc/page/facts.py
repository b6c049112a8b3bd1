"""The contents of a page about a partitioned program, from plans, costs and reasons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ir.diagnostics import Source, Span, SpmdcError
from ir.ops.resharding import is_reshard
from ir.program import Op, Program, Value, all_ops, values_within
from ir.spelling.printer import print_sharding, print_type
from passes.partition.write.cost import PlanCost
from spmdc.api import PartitionedProgram, partition, plan
from spmdc.page.charts import exchange
from spmdc.pictures.boxes import boxes
from spmdc.pictures.halos import halos
from spmdc.pictures.picture import picture_of
from spmdc.plans import Plan
from spmdc.reports.collectives import Collective
from spmdc.reports.cost import Cost, CostRow, costs_of
from spmdc.reports.groups import By
from spmdc.reports.why import explanation

_MOST_EXPLAINED = 10
"""The most reshards whose alternatives are computed. Each takes as long as a few plans."""
_MOST_EXPLAINED_OPS = 2_000
_MOST_PICTURES = 400
_MOST_HALOS = 40
_MOST_REASONS = 1_000
_MOST_LINES_OF_REASONS = 24


@dataclass(frozen=True)
class Tensor:
    """A value of a line: its type with its sharding, the reasons, and its placement on the devices."""

    name: str
    type: str
    why: str
    picture: str


@dataclass(frozen=True)
class Line:
    """A line of the source, and the cost of its ops."""

    number: int
    text: str
    tensors: tuple[Tensor, ...] = ()
    seconds: float = 0.0
    received: int = 0
    alive: int = 0


@dataclass(frozen=True)
class Move:
    """A reshard of the plan: its purpose, the value's placements before and after, and the alternatives for the op that
    needs it."""

    value: str
    line: str
    cause: str
    steps: str
    before: str
    after: str
    pictures: tuple[str, str]
    boxes: str
    exchange: str
    seconds: float
    received: int
    alternatives: str


@dataclass
class Facts:
    """A program, its plan and the partitioned program."""

    program: Program
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def plan(self) -> Plan:
        return plan(self.program, **self.options, verify=self.program.stage == "plan")

    @cached_property
    def partitioned(self) -> PartitionedProgram:
        return partition(self.plan, verify=False)

    @cached_property
    def plan_cost(self) -> PlanCost:
        return self.plan.cost()

    @cached_property
    def costs(self) -> Mapping[By, Cost]:
        """The cost by line, kind of op and mesh axis, the slowest first."""
        machine = self.plan.options.machine
        return costs_of(self.partitioned.program, machine, ("line", "kind", "axis"), self.partitioned.source)

    @property
    def cost(self) -> Cost:
        return self.costs["line"]

    @cached_property
    def trace(self) -> dict[str, Any]:
        return dict(self.partitioned.trace())

    @cached_property
    def collectives(self) -> list[Collective]:
        return self.partitioned.collectives()

    # Lines.

    @cached_property
    def sources(self) -> list[Source]:
        """The files that ops come from and whose text is known, the program's own first."""
        own = [self.program.source] if self.program.source is not None else []
        spans = (op.span for op in all_ops(self.program) if op.span is not None)
        found = {s.name: s for s in (*own, *(span.source for span in spans)) if s.text is not None}
        return list(found.values())

    @cached_property
    def _rows_of_lines(self) -> Mapping[str, CostRow]:
        return {row.what: row for row in self.cost.rows}

    @cached_property
    def _alive_of_lines(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for op, cost in self.plan_cost.ops.items():
            if op.span is not None:
                found[_place(op.span)] = max(found.get(_place(op.span), 0), cost.alive)
        return found

    @cached_property
    def _values_of_lines(self) -> Mapping[str, list[tuple[str, Value]]]:
        """The values that each line names, and the parameters of functions, each once."""
        found: dict[str, dict[str, tuple[str, Value]]] = {}
        for function in self.partitioned.propagated.program.functions.values():
            for value in values_within(function.body):
                if value.span is not None and "." not in value.name:
                    place = found.setdefault(_place(value.span), {})
                    place.setdefault(value.name, (function.name, value))
        return {place: list(values.values()) for place, values in found.items()}

    def lines(self, source: Source) -> Iterator[Line]:
        """Every line of a file."""
        for number, text in enumerate((source.text or "").splitlines(), 1):
            place = f"{source.name}:{number}"
            row = self._rows_of_lines.get(place)
            tensors = tuple(self._tensor(*named) for named in self._values_of_lines.get(place, ()))
            figures = (row.seconds, row.received) if row is not None else (0.0, 0)
            yield Line(number, text, tensors, *figures, self._alive_of_lines.get(place, 0))

    @cached_property
    def _drawn(self) -> dict[str, int]:
        """The number of pictures and reasons: in larger programs, later lines have none."""
        return {"pictures": 0, "reasons": 0}

    def _tensor(self, function: str, value: Value) -> Tensor:
        program = self.partitioned.propagated.program
        why = ""
        if self._counts("reasons", _MOST_REASONS):
            reasons = explanation(self.partitioned.propagated, (function, value.name), value)
            _, *found = itertools.islice(reasons, _MOST_LINES_OF_REASONS + 2)
            more = [f"  … `spmdc why` has all of {value.name}"] * (len(found) > _MOST_LINES_OF_REASONS)
            why = "\n".join([*found[:_MOST_LINES_OF_REASONS], *more])
        drawing = picture_of(program, value).svg() if self._counts("pictures", _MOST_PICTURES) else ""
        return Tensor(value.name, print_type(value.of or value.type, value.sharding), why, drawing)

    def _counts(self, what: str, most: int) -> bool:
        self._drawn[what] += 1
        return self._drawn[what] <= most

    # Communication.

    def halos(self) -> list[tuple[str, str]]:
        """The purposes of the entry's halo exchanges, and pictures of them."""
        is_small = sum(1 for _ in all_ops(self.program)) <= _MOST_EXPLAINED_OPS
        found = itertools.islice(halos(self.partitioned.program) if is_small else (), _MOST_HALOS)
        drawn = ((halo.title, halo.svg()) for halo in found)
        return [(title, drawing) for title, drawing in drawn if drawing]

    def moves(self) -> list[Move]:
        """The reshards of the plan that communicate, the slowest first."""
        ops = [op for op in all_ops(self.plan.program) if is_reshard(op) and self.plan_cost.ops[op].received]
        ops.sort(key=lambda op: -self.plan_cost.ops[op].seconds)
        is_small = sum(1 for _ in all_ops(self.program)) <= _MOST_EXPLAINED_OPS
        explained: dict[str, str] = {}
        return [self._move(op, explained, is_small and i < _MOST_EXPLAINED) for i, op in enumerate(ops)]

    def _move(self, op: Op, explained: dict[str, str], is_explained: bool) -> Move:
        operand, cost, program = op.operands[0], self.plan_cost.ops[op], self.plan.program
        needed = op.cause.name if op.cause is not None else ""
        if is_explained and needed and needed not in explained:
            explained[needed] = self._alternatives(needed)
        shown = self._counts("pictures", _MOST_PICTURES)
        before, after = (picture_of(program, v) for v in (operand, op.result))
        drawn = (before.svg(), after.svg()) if shown else ("", "")
        is_moved = shown and not any(v.sharding is not None and v.sharding.partial for v in (operand, op.result))
        itemsize = operand.dtype.nbytes
        return Move(
            operand.name,
            _place(op.span) if op.span is not None else "",
            str(op.cause or ""),
            str(op.attrs["steps"]),
            _spelt(operand),
            _spelt(op.result),
            drawn,
            boxes(before.placement, after.placement) if is_moved else "",
            exchange(before.placement, after.placement, itemsize) if is_moved else "",
            cost.seconds,
            cost.received,
            explained.get(needed, "") if is_explained else "",
        )

    def _alternatives(self, name: str) -> str:
        """The possible strategies of the op that makes a value; empty for one without strategies."""
        try:
            return str(self.plan.explain(name))
        except SpmdcError:
            return ""


def _place(span: Span) -> str:
    return f"{span.source.name}:{span.line}"


def _spelt(value: Value) -> str:
    return print_sharding(value.sharding) if value.sharding is not None else ""
