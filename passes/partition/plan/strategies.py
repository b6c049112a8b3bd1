"""Which factor of an op each mesh axis splits: the strategy of least cost.

The candidates come from what exists: the shardings in which operands are known, and the propagated shardings of
operands and results. Each sub-axis goes to a factor that some candidate has for it, stays a pending reduction (where
the op is linear), or splits nothing. A strategy costs the op itself, the reshards of its operands, and that of its
results.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.mesh import Axes, AxisRef, axes_in_groups, axes_size
from ir.ops import OPS, FactorKind, FactorRule, Linearity
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.records import quickly_made
from ir.sharding import shard_size
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, compute_seconds
from passes.factors import dims_of_factors, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding, Partial, bytes_of
from passes.partition.exchange.halo import GATHER_FANOUT
from passes.partition.options import PartitionOptions
from passes.partition.plan.windowed_einsum import windowed_cost, windowed_einsums
from passes.partition.registry import (
    can_split_along,
    cut_of_the_whole,
    is_worth_writing,
    partitioning_of,
    seconds_along,
)
from passes.partition.reshard.planner import Resharder
from passes.partition.strategy import ClosedShardings, Strategy, WindowedEinsum, shardings_under
from passes.sub_axes import SubAxes

_SPLITTABLE = (FactorKind.PARALLEL, FactorKind.REDUCTION)
_ALONG = (FactorKind.WINDOW, FactorKind.SCAN)
_MAX_ASSIGNMENTS = 96
CLOSE = 0.005
"""Strategies that differ by less are as good, and the earlier wins: one that leaves a reduction pending comes before
one that pays it now, for it may be shared later; but not in vain."""


@quickly_made
@dataclass(frozen=True, slots=True)
class StrategyQuery:
    """All that the choice depends on: equal questions have equal answers.

    `known` are the shardings in which each operand exists, the first the one it was made in; `wanted` the propagated
    shardings of operands and of results. An operand that is `anywhere` can be made in any sharding where it is needed.
    `shares` are how often a reshard of each operand runs for one run of the op: what is in front of a loop runs once.
    One that is `shared` serves other ops too, and need be gathered only once for them. A result that is `reduced` is
    needed with no reduction pending. `used` is for each result whether anyone needs it, and `summed` with how many
    others, itself included, its reduction is done at once if it stays pending.
    """

    op: Op
    rule: FactorRule
    known: tuple[tuple[ClosedSharding, ...], ...]
    recomputable: tuple[bool, ...]
    shares: tuple[float, ...]
    wanted_operands: tuple[ClosedSharding, ...]
    wanted_results: tuple[ClosedSharding, ...]
    shared: tuple[bool, ...]
    used: tuple[bool, ...]
    reduced: bool = False
    summed: tuple[int, ...] = ()

    def key(self) -> object:
        op, opdef = self.op, OPS[self.op.name]
        what: object = op.name, tuple(op.attrs.items())
        if not partitioning_of(op).in_parts and not any(f.kind in _ALONG for f in self.rule.factors):
            what = opdef.linearity(op), opdef.flops(op) if opdef.flops is not None else None
        return (
            what,
            self.rule,
            tuple(v.type for v in op.operands),
            tuple(v.type for v in op.results),
            self.known,
            self.recomputable,
            self.shares,
            self.wanted_operands,
            self.wanted_results,
            self.shared,
            self.used,
            self.reduced,
            self.summed,
        )


@dataclass(frozen=True, slots=True, eq=False)
class AskedOp:
    """The part of the questions about an op that is the same wherever its operands are, as `StrategyQuery` has it, and
    the answers that were given so far, by the rest of it."""

    rules: tuple[FactorRule, ...]
    shared: tuple[bool, ...]
    used: tuple[bool, ...]
    whole: bool
    at_once: tuple[int, ...]
    answers: dict[object, tuple[FactorRule, Strategy]]


def can_be_made(sharding: ClosedSharding) -> bool:
    """Whether a device that can make any part of a value has what the sharding asks of it."""
    return not sharding.partial and sharding.order is None


def can_be_split(op: Op, rule: FactorRule, factor: int, axes: Mapping[int, Axes]) -> bool:
    """Whether the op has a way to be split along that factor of one of its rules, if `axes` split its factors.

    It has none if that takes an exchange with more devices than is worth writing.
    """
    kind = rule.factors[factor].kind
    if kind not in _ALONG or not can_split_along(op, rule, factor):
        return kind in _SPLITTABLE
    dims = [dims_of_factors(rule, tensor, axes) for tensor in rule.operands]
    shardings = [ClosedSharding(d) for d in dims if d is not None]
    known = len(shardings) == len(dims) and factor in axes
    return not known or is_worth_writing(op, rule, factor, axes[factor], shardings)


def can_stay_split(op: Op, rule: FactorRule, operand: int, split: Sequence[Axes], dim: int) -> bool:
    """Whether by that rule the axes of an operand's dim can stay there, or move to a dim that takes their place."""
    tensor = rule.operands[operand]
    if any(rule.factors[f].moves_to is not None for f in tensor[dim]):
        return True
    found = factors_of_dims(rule, tensor, split)
    if not all(can_be_split(op, rule, f, found) for f in tensor[dim]):
        return False
    usable = dims_of_factors(rule, tensor, found)
    return usable is not None and usable[dim][: len(split[dim])] == split[dim]


