"""Searches for the cheapest plan between two shardings: nodes are shardings, edges single steps, and lengths seconds.

A lower bound for all plans (`bounds`) excludes paths, as in A*, and guides the search to the target: a plan that is
found early limits what is examined further. So does a plan that is known already, such as `stepwise_plan`, which exists
between any two shardings.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ir.mesh import Axes, DimAxes, axes_size
from ir.sharding import Partial
from passes.partition.closed_sharding import ClosedSharding, is_aligned, is_sparse
from passes.partition.reshard.bounds import Bounds
from passes.partition.reshard.steps import (
    AllToAll,
    Gather,
    MakePartial,
    Reduce,
    ReduceScatter,
    ReshardPlan,
    Slice,
    Spread,
    Step,
    Task,
    permutation,
)

MAX_STATES = 60
_GREED = 4
"""The weight of the remaining time against the time so far in the choice of the next path."""
_FEW_ATOMS = 4
_UNEVEN = 2
"""Allows for the padding of dims that are smaller than a few times the number of shards."""


class Search:
    """One shortest-path search."""

    def __init__(self, task: Task, bounds: Bounds) -> None:
        self.task = task
        self.sub_axes, self.shape = task.sub_axes, task.shape
        self.source, self.target = task.source, task.target
        self.wanted = {a: dim for dim, axes in enumerate(task.target.axes) for a in axes}
        self.room = room(task)
        self._size = functools.cache(task.bytes_of)
        self._rest = functools.cache(lambda sharding: bounds.least(sharding).seconds)
        """The least seconds from a sharding to the target."""

    def run(self, bound: float) -> ReshardPlan | None:
        """The cheapest path that was found on which no shard is larger than the larger of source and target.

        It is the cheapest of all if no more than `MAX_STATES` states are on possible paths. None if no path takes less
        than `bound` seconds.
        """
        count = itertools.count()
        best: dict[ClosedSharding, float] = {self.source: 0.0}
        came: dict[ClosedSharding, tuple[ClosedSharding, Step]] = {}
        heap: list[tuple[float, int, float, ClosedSharding]] = [(0.0, next(count), 0.0, self.source)]
        found: ReshardPlan | None = None
        visited = 0
        while heap and visited < MAX_STATES:
            _, _, seconds, sharding = heapq.heappop(heap)
            if seconds > best[sharding] or seconds + self._rest(sharding) >= bound:
                continue
            if sharding == self.target:
                found, bound = self._plan(came), seconds
                continue
            visited += 1
            size = self._size(sharding)
            for step, after in self._steps(sharding):
                known = min(bound, best.get(after, bound))
                if seconds >= known:
                    continue
                size_after = self._size(after)
                if size_after > self.room:
                    continue
                spent, _ = step.cost_of_sizes(self.task, sharding, after, size, size_after)
                if seconds + spent >= known:
                    continue
                rest = self._rest(after)
                if seconds + spent + rest >= bound:
                    continue
                total = seconds + (spent + step.shift_seconds(self.task, sharding, after))
                if total < known and total + rest < bound:
                    best[after] = total
                    came[after] = (sharding, step)
                    heapq.heappush(heap, (total + _GREED * rest, next(count), total, after))
        return found

    def _plan(self, came: dict[ClosedSharding, tuple[ClosedSharding, Step]]) -> ReshardPlan:
        path: list[tuple[Step, ClosedSharding]] = []
        sharding = self.target
        while sharding != self.source:
            before, step = came[sharding]
            path.append((step, sharding))
            sharding = before
        return plan_of(self.task, path[::-1])

    def _steps(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        yield from self._reductions(sharding)
        yield from self._gathers(sharding)
        yield from self._slices(sharding)
        yield from self._spreads(sharding)
        yield from self._all_to_alls(sharding)
        yield from self._permutes(sharding)

    def _reductions(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        pending = tuple(p for p in sharding.partial if p not in self.target.partial)
        for count in range(1, len(pending) + 1):
            for chosen in itertools.combinations(pending, count):
                rest = tuple(p for p in sharding.partial if p not in chosen)
                kind = chosen[0][1]
                yield Reduce(tuple(a for a, _ in chosen), kind), ClosedSharding(sharding.axes, rest)
                yield from self._scatters(sharding, chosen, rest)

    def _scatters(
        self, sharding: ClosedSharding, chosen: Partial, rest: Partial
    ) -> Iterator[tuple[Step, ClosedSharding]]:
        sub_axes = {a for a, _ in chosen}
        if sub_axes <= {a for a, _ in self.target.partial}:
            ordered = tuple(a for a, _ in chosen)
            for dim, axes in enumerate(sharding.axes):
                after = ClosedSharding(sharding.axes, rest).with_dim(dim, (*axes, *ordered))
                yield ReduceScatter(ordered, chosen[0][1], dim), after
        for dim, axes in enumerate(self.target.axes):
            ordered = tuple(a for a in axes if a in sub_axes)
            if len(ordered) == len(sub_axes):
                after = ClosedSharding(sharding.axes, rest).with_dim(dim, (*sharding.axes[dim], *ordered))
                yield ReduceScatter(ordered, chosen[0][1], dim), after

    def _gathers(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        for dim, axes in enumerate(sharding.axes):
            for keep in range(len(axes)):
                yield Gather(dim, axes[keep:]), sharding.with_dim(dim, axes[:keep])

    def _slices(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        used = sharding.used
        for dim, axes in enumerate(self.target.axes):
            have = sharding.axes[dim]
            runs: list[Axes] = [(a,) for a in axes if a not in used]
            rest = axes[len(have) :]
            if len(rest) > 1 and axes[: len(have)] == have and not used.intersection(rest):
                runs.append(rest)
            for run in runs:
                yield Slice(dim, run), sharding.with_dim(dim, (*have, *run))
        missing = [p for p in self.target.partial if p[0] not in used]
        if missing and sharding.partial:
            for (axis, _), dim in itertools.product(missing, range(len(self.shape))):
                yield Slice(dim, (axis,)), sharding.with_dim(dim, (*sharding.axes[dim], axis))
        if missing:
            partial = self.sub_axes.in_order((*sharding.partial, *missing))
            if len({kind for _, kind in partial}) == 1:
                yield MakePartial(tuple(a for a, _ in missing), missing[0][1]), ClosedSharding(sharding.axes, partial)

    def _spreads(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        """Steps that spread shards, if the reduction is pending in the end, or if that takes less time than a gather of
        shards that are mostly padding."""
        pending = dict(self.target.partial)
        kinds = {kind for _, kind in (*sharding.partial, *self.target.partial)} or {"sum"}
        if len(kinds) > 1:
            return
        (kind,) = kinds
        for dim, axes in enumerate(sharding.axes):
            for keep in range(len(axes)):
                minor = axes[keep:]
                if not is_aligned(self.shape[dim], axes[:keep], minor):
                    continue
                if all(a in pending for a in minor) or (
                    kind == "sum" and is_sparse(self.shape[dim], axes[:keep], minor)
                ):
                    partial = self.sub_axes.in_order((*sharding.partial, *((a, kind) for a in minor)))
                    yield Spread(minor, kind, dim), replace(sharding, partial=partial).with_dim(dim, axes[:keep])

    def _all_to_alls(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        for source, axes in enumerate(sharding.axes):
            for keep in range(len(axes)):
                moved = axes[keep:]
                for target in sorted(self._homes(moved, axes == self.target.axes[source][: len(axes)]) - {source}):
                    after = sharding.with_dim(source, axes[:keep])
                    after = after.with_dim(target, (*sharding.axes[target], *moved))
                    yield AllToAll(moved, source, target), after

    def _homes(self, moved: Axes, are_home: bool) -> set[int]:
        """The dims that axes are wanted in; all dims for axes that are in their dim, but at the wrong position."""
        homes = {self.wanted[a] for a in moved if a in self.wanted}
        return homes if are_home or len(self.sub_axes.all) > _FEW_ATOMS else homes | set(range(len(self.shape)))

    def _permutes(self, sharding: ClosedSharding) -> Iterator[tuple[Step, ClosedSharding]]:
        """Permutes to other axes for the same shards: of one dim, or of all dims that have as many shards as the
        target's."""
        pending = {a for a, _ in sharding.partial}
        for dims in dict.fromkeys(self._rearranged(sharding.axes)):
            sub_axes = [a for axes in dims for a in axes]
            if dims != sharding.axes and len(set(sub_axes)) == len(sub_axes) and not pending.intersection(sub_axes):
                yield permutation(sharding.axes, dims), ClosedSharding(dims, sharding.partial)

    def _rearranged(self, dims: DimAxes) -> Iterator[DimAxes]:
        ends = (self._like_target(dim, axes) for dim, axes in enumerate(dims))
        yield from itertools.product(*(dict.fromkeys(choices) for choices in zip(dims, ends, strict=True)))
        for dim, axes in enumerate(dims):
            for axis, _ in self.target.partial:
                if axis.size == axes_size(axes):
                    yield (*dims[:dim], (axis,), *dims[dim + 1 :])
            for last in axes[:-1]:
                rest = tuple(a for a in axes if a != last)
                yield (*dims[:dim], (*rest, last), *dims[dim + 1 :])

    def _like_target(self, dim: int, axes: Axes) -> Axes:
        """The target's axes of the dim if they make as many shards; else the dim's own, with those that the target uses
        there first."""
        want = self.target.axes[dim]
        for end in range(len(want), 0, -1):
            if axes_size(want[:end]) == axes_size(axes):
                return want[:end]
        return tuple(sorted(axes, key=lambda a: want.index(a) if a in want else len(want)))


