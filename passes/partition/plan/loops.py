"""while: every carried value keeps one sharding, so that nothing is resharded between iterations. The sharding is
chosen by the cost of the whole loop.

A value that the body returns as it got it is not carried: the loop uses it from outside, and a reshard of it is done
once, in front of the loop. The shardings of the others begin as propagated. Alternatives are tried one after the other:
the sharding in which the body computes the next value; the one in which the first value exists; and, if the body adds a
partial sum, or stores one in a value that is not split over the same axes, a pending reduction, so that the loop adds
up, or stacks, parts that are reduced once, behind it. The sharding in which the last value is wanted is tried too. That
may be one with a pending reduction, if a loop around this one carries it so, and nothing else uses it: gradients of
layers that are stacked here, and added up there. A value that is carried reduced, and also used in the body, may be
pending there, or reduced once for both.

If one value is sharded differently, so may be what it is computed from, such as inputs that are added in each iteration
(`loop_wants`), and others that the body computes. These are tried too, until nothing gets cheaper. Last of all, a loop
that still communicates is tried whole: every device receives all that the iterations read, once, in front of the loop,
and computes all of them. Many small iterations, each of which depends on the one before, are faster this way than with
a message in each.

A loop inside another one is planned in each trial of that one. It is searched in full for the first of these and for
the sharding that is chosen in the end, and briefly for the others: so the time grows with the depth of the nesting, but
much more slowly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir.builder import RegionBuilder
from ir.causes import Cause, CauseKind
from ir.closure import reached
from ir.ops.control import is_manual
from ir.ops.layout import is_annotation
from ir.program import Op, Region, Value, called_in, values_within, walk
from ir.sharding import Partial
from passes.cost.model import ROUNDING, UNKNOWN_TRIPS, trips_of
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.draft import TooSlowError
from passes.partition.plan.loop_wants import wanted_with
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.planner import LoopChoice, Planner, partitions_region
from passes.partition.plan.strategies import CLOSE
from passes.partition.plan.trial import Trial

_MAX_TRIALS, _MAX_TRIALS_IN_A_ROUND = 16, 8
_MAX_TRIALS_IN_A_BRIEF_ROUND = 2
_FEW_TRIPS = 2
"""How often a loop of unknown length runs at least, for what is received once for all iterations to be worth it."""

Carried = Mapping[int, ClosedSharding]
"""The sharding of each carried value, by its number."""


@partitions_region("while")
def while_(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Plans a loop in the cheapest shardings of its carried values that were found."""
    values, loops, (condition, body) = p.values, p.loops, op.regions
    changing: list[int] = []
    for i, (operand, param, result) in enumerate(zip(op.operands, body.params, body.results, strict=True)):
        if result is not param:
            changing.append(i)
            continue
        for same in (param, condition.params[i], op.results[i]):
            values.alias(same, operand, op.span, Cause("invariant", op.name, name=param.name))
    wanted = {i: values.wanted(body.params[i]) for i in changing}
    have = tuple(tuple(values.partitioned[op.operands[i]].shardings) for i in changing)
    key: tuple[object, ...] = op, have, tuple(wanted.values()), tuple(values.wanted(op.results[i]) for i in changing)
    last: LoopChoice | None = None
    if p.searched_briefly is not None and key not in loops.choices and op in loops.searched:
        last, key = loops.searched[op], ("brief", *key)
        p.searched_briefly.add(op)
    known = loops.choices.get(key)
    if known is not None:
        loops.whole += known.is_whole
        _plan(p, b, op, known)
        return
    before = loops.whole, len(p.versions.planned)
    search = _Search(p, b, op, last)
    best = search.cheapest(wanted)
    if last is None:
        loops.searched[op] = best.choice
    if (loops.whole, len(p.versions.planned)) == before:
        loops.split[key] = best.choice
    best = search.whole_or(best)
    loops.choices[key] = best.choice
    loops.whole += best.choice.is_whole
    if best.trial.can_be_kept():
        best.trial.keep()
    else:
        _plan(p, b, op, best.choice)


