"""Which factor of an op each mesh axis splits: the strategy with the least cost.

The candidates are the ways to split the op (`splits`), with the windowed einsums that replace them. The cost of a
strategy is that of the op itself, of the reshards of its operands, and of those of its results.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ir.mesh import Axes, AxisRef, axes_size
from ir.ops import OPS, FactorKind
from ir.ops.declaration import InKernels
from ir.records import record
from passes.partition.closed_sharding import ClosedSharding, bytes_of, is_aligned, local_bytes
from passes.partition.exchange.candidates import candidates_seconds, scattered_seconds
from passes.partition.options import PartitionOptions
from passes.partition.plan.sides import KnownSides, Move, Side, Sides, StrategyQuery
from passes.partition.plan.splits import Options, Way, options_of, pending_groups, proposals_of, ways_to_split
from passes.partition.plan.windowed_einsum import can_be_windowed, windowed_cost, windowed_einsums
from passes.partition.registry import ALONG, seconds_along
from passes.partition.reshard.planner import Resharder
from passes.partition.strategy import ClosedShardings, Strategy, WindowedEinsum, results_of_candidates
from passes.sub_axes import SubAxes

CLOSE = 0.005
"""Strategies whose times differ by less count as equal, and the first of them is chosen. One that leaves a reduction
pending comes before one that does it, because it may be shared later, unless nothing can be gained by that."""

SecondsOf = Callable[[tuple[int, ...], float, ClosedSharding, ClosedSharding], float]
"""The time of a reshard, or a bound of it, of a tensor of that shape and element size from one sharding to another."""


class StrategySelector:
    """Answers strategy queries, each once. Ops that communicate are also split over axes that are `free`: that no
    manual region has, and no tensor of the op is split over. Reductions over them may be pending. A selector `like`
    another one, with the same options but for the links of the machine, shares the answers that these make no
    difference to. If it `moves_axes`, it tries them on factors on which no tensor has them."""

    def __init__(
        self,
        resharder: Resharder,
        options: PartitionOptions,
        free: Axes = (),
        like: StrategySelector | None = None,
        *,
        moves_axes: bool = True,
    ) -> None:
        self.resharder = resharder
        self.free = free
        self.moves_axes = moves_axes
        self.options = options
        self.machine = options.machine
        self.sub_axes: SubAxes = resharder.sub_axes
        self.known: KnownSides = {}
        self.answers: dict[object, Strategy] = {}
        self.local: dict[object, Strategy] = like.local if like is not None else {}
        """The answers that move nothing, and that nothing can beat even if links are infinitely fast."""

    def choose(self, query: StrategyQuery) -> Strategy:
        """The cheapest strategy."""
        key = query.key()
        found = self.answers.get(key)
        if found is None:
            found = self.answers[key] = self.local.get(key) or self._search(query)
        return found

    def choose_among(self, queries: Sequence[StrategyQuery]) -> tuple[StrategyQuery, Strategy]:
        """The cheapest strategy under any rule of an op, each of which has a query, and that query."""
        return min([(q, self.choose(q)) for q in queries], key=lambda found: (found[1].excess, found[1].seconds))

    def candidates(self, q: StrategyQuery) -> list[Strategy]:
        """All ways in which the op can be split under the query's rule, each with its cost, the most likely first."""
        sides = Sides(q, self.sub_axes, self.machine, self.known)
        proposals = list(proposals_of(q))
        splits = ways_to_split(proposals, options_of(q, proposals), self.sub_axes.rank)
        candidates = [c for c in self._candidates(q, sides, splits) if not math.isinf(c.seconds)]
        best = self._search(q)
        for ways in (self._elsewhere(q, best), self._over_free_axes(q, best)):
            candidates += self._varied(q, sides, best, ways)
        priced = (self._priced(candidate, (), math.inf) for candidate in candidates)
        return list(dict.fromkeys((*(strategy for strategy in priced if strategy is not None), best)))

    def _search(self, q: StrategyQuery) -> Strategy:
        proposals, sides = list(proposals_of(q)), Sides(q, self.sub_axes, self.machine, self.known)
        options = options_of(q, proposals)
        others = self._candidates(q, sides, ways_to_split(proposals, options, self.sub_axes.rank))
        first = next(others)
        if not self._is_unbeaten(sides, options, first):
            return self._best_of(q, sides, [first, *others])
        found = first.priced(first.seconds)
        if not found.sends:
            self.local[q.key()] = found
        return found

    def _best_of(self, q: StrategyQuery, sides: Sides, candidates: Sequence[_Candidate]) -> Strategy:
        """The cheapest of the candidates, or of those that also split the op over free axes."""
        best = self._cheapest([candidate for candidate in candidates if not candidate.for_memory_only])
        best = self._cheapest(candidates) if best.excess else best
        quiet = self._quiet(candidates, best) if self._communicates(_made_as(best, candidates)) else best
        best = best if quiet is None else quiet
        elsewhere = self._varied(q, sides, best, self._elsewhere(q, best)) if quiet is None else ()
        if elsewhere:
            best = self._better(q, best, self._cheapest(elsewhere))
        further = self._varied(q, sides, best, self._over_free_axes(q, best))
        if not further:
            return best
        found = self._better(q, best, self._cheapest(further))
        is_loud = quiet is not None and found is not best and self._communicates(_made_as(found, further))
        return best if is_loud else found

    def _quiet(self, candidates: Sequence[_Candidate], best: Strategy) -> Strategy | None:
        """The first candidate that sends nothing and leaves nothing to be reduced, if the op itself takes no longer
        than by the best one. It only takes longer because it cuts more out of what devices have, and parts are mostly
        read where they are."""
        own = (c for c in candidates if c.seconds <= best.alone and not any(at.partial for at in c.shardings[1]))
        cut = (c for c in own if all(map(_is_cut_at_most, c.moves)))
        priced = (self._priced(c, (), math.inf) for c in cut if not self._communicates(c))
        slower = (found for found in priced if found is not None and found.seconds > best.seconds)
        return next((found for found in slower if found.excess <= best.excess), None)

    def _communicates(self, candidate: _Candidate) -> bool:
        """Whether the op or one of its reshards sends something."""
        return candidate.sends or self._are_sent(candidate.moves)

    def _are_sent(self, moves: Iterable[Move]) -> bool:
        return any(not move.is_done and self._is_sent(move) for move in moves)

    def _is_sent(self, move: Move) -> bool:
        if move.asked:
            return any(self._is_sent_by(*self.choose_among(queries)) for queries in move.asked)
        _, source = self._cheapest_source(move)
        plan = self.resharder.plan(move.shape, move.itemsize, source, move.target)
        return not plan.is_local(move.shape, source)

    def _is_sent_by(self, q: StrategyQuery, strategy: Strategy) -> bool:
        """Whether an op sends something if it is computed in this way."""
        sides = Sides(q, self.sub_axes, self.machine, self.known)
        shardings = (*strategy.operands, *strategy.results)
        moves = (move for i, at in enumerate(shardings) for move in sides.side(i, at).moves)
        return strategy.sends or self._are_sent(moves)

    @staticmethod
    def _better(q: StrategyQuery, best: Strategy, further: Strategy) -> Strategy:
        """The strategy that splits the op over other axes, if that takes less time, and not only because devices
        compute less of it: products aside, ops run together with the one before, which is not split further."""
        sends_less = further.seconds - further.alone < best.seconds - best.alone
        is_worth_it = sends_less or OPS[q.op.name].role is InKernels.PRODUCT
        is_cheaper = (further.excess, further.seconds) < (best.excess, best.seconds * (1 - CLOSE))
        return further if is_worth_it and is_cheaper else best

    def _cheapest(self, candidates: Sequence[_Candidate]) -> Strategy:
        """The first of the candidates that take the least time, within `CLOSE`. No reshards are planned for candidates
        that cannot be among them. The lower bounds of the costs are found first, from the last to the first reshard,
        while no other candidate comes before."""
        found: dict[int, Strategy] = {}
        best: Strategy | None = None
        queue = [(self._is_second(c), c.seconds, i) for i, c in enumerate(candidates)]
        heapq.heapify(queue)
        least: dict[int, list[float]] = {}
        while queue:
            is_second, bound, i = heapq.heappop(queue)
            limit = math.inf if best is None or best.excess else best.seconds / (1 - CLOSE)
            if best is not None and is_second > self._is_second(best):
                break
            if bound > limit:
                continue
            moves, known = candidates[i].moves, least.setdefault(i, [])
            if len(known) < len(moves):
                move = moves[-1 - len(known)]
                known.insert(0, move.share * self._least_seconds(move))
                heapq.heappush(queue, (is_second, bound + known[0], i))
                continue
            strategy = self._priced(candidates[i], known, limit)
            if strategy is None:
                continue
            found[i] = strategy
            if best is None or (strategy.excess, strategy.seconds) < (best.excess, best.seconds):
                best = strategy
        assert best is not None, "computing an op whole on every device is always possible"
        turns = self.machine.turn * best.windowed.devices if best.windowed is not None else 0.0
        most = turns + (best.seconds - turns) / (1 - CLOSE)
        as_good = (i for i, a in found.items() if a.excess == best.excess and a.seconds <= most)
        return found[min(as_good, key=lambda i: (candidates[i].is_vain, i))]

    def _is_unbeaten(self, given: Sides, options: Options, candidate: _Candidate) -> bool:
        """Whether no candidate can take less time than this one by enough to be preferred.

        That is so if it moves nothing, and each tensor is split over all axes that may split it, as with most ops.
        Their other candidates are not generated.
        """
        if self.options.windowed_einsum == "always" or candidate.memory > self.options.memory_limit:
            return False
        if not all(move.is_done for move in candidate.moves):
            return False
        usable = {a: {f for f in chosen if isinstance(f, int)} for a, chosen in options.items()}
        sizes: list[float] = []
        for value, tensor in zip(given.values, given.sides, strict=True):
            mine = {f for dim in tensor for f in dim}
            parts = math.prod([a.size for a, factors in usable.items() if not mine.isdisjoint(factors)])
            sizes.append(value.type.nbytes / parts)
        parts = math.prod(a.size for a, factors in usable.items() if factors)
        return candidate.seconds * (1 - CLOSE) <= given.seconds(parts, sizes)

    def _is_second(self, choice: _Candidate | Strategy) -> bool:
        """Whether a loop is preferred to this choice, whatever the loop costs."""
        return self.options.windowed_einsum == "always" and choice.windowed is None

    def _varied(self, q: StrategyQuery, sides: Sides, best: Strategy, ways: Iterable[Way]) -> list[_Candidate]:
        """The candidates of ways to split the op that vary the best one, if that communicates."""
        if best.windowed is not None or best.candidates_to is not None or best.seconds == best.alone:
            return []
        return [c for c in self._candidates(q, sides, ways) if c.windowed is None and c.candidates_to is None]

    def _over_free_axes(self, q: StrategyQuery, best: Strategy) -> Iterator[Way]:
        """The ways to split the op as the best one does, and one more factor over all free axes: devices cut their
        parts out of what they have, and less is sent over the other axes."""
        everywhere = (*q.at.known, *q.at.wanted_operands, *[result.wanted for result in q.at.results])
        used = _split_over(everywhere).union(*[axes for _, axes in best.factors])
        free = tuple([a for a in self.free if a not in used])
        have, through = dict(best.factors), self._pending(best, free)
        for f, factor in enumerate(q.rule.factors) if free else ():
            axes = (*have.get(f, ()), *free)
            adds_up = factor.kind is FactorKind.REDUCTION and factor.reduction is not None
            if (adds_up or factor.kind is FactorKind.PARALLEL) and factor.size % axes_size(axes) == 0:
                yield {**have, f: axes}, through

    def _pending(self, best: Strategy, apart: Collection[AxisRef]) -> Axes:
        """The axes over which reductions of operands stay pending under a strategy, apart from these."""
        pending = {a for at in best.operands for a, _ in at.partial if a not in apart}
        return tuple(sorted(pending, key=lambda a: self.sub_axes.rank[a]))

    def _elsewhere(self, q: StrategyQuery, best: Strategy) -> Iterator[Way]:
        """The ways to split an op at computed indices as the best one does, but for one axis of an operand, which
        splits a parallel factor instead, even if no tensor has it there. An all_to_all moves it, rather than that the
        operand is gathered or a result is reduced: columns stay together wherever rows are."""
        if not self.moves_axes or OPS[q.op.name].family != "indexing":
            return
        have, rank = dict(best.factors), self.sub_axes.rank
        for axis in sorted(_split_over(q.at.known), key=lambda a: rank[a]):
            others = {f: tuple([a for a in axes if a != axis]) for f, axes in have.items()}
            through = self._pending(best, (axis,))
            for f, factor in enumerate(q.rule.factors):
                axes = (*others.get(f, ()), axis)
                is_new = factor.kind is FactorKind.PARALLEL and axis not in have.get(f, ())
                if is_new and factor.size % axes_size(axes) == 0:
                    yield {g: own for g, own in {**others, f: axes}.items() if own}, through

    # Costs.

    def _candidates(self, q: StrategyQuery, sides: Sides, splits: Iterable[Way]) -> Iterator[_Candidate]:
        """The ways to split the op, each followed by the windowed einsums that replace it. Those whose shards would not
        be boxes, and those whose reductions would not commute with the op, are left out."""
        count = len(q.op.operands)
        rest = sorted({f for dim in q.rule.results[0] for f in dim}) if q.uses.used else ()
        loops = self.options.windowed_einsum != "never" and can_be_windowed(q.op)
        there = zip(q.at.operands, q.at.wanted_operands, strict=True)
        ready = [_that_split((*operand.known, wanted)) for operand, wanted in there]
        for factors, through in splits:
            for group, pending in pending_groups(q, through):
                placed = sides.under(factors, group, pending)
                if placed is None:
                    continue
                whole = sides.with_what_is_whole(factors, placed)
                if whole is not placed:
                    # Of what is cut, only the part counts where others are exchanged: this one need not be as well.
                    cut = self._candidate(sides, factors, whole, None)
                    yield self._candidate(sides, factors, whole, None, read=placed) if cut.sends else cut
                yield self._candidate(sides, factors, placed, None)
                for to in rest:
                    scattered = results_of_candidates(q.rule, factors, to, [p.sharding for p in placed[count:]])
                    if scattered is not None:
                        split = [sides.side(count + i, sharding) for i, sharding in enumerate(scattered)]
                        yield self._candidate(sides, factors, [*placed[:count], *split], None, to)
                if not loops:
                    continue
                shardings = sides.shardings(placed)
                wanted = q.at.results[0].wanted
                for windowed, (operands, results) in windowed_einsums(q.rule, shardings, ready, wanted):
                    split = [sides.side(i, sharding) for i, sharding in enumerate((*operands, *results))]
                    yield self._candidate(sides, factors, split, windowed)

    def _candidate(
        self,
        sides: Sides,
        factors: dict[int, Axes],
        placed: Sequence[Side],
        windowed: WindowedEinsum | None,
        candidates_to: int | None = None,
        read: Sequence[Side] | None = None,
    ) -> _Candidate:
        """A way to split the op. Of tensors out of which devices cut what they need, they read as much as of those in
        `read`."""
        q, shardings = sides.q, sides.shardings(placed)
        sizes, memory = [p.nbytes for p in read or placed], sum([p.nbytes for p in placed])
        parts = math.prod([a.size for axes in factors.values() for a in axes])
        if windowed is None:
            seconds = sides.seconds(parts, sizes)
        else:
            cost = windowed_cost(self.machine, q.op, q.rule, windowed, parts, shardings)
            seconds = cost.seconds
            memory += cost.buffers
        computed = seconds
        for f, axes in factors.items():
            if f not in sides.special or not axes:
                continue
            if q.rule.factors[f].kind in ALONG:
                seconds += seconds_along(self.machine, q.op, q.rule, f, axes, shardings[0])
            elif candidates_to is None:
                seconds += candidates_seconds(self.machine, q.rule, f, axes, _used(q, sizes))
        if candidates_to is not None:
            seconds += scattered_seconds(self.machine, q.rule, factors, _used(q, sizes))
        moves = tuple([move for p in sides.each_once(placed) for move in p.moves])
        shared = windowed is not None and windowed.rotating is not None and q.uses.shared[windowed.rotating]
        for_memory_only = shared and self.options.windowed_einsum != "always"
        vain = q.reduced and _is_vain(q, shardings)
        split = tuple(sorted(factors.items()))
        sends = windowed is not None or seconds > computed
        return _Candidate(
            split, shardings, windowed, seconds, memory, moves, for_memory_only, vain, sends, candidates_to
        )

    def _priced(self, candidate: _Candidate, least: Sequence[float], limit: float) -> Strategy | None:
        """The candidate with its cost; None if it takes longer than the limit. `least` has lower bounds of its
        reshards' times."""
        seconds, memory = candidate.seconds, candidate.memory
        for i, move in enumerate(candidate.moves):
            if seconds + sum(least[i:]) > limit:
                return None
            cheapest, source = self._cheapest_source(move)
            seconds += move.share * cheapest
            if move.is_operand and source != move.target:
                memory += local_bytes(move.shape, move.itemsize, source)
        return candidate.priced(seconds, max(0, memory - self.options.memory_limit))

    def _least_seconds(self, move: Move) -> float:
        """The least time of a reshard, over all of its sources."""
        if move.is_done or move.asked:
            return 0.0
        if move.least is None:
            shape, itemsize = move.shape, move.itemsize
            least = [self.resharder.least_seconds(shape, itemsize, source, move.target) for source in move.sources]
            move.least = min(*least, self._from_origins(move, self.resharder.least_seconds))
        return move.least

    def _from_origins(self, move: Move, seconds_of: SecondsOf) -> float:
        """The time of bringing an operand's origins to where it is computed from them, less what is spared then."""
        if not move.origins:
            return math.inf
        brought = sum(
            min([seconds_of(o.type.shape, o.type.dtype.nbytes, have, o.below(move.target)) for have in o.known])
            for o in move.origins
        )
        return max(0.0, brought - sum(o.spared for o in move.origins))

    def _cheapest_source(self, move: Move) -> tuple[float, ClosedSharding]:
        """The sharding from which a reshard takes the least time, and that time. Only those sources are planned whose
        lower bound is less."""
        if move.is_done:
            return 0.0, move.target
        if move.cheapest is not None:
            return move.cheapest
        if move.asked:
            chosen = [self.choose_among(queries)[1] for queries in move.asked]
            move.cheapest = max(c.seconds - (0.0 if c.sends else c.alone) for c in chosen), move.sources[0]
            return move.cheapest
        shape, itemsize = move.shape, move.itemsize
        best, cheapest = math.inf, move.sources[0]
        for source in move.sources:
            if len(move.sources) == 1 or self.resharder.least_seconds(shape, itemsize, source, move.target) < best:
                seconds = self.resharder.plan(shape, itemsize, source, move.target).seconds
                if seconds < best:
                    best, cheapest = seconds, source
        best = min(best, self._from_origins(move, lambda *reshard: self.resharder.plan(*reshard).seconds))
        move.cheapest = best, cheapest
        return move.cheapest


