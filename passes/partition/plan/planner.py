"""The planner: walks a propagated program once and decides what devices do (GShard, section 3.3).

The plan is a program of global shapes again. Each of its values has one closed sharding; a change of sharding is a
`reshard` op, and the strategy of an op is how it is computed on shards. For each value of the propagated program the
planner keeps the shardings in which it exists, so that no reshard is planned twice; one of a value from outside a loop
is outside. For each op it asks `strategies` how to split it, and brings the operands there. Reductions stay pending
until someone needs the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.dataflow import uses_of
from ir.diagnostics import Diagnostic, InternalError, Span
from ir.manual import axes_of_regions
from ir.ops import FactorRule
from ir.ops.control import is_call
from ir.ops.layout import is_annotation
from ir.program import Attr, Op, Program, Region, Value, callee_of
from ir.registry import Registry
from passes.cost.model import cost_of_regions
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.options import PartitionOptions
from passes.partition.plan.decisions import Decide, Decisions, Situation
from passes.partition.plan.facts import Facts
from passes.partition.plan.loop_linearity import LinearParts, linear_parts
from passes.partition.plan.partitioned_value import NOTHING_SPARED, PartitionedValue
from passes.partition.plan.pending_reductions import of_nothing
from passes.partition.plan.recompute import (
    Estimate,
    computed_in,
    finest_for,
    identities_among,
    is_identity,
    is_recomputable,
    leaves_of,
    made_by,
    spared_without,
    strategy_for,
    way_to_recompute,
)
from passes.partition.plan.shardings import Shardings
from passes.partition.plan.sides import Origin
from passes.partition.plan.spelling import IDENTITY, spell_steps, spell_strategy
from passes.partition.plan.strategies import StrategySelector
from passes.partition.plan.versions import Given, Versions
from passes.partition.plan.warnings import beyond_memory, dims_needed_whole, gathered
from passes.partition.registry import REWRITES, Constants
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import Plan as ReshardPlan
from passes.partition.reshard.steps import Step
from passes.partition.reshard.strided_sharding import StridedSharding
from passes.partition.strategy import Strategy
from passes.propagation.reasons import Propagated
from passes.signatures import hand_on_signature, signature_of

Control = Callable[["Planner", RegionBuilder, Op], None]
"""Plans one op that has no factor rule: one that has regions, calls functions, or has independent operands."""

_CONTROL: Registry[Control] = Registry()

partitions_region = _CONTROL.of
"""Registers a function that plans these ops whole, with their regions."""


class _Target(NamedTuple):
    """The sharding that a value is needed in, where and why, and the name that it has there."""

    sharding: ClosedSharding
    span: Span | None
    cause: Cause
    name: str


class TooSlowError(Exception):
    """A plan made on trial takes longer than the one that it is to replace."""


@dataclass(eq=False)
class Planner:
    """Plans one program: `plan.functions` begins with its entry.

    In loops, a message counts its whole latency, unless the planner `saves_bytes`. A planner reuses what another one,
    `before`, has found out about the same program.
    """

    propagated: Propagated
    resharder: Resharder
    options: PartitionOptions
    warnings: list[Diagnostic] = field(default_factory=list[Diagnostic])
    decide: Decide | None = None
    saves_bytes: bool = False
    before: Planner | None = None

    def __post_init__(self) -> None:
        self.program: Program = self.propagated.program
        self.copied: Planner | None = None
        """The planner that this one is a copy of, if it plans something on trial."""
        self.versions = Versions(self.program)
        self.mesh = self.program.mesh
        manual = axes_of_regions(self.program)
        free = tuple([a for a in self.resharder.sub_axes.rank if a.name not in manual])
        self.in_loops = self.resharder, StrategySelector(self.resharder, self.options, free)
        apart = self.options.for_few_bytes() if self.saves_bytes else self.options.for_choices()
        self.resharder = Resharder(self.resharder.sub_axes, apart.machine, steps_of=self.resharder)
        self.selector = StrategySelector(self.resharder, apart, free)
        if self.saves_bytes:
            self.in_loops = self.resharder, self.selector
        self.has_sending_loops = False
        """Whether some loop, as it is first planned, has communication in it, or in front of it on its account."""
        if self.before is None:
            self.shardings = Shardings(self.mesh, self.resharder.sub_axes)
            self.facts = Facts(self.program, self.options.machine, self.shardings)
            self.decisions = Decisions(self.facts, self.decide)
            self.known_parts: dict[Op, Mapping[int, LinearParts]] = {}
            self.spellings: dict[int, tuple[Strategy, str]] = {}
        else:
            self.shardings, self.facts, self.decisions = self.before.shardings, self.before.facts, self.before.decisions
            self.known_parts, self.spellings = self.before.known_parts, self.before.spellings
        self.partitioned: dict[Value, PartitionedValue] = {}
        self.arguments: dict[RegionBuilder, list[tuple[int, ClosedSharding, Value]]] = {}
        """For each function that is being planned, the arguments that it takes: number, sharding and local value."""
        self.wants: dict[Value, ClosedSharding] = {}
        """The shardings that were chosen for carried values of loops, and those of other values that go with them."""
        self.reduced_once: frozenset[Value] = frozenset()
        """Results of a loop's body that are carried reduced, and so are reduced once for all of their uses."""
        self.loops: dict[object, tuple[Mapping[int, ClosedSharding], frozenset[Value]]] = {}
        """The decisions for loops, by the facts that they depend on."""
        self.warned: set[tuple[Value, ClosedSharding]] = set()
        self.times: dict[RegionBuilder, float] = {}
        self.spent: dict[Op, float] = {}
        self.sending: set[Op] = set()
        self.planned_seconds = 0.0
        """A lower bound of the time of all ops planned so far, each as often as it runs. Calls, and branches that may
        not run, are left out."""
        self.limit = math.inf
        self.moved: dict[Value, ReshardPlan] = {}
        """The reshards that communicate, by the local values that they end with."""
        self.superseded: set[Value] = set()
        """Local values that were computed again in another sharding, and may have no uses left."""

    @property
    def whole(self) -> Planner:
        """The planner of the whole program."""
        return self if self.copied is None else self.copied.whole

    # The plan in the making.

    def ops(self, b: RegionBuilder, ops: Sequence[Op]) -> None:
        """Plans these ops, in order."""
        for op in ops:
            b.span = op.span
            if is_annotation(op):
                self._annotation(op)
            elif op.name in _CONTROL:
                _CONTROL[op.name](self, b, op)
            else:
                for each in self._rewritten(op):
                    self._op(b, each)

    def add(
        self,
        b: RegionBuilder,
        name: str,
        operands: Sequence[Value],
        outs: Sequence[tuple[Value, ClosedSharding]],
        attrs: Mapping[str, Attr],
        *,
        span: Span | None,
        cause: Cause | None = None,
        regions: tuple[Region, ...] = (),
        strategy: str = "",
        seconds: float = 0.0,
    ) -> tuple[Value, ...]:
        """Adds an op to the plan. `outs` has values like its results, with their shardings. Raises TooSlowError if the
        plan has become too slow to be of use."""
        results = tuple([Value(b.names.fresh(v.name), v.type, self.shardings.spelled(at), span) for v, at in outs])
        op = Op(name, tuple(operands), results, attrs, regions, span, cause, strategy)
        b.ops.append(op)
        if seconds:
            self.spent[op] = seconds
            self.planned_seconds += seconds * self.times.get(b, 0.0)
            if self.planned_seconds > self.limit:
                raise TooSlowError
        return results

    def add_whole(
        self,
        b: RegionBuilder,
        op: Op,
        operands: Sequence[Value],
        outs: Sequence[tuple[Value, ClosedSharding]],
        attrs: Mapping[str, Attr] | None = None,
        regions: tuple[Region, ...] = (),
    ) -> None:
        """Adds an op without a factor rule to the plan, with other attributes if they are given, and records its
        results."""
        given = op.attrs if attrs is None else attrs
        results = self.add(b, op.name, operands, outs, given, span=op.span, cause=op.cause, regions=regions)
        for (value, sharding), local in zip(outs, results, strict=True):
            self.record(value, sharding, local, b)

    def param(self, b: RegionBuilder, value: Value, sharding: ClosedSharding, name: str = "") -> Value:
        """A parameter for the value in that sharding. A given name is used as it is."""
        named = name or value.name
        return b.param(named, value.type, self.shardings.spelled(sharding), span=value.span, is_taken=bool(name))

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

    # Shardings.

    def wanted(self, value: Value) -> ClosedSharding:
        """The propagated sharding of a value, or the one that was chosen for it as a carried value."""
        chosen = self.wants.get(value)
        return chosen if chosen is not None else self.shardings.propagated(value)

    @property
    def constants(self) -> Constants:
        """The integers that are known."""
        return self.facts.constants

    def is_split(self, value: Value, dim: int) -> bool:
        """Whether a dim is split in the sharding in which the value was computed."""
        return bool(next(iter(self.partitioned[value].shardings)).axes[dim])

    def has_to_be_sent(self, value: Value) -> bool:
        """Whether devices that need all of a value cannot compute it from what they have."""
        return self._estimate().received(self.partitioned[value], ClosedSharding.replicated(value.type.rank))[0] > 0

    def users(self, value: Value) -> Sequence[Op]:
        """The ops of the program that use a value."""
        return uses_of(self.program).users.get(value, ())

    # Values.

    def record(self, value: Value, sharding: ClosedSharding, local: Value, home: RegionBuilder) -> None:
        """Records a value that was computed, with its sharding and its region."""
        self.partitioned[value] = PartitionedValue(value, self.wanted(value), {sharding: local}, home)

    def alias(self, value: Value, source: Value, span: Span | None, cause: Cause) -> None:
        """Records that a value is equal to another one, which is resharded to the value's propagated sharding. A
        pending reduction stays pending."""
        sharding, partitioned = self.wanted(value), self.partitioned[source]
        if not all(have.partial for have in partitioned.shardings):
            self.reshard_to(source, sharding, span, cause)
        self.partitioned[value] = replace(partitioned, value=value, wanted=sharding)

    def given(self, value: Value, param: Value, b: RegionBuilder) -> Given:
        """How a call in the region of `b` passes an argument. The callee decides when a pending reduction is done."""
        partitioned = self.partitioned[value]
        first = next(iter(partitioned.shardings))
        lazy = all(have.partial for have in partitioned.shardings) and first.order is None
        return Given(first if lazy else self.wanted(param), self.share(value, b) < 1)

    def _asked(self, partitioned: PartitionedValue, sharding: ClosedSharding, argument: int) -> Value:
        """An argument in another sharding, to which the caller has to reshard it."""
        value, b = partitioned.value, partitioned.home
        local = self.param(b, value, sharding)
        self.arguments[b].append((argument, sharding, local))
        partitioned.shardings[sharding] = local
        return local

    def pending(self, values: Sequence[Value], wanted: ClosedSharding) -> ClosedSharding:
        """A sharding in which all of these values exist with pending reductions, so that more can be added to them
        before they are reduced; the wanted one if there is no such sharding, or if a value exists in the wanted one."""
        shardings = [self.partitioned[v].shardings for v in values]
        if any(wanted in have for have in shardings):
            return wanted
        return next(
            (have for have in shardings[0] if have.partial and all(have in others for others in shardings)), wanted
        )

    def share(self, value: Value, b: RegionBuilder) -> float:
        """How often a reshard of the value runs for each run of the region of `b`: less than once if the value comes
        from outside a loop, since the reshard is then outside too."""
        partitioned = self.partitioned[value]
        return partitioned.share * self.times.get(partitioned.home, 1.0) / self.times.get(b, 1.0)

    def linear_parts(self, op: Op) -> Mapping[int, LinearParts]:
        """The linear parts of each carried value, found once for each loop."""
        found = self.known_parts.get(op)
        if found is None:
            found = self.known_parts[op] = linear_parts(self.program, self.versions.inlined, op)
        return found

    # Values in other shardings.

    def reshard_to(
        self, value: Value, sharding: ClosedSharding, span: Span | None, cause: Cause, name: str = ""
    ) -> Value:
        """The value in that sharding. If it does not exist in it, it is resharded in the cheapest way."""
        partitioned = self.partitioned[value]
        local = partitioned.shardings.get(sharding)
        if local is not None:
            return local
        target = _Target(sharding, span, cause, name or value.name)
        made = self._recomputed(partitioned, target) or self._made_pending(partitioned, target)
        if made is None:
            plan, source = partitioned.cheapest(self.resharder, sharding)
            made = self._computed_again(partitioned, target, plan)
            if made is None and partitioned.argument is not None and plan.received:
                return self._asked(partitioned, sharding, partitioned.argument)
            if made is None:
                return self._resharded(partitioned, plan, source, target)
        partitioned.shardings[sharding] = made
        return made

    def _recomputed(self, partitioned: PartitionedValue, target: _Target) -> Value | None:
        """The value computed in the target's sharding, or in a coarser one and cut; None unless any device can compute
        any part of it."""
        if partitioned.recompute is None or not target.sharding.is_plain:
            return None
        op, rule = partitioned.recompute.op, partitioned.recompute.rule
        source = finest_for(op, rule, target.sharding)
        made = partitioned.shardings.get(source) or self._computed(partitioned, op, rule, source)
        return None if made is None else self._cut(partitioned, made, source, target)

    def _made_pending(self, partitioned: PartitionedValue, target: _Target) -> Value | None:
        """The value with a pending reduction, if it is the identity of that reduction and can be computed on any
        device."""
        sharding = target.sharding
        if partitioned.recompute is None or not sharding.partial or sharding.order is not None:
            return None
        value, span, cause = partitioned.value, target.span, target.cause
        whole = self.reshard_to(value, sharding.without_partial(), span, cause, target.name)
        if not is_identity(partitioned.recompute.op, sharding.partial[0][1], self._made_by):
            return None
        outs, attrs = ((value, sharding),), {"steps": IDENTITY}
        (local,) = self.add(partitioned.home, "reshard", (whole,), outs, attrs, span=span, cause=cause)
        return local

    def _computed_again(self, partitioned: PartitionedValue, target: _Target, plan: ReshardPlan) -> Value | None:
        """The value computed in the target's sharding, or in a coarser one and cut; None unless that is faster than the
        reshard."""
        if partitioned.maker is None or self._estimate().again(partitioned, target.sharding, plan) is None:
            return None
        if self.facts.uses[partitioned.value] <= 1:
            for value, moved in partitioned.moved.items():
                have = self.partitioned[value].shardings
                self.superseded.update(have.pop(made) for made in made_by(moved) if made in have)
        source = computed_in(*partitioned.maker, target.sharding)
        again = self._computed(partitioned, *partitioned.maker, source)
        if again is None:
            return None
        self.superseded.update(partitioned.shardings.values())
        return self._cut(partitioned, again, source, target)

    def _estimate(self) -> Estimate:
        return Estimate(self.partitioned, self.resharder, self.facts.uses, self.facts.read_by_products)

    def _cut(self, partitioned: PartitionedValue, made: Value, source: ClosedSharding, target: _Target) -> Value:
        """The target, out of the value as it was made: in its sharding or in a coarser one."""
        if source == target.sharding:
            return made
        partitioned.shardings[source] = made
        value = partitioned.value
        plan = self.resharder.plan(value.shape, value.dtype.nbytes, source, target.sharding)
        return self._resharded(partitioned, plan, source, target)

    def _resharded(
        self, partitioned: PartitionedValue, plan: ReshardPlan, source: ClosedSharding, target: _Target
    ) -> Value:
        """The value resharded from one sharding to another. All shardings on the way are recorded."""
        value, now = replace(partitioned.value, name=target.name), partitioned.shardings[source]
        ranks, span, cause = self.resharder.sub_axes.rank, target.span, target.cause
        pending: list[tuple[Step, ClosedSharding | StridedSharding]] = []
        seconds, at, sends = plan.seconds, source, not plan.is_local(value.shape, source)
        for step, after in plan.steps:
            pending.append((step, after))
            if not (isinstance(after, ClosedSharding) and after.used <= ranks.keys()):
                continue
            attrs: dict[str, Attr] = {"steps": spell_steps(self.mesh, pending)}
            (now,) = self.add(
                partitioned.home, "reshard", (now,), ((value, after),), attrs, span=span, cause=cause, seconds=seconds
            )
            partitioned.shardings.setdefault(after, now)
            if sends:
                self.sending.add(partitioned.home.ops[-1])
            pending, seconds, at = [], 0.0, after
        if at != target.sharding or pending:
            raise InternalError(f"a reshard of {target.name} from {source} ended in {at}, not in {target.sharding}")
        if plan.received:
            self.moved[now] = plan
        return now

    # Values that are computed again.

    def _computed(
        self, partitioned: PartitionedValue, op: Op, rule: FactorRule, sharding: ClosedSharding
    ) -> Value | None:
        """The result of an op, computed in that sharding in the value's region; None if it cannot be."""
        strategy = strategy_for(op, rule, sharding)
        if strategy is None:
            return None
        operands = self._operands(op, strategy)
        (local,) = self._computed_so(partitioned.home, op, rule, strategy, operands)
        return local

    def _there(self, op: Op, strategy: Strategy) -> tuple[Value, ...] | None:
        """The operands of an op if all of them exist in the shardings that the strategy needs; None otherwise."""
        found: list[Value] = []
        for value, at in zip(op.operands, strategy.operands, strict=True):
            local = self.partitioned[value].shardings.get(at)
            if local is None:
                return None
            found.append(local)
        return tuple(found)

    def _missing(self, b: RegionBuilder, op: Op, strategy: Strategy) -> set[Value]:
        """The operands of the same region that only this op uses, and that do not exist as the strategy needs them."""
        needed = zip(op.operands, strategy.operands, strict=True)
        own = ((v, self.partitioned[v], at) for v, at in needed if self.facts.uses[v] <= 1)
        return {v for v, partitioned, at in own if partitioned.home is b and at not in partitioned.shardings}

    def _operands(self, op: Op, strategy: Strategy) -> tuple[Value, ...]:
        """The operands of an op, resharded for a strategy."""
        found: list[Value] = []
        for i, (value, sharding) in enumerate(zip(op.operands, strategy.operands, strict=True)):
            local = self.partitioned[value].shardings.get(sharding)
            if local is None:
                local = self.reshard_to(value, sharding, op.span, Cause("operand", op.name, i, op.label))
            found.append(local)
        return tuple(found)

    def _computed_so(
        self, b: RegionBuilder, op: Op, rule: FactorRule, chosen: Strategy, operands: Sequence[Value]
    ) -> tuple[Value, ...]:
        """The op's results, computed from operands that are sharded for the strategy."""
        outs = tuple(zip(op.results, chosen.results, strict=True))
        _, spelled = self.spellings.get(id(chosen), (chosen, None))
        if spelled is None:
            spelled = spell_strategy(self.mesh, op, rule, chosen)
            self.spellings[id(chosen)] = chosen, spelled
        results = self.add(
            b, op.name, operands, outs, op.attrs, span=op.span, cause=op.cause, strategy=spelled, seconds=chosen.alone
        )
        hand_on_signature(op, b.ops[-1])
        if chosen.sends:
            self.sending.add(b.ops[-1])
        return results

    def _made_by(self, value: Value) -> Op | None:
        """The op by which any device can compute any part of the value."""
        recompute = self.partitioned[value].recompute
        return recompute.op if recompute is not None else None

    # Ops.

    def _annotation(self, op: Op) -> None:
        """Reshards the value as annotated. If its uses only narrow it, the narrowed value is resharded instead."""
        operand, result = op.operands[0], op.result
        sharding = self.wanted(result)
        if result not in self.facts.only_narrowed:
            cause = Cause("annotation", op.name, name=result.name)
            self.reshard_to(operand, sharding, op.span, cause, result.name)
        source = self.partitioned[operand]
        self.partitioned[result] = replace(source, value=result, wanted=sharding)

    def _rewritten(self, op: Op) -> Sequence[Op]:
        """Equivalent ops that can be split in more ways, if that helps; the op itself otherwise."""
        known = of_nothing(op)
        if known is not None:
            return (known,)
        rewrite = REWRITES.get(op.name)
        return (op,) if rewrite is None else rewrite(op, self)

    def _op(self, b: RegionBuilder, op: Op) -> None:
        situation, is_pending = self._situation(b, op)
        rule, strategy = self.decisions.of(self.selector, op, situation, is_pending=is_pending)
        operands = self._there(op, strategy)
        if operands is None or strategy.excess:
            self._warn(op, strategy)
        moved: Mapping[Value, ReshardPlan] = {}
        if operands is None:
            missing = self._missing(b, op, strategy)
            operands = self._operands(op, strategy)
            there = zip(op.operands, operands, strict=True)
            moved = {v: self.moved[local] for v, local in there if v in missing and local in self.moved}
        results = self._computed_so(b, op, rule, strategy, operands)
        recompute = way_to_recompute(op, rule, self.partitioned, self.options)
        maker = (op, rule) if self.options.recompute == "auto" and is_recomputable(op) else None
        leaves = leaves_of(op, rule, self.partitioned) if maker is not None and recompute is None else ()
        for value, sharding, local in zip(op.results, strategy.results, results, strict=True):
            spared = NOTHING_SPARED
            if maker is not None and (moved or strategy.sends) and self.facts.uses[value] <= 1:
                spared = spared_without(op, rule, strategy, moved.values())
            self.partitioned[value] = PartitionedValue(
                value,
                self.wanted(value),
                {sharding: local},
                b,
                recompute=recompute,
                maker=maker,
                spared=spared,
                moved=moved,
                leaves=leaves,
            )
        if not self.facts.only_narrowed.isdisjoint(op.operands):
            (annotated,), (result,) = op.operands, op.results
            cause = Cause("annotation", "shard", name=annotated.name)
            self.reshard_to(result, self.partitioned[annotated].wanted, op.span, cause)

    def _situation(self, b: RegionBuilder, op: Op) -> tuple[Situation, bool]:
        """The existing shardings of the op's operands, the wanted ones of these and of its results, and whether a
        reduction is pending."""
        times, here = self.times, self.times.get(b, 1.0)
        known: list[tuple[ClosedSharding, ...]] = []
        recomputable: list[bool] = []
        shares: list[float] = []
        wanted: list[ClosedSharding] = []
        origins: list[tuple[Origin, ...]] = []
        is_pending = has_origins = False
        for value in op.operands:
            partitioned = self.partitioned[value]
            have = self._known(value, partitioned)
            known.append(have)
            for sharding in have:
                is_pending = is_pending or bool(sharding.partial)
            recomputable.append(partitioned.recompute is not None)
            shares.append(partitioned.share * times.get(partitioned.home, 1.0) / here)
            wanted.append(partitioned.wanted)
            origins.append(self._origins(partitioned) if partitioned.leaves else ())
            has_origins = has_origins or bool(origins[-1])
        divided = self.facts.shares.get(op)
        if divided is not None:
            shares = [share * part for share, part in zip(shares, divided, strict=True)]
        results = tuple([self.wanted(v) for v in op.results])
        found = tuple(known), tuple(recomputable), tuple(shares), tuple(wanted), results
        identities = identities_among(op, known, self._made_by) if is_pending and any(recomputable) else ()
        return Situation(*found, tuple(origins) if has_origins else (), identities), is_pending

    def _origins(self, partitioned: PartitionedValue) -> tuple[Origin, ...]:
        """What the value is computed from elsewhere; nothing if some of it is not reduced yet."""
        leaves = [(self.partitioned[leaf].shardings, leaf.type, dims) for leaf, dims in partitioned.leaves]
        if any(all(have.partial for have in known) for known, _, _ in leaves):
            return ()
        spared = partitioned.spared.seconds
        return tuple([Origin(t, dims, tuple(k), 0.0 if i else spared) for i, (k, t, dims) in enumerate(leaves)])

    def _known(self, value: Value, partitioned: PartitionedValue) -> tuple[ClosedSharding, ...]:
        """The shardings in which a value exists, and the reduced one if another op needs it reduced."""
        have = tuple(partitioned.shardings)
        if not have[0].partial or partitioned.wanted.partial or not all(sharding.partial for sharding in have):
            return have
        is_reduced = value in self.facts.reduced_anyway or value in self.reduced_once
        return (*have, partitioned.wanted) if is_reduced else have

    def _warn(self, op: Op, strategy: Strategy) -> None:
        """Warns of memory, and of gathers: once for each sharding that a value is resharded to."""
        rule = signature_of(op).rule
        assert rule is not None
        if strategy.excess:
            self.warnings.append(beyond_memory(op, strategy.excess, self.options.memory_limit))
        operands = [self.partitioned[v] for v in op.operands]
        for position, dim in dims_needed_whole(op, rule, strategy, operands):
            partitioned, key = operands[position], (op.operands[position], strategy.operands[position])
            moved, made_again = self._estimate().received(partitioned, key[1])
            if moved and key not in self.warned:
                self.warned.add(key)
                how = f"dim {dim} is split ({partitioned.wanted.spell(self.mesh)})"
                self.warnings.append(gathered(op, key[0], how, moved, made_again=made_again))
