"""Constructs the reshard between two shardings with common digits in one sweep. It receives no more than necessary.

Each device must receive what its new shard has and its old one has not. Steps in this order receive no more: unused
axes enter where they are wanted (each device keeps a part); partial results are scattered to where they are wanted, or
reduced; axes that split the wrong digits move; last, axes that must not split anything leave. Up to the last step
shards only shrink, and the last step makes them as large as the target's, so no shard is ever larger than the larger of
source and target.

One all_to_all moves all axes, if each moves to a digit that no axis splits. If digits change from one axis to another,
whole shards are permuted first (collective_permute). Or both happen at once, in as many permutes as an axis has parts,
which receive as much as the permute by itself would.

On a mesh (x=2, y=4), [-, x] to [(x,y), -]: y is unused and enters where it is wanted, which leads to [(2,y), x], a
strided set of the rows; then x moves from the columns to the digit before y. From [x, y] to [y, x] no axis is unused
and digits change from one axis to another: two permutes, each from another device, bring every device half of its new
shard.

If axes have different links, a gather may begin with the slow ones, along which it then sends the smallest shards, and
a scatter ends with them. The total received is the same, with less of it along the slow links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ir.mesh import Axes, AxisRef, axes_size
from ir.sharding import Partial, ReductionKind
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard.steps import (
    AllToAll,
    Cost,
    Gather,
    MakePartial,
    Reduce,
    ReduceScatter,
    ReshardPlan,
    Slice,
    Step,
    Task,
    permutation,
)
from passes.partition.reshard.strided import Retile, Rotate, Strided, StridedKind
from passes.partition.reshard.strided_sharding import DigitRef, Ends, StridedSharding, common_digits

ROUNDS = (2, 4, 16)
"""The maximal numbers of permutes in one step. With more, the program would grow with the mesh."""


def direct_plan(task: Task) -> ReshardPlan | None:
    """The plan; None if the two shardings' cuts of a dim have no common refinement."""
    step = _only_step(task)
    if step is not None and len(task.machine.links_of(step.communication[1])) < 2:
        return ReshardPlan(((step, task.target),), *step.cost(task, task.source, task.target))
    ends = common_digits(task.sub_axes, task.shape, task.source, task.target)
    if ends is None:
        return None
    options = [_Sweep(task, ends).run()]
    sent = [step.communication[0] for step, _ in options[0].steps]
    if "collective_permute" in sent and "all_to_all" in sent:
        sweeps = (_Sweep(task, ends, rounds) for rounds in ROUNDS)
        options.extend(sweep.run() for sweep in sweeps)
    if any(len(task.machine.links_of(step.communication[1])) > 1 for step, _ in options[0].steps):
        options.append(_Sweep(task, ends, by_link=True).run())
    return min(options, key=lambda plan: plan.seconds)


def _only_step(task: Task) -> Step | None:
    """The step that leads to the target by itself, along the minor axes of at most one dim, if there is one."""
    source, target, parts = task.source, task.target, task.sub_axes.primes.split
    changed = [d for d, (have, want) in enumerate(zip(source.axes, target.axes, strict=True)) if have != want]
    if len(changed) > 1 or not set(source.partial).issuperset(target.partial):
        return None
    pending = [p for p in source.partial if p not in target.partial]
    reduced = {a for a, _ in pending}
    if not changed:
        return Reduce(parts([a for a, _ in pending]), pending[0][1]) if pending else None
    (dim,) = changed
    have, want = source.axes[dim], target.axes[dim]
    entering, leaving = want[len(have) :], have[len(want) :]
    if want[: len(have)] == have:
        if not pending:
            return Slice(dim, parts(entering))
        return ReduceScatter(parts(entering), pending[0][1], dim) if reduced == set(entering) else None
    return Gather(dim, parts(leaving)) if have[: len(want)] == want and not pending else None