def _that_split(shardings: Iterable[ClosedSharding]) -> Sequence[ClosedSharding]:
    """Those that split some dim, without repetitions."""
    return [sharding for sharding in dict.fromkeys(shardings) if any(sharding.axes)]


def _split_over(shardings: Iterable[ClosedSharding]) -> set[AxisRef]:
    """The axes that split some dim."""
    return {a for sharding in shardings for axes in sharding.axes for a in axes}


def _is_cut_at_most(move: Move) -> bool:
    """Whether devices have what the move needs in the sharding in which the value was made, or can cut it out of that.
    Other shardings in which it exists may have been sent, and without uses they are not. What is asked for is cut by
    the op that needs it."""
    if move.asked:
        return True
    source, target = move.sources[0], move.target
    cut = zip(move.shape, source.axes, target.axes, strict=True)
    is_alike = source.order == target.order and source.partial == target.partial
    return is_alike and all(to[: len(at)] == at and is_aligned(n, at, to[len(at) :]) for n, at, to in cut)


def _is_vain(q: StrategyQuery, shardings: ClosedShardings) -> bool:
    """Whether nothing is gained by leaving the operands' reductions pending, if that of the result is done at once: an
    operand is made partial for it, or only one is partial, with no more bytes than the result."""
    operands, results = shardings
    pending = [i for i, sharding in enumerate(operands) if sharding.partial]
    if any(not any(have.partial for have in q.at.operands[i].known) for i in pending):
        return True
    if len(pending) != 1 or any(result.partial != operands[pending[0]].partial for result in results):
        return False
    made = sum(map(bytes_of, q.op.results, results))
    return made >= bytes_of(q.op.operands[pending[0]], operands[pending[0]])