def _plan(p: Planner, b: RegionBuilder, op: Op, choice: LoopChoice) -> None:
    """Plans a loop in the shardings of a choice. A message in a loop waits for those of the iteration before, so its
    latency counts in full, and more than once; and so does that of reshards in front of the loop for its sake."""
    values, (condition, body), carried = p.values, op.regions, choice.carried
    wants, reduced_once, selector = values.wants, values.reduced_once, p.selector
    suit = dict(wants)
    if choice.is_whole:
        suit.update((v, _whole(v)) for region in op.regions for v in values_within(region))
    suit.update(choice.made_of)
    for i, sharding in carried.items():
        suit.update(p.linear_parts(op)[i].wants(sharding))
        suit[body.params[i]] = suit[body.results[i]] = sharding
    whole = {body.results[i] for i, sharding in carried.items() if not sharding.partial}
    values.wants, values.reduced_once = suit, reduced_once | (whole & choice.once)
    p.use(p.in_loops)
    trips, names = trips_of(op), [b.names.fresh(param.name) for param in body.params]
    operands = [
        values.reshard_to(op.operands[i], sharding, op.span, Cause("initial", op.name, name=body.params[i].name))
        for i, sharding in carried.items()
    ]
    regions = (
        _region(p, b, condition, trips, carried, {0: ClosedSharding(())}, "condition", names),
        _region(p, b, body, trips, carried, carried, "carried", names),
    )
    p.use(selector)
    values.wants, values.reduced_once = wants, reduced_once
    outs = [(op.results[i], sharding) for i, sharding in carried.items()]
    p.add_whole(b, op, operands, outs, regions=regions)


def _whole(value: Value) -> ClosedSharding:
    return ClosedSharding.replicated(value.type.rank)


def _region(
    p: Planner,
    outer: RegionBuilder,
    region: Region,
    trips: int,
    params: Carried,
    results: Carried,
    kind: CauseKind,
    names: Sequence[str],
) -> Region:
    """A region of a loop. All of its regions have the same names for carried values, as in the text language."""
    b, values, draft = RegionBuilder(outer.names), p.values, p.draft
    draft.times[b] = draft.runs(outer) * max(1, trips)
    for i, sharding in params.items():
        param = region.params[i]
        local = draft.param(b, param, sharding, names[i])
        values.partitioned[param] = PartitionedValue(param, sharding, {sharding: local}, b)
    before = draft.planned_seconds
    p.ops(b, region.ops)
    returned = [
        values.reshard_to(value, sharding, value.span, Cause(kind, "while", name=value.name))
        for value, sharding in ((region.results[i], sharding) for i, sharding in results.items())
    ]
    if not trips:
        draft.planned_seconds = before
    return b.region(*returned)