def room(task: Task) -> int:
    """The most bytes that a shard may have on the way: those of the larger of source and target, padding aside."""
    ends = task.source, task.target
    larger = max(map(task.bytes_of, ends))
    used = {a for sharding in ends for dim in sharding.axes for a in dim}
    even = all(n % axes_size(used) == 0 for n in task.shape)
    return larger if even else larger * _UNEVEN


def plan_of(task: Task, path: Sequence[tuple[Step, ClosedSharding]]) -> ReshardPlan:
    """The plan with these steps, each with the sharding that it leads to."""
    plan, before = ReshardPlan(), task.source
    for step, after in path:
        plan = plan.then(ReshardPlan(((step, after),), *step.cost(task, before, after)))
        before = after
    return plan


def stepwise_plan(task: Task) -> ReshardPlan:
    """A plan that always exists between shardings over sub-axes of prime size.

    Unused axes slice first; each axis then moves to the dim where it is wanted; shards are permuted; and axes that are
    not wanted are gathered. So shards shrink first and grow last, and are never larger than the larger of source and
    target.
    """
    path: list[tuple[Step, ClosedSharding]] = []
    sharding, target = task.source, task.target

    def go(step: Step, after: ClosedSharding) -> None:
        nonlocal sharding
        path.append((step, after))
        sharding = after

    def permuted(dims: tuple[Axes, ...]) -> None:
        if dims != sharding.axes:
            go(permutation(sharding.axes, dims), ClosedSharding(dims, sharding.partial))

    pending = tuple(p for p in sharding.partial if p not in target.partial)
    if pending:
        rest = tuple(p for p in sharding.partial if p in target.partial)
        go(Reduce(tuple(a for a, _ in pending), pending[0][1]), ClosedSharding(sharding.axes, rest))
    for dim, axes in enumerate(target.axes):
        run = tuple(a for a in axes if a not in sharding.used)
        if run:
            go(Slice(dim, run), sharding.with_dim(dim, (*sharding.axes[dim], *run)))
    home = {a: dim for dim, axes in enumerate(target.axes) for a in axes}
    for axis, dim in home.items():
        at = next(d for d, axes in enumerate(sharding.axes) if axis in axes)
        if at != dim:
            rest_of_dim = tuple(a for a in sharding.axes[at] if a != axis)
            permuted(sharding.with_dim(at, (*rest_of_dim, axis)).axes)
            after = sharding.with_dim(at, rest_of_dim)
            go(AllToAll((axis,), at, dim), after.with_dim(dim, (*after.axes[dim], axis)))
    extra = [tuple(a for a in axes if home.get(a) != d) for d, axes in enumerate(sharding.axes)]
    permuted(tuple((*want, *more) for want, more in zip(target.axes, extra, strict=True)))
    for dim, more in enumerate(extra):
        if more:
            go(Gather(dim, more), sharding.with_dim(dim, target.axes[dim]))
    missing = tuple(p for p in target.partial if p not in sharding.partial)
    if missing:
        go(MakePartial(tuple(a for a, _ in missing), missing[0][1]), target)
    return plan_of(task, path)