@record
class _Candidate:
    """A strategy before its reshards are planned: `seconds` and `memory` are what it takes without them. A candidate is
    `for_memory_only` if parts of an operand rotate that other ops use too: it is chosen only for lack of memory. It
    `is_vain` if it leaves a reduction pending that is done at once, and might as well be done before."""

    factors: tuple[tuple[int, Axes], ...]
    shardings: ClosedShardings
    windowed: WindowedEinsum | None
    seconds: float
    memory: int
    moves: tuple[Move, ...]
    for_memory_only: bool
    is_vain: bool
    sends: bool
    candidates_to: int | None

    def priced(self, seconds: float, excess: int = 0) -> Strategy:
        """The strategy, which takes so many seconds, reshards included."""
        loop, alone, to = self.windowed, self.seconds, self.candidates_to
        return Strategy(self.factors, *self.shardings, seconds, loop, excess, alone, self.sends, to)


def _made_as(strategy: Strategy, candidates: Sequence[_Candidate]) -> _Candidate:
    """The candidate that the strategy is."""
    wanted = strategy.factors, (strategy.operands, strategy.results), strategy.windowed, strategy.candidates_to
    return next(c for c in candidates if (c.factors, c.shardings, c.windowed, c.candidates_to) == wanted)


def _used(q: StrategyQuery, sizes: Sequence[int]) -> list[int]:
    """The sizes of the results whose candidates are exchanged, from those of all tensors: the first, by which they are
    compared, and any other that is used."""
    results = enumerate(zip(sizes[len(q.op.operands) :], q.uses.used, strict=True))
    return [n for i, (n, is_used) in results if is_used or i == 0]