@dataclass(eq=False)
class _Sweep:
    """Constructs one plan.

    `now` is the sharding after the steps so far. Steps along the minor axes of dims work on the shards of closed
    shardings, and shift the boundaries between uneven ones themselves; other steps work on shards padded so that every
    digit is even. With `by_link`, gathers and scatters run along one kind of link at a time.
    """

    task: Task
    ends: Ends
    rounds: int = 1
    by_link: bool = False
    plan: ReshardPlan = field(default_factory=ReshardPlan)

    def __post_init__(self) -> None:
        self.machine, self.sub_axes, self.shape = self.task.machine, self.task.sub_axes, self.task.shape
        self.now = self.ends.source.with_extents(self._extents(self.task.source))
        self.wanted = self.ends.target.places
        self.goal = {place: axis for axis, place in self.wanted.items()}

    def run(self) -> ReshardPlan:
        self._enter()
        self._reduce()
        self._move()
        self._enter()
        self._leave()
        self._make_partial()
        self._retile(self._extents(self.task.target))
        steps = self.plan.steps
        return ReshardPlan((*steps[:-1], (steps[-1][0], self.task.target)), self.plan.seconds, self.plan.received)

    def _extents(self, sharding: ClosedSharding) -> tuple[int, ...]:
        """The sizes of the dims, padded to whole shards of a sharding."""
        parts = (axes_size(axes) for axes in sharding.axes)
        return tuple(n * p for n, p in zip(sharding.local_shape(self.shape), parts, strict=True))

    @property
    def free_places(self) -> list[DigitRef]:
        """The digits that are to be split and are not yet."""
        places = self.now.places.values()
        return [place for place in self.goal if place not in places]

    # Taking steps.

    def _take(self, step: Step, after: StridedSharding, cost: Cost) -> None:
        sharding = after.closed_sharding(self.sub_axes)
        is_usual = sharding is not None and self._extents(sharding) == after.extents
        self.plan = self.plan.then(
            ReshardPlan(((step, sharding if sharding is not None and is_usual else after),), *cost)
        )
        self.now = after

    def _take_whole(self, step: Step, after: StridedSharding) -> None:
        """Takes a step that leaves the sizes of shards as they are."""
        self._take(step, after, step.cost_of(self.machine, self._bytes(self.now), self._bytes(after)))

    def _take_plain(self, step: Step, after: StridedSharding) -> None:
        """Takes a step along minor axes of dims, between closed shardings."""
        before, sharding = self.now.closed_sharding(self.sub_axes), after.closed_sharding(self.sub_axes)
        assert before is not None
        assert sharding is not None
        self._retile(self._extents(before))
        cost = step.cost(self.task, before, sharding)
        self._take(step, after.with_extents(self._extents(sharding)), cost)

    def _take_strided(
        self, kind: StridedKind, axes: Axes, after: StridedSharding, reduction: ReductionKind = "sum"
    ) -> None:
        """Takes a step along axes at any digits, between padded shards."""
        self._retile(self.ends.source.extents)
        after = after.with_extents(self.ends.source.extents)
        self._take_whole(Strided(kind, axes, self.now, after, reduction), after)

    def _retile(self, extents: tuple[int, ...]) -> None:
        after = self.now.with_extents(extents)
        if after.local_shape() != self.now.local_shape():
            step = Retile(self.now, after)
            self._take(step, after, step.cost(self.task, self.now, after))
        self.now = after

    def _bytes(self, strided: StridedSharding) -> int:
        return math.ceil(strided.shard_elements * self.task.itemsize)

    def _is_plain(self, after: StridedSharding) -> bool:
        """Whether the axes that come or go are the minor ones of their dims, before and after."""
        return self.now.closed_sharding(self.sub_axes) is not None and after.closed_sharding(self.sub_axes) is not None

    # The steps.

    def _enter(self) -> None:
        """Unused axes enter: where they are wanted or, if another axis is there, where that one is wanted."""
        free = self._unused()
        entering = {self.wanted[a]: a for a in free if self.wanted[a] in self.free_places}
        entering |= self._helped([a for a in free if self.wanted[a] not in entering], entering)
        if not entering:
            return
        after = self.now.with_axes(dict(entering))
        if self._is_plain(after):
            for dim in sorted({d for d, _ in entering}):
                part = self.now.with_axes({place: a for place, a in entering.items() if place[0] == dim})
                axes = tuple(a for (d, _), a in sorted(entering.items()) if d == dim)
                self._take_plain(Slice(dim, axes), part)
            return
        self._take_strided("slice", self._in_order(entering), after)

    def _unused(self) -> list[AxisRef]:
        used = {*self.now.places, *(a for a, _ in self.now.partial)}
        return [a for a in self.wanted if a not in used]

    def _helped(self, axes: Sequence[AxisRef], taken: Iterable[DigitRef]) -> dict[DigitRef, AxisRef]:
        """Places for axes whose own are taken: those that other axes, which are at the wrong place, want."""
        free = [p for p in self.free_places if p not in taken and self.goal[p] in self.now.places]
        found: dict[DigitRef, AxisRef] = {}
        for axis in axes:
            place = next((p for p in free if self._size(p) == axis.size and p not in found), None)
            if place is not None:
                found[place] = axis
        return found

    def _size(self, place: DigitRef) -> int:
        return self.now.dims[place[0]][place[1]].size

    def _reduce(self) -> None:
        pending = [p for p in self.now.partial if p not in self.ends.target.partial]
        if not pending:
            return
        kind = pending[0][1]
        axes = [a for a, _ in pending]
        free = self.free_places
        entering = {self.wanted[a]: a for a in axes if self.wanted.get(a) in free}
        blocked = [a for a in axes if a in self.wanted and self.wanted[a] not in entering]
        entering |= self._helped(blocked, entering)
        for part in reversed(self._by_link(entering)):
            after = self.now.with_axes(dict(part)).with_partial(self._without(part.values()))
            self._scatter(part, kind, after)
        left = tuple(a for a in axes if a not in entering.values())
        if left:
            self._take_whole(Reduce(left, kind), self.now.with_partial(self._without(left)))
            self._enter()

    def _without(self, axes: Iterable[AxisRef]) -> Partial:
        gone = set(axes)
        return tuple(p for p in self.now.partial if p[0] not in gone)

    def _scatter(self, entering: dict[DigitRef, AxisRef], kind: ReductionKind, after: StridedSharding) -> None:
        axes, dims = self._in_order(entering), {d for d, _ in entering}
        if len(dims) == 1 and self._is_plain(after):
            self._take_plain(ReduceScatter(axes, kind, min(dims)), after)
        else:
            self._take_strided("reduce_scatter", axes, after, kind)

    def _move(self) -> None:
        """Moves axes that split a digit and are wanted at another."""
        places = self.now.places
        if any(self.goal.get(place, axis) != axis for axis, place in places.items()):
            self._change_owners()
            return
        self._all_to_all(self._elsewhere(places))

    def _elsewhere(self, places: Mapping[AxisRef, DigitRef]) -> dict[AxisRef, DigitRef]:
        """The axes at these digits that are wanted at others, and at which."""
        return {a: p for a, p in self.wanted.items() if a in places and places[a] != p}

    def _all_to_all(self, moving: dict[AxisRef, DigitRef]) -> None:
        if not moving:
            return
        places = self.now.places
        after = self.now.with_axes({places[a]: None for a in moving}).with_axes({p: a for a, p in moving.items()})
        axes = self._in_order({p: a for a, p in moving.items()})
        sources, targets = {places[a][0] for a in moving}, {d for d, _ in moving.values()}
        left = self._in_order({places[a]: a for a in moving})
        if self._is_plain(after) and len(sources) == len(targets) == 1 and left == axes:
            self._take_plain(AllToAll(axes, min(sources), min(targets)), after)
        else:
            self._take_strided("all_to_all", axes, after)

    def _change_owners(self) -> None:
        """Gives digits that are split now and in the end their final axes, and other digits the remaining axes, first
        those that are to move on."""
        after = self.now.with_axes(dict(self._new_owners()))
        moving, rotating = self._elsewhere(after.places), dict[AxisRef, DigitRef]()
        for axis, place in moving.items():
            if axes_size((*rotating, axis)) <= self.rounds:
                rotating[axis] = place
        if rotating:
            self._rotate(after, rotating)
        else:
            self._take_whole(permutation(self.now.axes, after.axes), after)
        self._all_to_all({a: p for a, p in moving.items() if a not in rotating})

    def _new_owners(self) -> dict[DigitRef, AxisRef]:
        places = self.now.places
        owners = {place: self.goal[place] for place in places.values() if place in self.goal}
        others = [place for place in places.values() if place not in owners]
        rest = sorted((a for a in places if a not in owners.values()), key=lambda a: a not in self.wanted)
        for size in {self._size(place) for place in others}:
            spots = [place for place in others if self._size(place) == size]
            chosen = [a for a in rest if a.size == size][: len(spots)]
            stay = {places[a]: a for a in chosen if places[a] in spots}
            come = iter([a for a in chosen if a not in stay.values()])
            owners |= {place: stay[place] if place in stay else next(come) for place in spots}
        return owners

    def _rotate(self, permuted: StridedSharding, moving: dict[AxisRef, DigitRef]) -> None:
        """Takes the permute and an all_to_all of the axes `moving` in one step."""
        extents, places = self.ends.source.extents, permuted.places
        self._retile(extents)
        after = permuted.with_axes({places[a]: None for a in moving}).with_axes({p: a for a, p in moving.items()})
        after = after.with_extents(extents)
        order = permutation(self.now.axes, permuted.axes)
        axes = self._in_order({p: a for a, p in moving.items()})
        old = {a: self.now.dims[d][j].axis for a, (d, j) in places.items()}
        sources = tuple(s for a in axes if (s := old[a]) is not None)
        target = (*axes, *(a for a in order.target if a not in axes))
        source = (*sources, *(a for a in order.source if a not in sources))
        self._take_whole(Rotate(axes, sources, target, source, self.now, after), after)

    def _leave(self) -> None:
        leaving = {place: a for a, place in self.now.places.items() if place not in self.goal}
        for part in self._by_link(leaving):
            self._gather(part)

    def _by_link(self, axes: Mapping[DigitRef, AxisRef]) -> list[dict[DigitRef, AxisRef]]:
        """The axes grouped by link, the slowest first; a single group if links do not matter."""
        if not self.by_link:
            return [dict(axes)] if axes else []
        links = sorted(self.machine.links_of(axes.values()), key=lambda link: link.bandwidth) if axes else []
        return [{p: a for p, a in axes.items() if self.machine.link(a) == link} for link in links]

    def _gather(self, leaving: dict[DigitRef, AxisRef]) -> None:
        after = self.now.with_axes(dict.fromkeys(leaving))
        if self._is_plain(after):
            for dim in sorted({d for d, _ in leaving}):
                places = sorted(p for p in leaving if p[0] == dim)
                part = self.now.with_axes(dict.fromkeys(places))
                self._take_plain(Gather(dim, tuple(leaving[p] for p in places)), part)
            return
        self._take_strided("all_gather", self._in_order(leaving), after)

    def _make_partial(self) -> None:
        missing = tuple(p for p in self.ends.target.partial if p not in self.now.partial)
        if missing:
            after = self.now.with_partial(self.ends.target.partial)
            self._take_whole(MakePartial(tuple(a for a, _ in missing), missing[0][1]), after)

    @staticmethod
    def _in_order(axes: Mapping[DigitRef, AxisRef]) -> Axes:
        """The axes in the order of their places."""
        return tuple(axes[place] for place in sorted(axes))
