"""From any layout to any other by the cheapest sequence of collectives and local ops.

The states are layouts, the edges single steps, the weights the cost model's seconds; Dijkstra's search finds the
path. Whatever a program needs moved that is not a box exchange is a call of `Resharder.plan`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.mesh import Mesh, axes_size
from ir.sharding import ReductionKind, shard_size
from passes.atoms import Atoms
from passes.cost import communication_seconds, memory_seconds, received_bytes
from passes.partition.exchange import Box, exchange_seconds
from passes.partition.local import Axes, DimAxes, Layout, Partial, is_aligned


@dataclass(frozen=True, slots=True)
class Gather:
    """all_gather of the minor `axes` of a dim."""

    dim: int
    axes: Axes


@dataclass(frozen=True, slots=True)
class Slice:
    """Each device keeps its part of a dim: `axes` come in as the minor ones. No communication."""

    dim: int
    axes: Axes


@dataclass(frozen=True, slots=True)
class AllToAll:
    """The minor `axes` of dim `source` become the minor axes of dim `target`."""

    axes: Axes
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Permute:
    """collective_permute: whole shards change places. Position p of order `target` receives from that of `source`."""

    target: Axes
    source: Axes


@dataclass(frozen=True, slots=True)
class Reduce:
    """all_reduce of partial results."""

    axes: Axes
    kind: ReductionKind


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """reduce_scatter of partial results onto a dim, whose minor axes `axes` become."""

    axes: Axes
    kind: ReductionKind
    dim: int


@dataclass(frozen=True, slots=True)
class MakePartial:
    """One device of each group keeps the value, the others the reduction's identity. No communication."""

    axes: Axes
    kind: ReductionKind


@dataclass(frozen=True, slots=True)
class Spread:
    """Each device's part of a dim among the reduction's identity: the minor `axes` of the dim become partial.

    No communication.
    """

    axes: Axes
    kind: ReductionKind
    dim: int


@dataclass(frozen=True, slots=True)
class Reorder:
    """collective_permute between the device orders of two meshes; None is the default mesh."""

    source: Mesh | None
    target: Mesh | None


