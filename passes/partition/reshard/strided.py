"""Steps along axes at any digits of dims, and between shards of other sizes.

The digits that axes enter or leave are brought to the front of the shard as one dim of their own, along which the
collective or the slice runs; then they go where they belong.

On a mesh (x=2, y=4), f32[64, 64] from [(2,y), x] to [(x,y), -]: x leaves the columns and enters the major digit of the
rows. The digits are dims as they are here, so nothing has to come to the front:

    f32[16, 32]        a shard: rows are 2 digits d0 by 8 rows, columns are one half
    f32[2, 8, 1, 32]   reshape: d0, rows, the digit of x in the columns, columns
    f32[1, 8, 2, 32]   all_to_all over x: splits d0, puts the halves of the columns side by side
    f32[8, 64]         reshape
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_size, merge_axes
from ir.program import DeviceOrder, Value
from ir.records import record
from ir.sharding import ReductionKind
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, memory_seconds, received_bytes
from passes.partition.exchange.box_exchange import Box, exchange_seconds
from passes.partition.reshard.steps import AnySharding, Cost, Destination, Step, Task, with_shards_of
from passes.partition.reshard.strided_sharding import DigitRef, StridedSharding, blocks
from passes.partition.shards import integer, padding_of, shard_index, take_shard

StridedKind = Literal["slice", "reduce_scatter", "all_to_all", "all_gather"]


@record
class Strided(Step):
    """A slice or collective whose `axes` enter or leave any digits of any number of dims at once.

    They leave the digits that they split in `before` and enter those that they split in `after`. Where they enter, each
    device keeps a strided set of indices.
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
        """The shard's shape with those digits as separate dims, and the numbers of the dims entered and of those
        left."""
        whole = self.after.with_axes(dict.fromkeys(self.entered))
        shape, groups = blocks(whole, self.entered, self.left)
        return shape, groups

    @property
    def is_in_place(self) -> bool:
        """Whether the digits need not be brought together, because those entered form a single dim, and those left
        too."""
        return all(len(dims) <= 1 for dims in self.blocks[1])

    @property
    def communication(self) -> tuple[str, Axes]:
        return ("", ()) if self.kind == "slice" else (self.kind, self.axes)

    def write(self, x: Value, to: Destination) -> Value:
        if self.is_in_place:
            return self._in_place(to.b, x, to.name)
        if self.kind == "all_gather":
            front = to.b.op("reshape", x, name=to.name, shape=(1, *x.shape))
        else:
            front = to_front(to.b, x, self.before, self.entered)
        moved = self._along(to.b, front, 0, 0, to.name)
        if self.left:
            return from_front(to.b, moved, self.after, self.left)
        return _reshaped(to.b, moved, self.after.local_shape())

    def _in_place(self, b: RegionBuilder, x: Value, name: str) -> Value:
        shape, (entered, left) = self.blocks
        split, concat = entered[0] if entered else -1, left[0] if left else -1
        x = _reshaped(b, x, tuple(1 if d == concat else n for d, n in enumerate(shape)))
        return _reshaped(b, self._along(b, x, split, concat, name), self.after.local_shape())

    def _along(self, b: RegionBuilder, x: Value, split: int, concat: int, name: str) -> Value:
        """The slice or collective that cuts dim `split` and forms dim `concat`."""
        axes = merge_axes(self.axes)
        match self.kind:
            case "slice":
                return take_shard(b, x, split, shard_index(b, self.axes), 1)
            case "reduce_scatter":
                return b.op("reduce_scatter", x, name=name, axes=axes, dim=split, kind=self.reduction)
            case "all_to_all":
                return b.op("all_to_all", x, name=name, axes=axes, split=split, concat=concat)
            case "all_gather":
                return b.op("all_gather", x, name=name, axes=axes, dim=concat)


