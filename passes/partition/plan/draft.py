"""The plan in the making: ops of global shapes, in the builders of their regions, with the time that they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.diagnostics import Span
from ir.ops import OPS, FactorRule
from ir.ops.control import is_call
from ir.program import Attr, Op, Region, Value, callee_of, walk
from passes.cost.model import cost_of_regions
from passes.partition.closed_sharding import ClosedSharding, Shardings
from passes.partition.plan.versions import Versions
from passes.partition.spelling import spell_strategy
from passes.partition.strategy import Strategy
from passes.signatures import hand_on_signature


class TooSlowError(Exception):
    """What was added to a draft takes longer than the draft's limit."""


@dataclass(eq=False, slots=True)
class Draft:
    """Ops that were planned so far. It knows nothing of the program's values, only of those of the plan."""

    shardings: Shardings
    versions: Versions
    spellings: dict[int, tuple[Strategy, str]]
    """Strategies as ops of the plan have them, by the ids of the strategies, along with these."""
    limit: float = math.inf
    """The most seconds that the draft may take."""
    times: dict[RegionBuilder, float] = field(default_factory=dict[RegionBuilder, float])
    """How often regions run for each run of their function. Those that run once may be missing."""
    spent: dict[Op, float] = field(default_factory=dict[Op, float])
    """The time of each op that takes some, on one device."""
    sending: set[Op] = field(default_factory=set[Op])
    """The ops that communicate."""
    planned_seconds: float = 0.0
    """A lower bound of the time of all ops so far, each as often as it runs. Calls, and branches that may not run, are
    left out."""

    def runs(self, b: RegionBuilder) -> float:
        """How often a region runs for each run of its function."""
        return self.times.get(b, 1.0)

    def add(
        self,
        b: RegionBuilder,
        name: str,
        operands: Sequence[Value],
        outs: Sequence[tuple[Value, ClosedSharding]],
        attrs: Mapping[str, Attr],
        *,
        span: Span | None,
        cause: Cause | None,
        regions: tuple[Region, ...] = (),
        strategy: str = "",
        seconds: float = 0.0,
    ) -> tuple[Value, ...]:
        """Adds an op. `outs` has values like its results, with their shardings. Raises TooSlowError if the draft then
        takes longer than its limit."""
        results = tuple([Value(b.names.fresh(v.name), v.type, self.shardings.spelled(at), span) for v, at in outs])
        op = Op(name, tuple(operands), results, attrs, regions, span, cause, strategy)
        b.ops.append(op)
        if seconds:
            self.spent[op] = seconds
            self.planned_seconds += seconds * self.times.get(b, 1.0)
            if self.planned_seconds > self.limit:
                raise TooSlowError
        return results

    def add_split(
        self, b: RegionBuilder, op: Op, rule: FactorRule, strategy: Strategy, operands: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Adds an op of the program, split by a strategy. The operands have the shardings that the strategy needs."""
        outs = tuple(zip(op.results, strategy.results, strict=True))
        _, spelled = self.spellings.get(id(strategy), (strategy, None))
        if spelled is None:
            spelled = spell_strategy(self.shardings.mesh, op, rule, strategy)
            self.spellings[id(strategy)] = strategy, spelled
        results = self.add(
            b, op.name, operands, outs, op.attrs, span=op.span, cause=op.cause, strategy=spelled, seconds=strategy.alone
        )
        hand_on_signature(op, b.ops[-1])
        if strategy.sends:
            self.sending.add(b.ops[-1])
        return results

    def param(self, b: RegionBuilder, value: Value, sharding: ClosedSharding, name: str = "") -> Value:
        """A parameter for a value of the program in that sharding. A given name is used as it is."""
        named = name or value.name
        return b.param(named, value.type, self.shardings.spelled(sharding), span=value.span, is_taken=bool(name))

    def sends(self, op: Op) -> bool:
        """Whether an op, or one inside it or in a function that it calls, communicates."""
        sending, silent = self.sending, self.versions.silent
        return any(
            inner in sending
            or OPS[inner.name].family in ("host", "collective")
            or (is_call(inner) and callee_of(inner) not in silent)
            for inner in walk(Region((), (op,), ()))
        )

    def seconds(self, ops: Sequence[Op]) -> float:
        """The time of ops of the plan on one device, one after another. The slowest branch of a case counts. The
        overhead of loops is left out, since it is the same however a loop is planned."""
        return sum(map(self._seconds_of, ops))

    def _seconds_of(self, op: Op) -> float:
        spent = self.spent.get(op)
        if spent is not None:
            return spent
        if op.regions:
            return cost_of_regions(op, [self.seconds(region.ops) for region in op.regions])
        return self.versions.seconds[callee_of(op) or ""] if is_call(op) else 0.0