@dataclass(frozen=True, slots=True)
class _Options:
    """What shardings mean for factors, and for each axis what it can do: split a factor, or stay "partial"."""

    proposals: Sequence[dict[int, Axes]]
    of_axis: Mapping[AxisRef, Sequence[int | str]]


class StrategySelector:
    """Answers questions, each once."""

    def __init__(self, resharder: Resharder, options: PartitionOptions) -> None:
        self.resharder = resharder
        self.options = options
        self.machine = options.machine
        self.sub_axes: SubAxes = resharder.sub_axes
        self.answers: dict[object, Strategy] = {}

    def choose(self, query: StrategyQuery) -> Strategy:
        """The cheapest strategy."""
        key = query.key()
        found = self.answers.get(key)
        if found is None:
            found = self.answers[key] = self._search(query)
        return found

    def candidates(self, q: StrategyQuery) -> list[Strategy]:
        """All ways that the op has under that rule, each with its cost, the likeliest first."""
        candidates = [
            candidate for candidate in self._candidates(q, self._options(q)) if not math.isinf(candidate.seconds)
        ]
        priced = (self._priced(candidate, (), math.inf) for candidate in candidates)
        return list(dict.fromkeys(strategy for strategy in priced if strategy is not None))

    def _search(self, q: StrategyQuery) -> Strategy:
        options = self._options(q)
        others = self._candidates(q, options)
        first = next(others)
        if self._is_unbeaten(q, options, first):
            return Strategy(first.factors, *first.shardings, first.seconds, None, 0, first.seconds, first.sends)
        candidates = [first, *others]
        best = self._cheapest([candidate for candidate in candidates if not candidate.for_memory_only])
        return self._cheapest(candidates) if best.excess else best

    def _cheapest(self, candidates: Sequence[_Candidate]) -> Strategy:
        """The first of those that take the least time, or hardly more. Of candidates that cannot be among them, no
        reshards are planned, and of those that take longer without any, it is not asked what these take at least."""
        found: dict[int, Strategy] = {}
        best: Strategy | None = None
        queue = [(self._is_second(c), c.seconds, i) for i, c in enumerate(candidates)]
        heapq.heapify(queue)
        least: dict[int, Sequence[float]] = {}
        while queue:
            is_second, bound, i = heapq.heappop(queue)
            limit = math.inf if best is None or best.excess else best.seconds / (1 - CLOSE)
            if best is not None and is_second > self._is_second(best):
                break
            if bound > limit:
                continue
            if i not in least:
                least[i] = [move.share * self._least_seconds(move) for move in candidates[i].moves]
                heapq.heappush(queue, (is_second, bound + sum(least[i]), i))
                continue
            strategy = self._priced(candidates[i], least[i], limit)
            if strategy is None:
                continue
            found[i] = strategy
            if best is None or (strategy.excess, strategy.seconds) < (best.excess, best.seconds):
                best = strategy
        assert best is not None, "computing an op whole on every device is always possible"
        as_good = (i for i, a in found.items() if a.excess == best.excess and a.seconds * (1 - CLOSE) <= best.seconds)
        return found[min(as_good, key=lambda i: (candidates[i].is_vain, i))]

    def _is_unbeaten(self, q: StrategyQuery, options: _Options, candidate: _Candidate) -> bool:
        """Whether no candidate can take less time than this one, or too little less to be preferred.

        It moves nothing, and each tensor is split over all that may split it: so it is with most ops, whose other
        candidates need not be made then.
        """
        if self.options.windowed_einsum == "always" or candidate.memory > self.options.memory_limit:
            return False
        if not all(move.is_done for move in candidate.moves):
            return False
        usable = {a: {f for f in chosen if isinstance(f, int)} for a, chosen in options.of_axis.items()}
        sizes: list[float] = []
        sides = (*q.rule.operands, *q.rule.results)
        for value, tensor in zip((*q.op.operands, *q.op.results), sides, strict=True):
            mine = {f for dim in tensor for f in dim}
            parts = math.prod(a.size for a, factors in usable.items() if not mine.isdisjoint(factors))
            sizes.append(value.type.nbytes / parts)
        parts = math.prod(a.size for a, factors in usable.items() if factors)
        return candidate.seconds * (1 - CLOSE) <= compute_seconds(self.machine, q.op, parts, sizes)

    def _is_second(self, choice: _Candidate | Strategy) -> bool:
        """Whether a loop is to be preferred to it, whatever it costs."""
        return self.options.windowed_einsum == "always" and choice.windowed is None

    # Candidates.

    def _options(self, q: StrategyQuery) -> _Options:
        proposals = list(self._proposals(q))
        options: dict[AxisRef, list[int | str]] = {}
        for proposal in proposals:
            for f, axes in proposal.items():
                for axis in axes:
                    chosen = options.setdefault(axis, [])
                    if f not in chosen:
                        chosen.append(f)
        for axis in self._partial_axes(q):
            options.setdefault(axis, []).append("partial")
        return _Options(proposals, options)

    def _splits(self, given: _Options) -> Iterator[tuple[dict[int, Axes], tuple[AxisRef, ...]]]:
        """Ways to split factors over axes, and the axes left partial; best guesses first."""
        proposals, options = given.proposals, given.of_axis
        sub_axes = sorted(options, key=lambda a: self.sub_axes.rank[a])
        if math.prod(len(options[a]) + 1 for a in sub_axes) > _MAX_ASSIGNMENTS:
            partial = tuple(a for a in sub_axes if "partial" in options[a])
            nothing: dict[int, Axes] = {}
            for proposal in (*proposals, nothing):
                yield proposal, ()
                taken = {a for dim in proposal.values() for a in dim}
                yield proposal, tuple(a for a in partial if a not in taken)
            return
        for choice in itertools.product(*((*options[a], None) for a in sub_axes)):
            factors: dict[int, set[AxisRef]] = {}
            for axis, where in zip(sub_axes, choice, strict=True):
                if isinstance(where, int):
                    factors.setdefault(where, set()).add(axis)
            through = tuple(a for a, where in zip(sub_axes, choice, strict=True) if where == "partial")
            ordered = {f: self._in_order(f, chosen, proposals) for f, chosen in factors.items()}
            yield ordered, through

    def _in_order(self, f: int, chosen: set[AxisRef], proposals: Sequence[Mapping[int, Axes]]) -> Axes:
        """The axes in the order in which a proposal has them."""
        for proposal in proposals:
            axes = tuple(a for a in proposal.get(f, ()) if a in chosen)
            if len(axes) == len(chosen):
                return axes
        return tuple(sorted(chosen, key=lambda a: self.sub_axes.rank[a]))

    def _proposals(self, q: StrategyQuery) -> Iterator[dict[int, Axes]]:
        """What shardings mean for factors; last, the same with axes of dims that need replication on others."""
        sides = (*q.rule.operands, *q.rule.results)
        shardings: list[tuple[int, ClosedSharding]] = [(i, k) for i, known in enumerate(q.known) for k in known]
        shardings += list(enumerate((*q.wanted_operands, *q.wanted_results)))
        said = [factors_of_dims(q.rule, sides[position], sharding.axes) for position, sharding in shardings]
        usable = [{f: a for f, a in found.items() if can_be_split(q.op, q.rule, f, found)} for found in said]
        moved = [
            self._moved(q.rule, sides[position], found, fitting)
            for (position, _), found, fitting in zip(shardings, said, usable, strict=True)
        ]
        seen: list[dict[int, Axes]] = []
        for proposal in (*usable, *moved):
            if proposal and proposal not in seen:
                seen.append(proposal)
                yield proposal

    @staticmethod
    def _moved(
        rule: FactorRule, tensor: TensorFactors, found: Mapping[int, Axes], fitting: Mapping[int, Axes]
    ) -> dict[int, Axes]:
        """With the axes of factors that cannot be split on the tensor's largest parallel dim, if that has room.

        An all_to_all brings them there, and another one back: a pencil decomposition.
        """
        stuck = tuple(a for f, axes in found.items() if f not in fitting for a in axes)
        free = [d[0] for d in tensor if len(d) == 1 and rule.factors[d[0]].kind is FactorKind.PARALLEL]
        if not stuck or not free:
            return {}
        largest = max(free, key=lambda f: rule.factors[f].size)
        axes = (*fitting.get(largest, ()), *stuck)
        return {**fitting, largest: axes} if rule.factors[largest].size >= axes_size(axes) else {}

    def _partial_axes(self, q: StrategyQuery) -> list[AxisRef]:
        """The axes over which some operand is partial in a way that the op commutes with."""
        found: dict[AxisRef, None] = {}
        for linearity in OPS[q.op.name].linearity(q.op):
            for position in linearity.group:
                for sharding in q.known[position]:
                    found.update({a: None for a, kind in sharding.partial if kind in linearity.kinds})
        return list(found)

    # Costs.

    def _candidates(self, q: StrategyQuery, options: _Options) -> Iterator[_Candidate]:
        """The ways to split the op, and behind each of them loops that do the same. Those are left out whose shards
        would be no boxes, and those whose reductions would not commute."""
        for factors, through in self._splits(options):
            groups = self._groups(q, through) if through else ((Linearity((), ()), ()),)
            for linearity, pending in groups:
                shardings = shardings_under(q.rule, factors, linearity.group, pending, self.sub_axes)
                if shardings is None or any(len({kind for _, kind in side.partial}) > 1 for side in shardings[1]):
                    continue
                whole = _with_what_is_whole(q, factors, shardings)
                if whole != shardings:
                    yield self._candidate(q, factors, whole, None)
                yield self._candidate(q, factors, shardings, None)
                if self.options.windowed_einsum == "never":
                    continue
                ready = [(*known, wanted) for known, wanted in zip(q.known, q.wanted_operands, strict=True)]
                for windowed, split in windowed_einsums(q.op, q.rule, shardings, ready, q.wanted_results[0]):
                    yield self._candidate(q, factors, split, windowed)

    @staticmethod
    def _groups(q: StrategyQuery, through: tuple[AxisRef, ...]) -> Iterator[tuple[Linearity, Partial]]:
        for linearity in OPS[q.op.name].linearity(q.op):
            kinds = {
                a: kind
                for position in linearity.group
                for sharding in q.known[position]
                for a, kind in sharding.partial
                if kind in linearity.kinds
            }
            if all(a in kinds for a in through):
                yield linearity, tuple((a, kinds[a]) for a in through)

    def _candidate(
        self, q: StrategyQuery, factors: dict[int, Axes], shardings: ClosedShardings, windowed: WindowedEinsum | None
    ) -> _Candidate:
        sizes = [
            bytes_of(v, sharding)
            for v, sharding in zip((*q.op.operands, *q.op.results), (*shardings[0], *shardings[1]), strict=True)
        ]
        memory = sum(sizes)
        parts = math.prod(axes_size(axes) for axes in factors.values())
        if windowed is None:
            seconds = compute_seconds(self.machine, q.op, parts, sizes)
        else:
            cost = windowed_cost(self.machine, q.op, q.rule, windowed, parts, shardings)
            seconds = cost.seconds
            memory += cost.buffers
        computed = seconds
        for f, axes in factors.items():
            if axes and q.rule.factors[f].kind in _ALONG:
                seconds += seconds_along(self.machine, q.op, q.rule, f, axes, shardings[0])
            elif axes and q.rule.factors[f].has_candidates:
                used = [n for n, is_used in zip(sizes[len(q.op.operands) :], q.used, strict=True) if is_used]
                seconds += _candidates_seconds(self.machine, q.rule, f, axes, used)
        moves = tuple(_moves(q, shardings))
        shared = windowed is not None and windowed.rotating is not None and q.shared[windowed.rotating]
        for_memory_only = shared and self.options.windowed_einsum != "always"
        vain = q.reduced and _is_vain(q, shardings)
        split = tuple(sorted(factors.items()))
        sends = windowed is not None or seconds > computed
        return _Candidate(split, shardings, windowed, seconds, memory, moves, for_memory_only, vain, sends)

    def _priced(self, candidate: _Candidate, least: Sequence[float], limit: float) -> Strategy | None:
        """The candidate with its cost; None if it takes longer than the limit. Its reshards take at least `least`."""
        seconds, memory = candidate.seconds, candidate.memory
        for i, move in enumerate(candidate.moves):
            if seconds + sum(least[i:]) > limit:
                return None
            cheapest, source = self._cheapest_source(move)
            seconds += move.share * cheapest
            if move.is_operand and source != move.target:
                memory += bytes_of(move.value, source)
        excess = max(0, memory - self.options.memory_limit)
        return Strategy(
            candidate.factors,
            *candidate.shardings,
            seconds,
            candidate.windowed,
            excess,
            candidate.seconds,
            candidate.sends,
        )

    def _least_seconds(self, move: _Move) -> float:
        """What a reshard takes at least, from whichever sharding."""
        if move.is_done:
            return 0.0
        shape, itemsize = move.value.shape, move.value.dtype.nbytes
        return min([self.resharder.least_seconds(shape, itemsize, source, move.target) for source in move.sources])

    def _cheapest_source(self, move: _Move) -> tuple[float, ClosedSharding]:
        """The sharding from which a reshard takes the least time, and that time. None is planned that cannot be it."""
        if move.is_done:
            return 0.0, move.target
        shape, itemsize = move.value.shape, move.value.dtype.nbytes
        best, cheapest = math.inf, move.sources[0]
        for source in move.sources:
            if len(move.sources) == 1 or self.resharder.least_seconds(shape, itemsize, source, move.target) < best:
                seconds = self.resharder.plan(shape, itemsize, source, move.target).seconds
                if seconds < best:
                    best, cheapest = seconds, source
        return best, cheapest


