"""The box exchange: each device holds a box of a tensor and gets another; what lies outside the tensor is filled.

GShard's halo exchange (sections 3.3.3 and A.4, Figures 5, 11 and 12), exchanges over several hops, shifted
boundaries and uneven re-tiling are calls of `exchange`. `ir.boxes` groups the transfers into rounds; here each round
becomes a slice of what its receiver lacks, a permute, and an update of the box at the place where the elements belong.
Devices differ only in those places, which are arithmetic on their position. Where shards and boxes advance alike, the
places are constants and the box is a concatenation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ir.boxes import Boxes
from ir.builder import RegionBuilder
from ir.mesh import axes_size, merge_axes
from ir.program import Value
from ir.sharding import shard_size
from ir.types import TensorType, s32
from passes.cost import communication_seconds
from passes.partition.local import Axes
from passes.partition.padding import resize, shard_index, splat

_SCALAR = TensorType((), s32)


@dataclass(frozen=True, slots=True)
class Box:
    """What device i needs of a dim: the elements [start + step · i, start + step · i + size)."""

    start: int
    step: int
    size: int


def boxes_of(n: int, axes: Axes, box: Box, chunk: int | None = None) -> Boxes:
    """The exchange from shards of a dim of size n; `chunk` is the shards' size if it is not the usual one."""
    return Boxes(n, chunk if chunk is not None else max(1, shard_size(n, axes)), box.start, box.step, box.size)


@functools.lru_cache(maxsize=4096)
def _moved(boxes: Boxes, devices: int) -> tuple[tuple[int, int], ...]:
    return boxes.rounds(devices)


def exchange_seconds(n: int, axes: Axes, box: Box, bytes_per_element: float, chunk: int) -> float:
    """Time of an exchange; an element is one index of the dim, with all of the shard's other dims."""
    if n == 0 or box.size == 0:
        return 0.0
    moves = _moved(boxes_of(n, axes, box, max(1, chunk)), axes_size(axes))
    return sum(communication_seconds("collective_permute", 2, int(k * bytes_per_element)) for _, k in moves)


def exchange(
    b: RegionBuilder, x: Value, dim: int, n: int, axes: Axes, box: Box, *, fill: Value | None = None, name: str = ""
) -> Value:
    """Each device's box of a dim of size n that is split over `axes`, from its shard `x`.

    Elements outside the tensor are the scalar `fill`; without it they are arbitrary.
    """
    devices = axes_size(axes)
    boxes = boxes_of(n, axes, box, max(1, x.shape[dim]))
    writer = _Writer(b, x, dim, axes, boxes, name or x.name)
    if n == 0 or box.size == 0 or x.type.size == 0:
        shape = writer.resized(box.size)
        return writer.filled(splat(b, False if x.dtype.kind == "pred" else 0, x.type.with_shape(shape)), fill)
    result = writer.concatenated() if boxes.step == boxes.chunk else writer.assembled()
    return writer.filled(result, fill) if fill is not None and boxes.reaches_outside(devices) else result


