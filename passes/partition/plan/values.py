"""The values of the program, in the shardings in which the plan has them so far.

A value that is needed in another sharding is made in that one too, in the first of these ways that is possible and, for
the last two, the cheapest: by ops that devices repeat without communication, as the identity of a pending reduction, by
its maker from operands that are resharded instead, by the callers of the function that it is an argument of, or by a
reshard. This is done where the value was made, once: so a reshard of a value from outside a loop is outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.dataflow import uses_of
from ir.diagnostics import InternalError, Span
from ir.ops import FactorRule
from ir.program import Op, Value
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.draft import Draft
from passes.partition.plan.facts import Facts
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.recompute import Estimate, computed_in, finest_for, is_identity, made_by, strategy_for
from passes.partition.plan.versions import Given
from passes.partition.registry import Constants
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import ReshardPlan, Step
from passes.partition.reshard.strided_sharding import StridedSharding
from passes.partition.spelling import IDENTITY, spell_steps
from passes.partition.strategy import Strategy


class _Target(NamedTuple):
    """The sharding that a value is needed in, where and why, and the name that it has there."""

    sharding: ClosedSharding
    span: Span | None
    cause: Cause
    name: str


@dataclass(eq=False, slots=True)
class Values:
    """The values of a program, in a draft of its plan."""

    facts: Facts
    draft: Draft
    resharder: Resharder
    partitioned: dict[Value, PartitionedValue] = field(default_factory=dict[Value, PartitionedValue])
    wants: dict[Value, ClosedSharding] = field(default_factory=dict[Value, ClosedSharding])
    """The shardings that were chosen for carried values of loops, and those of other values that go with them."""
    reduced_once: frozenset[Value] = frozenset()
    """Results of a loop's body that are carried reduced, and so are reduced once for all of their uses."""
    arguments: dict[RegionBuilder, list[tuple[int, ClosedSharding, Value]]] = field(
        default_factory=dict[RegionBuilder, list[tuple[int, ClosedSharding, Value]]]
    )
    """For each function that is being planned, the arguments that it takes: number, sharding and local value."""
    moved: dict[Value, ReshardPlan] = field(default_factory=dict[Value, ReshardPlan])
    """The reshards that communicate, by the local values that they end with."""

    # What is known of a value.

    def wanted(self, value: Value) -> ClosedSharding:
        """The propagated sharding of a value, or the one that was chosen for it as a carried value."""
        chosen = self.wants.get(value)
        return chosen if chosen is not None else self.facts.shardings.propagated(value)

    @property
    def constants(self) -> Constants:
        """The integers that are known."""
        return self.facts.constants

    def is_split(self, value: Value, dim: int) -> bool:
        """Whether a dim is split in the sharding in which the value was computed."""
        return bool(next(iter(self.partitioned[value].shardings)).axes[dim])

    def received(self, value: Value, sharding: ClosedSharding) -> tuple[int, bool]:
        """The bytes that devices receive to have a value in that sharding, and whether it is computed again for it."""
        return self._estimate().received(self.partitioned[value], sharding)

    def has_to_be_sent(self, value: Value) -> bool:
        """Whether devices that need all of a value cannot compute it from what they have."""
        return self.received(value, ClosedSharding.replicated(value.type.rank))[0] > 0

    def users(self, value: Value) -> Sequence[Op]:
        """The ops of the program that use a value."""
        return uses_of(self.facts.program).users.get(value, ())

    def recomputed_by(self, value: Value) -> Op | None:
        """The op by which any device can compute any part of the value."""
        recompute = self.partitioned[value].recompute
        return recompute.op if recompute is not None else None

    def given(self, value: Value, param: Value, b: RegionBuilder) -> Given:
        """How a call in the region of `b` passes an argument. The callee decides when a pending reduction is done."""
        partitioned = self.partitioned[value]
        first = next(iter(partitioned.shardings))
        lazy = all(have.partial for have in partitioned.shardings) and first.order is None
        outside = partitioned.share * self.draft.runs(partitioned.home) < self.draft.runs(b)
        return Given(first if lazy else self.wanted(param), outside)

    def pending(self, values: Sequence[Value], wanted: ClosedSharding) -> ClosedSharding:
        """A sharding in which all of these values exist with pending reductions, so that more can be added to them
        before they are reduced; the wanted one if there is no such sharding, or if a value exists in the wanted one."""
        shardings = [self.partitioned[v].shardings for v in values]
        if any(wanted in have for have in shardings):
            return wanted
        found = (have for have in shardings[0] if have.partial and all(have in others for others in shardings))
        return next(found, wanted)

    # New values.

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

    def forget_maker(self, value: Value) -> None:
        """Lets no value be made again of operands that stand for others from now on, such as a function's parameters
        after a call. What is made of nothing still can be."""
        known = self.partitioned[value]
        recompute = known.recompute if known.recompute is not None and not known.recompute.op.operands else None
        self.partitioned[value] = PartitionedValue(
            value, known.wanted, known.shardings, known.home, recompute, argument=known.argument, share=known.share
        )

    # The operands of an op.

    def operands(self, op: Op, strategy: Strategy) -> tuple[Value, ...] | None:
        """The operands of an op if all of them exist in the shardings that the strategy needs; None otherwise."""
        found: list[Value] = []
        for value, at in zip(op.operands, strategy.operands, strict=True):
            local = self.partitioned[value].shardings.get(at)
            if local is None:
                return None
            found.append(local)
        return tuple(found)

    def bring(
        self, b: RegionBuilder, op: Op, strategy: Strategy
    ) -> tuple[tuple[Value, ...], Mapping[Value, ReshardPlan]]:
        """The operands of an op in the region of `b`, resharded for a strategy, and the reshards that are for it alone:
        those of operands from the same region that have no other uses."""
        needed = tuple(zip(op.operands, strategy.operands, strict=True))
        own = ((v, self.partitioned[v], at) for v, at in needed if self.facts.uses[v] <= 1)
        missing = {v for v, partitioned, at in own if partitioned.home is b and at not in partitioned.shardings}
        causes = [Cause("operand", op.name, i, op.label) for i in range(len(needed))]
        found = tuple([self.reshard_to(v, at, op.span, cause) for (v, at), cause in zip(needed, causes, strict=True)])
        there = zip(op.operands, found, strict=True)
        return found, {v: self.moved[local] for v, local in there if v in missing and local in self.moved}

    # A value in another sharding.

    def reshard_to(
        self, value: Value, sharding: ClosedSharding, span: Span | None, cause: Cause, name: str = ""
    ) -> Value:
        """The value in that sharding. If it does not exist in it, it is made or resharded in the cheapest way."""
        partitioned = self.partitioned[value]
        local = partitioned.shardings.get(sharding)
        if local is not None:
            return local
        target = _Target(sharding, span, cause, name or value.name)
        made = self._by_recompute(partitioned, target) or self._as_identity(partitioned, target)
        if made is None:
            plan, source = self.resharder.cheapest(value.shape, value.dtype.nbytes, partitioned.shardings, sharding)
            made = self._by_maker(partitioned, target, plan)
            if made is None and partitioned.argument is not None and plan.received:
                return self._by_callers(partitioned, sharding, partitioned.argument)
            if made is None:
                return self._by_reshard(partitioned, plan, source, target)
        partitioned.shardings[sharding] = made
        return made

    def _by_recompute(self, partitioned: PartitionedValue, target: _Target) -> Value | None:
        """The value computed in the target's sharding, or in a coarser one and cut; None unless any device can compute
        any part of it."""
        if partitioned.recompute is None or not target.sharding.is_plain:
            return None
        op, rule = partitioned.recompute.op, partitioned.recompute.rule
        source = finest_for(op, rule, target.sharding)
        made = partitioned.shardings.get(source) or self._result_of(op, rule, source, partitioned.home)
        return self._cut(partitioned, made, source, target)

    def _as_identity(self, partitioned: PartitionedValue, target: _Target) -> Value | None:
        """The value with a pending reduction, if it is the identity of that reduction and can be computed on any
        device."""
        sharding = target.sharding
        if partitioned.recompute is None or not sharding.partial or sharding.order is not None:
            return None
        value, span, cause = partitioned.value, target.span, target.cause
        whole = self.reshard_to(value, sharding.without_partial(), span, cause, target.name)
        if not is_identity(partitioned.recompute.op, sharding.partial[0][1], self.recomputed_by):
            return None
        outs, attrs = ((value, sharding),), {"steps": IDENTITY}
        (local,) = self.draft.add(partitioned.home, "reshard", (whole,), outs, attrs, span=span, cause=cause)
        return local

    def _by_maker(self, partitioned: PartitionedValue, target: _Target, plan: ReshardPlan) -> Value | None:
        """The value computed in the target's sharding, or in a coarser one and cut, by its maker from operands in other
        shardings; None unless that is faster than the reshard. Operands may be computed again for it too, in chains of
        any length."""
        if not self._is_made_again(partitioned, target.sharding, plan):
            return None
        chain = [(partitioned, target, self._operands_made_again(partitioned, target))]
        while True:
            last, at, operands = chain[-1]
            operand = next(operands, None)
            if operand is not None:
                chain.append((*operand, self._operands_made_again(*operand)))
                continue
            assert last.maker is not None
            source = computed_in(*last.maker, at.sharding)
            made = self._cut(last, self._result_of(*last.maker, source, last.home), source, at)
            chain.pop()
            if not chain:
                return made
            last.shardings[at.sharding] = made

    def _is_made_again(self, partitioned: PartitionedValue, sharding: ClosedSharding, plan: ReshardPlan) -> bool:
        """Whether the value is computed again to have it in that sharding. What was resharded for its maker alone is
        not there for it then."""
        if partitioned.maker is None or self._estimate().again(partitioned, sharding, plan) is None:
            return False
        if self.facts.uses[partitioned.value] <= 1:
            for value, moved in partitioned.moved.items():
                have = self.partitioned[value].shardings
                for made in made_by(moved):
                    have.pop(made, None)
        return True

    def _operands_made_again(
        self, partitioned: PartitionedValue, target: _Target
    ) -> Iterator[tuple[PartitionedValue, _Target]]:
        """The operands that are computed again as well if the value is, each when the one before is there."""
        assert partitioned.maker is not None
        op, rule = partitioned.maker
        strategy = strategy_for(op, rule, computed_in(op, rule, target.sharding))
        assert strategy is not None, (op, target)
        for i, (value, at) in enumerate(zip(op.operands, strategy.operands, strict=True)):
            operand = self.partitioned[value]
            if operand.recompute is not None or at in operand.shardings:
                continue
            plan, _ = self.resharder.cheapest(value.shape, value.dtype.nbytes, operand.shardings, at)
            if self._is_made_again(operand, at, plan):
                yield operand, _Target(at, op.span, Cause("operand", op.name, i, op.label), value.name)

    def _by_callers(self, partitioned: PartitionedValue, sharding: ClosedSharding, argument: int) -> Value:
        """An argument as a parameter of that sharding, to which the callers have to reshard it."""
        value, b = partitioned.value, partitioned.home
        local = self.draft.param(b, value, sharding)
        self.arguments[b].append((argument, sharding, local))
        partitioned.shardings[sharding] = local
        return local

    def _by_reshard(
        self, partitioned: PartitionedValue, plan: ReshardPlan, source: ClosedSharding, target: _Target
    ) -> Value:
        """The value resharded from one sharding to another. All shardings on the way are recorded."""
        value, now = replace(partitioned.value, name=target.name), partitioned.shardings[source]
        ranks, mesh, home = self.resharder.sub_axes.rank, self.facts.shardings.mesh, partitioned.home
        span, cause = target.span, target.cause
        pending: list[tuple[Step, ClosedSharding | StridedSharding]] = []
        seconds, at, sends = plan.seconds, source, not plan.is_local(value.shape, source)
        for step, after in plan.steps:
            pending.append((step, after))
            if not (isinstance(after, ClosedSharding) and after.used <= ranks.keys()):
                continue
            outs, attrs = ((value, after),), {"steps": spell_steps(mesh, pending)}
            (now,) = self.draft.add(home, "reshard", (now,), outs, attrs, span=span, cause=cause, seconds=seconds)
            partitioned.shardings.setdefault(after, now)
            if sends:
                self.draft.sending.add(home.ops[-1])
            pending, seconds, at = [], 0.0, after
        if at != target.sharding or pending:
            raise InternalError(f"a reshard of {target.name} from {source} ended in {at}, not in {target.sharding}")
        if plan.received:
            self.moved[now] = plan
        return now

    def _result_of(self, op: Op, rule: FactorRule, sharding: ClosedSharding, home: RegionBuilder) -> Value:
        """The result of an op that is added to the region of `home`, split such that the result has that sharding."""
        strategy = strategy_for(op, rule, sharding)
        assert strategy is not None, (op, sharding)
        operands, _ = self.bring(home, op, strategy)
        (local,) = self.draft.add_split(home, op, rule, strategy, operands)
        return local

    def _cut(self, partitioned: PartitionedValue, made: Value, source: ClosedSharding, target: _Target) -> Value:
        """The target, out of the value as it was made: in its sharding or in a coarser one."""
        if source == target.sharding:
            return made
        partitioned.shardings[source] = made
        value = partitioned.value
        plan = self.resharder.plan(value.shape, value.dtype.nbytes, source, target.sharding)
        return self._by_reshard(partitioned, plan, source, target)

    def _estimate(self) -> Estimate:
        return Estimate(self.partitioned, self.resharder, self.facts.uses, self.facts.read_by_products)