@quickly_made
@dataclass(frozen=True, slots=True)
class _Move:
    """A reshard that a strategy implies, of an operand or of a result: from one of the shardings to another."""

    value: Value
    sources: tuple[ClosedSharding, ...]
    target: ClosedSharding
    share: float
    is_operand: bool

    @property
    def is_done(self) -> bool:
        """Whether the value is there already."""
        return self.target in self.sources


def _is_vain(q: StrategyQuery, shardings: ClosedShardings) -> bool:
    """Whether nothing is gained by leaving the operands' reductions pending, if that of the result is done at once: an
    operand is made partial for it, or only one is, of no more bytes than the result."""
    operands, results = shardings
    pending = [i for i, sharding in enumerate(operands) if sharding.partial]
    if any(not any(have.partial for have in q.known[i]) for i in pending):
        return True
    if len(pending) != 1 or any(result.partial != operands[pending[0]].partial for result in results):
        return False
    made = sum(map(bytes_of, q.op.results, results))
    return made >= bytes_of(q.op.operands[pending[0]], operands[pending[0]])


def _with_what_is_whole(q: StrategyQuery, factors: Mapping[int, Axes], shardings: ClosedShardings) -> ClosedShardings:
    """The shardings with operands whole where they are, along dims of which devices then cut out what they need."""
    operands = list(shardings[0])
    for f, axes in factors.items():
        if not axes or q.rule.factors[f].kind is not FactorKind.WINDOW:
            continue
        for i, dim in cut_of_the_whole(q.op, q.rule, f, axes):
            split = operands[i].axes
            whole = replace(operands[i], axes=(*split[:dim], (), *split[dim + 1 :]))
            if whole in q.known[i] or (q.recomputable[i] and can_be_made(whole)):
                operands[i] = whole
    return tuple(operands), shardings[1]