Step = Gather | Slice | AllToAll | Permute | Reduce | ReduceScatter | MakePartial | Spread | Reorder


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, the layout after each, and the time they take in all."""

    steps: tuple[tuple[Step, Layout], ...]
    seconds: float


_IN_PLACE = Plan((), 0.0)
_MAX_STATES = 4000
_FINE_ATOMS = 4
_UNEVEN = 2
"""Room for the padding of dims that are smaller than a few times the number of shards."""


class Resharder:
    """Plans reshards over one mesh, each once."""

    def __init__(self, atoms: Atoms) -> None:
        self.atoms = atoms
        self.plans: dict[tuple[tuple[int, ...], int, Layout, Layout], Plan] = {}
        self.fine = atoms.primes

    def plan(self, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> Plan:
        """The cheapest way for a tensor of that global shape and element size in bytes."""
        if source == target:
            return _IN_PLACE
        key = (shape, itemsize, source, target)
        found = self.plans.get(key)
        if found is None:
            found = self.plans[key] = self._plan(shape, itemsize, source, target)
        return found

    def received(self, shape: tuple[int, ...], itemsize: int, sources: Sequence[Layout], target: Layout) -> int:
        """Bytes that the worst device receives when the cheapest of the sources is brought to the target."""
        plans = [(self.plan(shape, itemsize, source, target), source) for source in sources]
        plan, layout = min(plans, key=lambda p: p[0].seconds)
        total = 0.0
        for step, after in plan.steps:
            kind, axes = _communication(step)
            if kind:
                group = axes_size(axes) if axes else self.atoms.mesh.size
                total += received_bytes(kind, group, _local_bytes(shape, itemsize, layout))
            layout = after
        return math.ceil(total)

    def _plan(self, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> Plan:
        steps: list[tuple[Step, Layout]] = []
        seconds = 0.0

        def reorder(layout: Layout, order: Mesh | None) -> Layout:
            nonlocal seconds
            moved = Layout(layout.axes, layout.partial, order)
            steps.append((Reorder(layout.order, order), moved))
            size = _local_bytes(shape, itemsize, layout)
            seconds += communication_seconds("collective_permute", self.atoms.mesh.size, size)
            return moved

        if source.order is not None:
            source = reorder(source, None)
        home = Layout(target.axes, target.partial)
        path = self._search(shape, itemsize, source, home)
        steps.extend(path.steps)
        seconds += path.seconds
        if target.order is not None:
            reorder(home, target.order)
        return Plan(tuple(steps), seconds)

    def _search(self, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> Plan:
        if source == target:
            return _IN_PLACE
        coarse = _Search(self.atoms, shape, itemsize, source, target).run()
        if coarse is not None and not (_gathers(coarse) and _has_news(source, target)):
            return coarse
        if len(self.fine.all) <= _FINE_ATOMS and self.fine.all != self.atoms.all:
            ends = (_refine(source, self.fine), _refine(target, self.fine))
            fine = _Search(self.fine, shape, itemsize, *ends).run()
            if fine is not None and (coarse is None or fine.seconds < coarse.seconds * 0.999):
                return Plan((*fine.steps[:-1], (fine.steps[-1][0], target)), fine.seconds)
        return coarse if coarse is not None else _through_replication(shape, itemsize, source, target)


def _gathers(plan: Plan) -> bool:
    return any(isinstance(step, Gather) for step, _ in plan.steps)


def _has_news(source: Layout, target: Layout) -> bool:
    """Whether the target splits a dim over an atom that the source has elsewhere: only then can parts of axes help."""
    return any(set(new) - set(old) for old, new in zip(source.axes, target.axes, strict=True))


def _refine(layout: Layout, atoms: Atoms) -> Layout:
    return Layout(tuple(atoms.split(a) for a in layout.axes), atoms.split_partial(layout.partial))


def _local_bytes(shape: Sequence[int], itemsize: int, layout: Layout) -> int:
    total = itemsize
    for n, axes in zip(shape, layout.axes, strict=True):
        total *= shard_size(n, axes)
    return total


def _through_replication(shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> Plan:
    """The path that always exists: reduce, gather every dim, slice."""
    steps: list[tuple[Step, Layout]] = []
    seconds = 0.0
    layout = source

    def go(step: Step, after: Layout, kind: str, axes: Axes) -> None:
        nonlocal layout, seconds
        size = _local_bytes(shape, itemsize, layout)
        seconds += communication_seconds(kind, axes_size(axes), size) if kind else memory_seconds(size)
        steps.append((step, after))
        layout = after

    if source.partial:
        axes = tuple(a for a, _ in source.partial)
        go(Reduce(axes, source.partial[0][1]), layout.without_partial(), "all_reduce", axes)
    for dim, axes in enumerate(source.axes):
        if axes:
            go(Gather(dim, axes), layout.with_dim(dim, ()), "all_gather", axes)
    for dim, axes in enumerate(target.axes):
        if axes:
            go(Slice(dim, axes), layout.with_dim(dim, axes), "", axes)
    if target.partial:
        axes = tuple(a for a, _ in target.partial)
        go(MakePartial(axes, target.partial[0][1]), target, "", axes)
    return Plan(tuple(steps), seconds)


class _Search:
    """One shortest-path search."""

    def __init__(self, atoms: Atoms, shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> None:
        self.atoms = atoms
        self.shape = shape
        self.itemsize = itemsize
        self.source = source
        self.target = target
        self.wanted = {a: dim for dim, axes in enumerate(target.axes) for a in axes}
        self.room = max(self._bytes(source), self._bytes(target)) * _UNEVEN

    def run(self) -> Plan | None:
        """The cheapest path on which no shard is larger than the larger of source and target.

        None if none was found in `_MAX_STATES` states.
        """
        count = itertools.count()
        best: dict[Layout, float] = {self.source: 0.0}
        came: dict[Layout, tuple[Layout, Step]] = {}
        heap: list[tuple[float, int, Layout]] = [(0.0, next(count), self.source)]
        done: set[Layout] = set()
        while heap and len(done) < _MAX_STATES:
            seconds, _, layout = heapq.heappop(heap)
            if layout in done:
                continue
            if layout == self.target:
                return Plan(tuple(self._path(came)), seconds)
            done.add(layout)
            for step, after, cost in self._edges(layout):
                total = seconds + cost
                if after not in done and total < best.get(after, float("inf")):
                    best[after] = total
                    came[after] = (layout, step)
                    heapq.heappush(heap, (total, next(count), after))
        return None

    def _path(self, came: dict[Layout, tuple[Layout, Step]]) -> list[tuple[Step, Layout]]:
        path: list[tuple[Step, Layout]] = []
        layout = self.target
        while layout != self.source:
            before, step = came[layout]
            path.append((step, layout))
            layout = before
        return path[::-1]

    def _bytes(self, layout: Layout) -> int:
        return _local_bytes(self.shape, self.itemsize, layout)

    def _edges(self, layout: Layout) -> Iterator[tuple[Step, Layout, float]]:
        size = self._bytes(layout)
        for step, after in self._steps(layout):
            if self._bytes(after) > self.room:
                continue
            kind, axes = _communication(step)
            seconds = memory_seconds(size + self._bytes(after)) + self._shifts(layout, step, after)
            if kind:
                seconds += communication_seconds(kind, axes_size(axes), size)
            yield step, after, seconds

    def _shifts(self, before: Layout, step: Step, after: Layout) -> float:
        """Time to shift the boundaries between shards that do not tile one another."""
        match step:
            case Gather(dim, axes):
                return self._shift(after, dim, axes, gather=True)
            case Slice(dim, axes) | ReduceScatter(axes, _, dim):
                return self._shift(before, dim, axes, gather=False)
            case AllToAll(axes, source, target):
                return self._shift(after, source, axes, gather=True) + self._shift(before, target, axes, gather=False)
            case _:
                return 0.0

    def _shift(self, layout: Layout, dim: int, inner: Axes, *, gather: bool) -> float:
        n, outer = self.shape[dim], layout.axes[dim]
        if is_aligned(n, outer, inner):
            return 0.0
        wide, usual = shard_size(n, (*outer, *inner)) * axes_size(inner), shard_size(n, outer)
        source, target = (wide, usual) if gather else (usual, wide)
        row = self._bytes(layout) / max(1, usual)
        return exchange_seconds(n, outer, Box(0, target, target), row, source)

    def _steps(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        yield from self._reductions(layout)
        yield from self._gathers(layout)
        yield from self._slices(layout)
        yield from self._spreads(layout)
        yield from self._all_to_alls(layout)
        yield from self._permutes(layout)

    def _reductions(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        owed = tuple(p for p in layout.partial if p not in self.target.partial)
        for count in range(1, len(owed) + 1):
            for chosen in itertools.combinations(owed, count):
                rest = tuple(p for p in layout.partial if p not in chosen)
                kind = chosen[0][1]
                yield Reduce(tuple(a for a, _ in chosen), kind), Layout(layout.axes, rest)
                yield from self._scatters(layout, chosen, rest)

    def _scatters(self, layout: Layout, chosen: Partial, rest: Partial) -> Iterator[tuple[Step, Layout]]:
        atoms = {a for a, _ in chosen}
        if atoms <= {a for a, _ in self.target.partial}:
            ordered = tuple(a for a, _ in chosen)
            for dim, axes in enumerate(layout.axes):
                after = Layout(layout.axes, rest).with_dim(dim, (*axes, *ordered))
                yield ReduceScatter(ordered, chosen[0][1], dim), after
        for dim, axes in enumerate(self.target.axes):
            ordered = tuple(a for a in axes if a in atoms)
            if len(ordered) == len(atoms):
                after = Layout(layout.axes, rest).with_dim(dim, (*layout.axes[dim], *ordered))
                yield ReduceScatter(ordered, chosen[0][1], dim), after

    def _gathers(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        for dim, axes in enumerate(layout.axes):
            for keep in range(len(axes)):
                yield Gather(dim, axes[keep:]), layout.with_dim(dim, axes[:keep])

    def _slices(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        used = layout.used
        for dim, axes in enumerate(self.target.axes):
            have = layout.axes[dim]
            runs: list[Axes] = [(a,) for a in axes if a not in used]
            rest = axes[len(have) :]
            if len(rest) > 1 and axes[: len(have)] == have and not used.intersection(rest):
                runs.append(rest)
            for run in runs:
                yield Slice(dim, run), layout.with_dim(dim, (*have, *run))
        missing = [p for p in self.target.partial if p[0] not in used]
        if missing:
            partial = tuple(sorted((*layout.partial, *missing), key=lambda p: self.atoms.rank[p[0]]))
            if len({kind for _, kind in partial}) == 1:
                yield MakePartial(tuple(a for a, _ in missing), missing[0][1]), Layout(layout.axes, partial)

    def _spreads(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        owed = dict(self.target.partial)
        kinds = {kind for _, kind in (*layout.partial, *self.target.partial)}
        if not owed or len(kinds) > 1:
            return
        for dim, axes in enumerate(layout.axes):
            for keep in range(len(axes)):
                minor = axes[keep:]
                if all(a in owed for a in minor) and is_aligned(self.shape[dim], axes[:keep], minor):
                    kind = owed[minor[0]]
                    partial = (*layout.partial, *((a, kind) for a in minor))
                    after = Layout(layout.axes, tuple(sorted(partial, key=lambda p: self.atoms.rank[p[0]])))
                    yield Spread(minor, kind, dim), after.with_dim(dim, axes[:keep])

    def _all_to_alls(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        for source, axes in enumerate(layout.axes):
            for keep in range(len(axes)):
                moved = axes[keep:]
                for target in sorted({self.wanted[a] for a in moved if a in self.wanted} - {source}):
                    after = layout.with_dim(source, axes[:keep])
                    after = after.with_dim(target, (*layout.axes[target], *moved))
                    yield AllToAll(moved, source, target), after

    def _permutes(self, layout: Layout) -> Iterator[tuple[Step, Layout]]:
        """Other axes for the same shards: rearranged, or exchanged for the target's."""
        choices = [self._same_shards(dim, axes) for dim, axes in enumerate(layout.axes)]
        owed = {a for a, _ in layout.partial}
        for dims in itertools.islice(itertools.product(*choices), 256):
            atoms = [a for axes in dims for a in axes]
            if dims == layout.axes or len(set(atoms)) != len(atoms) or owed.intersection(atoms):
                continue
            yield permutation(layout.axes, dims), Layout(dims, layout.partial)

    def _same_shards(self, dim: int, axes: Axes) -> list[Axes]:
        choices = [axes]
        if not axes:
            return choices
        if len(axes) <= 3:
            choices.extend(tuple(p) for p in itertools.permutations(axes) if tuple(p) != axes)
        parts = axes_size(axes)
        for end in range(1, len(self.target.axes[dim]) + 1):
            prefix = self.target.axes[dim][:end]
            if axes_size(prefix) == parts and prefix not in choices:
                choices.append(prefix)
        choices.extend((a,) for a, _ in self.target.partial if a.size == parts and (a,) not in choices)
        return choices


def permutation(source: DimAxes, target: DimAxes) -> Permute:
    """The collective_permute between two layouts with the same shards over other axes.

    Axes that only one of the two uses hold copies on the other side; they are paired so that every device takes part.
    """
    before, after = [a for d in source for a in d], [a for d in target for a in d]
    return Permute((*after, *(a for a in before if a not in after)), (*before, *(a for a in after if a not in before)))


def _communication(step: Step) -> tuple[str, Axes]:
    """The collective of a step and the axes it runs over; no collective for local steps."""
    match step:
        case Gather(_, axes):
            return "all_gather", axes
        case AllToAll(axes, _, _):
            return "all_to_all", axes
        case Permute(axes, _):
            return "collective_permute", axes
        case Reduce(axes, _):
            return "all_reduce", axes
        case ReduceScatter(axes, _, _):
            return "reduce_scatter", axes
        case Reorder():
            return "collective_permute", ()
        case Slice() | MakePartial() | Spread():
            return "", ()
