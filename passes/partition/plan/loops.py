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
from contextlib import contextmanager
from dataclasses import dataclass

from ir.builder import RegionBuilder
from ir.causes import Cause, CauseKind
from ir.closure import reached
from ir.ops.control import is_manual
from ir.ops.layout import is_annotation
from ir.program import Op, Region, Value, called_in, values_within, walk
from passes.cost.model import ROUNDING, UNKNOWN_TRIPS, trips_of
from passes.partition.closed_sharding import ClosedSharding, Partial
from passes.partition.plan.draft import TooSlowError
from passes.partition.plan.loop_linearity import LinearParts
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
    values, (condition, body) = p.values, op.regions
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
    last = p.searched.get(op) if p.is_brief and key not in p.loops else None
    if last is not None:
        key, p.was_brief = ("brief", *key), True
    known = p.loops.get(key)
    if known is not None:
        p.whole.whole_loops += known.is_whole
        _plan(p, b, op, known)
        return
    before = _decided(p)
    best = _search(p, b, op, wanted, last)
    if last is None:
        p.searched[op] = best.choice
    if _decided(p) == before:
        p.split_loops[key] = best.choice
    best = _whole_or(p, b, op, best)
    p.loops[key] = best.choice
    p.whole.whole_loops += best.choice.is_whole
    if best.trial.can_be_kept():
        best.trial.keep()
    else:
        _plan(p, b, op, best.choice)


def _decided(p: Planner) -> tuple[int, int]:
    """How much was decided so far that would be different, or not there to be used, if all loops were split."""
    return p.whole.whole_loops, len(p.versions.planned)


def _plan(p: Planner, b: RegionBuilder, op: Op, choice: LoopChoice) -> None:
    values, (condition, body), carried = p.values, op.regions, choice.carried
    suit: dict[Value, ClosedSharding] = {}
    if choice.is_whole:
        suit.update((v, _whole(v)) for region in op.regions for v in values_within(region))
    suit.update(choice.made_of)
    for i, sharding in carried.items():
        suit.update(p.linear_parts(op)[i].wants(sharding))
        suit[body.params[i]] = suit[body.results[i]] = sharding
    before = {value: values.wants.get(value) for value in suit}
    values.wants.update(suit)
    others, whole = values.reduced_once, {body.results[i] for i, sharding in carried.items() if not sharding.partial}
    values.reduced_once = others | (whole & choice.once)
    trips, names = trips_of(op), [b.names.fresh(param.name) for param in body.params]
    with _iterations(p):
        operands = [
            values.reshard_to(op.operands[i], sharding, op.span, Cause("initial", op.name, name=body.params[i].name))
            for i, sharding in carried.items()
        ]
        regions = (
            _region(p, b, condition, trips, carried, {0: ClosedSharding(())}, "condition", names),
            _region(p, b, body, trips, carried, carried, "carried", names),
        )
    values.reduced_once = others
    for value, wanted in before.items():
        if wanted is None:
            del values.wants[value]
        else:
            values.wants[value] = wanted
    outs = [(op.results[i], sharding) for i, sharding in carried.items()]
    p.add_whole(b, op, operands, outs, regions=regions)


@contextmanager
def _iterations(p: Planner) -> Iterator[None]:
    """While this is entered, ops are planned that run in each iteration of a loop, or whose reshards should not. A
    message in a loop waits for those of the iteration before, so its latency counts in full, and more than once."""
    before = p.selector
    p.use(p.in_loops)
    try:
        yield
    finally:
        p.use(before)


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

    @property
    def carried(self) -> Carried:
        return self.choice.carried


def _search(p: Planner, b: RegionBuilder, op: Op, wanted: Carried, last: LoopChoice | None) -> _Attempt:
    """Rounds of trials. A change is kept if it makes the loop cheaper. The body then computes values in other shardings
    than before, which are tried in the next round. If a loop needs no communication as it is, there are no further
    trials. A brief search has short rounds, and begins with what the `last` full one chose."""
    best = _try(p, b, op, LoopChoice(wanted), is_brief=last is not None)
    assert best is not None, "there is no limit"
    if _sends_nothing(p, best, op):
        return best
    p.whole.has_sending_loops = True
    tried = [best.choice]
    begun = LoopChoice(wanted, _pending_and_used(p, best, op)) if last is None else _like(p, best, op, last)
    if begun != best.choice:
        tried.append(begun)
        best = _better(p, b, op, begun, best)
    changes = _changes(p, best, op)
    most = _MAX_TRIALS_IN_A_ROUND if last is None else _MAX_TRIALS_IN_A_BRIEF_ROUND
    while changes:
        before, last_tried = best, min(_MAX_TRIALS, len(tried) + most - 1)
        for change in changes:
            changed = {**best.carried, **change}
            if changed == best.carried and best.choice.once:
                changed = {**wanted, **change}
            choice = LoopChoice(changed, best.choice.once)
            if choice not in tried and len(tried) <= last_tried:
                tried.append(choice)
                made_of, before_it = _made_of(p, op, changed), best
                if made_of:
                    best = _better(p, b, op, choice._replace(made_of=made_of), best)
                if best is before_it:
                    best = _better(p, b, op, choice, best)
        changes = () if best is before or _sends_nothing(p, best, op) else _changes(p, best, op)
    if last is not None:
        return best
    stacks = _stacks(p, best, op)
    smallest = sorted(stacks, key=lambda i: op.results[i].type.nbytes)[:_MAX_TRIALS_IN_A_ROUND]
    for stacked in (stacks, *({i: stacks[i]} for i in smallest if len(stacks) > 1)):
        if stacked:
            carried = {**best.carried, **stacked}
            made_of = _made_of(p, op, carried) if best.choice.made_of else best.choice.made_of
            best = _better(p, b, op, best.choice._replace(carried=carried, made_of=made_of), best)
    if best.trial.planner.was_brief:
        best = _try(p, b, op, best.choice)
        assert best is not None, "there is no limit"
    return best


