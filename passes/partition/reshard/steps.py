"""The steps of a reshard: one collective or one local rearrangement each, and plans made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ir.mesh import Axes, DimAxes, Mesh
from ir.sharding import ReductionKind
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard.strided_sharding import DigitRef, StridedSharding, blocks


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


StridedKind = Literal["slice", "reduce_scatter", "all_to_all", "all_gather"]


@dataclass(frozen=True, slots=True)
class Strided:
    """A slice or collective whose `axes` enter or leave dims at any places, of any number of dims at once.

    They leave the digits that they split in `before` and enter those that they split in `after`; where they enter,
    each device keeps a strided set of indices.
    """

    kind: StridedKind
    axes: Axes
    before: StridedSharding
    after: StridedSharding
    reduction: ReductionKind = "sum"

    @property
    def entered(self) -> tuple[DigitRef, ...]:
        """The digits that the axes enter, in their order."""
        places = self.after.places
        return tuple(places[a] for a in self.axes) if self.kind != "all_gather" else ()

    @property
    def left(self) -> tuple[DigitRef, ...]:
        """The digits that the axes leave, in their order."""
        places = self.before.places
        return tuple(places[a] for a in self.axes if a in places)

    @property
    def blocks(self) -> tuple[tuple[int, ...], list[list[int]]]:
        """The shard's shape with those digits as dims of their own, and the dims of those entered and of those left."""
        whole = self.after.with_axes(dict.fromkeys(self.entered))
        shape, groups = blocks(whole, self.entered, self.left)
        return shape, groups

    @property
    def is_in_place(self) -> bool:
        """Whether the digits need not be brought together: those entered are one dim, and those left."""
        return all(len(dims) <= 1 for dims in self.blocks[1])


@dataclass(frozen=True, slots=True)
class Rotate:
    """An all_to_all over `axes` of shards that change places at the same time, as collective_permutes of parts.

    In round r, position p of order `target` receives from that r parts on of order `source`, its part of what that
    position holds. Both orders begin with the axes over which the parts change: `axes` in target, `sources` in source.
    """

    axes: Axes
    sources: Axes
    target: Axes
    source: Axes
    before: StridedSharding
    after: StridedSharding

    @property
    def entered(self) -> tuple[DigitRef, ...]:
        """The digits that the axes enter, in their order."""
        places = self.after.places
        return tuple(places[a] for a in self.axes)

    @property
    def left(self) -> tuple[DigitRef, ...]:
        """The digits that become whole: those of the axes whose positions `axes` take over."""
        places = self.before.places
        return tuple(places[a] for a in self.sources)


@dataclass(frozen=True, slots=True)
class Retile:
    """Shards of other sizes: the boundaries between them shift, and padding comes or goes."""

    before: StridedSharding
    after: StridedSharding


Step = (
    Gather
    | Slice
    | AllToAll
    | Permute
    | Reduce
    | ReduceScatter
    | MakePartial
    | Spread
    | Reorder
    | Strided
    | Rotate
    | Retile
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, what each leads to, the time that they take in all, and the bytes that the worst device receives."""

    steps: tuple[tuple[Step, ClosedSharding | StridedSharding], ...] = ()
    seconds: float = 0.0
    received: float = 0.0

    def then(self, other: Plan) -> Plan:
        """This plan and then the other."""
        return Plan((*self.steps, *other.steps), self.seconds + other.seconds, self.received + other.received)


def permutation(source: DimAxes, target: DimAxes) -> Permute:
    """The collective_permute between two layouts with the same shards over other axes.

    Axes that only one of the two uses hold copies on the other side; they are paired so that every device takes part.
    """
    before, after = [a for d in source for a in d], [a for d in target for a in d]
    return Permute((*after, *(a for a in before if a not in after)), (*before, *(a for a in after if a not in before)))


def communication(step: Step) -> tuple[str, Axes]:
    """The collective of a step and the axes that it runs over; no collective for local steps and for box exchanges."""
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
        case Strided("slice"):
            return "", ()
        case Strided(kind, axes):
            return kind, axes
        case Reorder() | Rotate():
            return "collective_permute", ()
        case Slice() | MakePartial() | Spread() | Retile():
            return "", ()
