"""The planner: walks a propagated program once and decides what devices do (GShard, section 3.3).

The plan is a program of global shapes again. Each of its values has one closed sharding; a change of sharding is a
`reshard` op, and the strategy of an op is how it is computed on shards. The planner visits the ops in order. It asks
`decisions` how to split each, and brings the operands there. What the program's values are in the plan is kept in
`values`, and the plan so far in `draft`. Reductions stay pending until someone needs the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.manual import axes_of_regions
from ir.ops.layout import is_annotation
from ir.program import Op, Program, Region, Value
from ir.registry import Registry
from passes.partition.closed_sharding import ClosedSharding, Shardings
from passes.partition.options import PartitionOptions
from passes.partition.plan.decisions import Decide, Decisions
from passes.partition.plan.draft import Draft
from passes.partition.plan.facts import Facts
from passes.partition.plan.loop_linearity import LinearParts, linear_parts
from passes.partition.plan.partitioned_value import NOTHING_SPARED, PartitionedValue
from passes.partition.plan.pending_reductions import of_nothing
from passes.partition.plan.recompute import (
    is_identity,
    is_recomputable,
    leaves_of,
    spared_without,
    way_to_recompute,
)
from passes.partition.plan.sides import OperandAt, Origin, ResultAt, Situation
from passes.partition.plan.strategies import StrategySelector
from passes.partition.plan.values import Values
from passes.partition.plan.versions import Versions
from passes.partition.plan.warnings import Warnings
from passes.partition.registry import REWRITES
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import ReshardPlan
from passes.propagation.reasons import Propagated

Control = Callable[["Planner", RegionBuilder, Op], None]
"""Plans one op that has no factor rule: one that has regions, calls functions, or has independent operands."""

_CONTROL: Registry[Control] = Registry()

partitions_region = _CONTROL.of
"""Registers a function that plans these ops whole, with their regions."""


class LoopChoice(NamedTuple):
    """The sharding of each carried value of a loop, by its number; the results of its body that are carried reduced,
    and so are reduced once for all of their uses; what is wanted in other shardings than propagated, because the next
    values are made of it; and whether all values in it are wanted whole on every device."""

    carried: Mapping[int, ClosedSharding]
    once: frozenset[Value] = frozenset()
    made_of: Mapping[Value, ClosedSharding] = MappingProxyType({})
    is_whole: bool = False


@dataclass(eq=False, slots=True)
class PlannedLoops:
    """What was decided for the loops of a program so far, on trial or not."""

    choices: dict[object, LoopChoice]
    """By the facts that they depend on, and by whether the loop was searched briefly."""
    split: dict[object, LoopChoice] = field(default_factory=dict[object, LoopChoice])
    """What these would be if all loops were split: of loops in which nothing else was decided that would be different
    then."""
    searched: dict[Op, LoopChoice] = field(default_factory=dict[Op, LoopChoice])
    """What the last full search of each loop chose."""
    are_sending: bool = False
    """Whether some loop, as it is first planned, has communication in it, or in front of it on its account."""
    whole: int = 0
    """How often a loop whose iterations would communicate was planned whole, at least on trial."""


class Planner:
    """Plans one program: `functions.plan_program` begins with its entry.

    In loops, a message counts two whole latencies, unless the planner `saves_bytes`. Loops whose iterations would
    communicate may be computed whole on every device, unless the planner `keeps_split`. A planner reuses what another
    one, `before`, has found out about the same program, and has decided with the same costs. `decide` may override the
    cost model for some ops.
    """

    def __init__(
        self,
        propagated: Propagated,
        resharder: Resharder,
        options: PartitionOptions,
        *,
        decide: Decide | None = None,
        saves_bytes: bool = False,
        keeps_split: bool = False,
        before: Planner | None = None,
    ) -> None:
        self.program: Program = propagated.program
        self.annotated = propagated.annotated
        self.options = options
        self.saves_bytes = saves_bytes
        self.keeps_split = keeps_split
        self.sub_axes = resharder.sub_axes
        self.copied: Planner | None = None
        """The planner that this one is a copy of, if it plans something on trial."""
        self.searched_briefly: set[Op] | None = None
        """In a trial of a loop, those inside it that are searched briefly, because they were searched in full before;
        None if all are searched in full."""
        manual = axes_of_regions(self.program)
        free = tuple([a for a in self.sub_axes.rank if a.name not in manual])

        def selector(own: PartitionOptions, like: StrategySelector | None) -> StrategySelector:
            # Where latencies hardly count, an axis would be moved in each turn of a loop for few bytes.
            priced = Resharder(self.sub_axes, own.machine, steps_of=resharder)
            return StrategySelector(priced, own, free, like, moves_axes=not saves_bytes)

        alike = before if before is not None and before.saves_bytes == saves_bytes else None
        self.selector: StrategySelector
        """What chooses the strategies of the ops that are planned now: while a loop is planned, `in_loops`."""
        self.in_loops: StrategySelector
        if alike is not None:
            self.selector, self.in_loops = alike.selector, alike.in_loops
        elif saves_bytes:
            self.selector = self.in_loops = selector(options.for_few_bytes(), before.selector if before else None)
        else:
            self.selector = selector(options.for_choices(), None)
            self.in_loops = selector(options.for_loops(), self.selector)
        self.shardings: Shardings = before.shardings if before else Shardings(self.program.mesh, self.sub_axes)
        self.facts: Facts = before.facts if before else Facts(self.program, options.machine, self.shardings)
        self.decisions: Decisions = before.decisions if before else Decisions(self.facts, decide)
        self.known_parts: dict[Op, Mapping[int, LinearParts]] = before.known_parts if before else {}
        self.loops: PlannedLoops = PlannedLoops(dict(alike.loops.split) if alike and keeps_split else {})
        self.versions = Versions(self.program)
        draft = Draft(self.shardings, self.versions, before.draft.spellings if before else {})
        self.values = Values(self.facts, draft, self.selector.resharder)
        self.warnings = Warnings()

    @property
    def whole(self) -> Planner:
        """The planner of the whole program."""
        return self if self.copied is None else self.copied.whole

    @property
    def draft(self) -> Draft:
        """The plan so far."""
        return self.values.draft

    def use(self, selector: StrategySelector) -> None:
        """Lets that selector choose strategies from now on, and its costs decide between reshards."""
        self.selector, self.values.resharder = selector, selector.resharder

    def linear_parts(self, op: Op) -> Mapping[int, LinearParts]:
        """The linear parts of each carried value, found once for each loop."""
        found = self.known_parts.get(op)
        if found is None:
            found = self.known_parts[op] = linear_parts(self.program, self.versions.inlined, op)
        return found

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

    def add_whole(
        self,
        b: RegionBuilder,
        op: Op,
        operands: Sequence[Value],
        outs: Sequence[tuple[Value, ClosedSharding]],
        regions: tuple[Region, ...] = (),
    ) -> None:
        """Adds an op without a factor rule to the plan, and records its results."""
        results = self.draft.add(b, op.name, operands, outs, op.attrs, span=op.span, cause=op.cause, regions=regions)
        for (value, sharding), local in zip(outs, results, strict=True):
            self.values.record(value, sharding, local, b)

    def _annotation(self, op: Op) -> None:
        """Reshards the value as annotated. If its uses only narrow it, the narrowed value is resharded instead."""
        values, operand, result = self.values, op.operands[0], op.result
        sharding = values.wanted(result)
        if result not in self.facts.only_narrowed:
            cause = Cause("annotation", op.name, name=result.name)
            values.reshard_to(operand, sharding, op.span, cause, result.name)
        values.partitioned[result] = replace(values.partitioned[operand], value=result, wanted=sharding)

    def _rewritten(self, op: Op) -> Sequence[Op]:
        """Equivalent ops that can be split in more ways, if that helps; the op itself otherwise."""
        known = of_nothing(op)
        if known is not None:
            return (known,)
        rewrite = REWRITES.get(op.name)
        return (op,) if rewrite is None else rewrite(op, self.values)

    def _op(self, b: RegionBuilder, op: Op) -> None:
        """Splits the op in the cheapest way, and records its results with the ways in which they can be made again."""
        values, options, uses = self.values, self.options, self.facts.uses
        rule, strategy = self.decisions.of(self.selector, op, _situation(values, b, op))
        operands = values.operands(op, strategy)
        if operands is None or strategy.excess:
            self.warnings.warn_of(op, strategy, values, options.memory_limit)
        moved: Mapping[Value, ReshardPlan] = {}
        if operands is None:
            operands, moved = values.bring(b, op, strategy)
        results = values.draft.add_split(b, op, rule, strategy, operands)
        partitioned = values.partitioned
        recompute = way_to_recompute(op, rule, partitioned, options)
        maker = (op, rule) if options.recompute == "auto" and is_recomputable(op) else None
        leaves = leaves_of(op, rule, partitioned) if maker is not None and recompute is None else ()
        for value, sharding, local in zip(op.results, strategy.results, results, strict=True):
            spared = NOTHING_SPARED
            if maker is not None and (moved or strategy.sends) and uses[value] <= 1:
                spared = spared_without(op, rule, strategy, moved.values())
            wanted, shardings = values.wanted(value), {sharding: local}
            partitioned[value] = PartitionedValue(value, wanted, shardings, b, recompute, maker, spared, moved, leaves)
        if not self.facts.only_narrowed.isdisjoint(op.operands):
            (annotated,), (result,) = op.operands, op.results
            cause = Cause("annotation", "shard", name=annotated.name)
            values.reshard_to(result, partitioned[annotated].wanted, op.span, cause)


def _situation(values: Values, b: RegionBuilder, op: Op) -> Situation:
    """Where the operands of an op in the region of `b` exist, and where these and its results are wanted."""
    facts, times, here = values.facts, values.draft.times, values.draft.runs(b)
    partitioned = [values.partitioned[v] for v in op.operands]
    known = [_known(values, each) for each in partitioned]
    pending = dict.fromkeys([kind for have in known for sharding in have for _, kind in sharding.partial])
    divided = facts.shares.get(op)
    # Where other shardings were chosen for the carried values of a loop, users do not want what propagation says.
    by_users, alike = ({}, {}) if values.wants else (facts.wanted_by_users, facts.wanted_alike)
    operands: list[OperandAt] = []
    for i, each in enumerate(partitioned):
        share = each.share * times.get(each.home, 1.0) / here * (1.0 if divided is None else divided[i])
        origins = _origins(values, each) if each.leaves else ()
        identity_of = None
        if pending and each.recompute is not None:
            maker = each.recompute.op
            identity_of = next((kind for kind in pending if is_identity(maker, kind, values.recomputed_by)), None)
        wants = alike.get(each.value)
        others = tuple([want for want in wants.items() if want[0] not in each.shardings]) if wants else ()
        operands.append(OperandAt(known[i], each.recompute is not None, share, origins, identity_of, others))
    results: list[ResultAt] = []
    for value in op.results:
        joins = _pending_beside(values, value) if value in facts.added_to else None
        results.append(ResultAt(values.wanted(value), joins, by_users.get(value, ())))
    return Situation(tuple(operands), tuple(results), tuple([each.wanted for each in partitioned]))


def _pending_beside(values: Values, value: Value) -> ClosedSharding | None:
    """The sharding of another part of the sum that a value is a part of, if that is planned, and not reduced yet."""
    try:
        have = values.partitioned[values.facts.added_to[value]].shardings
    except KeyError:
        return None
    return next(iter(have)) if all(sharding.partial for sharding in have) else None


def _known(values: Values, partitioned: PartitionedValue) -> tuple[ClosedSharding, ...]:
    """The shardings in which a value exists, and the reduced one if another op needs it reduced."""
    have = tuple(partitioned.shardings)
    if not have[0].partial or partitioned.wanted.partial or not all(sharding.partial for sharding in have):
        return have
    is_reduced = partitioned.value in values.facts.reduced_anyway or partitioned.value in values.reduced_once
    return (*have, partitioned.wanted) if is_reduced else have


def _origins(values: Values, partitioned: PartitionedValue) -> tuple[Origin, ...]:
    """What the value is computed from elsewhere; nothing if some of it is not reduced yet."""
    leaves = [(values.partitioned[leaf].shardings, leaf.type, dims) for leaf, dims in partitioned.leaves]
    if any(all(have.partial for have in known) for known, _, _ in leaves):
        return ()
    spared = partitioned.spared.seconds
    return tuple([Origin(t, dims, tuple(k), 0.0 if i else spared) for i, (k, t, dims) in enumerate(leaves)])