def _like(p: Planner, now: _Attempt, op: Op, last: LoopChoice) -> LoopChoice:
    """The choice that was found last, as far as it is among what a loop may choose now."""
    t, carried = now.trial.planner, dict(now.carried)
    carried.update((i, to) for i, to in last.carried.items() if to in _others(p, t, op, i, carried[i]))
    return last._replace(carried=carried, made_of=_made_of(p, op, carried) if last.made_of else last.made_of)


def _made_of(p: Planner, op: Op, carried: Carried) -> Mapping[Value, ClosedSharding]:
    """What the next values of a loop are made of, in the shardings that go with the carried ones."""
    return wanted_with(op.regions[1], carried, p.values.wanted, p.annotated)


def _whole_or(p: Planner, b: RegionBuilder, op: Op, best: _Attempt) -> _Attempt:
    """The loop computed whole on every device, if its iterations would communicate and that takes less time."""
    if p.keeps_split or not _sends_inside(best, b) or _is_split_by_the_user(p, op):
        return best
    if sum(v.type.nbytes for v in (*op.operands, *op.results)) > p.options.memory_limit:
        return best
    choice = LoopChoice({i: _whole(op.results[i]) for i in best.carried}, is_whole=True)
    is_known = isinstance(op.attrs.get("trip_count"), int)
    whole = _better(p, b, op, choice, best, 1.0 if is_known else _FEW_TRIPS / UNKNOWN_TRIPS)
    return best if _sends_inside(whole, b) else whole


def _whole(value: Value) -> ClosedSharding:
    return ClosedSharding.replicated(value.type.rank)


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


def _sends_inside(attempt: _Attempt, b: RegionBuilder) -> bool:
    """Whether the iterations of the loop communicate."""
    draft = attempt.trial.draft
    return draft.sends(draft.builder(b).ops[-1])


def _sends_nothing(p: Planner, attempt: _Attempt, op: Op) -> bool:
    """Whether no data is moved in the loop, in front of it or behind it."""
    in_place = all(p.values.wanted(op.results[i]) == sharding for i, sharding in attempt.carried.items())
    return in_place and attempt.trial.draft.sends_nothing()


def _changes(p: Planner, now: _Attempt, op: Op) -> Sequence[Carried]:
    """Other shardings for carried values: first for all of them, then for all whose reductions can be pending, then for
    one at a time. What is never moved has nothing to gain alone but a pending reduction."""
    others = {i: tuple(_others(p, now.trial.planner, op, i, sharding)) for i, sharding in now.carried.items()}
    together = {i: shardings[0] for i, shardings in others.items() if shardings}
    changes: list[Carried] = [together, {i: sharding for i, sharding in together.items() if sharding.partial}]
    moved = _moved(p, now, op)
    for i, shardings in others.items():
        changes += [{i: sharding} for sharding in shardings if sharding.partial or i in moved]
    return [change for i, change in enumerate(changes) if change and change not in changes[:i]]


def _moved(p: Planner, now: _Attempt, op: Op) -> set[int]:
    """The carried values that are brought into another sharding, in front of the loop, behind it, or in it: there, what
    is made of them element by element is moved, or what it is made of."""
    body, planned, found = op.regions[1], now.trial.planner.values.partitioned, set[int]()
    resharder = p.in_loops.resharder

    def is_moved(value: Value) -> bool:
        partitioned = planned[value]
        return len(partitioned.shardings) > 1 or any(plan.seconds for plan in partitioned.moved.values())

    for i, sharding in now.carried.items():
        initial, result, following = op.operands[i], op.results[i], body.results[i]
        have = p.values.partitioned[initial].shardings
        if (
            is_moved(body.params[i])
            or is_moved(following)
            or next(iter(planned[following].shardings)) != sharding
            or (result in p.facts.needed and p.values.wanted(result) != sharding)
            or resharder.cheapest(initial.shape, initial.dtype.nbytes, have, sharding)[0].seconds
        ):
            found.add(i)
    made_of: dict[Value, set[int]] = {body.params[i]: {i} for i in now.carried if i not in found}
    for inner in body.ops:
        for result in inner.results:
            alike = [v for v in inner.operands if v.type.shape == result.type.shape]
            carried = set().union(*(made_of[v] for v in alike if v in made_of))
            if carried:
                made_of[result] = carried
                if any(is_moved(v) for v in (*alike, result)):
                    found |= carried
    return found