class _Writer:
    """Writes one exchange."""

    def __init__(self, b: RegionBuilder, x: Value, dim: int, axes: Axes, boxes: Boxes, name: str) -> None:
        self.b = b
        self.x = x
        self.dim = dim
        self.axes = axes
        self.boxes = boxes
        self.name = name
        self.devices = axes_size(axes)
        self.index = shard_index(b, axes)
        self.rounds = _moved(boxes, self.devices)

    def resized(self, size: int) -> tuple[int, ...]:
        """The shard's shape with another size of the dim."""
        shape = self.x.shape
        return (*shape[: self.dim], size, *shape[self.dim + 1 :])

    # Shards and boxes advance alike.

    def concatenated(self) -> Value:
        """The parts of the shards that the box touches, each the same on every device, one behind the other."""
        chunk, start, size = self.boxes.chunk, self.boxes.start, self.boxes.size
        pieces: list[Value] = []
        moves = dict(self.rounds)
        for shift in range(start // chunk, (start + size - 1) // chunk + 1):
            low, high = max(start, shift * chunk), min(start + size, (shift + 1) * chunk)
            piece = self._slice(self.x, low - shift * chunk, high - shift * chunk)
            if shift:
                r = shift - start // chunk
                piece = self._permute(piece, r) if r in moves else self._zeros(high - low)
            pieces.append(piece)
        if len(pieces) == 1:
            return pieces[0]
        return self.b.op("concatenate", *pieces, name=self.name, dim=self.dim)

    # They do not.

    def assembled(self) -> Value:
        """The box, written into a buffer with a margin on both sides that takes what falls beside the box.

        Every piece goes to where its elements belong in the tensor, so pieces that overlap agree. A device that
        receives nothing in a round gets zeros, which belong to a shard that comes in a lower round or is its own: hence
        the order, rounds downward and its own shard last.
        """
        chunk, size = self.boxes.chunk, self.boxes.size
        buffer = self._zeros(size + 2 * chunk)
        for r, elements in reversed(self.rounds):
            sent = self._distance(self._receiver(r), self.index)
            piece = self._take(self.x, sent, elements)
            piece = self._permute(piece, r)
            distance = self._distance(self.index, self._source(r))
            place = self._subtract(self._clamp(distance, 0, chunk - elements), distance)
            buffer = self._put(buffer, piece, self._plus(place, chunk))
        if self.boxes.keeps_own(self.devices):
            distance = self._distance(self.index, self.index)
            buffer = self._put(buffer, self.x, self._subtract(self._number(chunk), distance))
        return self._slice(buffer, chunk, chunk + size)

    def _distance(self, receiver: Value, source: Value) -> Value:
        """From the beginning of the source's shard to that of the receiver's box."""
        box = self._plus(self._times(receiver, self.boxes.step), self.boxes.start)
        return self._subtract(box, self._times(source, self.boxes.chunk))

    def _source(self, r: int) -> Value:
        """Where this device, as a receiver, takes from in a round."""
        boxes = self.boxes
        if boxes.by_receiver:
            return self._plus(self._floor_divide(boxes.step, boxes.start, boxes.chunk), r)
        # The source j for which receiver_of(j, r) is this device.
        if boxes.step > 0:
            # (chunk j - start - size) // step = i - 1 - r: the least such j.
            k = self._times(self._plus(self.index, -1 - r), boxes.step)
            return self._divide_up(self._plus(k, boxes.start + boxes.size), boxes.chunk)
        # (start - chunk (j + 1)) // -step = i - 1 - r: the greatest such j.
        k = self._times(self._plus(self.index, -1 - r), -boxes.step)
        return self._plus(self._divide_down(self._subtract(self._number(boxes.start), k), boxes.chunk), -1)

    def _receiver(self, r: int) -> Value:
        """Where this device, as a source, sends to in a round."""
        boxes = self.boxes
        if not boxes.by_receiver:
            if boxes.step > 0:
                return self._plus(self._floor_divide(boxes.chunk, -boxes.start - boxes.size, boxes.step), 1 + r)
            return self._plus(self._floor_divide(-boxes.chunk, boxes.start - boxes.chunk, -boxes.step), 1 + r)
        # The receiver i for which source_of(i, r) is this device: (start + step i) // chunk = j - r.
        k = self._times(self._plus(self.index, -r), boxes.chunk)
        if boxes.step > 0:
            return self._divide_up(self._plus(k, -boxes.start), boxes.step)
        return self._divide_up(self._plus(self._subtract(self._number(boxes.start), k), 1 - boxes.chunk), -boxes.step)

    # Arithmetic on the device's position.

    def _number(self, k: int) -> Value:
        return splat(self.b, k, _SCALAR)

    def _plus(self, a: Value, k: int) -> Value:
        return self.b.op("add", a, self._number(k), name="at") if k else a

    def _times(self, a: Value, k: int) -> Value:
        return self.b.op("multiply", a, self._number(k), name="at")

    def _subtract(self, a: Value, other: Value) -> Value:
        return self.b.op("subtract", a, other, name="at")

    def _clamp(self, a: Value, low: int, high: int) -> Value:
        return self.b.op("clamp", self._number(low), a, self._number(high), name="at")

    def _floor_divide(self, factor: int, term: int, by: int) -> Value:
        """(factor · index + term) // by."""
        return self._divide_down(self._plus(self._times(self.index, factor), term), by)

    def _divide_down(self, a: Value, by: int) -> Value:
        """a // by, rounded down for negative numbers too: `divide` truncates, so the dividend is made positive."""
        lift = self._lift(by)
        return self._plus(self.b.op("divide", self._plus(a, lift * by), self._number(by), name="at"), -lift)

    def _divide_up(self, a: Value, by: int) -> Value:
        return self._divide_down(self._plus(a, by - 1), by)

    def _lift(self, by: int) -> int:
        """A multiple of `by` that makes every dividend here positive."""
        b = self.boxes
        most = max((abs(r) for r, _ in self.rounds), default=0)
        reach = abs(b.start) + b.size + (abs(b.step) + b.chunk) * (self.devices + most + 2)
        return reach // by + 1

    # Pieces.

    def _zeros(self, size: int) -> Value:
        zero = False if self.x.dtype.kind == "pred" else 0
        return splat(self.b, zero, self.x.type.with_shape(self.resized(size)))

    def _slice(self, x: Value, low: int, high: int) -> Value:
        if (low, high) == (0, x.shape[self.dim]):
            return x
        if low == 0:
            return resize(self.b, x, self.dim, high)
        start = tuple(low if d == self.dim else 0 for d in range(x.type.rank))
        limit = tuple(high if d == self.dim else n for d, n in enumerate(x.shape))
        return self.b.op("slice", x, name=self.name, start=start, limit=limit)

    def _starts(self, place: Value) -> Sequence[Value]:
        zero = self._number(0)
        return [place if d == self.dim else zero for d in range(self.x.type.rank)]

    def _take(self, x: Value, place: Value, size: int) -> Value:
        """`size` elements from `place`, which dynamic_slice brings inside the shard."""
        if size == x.shape[self.dim]:
            return x
        return self.b.op("dynamic_slice", x, *self._starts(place), name=self.name, sizes=self.resized(size))

    def _put(self, buffer: Value, piece: Value, place: Value) -> Value:
        return self.b.op("dynamic_update_slice", buffer, piece, *self._starts(place), name=self.name)

    def _permute(self, piece: Value, r: int) -> Value:
        return self.b.op(
            "box_permute", piece, name=self.name, axes=merge_axes(self.axes), boxes=self.boxes.to_attr(), round=r
        )

    def filled(self, box: Value, fill: Value | None) -> Value:
        """The box with `fill` in place of what lies outside the tensor."""
        if fill is None or box.type.size == 0:
            return box
        counter = box.type.with_dtype(s32)
        first = self._plus(self._times(self.index, self.boxes.step), self.boxes.start)
        position = self.b.op("iota", name="position", type=counter, dim=self.dim)
        spread = self.b.op("broadcast_in_dim", first, name="start", shape=box.shape, dims=())
        position = self.b.op("add", position, spread, name="position")
        low = self.b.op("compare", position, splat(self.b, 0, counter), name="inside", direction="GE")
        high = self.b.op("compare", position, splat(self.b, self.boxes.n, counter), name="inside", direction="LT")
        inside = self.b.op("and", low, high, name="inside")
        outside = self.b.op("broadcast_in_dim", fill, name="fill", shape=box.shape, dims=())
        return self.b.op("select", inside, box, outside, name=self.name)