# The choice.


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A loop planned in some shardings on trial, with its time."""

    choice: LoopChoice
    trial: Trial
    seconds: float

    def sharding_now(self, value: Value) -> ClosedSharding:
        """The sharding in which the trial has computed a value."""
        return next(iter(self.trial.partitioned[value].shardings))


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the cheapest choice for a loop, by rounds of trials. A change is kept if it makes the loop
    cheaper. The body then computes values in other shardings than before, which are tried in the next round. A brief
    search has short rounds, and begins with what the `last` full one chose."""

    p: Planner
    b: RegionBuilder
    op: Op
    last: LoopChoice | None

    def cheapest(self, wanted: Carried) -> _Attempt:
        """The loop in the cheapest choice that was found, beginning with the `wanted` shardings. If it needs no
        communication as it is, there are no further trials."""
        p, last = self.p, self.last
        best = self._first(LoopChoice(wanted), is_brief=last is not None)
        if self._sends_nothing(best):
            return best
        p.loops.are_sending = True
        tried = [best.choice]
        begun = LoopChoice(wanted, self._pending_and_used(best)) if last is None else self._like(last, best)
        if begun != best.choice:
            tried.append(begun)
            best = self._better(begun, best)
        changes = self._changes(best)
        most = _MAX_TRIALS_IN_A_ROUND if last is None else _MAX_TRIALS_IN_A_BRIEF_ROUND
        while changes:
            before, last_tried = best, min(_MAX_TRIALS, len(tried) + most - 1)
            for change in changes:
                changed = {**best.choice.carried, **change}
                if changed == best.choice.carried and best.choice.once:
                    changed = {**wanted, **change}
                choice = LoopChoice(changed, best.choice.once)
                if choice not in tried and len(tried) <= last_tried:
                    tried.append(choice)
                    made_of, before_it = self._made_of(changed), best
                    if made_of:
                        best = self._better(choice._replace(made_of=made_of), best)
                    if best is before_it:
                        best = self._better(choice, best)
            changes = () if best is before or self._sends_nothing(best) else self._changes(best)
        if last is not None:
            return best
        stacks = self._stacks(best)
        smallest = sorted(stacks, key=lambda i: self.op.results[i].type.nbytes)[:_MAX_TRIALS_IN_A_ROUND]
        for stacked in (stacks, *({i: stacks[i]} for i in smallest if len(stacks) > 1)):
            if stacked:
                best = self._better(self._carrying({**best.choice.carried, **stacked}, best.choice), best)
        return self._first(best.choice) if best.trial.planner.searched_briefly else best

    def _carrying(self, carried: Carried, like: LoopChoice) -> LoopChoice:
        """A choice like another one, with other shardings of carried values."""
        return like._replace(carried=carried, made_of=self._made_of(carried) if like.made_of else like.made_of)

    def _like(self, last: LoopChoice, now: _Attempt) -> LoopChoice:
        """The choice that was found last, as far as it is among what a loop may choose now."""
        carried = dict(now.choice.carried)
        carried.update((i, to) for i, to in last.carried.items() if to in self._others(i, carried[i], now))
        return self._carrying(carried, last)

    def _made_of(self, carried: Carried) -> Mapping[Value, ClosedSharding]:
        """What the next values of a loop are made of, in the shardings that go with the carried ones."""
        return wanted_with(self.op.regions[1], carried, self.p.values.wanted, self.p.annotated)

    def whole_or(self, best: _Attempt) -> _Attempt:
        """The loop computed whole on every device, if its iterations would communicate and that takes less time."""
        p, op = self.p, self.op
        if p.keeps_split or not self._sends_inside(best) or _is_split_by_the_user(p, op):
            return best
        if sum(v.type.nbytes for v in (*op.operands, *op.results)) > p.options.memory_limit:
            return best
        choice = LoopChoice({i: _whole(op.results[i]) for i in best.choice.carried}, is_whole=True)
        is_known = isinstance(op.attrs.get("trip_count"), int)
        whole = self._better(choice, best, 1.0 if is_known else _FEW_TRIPS / UNKNOWN_TRIPS)
        return best if self._sends_inside(whole) else whole

    def _sends_inside(self, attempt: _Attempt) -> bool:
        """Whether the iterations of the loop communicate."""
        draft = attempt.trial.draft
        return draft.sends(draft.builder(self.b).ops[-1])

    def _sends_nothing(self, attempt: _Attempt) -> bool:
        """Whether no data is moved in the loop, in front of it or behind it."""
        carried, wanted = attempt.choice.carried, self.p.values.wanted
        in_place = all(wanted(self.op.results[i]) == sharding for i, sharding in carried.items())
        return in_place and attempt.trial.draft.sends_nothing()

    # Trials.

    def _first(self, choice: LoopChoice, *, is_brief: bool = False) -> _Attempt:
        """The loop planned in this way, on trial, however long it takes."""
        found = self._try(choice, math.inf, is_brief=is_brief)
        assert found is not None, "there is no limit"
        return found

    def _better(self, choice: LoopChoice, best: _Attempt, share: float = 1.0) -> _Attempt:
        """The loop planned in this way, if that takes less time than this share of that of the best so far."""
        limit = best.seconds * share * (1 - CLOSE)
        new = self._try(choice, limit * ROUNDING, is_brief=True)
        return new if new is not None and new.seconds < limit else best

    def _try(self, choice: LoopChoice, limit: float, *, is_brief: bool) -> _Attempt | None:
        """The loop planned in this way, on trial; None if it takes longer than the limit. Loops inside it that were
        searched in full before are searched briefly if that is said."""
        p, b, behind = self.p, self.b, 0.0
        for i, sharding in choice.carried.items():
            result = self.op.results[i]
            if result in p.facts.needed:
                wanted = p.values.wanted(result)
                behind += p.in_loops.resharder.plan(result.shape, result.dtype.nbytes, sharding, wanted).seconds
        trial = Trial(p, max(0.0, limit - behind) * p.draft.runs(b))
        trial.planner.searched_briefly = set() if is_brief else None
        try:
            _plan(trial.planner, trial.draft.builder(b), self.op, choice)
        except TooSlowError:
            return None
        return _Attempt(choice, trial, trial.seconds(b) + behind)

    # What to try.

    def _changes(self, now: _Attempt) -> Sequence[Carried]:
        """Other shardings for carried values: first for all of them, then for all whose reductions can be pending, then
        for one at a time. What is never moved has nothing to gain alone but a pending reduction."""
        others = {i: tuple(self._others(i, sharding, now)) for i, sharding in now.choice.carried.items()}
        together = {i: shardings[0] for i, shardings in others.items() if shardings}
        changes: list[Carried] = [together, {i: sharding for i, sharding in together.items() if sharding.partial}]
        moved = self._moved(now)
        for i, shardings in others.items():
            changes += [{i: sharding} for sharding in shardings if sharding.partial or i in moved]
        return [change for i, change in enumerate(changes) if change and change not in changes[:i]]

    def _moved(self, now: _Attempt) -> set[int]:
        """The carried values that are brought into another sharding, in front of the loop, behind it, or in it: there,
        what is made of them element by element is moved, or what it is made of."""
        p, op, body = self.p, self.op, self.op.regions[1]
        planned, found, resharder = now.trial.partitioned, set[int](), p.in_loops.resharder

        def is_moved(value: Value) -> bool:
            partitioned = planned[value]
            return len(partitioned.shardings) > 1 or any(plan.seconds for plan in partitioned.moved.values())

        for i, sharding in now.choice.carried.items():
            initial, result, following = op.operands[i], op.results[i], body.results[i]
            have = p.values.partitioned[initial].shardings
            if (
                is_moved(body.params[i])
                or is_moved(following)
                or now.sharding_now(following) != sharding
                or (result in p.facts.needed and p.values.wanted(result) != sharding)
                or resharder.cheapest(initial.shape, initial.dtype.nbytes, have, sharding)[0].seconds
            ):
                found.add(i)
        made_of: dict[Value, set[int]] = {body.params[i]: {i} for i in now.choice.carried if i not in found}
        for inner in body.ops:
            for result in inner.results:
                alike = [v for v in inner.operands if v.type.shape == result.type.shape]
                carried = set().union(*(made_of[v] for v in alike if v in made_of))
                if carried:
                    made_of[result] = carried
                    if any(is_moved(v) for v in (*alike, result)):
                        found |= carried
        return found

    def _pending_and_used(self, now: _Attempt) -> frozenset[Value]:
        """The results of the body that are partial sums, are used in the body, and are to be carried reduced."""
        carried, results = now.choice.carried, self.op.regions[1].results
        reduced = (results[i] for i, sharding in carried.items() if not sharding.partial)
        return frozenset(v for v in reduced if self.p.facts.uses[v] and now.sharding_now(v).partial)

    def _others(self, i: int, carried: ClosedSharding, now: _Attempt) -> Iterator[ClosedSharding]:
        """Other shardings that a carried value may have, the most promising first."""
        p, op, parts = self.p, self.op, self.p.linear_parts(self.op)[i]
        candidates: dict[ClosedSharding, None] = {}
        for sharding in parts.natural(now.sharding_now):
            if not sharding.partial:
                candidates[sharding] = None
            elif parts.is_sum:
                candidates[self._pending(carried, sharding.partial)] = None
        candidates[now.sharding_now(op.regions[1].results[i])] = None
        candidates[next(iter(p.values.partitioned[op.operands[i]].shardings))] = None
        behind = p.values.wanted(op.results[i])
        if not behind.partial or p.facts.uses[op.results[i]] <= 1:
            candidates[behind] = None
        yield from (sharding for sharding in candidates if sharding != carried and sharding.order is None)

    def _stacks(self, best: _Attempt) -> Carried:
        """Pending reductions for carried values in which partial sums are stored, and that are whole on the devices
        that add them up: they are as large with them."""
        found: dict[int, ClosedSharding] = {}
        for i, now in best.choice.carried.items():
            parts = self.p.linear_parts(self.op)[i]
            if parts.is_linear and not parts.is_sum and now.is_plain:
                for sharding in parts.natural(best.sharding_now):
                    if sharding.partial and not now.used.intersection(a for a, _ in sharding.partial):
                        found.setdefault(i, self._pending(now, sharding.partial))
        return found

    def _pending(self, now: ClosedSharding, partial: Partial) -> ClosedSharding:
        """A carried value's sharding with reductions pending."""
        over = {a for a, _ in partial}
        rest = tuple(tuple(a for a in axes if a not in over) for axes in now.axes)
        return ClosedSharding(rest, self.p.sub_axes.in_order(partial))


def _is_split_by_the_user(p: Planner, op: Op) -> bool:
    """Whether something in the loop, or in a function that it calls, is annotated or in a manual region."""
    functions = p.program.functions
    called = reached(
        [name for region in op.regions for name in called_in(region)], lambda f: called_in(functions[f].body)
    )
    inside = [*op.regions, *(functions[name].body for name in called)]
    if any(v.name in p.annotated for region in inside for v in values_within(region)):
        return True
    return any(is_annotation(inner) or is_manual(inner) for region in inside for inner in walk(region))