def _pending_and_used(p: Planner, now: _Attempt, op: Op) -> frozenset[Value]:
    """The results of the body that are partial sums, are used in the body, and are to be carried reduced."""
    results = {op.regions[1].results[i] for i, sharding in now.carried.items() if not sharding.partial}
    planned = now.trial.planner.values.partitioned
    return frozenset(v for v in results if p.facts.uses[v] and next(iter(planned[v].shardings)).partial)


def _try(
    p: Planner, b: RegionBuilder, op: Op, choice: LoopChoice, limit: float = math.inf, *, is_brief: bool = False
) -> _Attempt | None:
    """The loop planned in this way, on trial; None if it takes longer than the limit. Loops inside it are searched
    briefly if that is said."""
    behind, resharder = 0.0, p.in_loops.resharder
    for i, sharding in choice.carried.items():
        result = op.results[i]
        if result in p.facts.needed:
            behind += resharder.plan(result.shape, result.dtype.nbytes, sharding, p.values.wanted(result)).seconds
    trial = Trial(p, max(0.0, limit - behind) * p.draft.runs(b))
    trial.planner.is_brief, trial.planner.was_brief = is_brief, False
    try:
        _plan(trial.planner, trial.draft.builder(b), op, choice)
    except TooSlowError:
        return None
    return _Attempt(choice, trial, trial.seconds(b) + behind)


def _better(p: Planner, b: RegionBuilder, op: Op, choice: LoopChoice, best: _Attempt, share: float = 1.0) -> _Attempt:
    """The loop planned in this way, if that takes less time than this share of that of the best so far."""
    limit = best.seconds * share * (1 - CLOSE)
    new = _try(p, b, op, choice, limit * ROUNDING, is_brief=True)
    return new if new is not None and new.seconds < limit else best


def _others(p: Planner, t: Planner, op: Op, i: int, now: ClosedSharding) -> Iterator[ClosedSharding]:
    """Other shardings that a carried value may have, the most promising first."""
    body = op.regions[1]
    candidates: dict[ClosedSharding, None] = {}
    parts = p.linear_parts(op)[i]
    for sharding in _natural(t, parts):
        if not sharding.partial:
            candidates[sharding] = None
        elif parts.is_sum:
            candidates[_pending(p, now, sharding.partial)] = None
    for value, places in ((body.results[i], t.values.partitioned), (op.operands[i], p.values.partitioned)):
        candidates[next(iter(places[value].shardings))] = None
    behind = p.values.wanted(op.results[i])
    if not behind.partial or p.facts.uses[op.results[i]] <= 1:
        candidates[behind] = None
    yield from (sharding for sharding in candidates if sharding != now and sharding.order is None)


def _natural(t: Planner, parts: LinearParts) -> Iterator[ClosedSharding]:
    """The shardings of what is added to a carried value, as it is planned now."""

    def sharding_now(value: Value) -> ClosedSharding:
        sharding = next(iter(t.values.partitioned[value].shardings))
        return sharding if sharding.order is None else ClosedSharding.replicated(value.type.rank)

    return parts.natural(sharding_now)


def _pending(p: Planner, now: ClosedSharding, partial: Partial) -> ClosedSharding:
    """A carried value's sharding with reductions pending."""
    sub_axes = {a for a, _ in partial}
    rest = tuple(tuple(a for a in axes if a not in sub_axes) for axes in now.axes)
    return ClosedSharding(rest, tuple(sorted(partial, key=lambda pair: p.sub_axes.rank[pair[0]])))


def _stacks(p: Planner, best: _Attempt, op: Op) -> Carried:
    """Pending reductions for carried values in which partial sums are stored, and that are whole on the devices that
    add them up: they are as large with them."""
    found: dict[int, ClosedSharding] = {}
    for i, now in best.carried.items():
        parts = p.linear_parts(op)[i]
        if parts.is_linear and not parts.is_sum and now.is_plain:
            for sharding in _natural(best.trial.planner, parts):
                if sharding.partial and not now.used.intersection(a for a, _ in sharding.partial):
                    found.setdefault(i, _pending(p, now, sharding.partial))
    return found