@record
class Rotate(Step):
    """An all_to_all over `axes` and a permute of shards at the same time, as collective_permutes of parts.

    In round r, position p of order `target` receives its part of the shard that is r parts further on in order
    `source`. Both orders begin with the axes over which the parts change: `axes` in target, `sources` in source.
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

    @property
    def communication(self) -> tuple[str, Axes]:
        return "collective_permute", self.target

    def cost_of(self, machine: Machine, before: int, after: int) -> Cost:
        """The cost of one permute for each part, in sequence."""
        rounds = axes_size(self.axes)
        kind, axes = self.communication
        seconds = memory_seconds(machine, before + after)
        seconds += rounds * communication_seconds(machine, kind, axes, before // rounds)
        return seconds + memory_seconds(machine, before), rounds * received_bytes(
            kind, axes_size(axes), before // rounds
        )

    def write(self, x: Value, to: Destination) -> Value:
        parts = axes_size(self.axes)
        front = to_front(to.b, x, self.before, self.entered)
        target, source = (DeviceOrder(to.sub_axes.mesh, merge_axes(axes)) for axes in (self.target, self.source))
        positions = axes_size(self.target) // parts
        sends, receives = shard_index(to.b, self.sources), shard_index(to.b, self.axes)
        buffer = padding_of(to.b, front.type)
        for r in range(parts):
            part = take_shard(to.b, front, 0, _around(to.b, sends, -r, parts), 1)
            part = to.b.op("collective_permute", part, name=to.name, target=target, source=source, shift=r * positions)
            start = _around(to.b, receives, r, parts)
            zeros = [integer(to.b, 0)] * (part.type.rank - 1)
            buffer = to.b.op("dynamic_update_slice", buffer, part, start, *zeros, name=to.name)
        return from_front(to.b, buffer, self.after, self.left)


@record
class Retile(Step):
    """Shards of other sizes: the boundaries between them shift, and padding is added or removed."""

    before: StridedSharding
    after: StridedSharding

    def is_local(self, shape: Sequence[int], before: AnySharding) -> bool:
        return False

    def cost(self, task: Task, before: AnySharding, after: AnySharding) -> Cost:
        """The cost of shifting the boundaries between shards, in box exchanges."""
        have, want = self.before.local_shape(), self.after.local_shape()
        size = self.before.shard_elements * task.itemsize
        seconds = memory_seconds(task.machine, size + self.after.shard_elements * task.itemsize)
        for n, old, new, axes in zip(task.shape, have, want, self.before.axes, strict=True):
            if axes and old != new:
                seconds += exchange_seconds(task.machine, n, axes, Box(0, new, new), size / max(1, old), old)
        return seconds, 0.0

    def write(self, x: Value, to: Destination) -> Value:
        sizes = self.after.local_shape()
        for dim, (axes, n, size) in enumerate(zip(self.before.axes, to.shape, sizes, strict=True)):
            x = with_shards_of(to.b, x, dim, n, axes, size)
        return x


def to_front(b: RegionBuilder, x: Value, strided: StridedSharding, places: Sequence[DigitRef]) -> Value:
    """The shard with the digits at these places, which are whole in `strided`, as one first dim, in that order."""
    shape, (front,) = blocks(strided, places)
    rest = [d for d in range(len(shape)) if d not in front]
    x = _transposed(b, _reshaped(b, x, shape), (*front, *rest))
    sizes = list(strided.local_shape())
    for i, j in places:
        sizes[i] //= strided.dims[i][j].size
    return _reshaped(b, x, (math.prod(shape[d] for d in front), *sizes))


def from_front(b: RegionBuilder, x: Value, strided: StridedSharding, places: Sequence[DigitRef]) -> Value:
    """The inverse of `to_front`."""
    shape, (front,) = blocks(strided, places)
    order = (*front, *(d for d in range(len(shape)) if d not in front))
    x = _reshaped(b, x, tuple(shape[d] for d in order))
    x = _transposed(b, x, tuple(order.index(d) for d in range(len(shape))))
    return _reshaped(b, x, strided.local_shape())


def _around(b: RegionBuilder, index: Value, by: int, parts: int) -> Value:
    """index + by, modulo the number of parts."""
    if by % parts == 0:
        return index
    total = b.op("add", index, integer(b, by % parts), name="part")
    return b.op("remainder", total, integer(b, parts), name="part")


def _reshaped(b: RegionBuilder, x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.shape == shape else b.op("reshape", x, name=x.name, shape=shape)


def _transposed(b: RegionBuilder, x: Value, perm: tuple[int, ...]) -> Value:
    return x if perm == tuple(range(len(perm))) else b.op("transpose", x, name=x.name, perm=perm)