def _moves(q: StrategyQuery, shardings: ClosedShardings) -> Iterator[_Move]:
    operands, results = shardings
    given = zip(q.op.operands, q.known, q.recomputable, q.shares, operands, strict=True)
    for value, known, recomputable, share, sharding in given:
        if not (recomputable and can_be_made(sharding)):
            yield _Move(value, known, sharding, share, True)
    for i, (value, sharding, wanted) in enumerate(zip(q.op.results, results, q.wanted_results, strict=True)):
        at_once = q.summed[i] if q.summed and sharding.partial and not wanted.partial else 1
        yield _Move(value, (sharding,), wanted, 1 / at_once, False)


@quickly_made
@dataclass(frozen=True, slots=True)
class _Candidate:
    """A strategy before its reshards are planned: `seconds` and `memory` are what it takes without them. A candidate
    `for_memory_only` if parts of an operand go around in it that other ops use too: it is for lack of memory only. It
    `is_vain` if it leaves a reduction pending that is done at once, and as well done before."""

    factors: tuple[tuple[int, Axes], ...]
    shardings: ClosedShardings
    windowed: WindowedEinsum | None
    seconds: float
    memory: int
    moves: tuple[_Move, ...]
    for_memory_only: bool
    is_vain: bool
    sends: bool


def _candidates_seconds(machine: Machine, rule: FactorRule, factor: int, axes: Axes, sizes: Sequence[float]) -> float:
    """Time of the communication of candidates, of which each device has so many bytes a result, if `axes` split a
    factor whose partial results only the op can combine. All results' travel at once."""
    seconds = 0.0
    found = (rule.factors[f] for dim in rule.results[0] for f in dim)
    kept = next((f.size for f in found if f.kind is FactorKind.NEED_REPLICATION), 1)
    held = shard_size(rule.factors[factor].size, axes)
    for group in axes_in_groups(axes, GATHER_FANOUT):
        have = min(kept, held)
        sent = math.ceil(sum(sizes) * have / max(1, kept))
        seconds += communication_seconds(machine, "all_gather", group, sent)
        held = have * axes_size(group)
    return seconds
