"""The box exchange: each device holds a box of a tensor and gets another; elements outside the tensor are filled.

GShard's halo exchange (sections 3.3.3 and A.4, Figures 5, 11 and 12), exchanges over several hops, shifted
boundaries and uneven re-tiling are calls of `exchange`. `ir.ops.boxes` groups the transfers into rounds, `pieces`
cuts boxes where rounds would carry more than is lacking; here each round becomes a slice of what its receiver
lacks, a permute, and an update of the box at the place where the elements belong. Devices differ only in those places,
which are arithmetic on their position. Where shards and boxes advance alike, the places are constants and the box is
a concatenation.

Where only every so-many-th element is wanted, shards are thinned out first, and boxes hold wanted elements only.

Figure 11, windows of 3 with stride 2 on 12 elements padded by 1: device i holds [3i, 3i + 3), needs [4i - 1, 4i + 4).

    device        0          1            2             3
    shard         0 1 2      3 4 5        6 7 8         9 10 11
    round 1                  6 7 8        9 10 11                   i receives from i + 1 what it lacks, at most 3
    round 2       3                                                 only where the box of 0 begins outside
    box           · 0 1 2 3  3 4 5 6 7    7 8 9 10 11   none        from a row of 11, at places that depend on i
    filled        0 0 1 2 3  3 4 5 6 7    7 8 9 10 11   fill        where the position is outside [0, 12)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_size, merge_axes
from ir.ops.boxes import Boxes
from ir.ops.layout import slice_along
from ir.program import Value
from ir.sharding import shard_size
from ir.types import TensorType, pred, s32
from passes.cost.machine import Machine
from passes.cost.model import messages_seconds
from passes.partition.exchange.affine import Affine, clamped, divided_down, divided_up, position, written
from passes.partition.exchange.pieces import divided, received
from passes.partition.exchange.relay import hops, unit_of
from passes.partition.shards import is_zero, padding_of, put_shard, resize, splat, take_shard

_MAX_ROUNDS = 64
"""The most rounds for each box of an op. Beyond it, windows reach over so many shards that a gather receives little
more, in a shorter program."""


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a dim that device i needs: the elements phase + every · k of the range
    [start + step · i, start + step · i + size).

    Nothing from `end` on is needed. Devices from `receivers` on, if that is not 0, need nothing: their boxes belong to
    the padding of an uneven result.
    """

    start: int
    step: int
    size: int
    every: int = 1
    phase: int = 0
    end: int | None = None
    receivers: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """A box of a dim of size n, from its shard `x`; `dilation` is the distance between the dim's elements.

    Sizes and positions count the holes between the elements. Elements outside the tensor are the scalar `fill`, or
    arbitrary without it.
    """

    x: Value
    dim: int
    n: int
    box: Box
    dilation: int = 1
    fill: Value | None = None


def boxes_of(n: int, axes: Axes, box: Box, chunk: int | None = None) -> Boxes:
    """The exchange from shards of a dim of size n; `chunk` is the shards' size if it is not the usual one."""
    chunk = chunk if chunk is not None else shard_size(n, axes)
    end = n if box.end is None else max(0, min(n, box.end))
    phase, receivers = box.phase % box.every, box.receivers if box.receivers < axes_size(axes) else 0
    boxes = Boxes(end, max(1, chunk), box.start, box.step or 1, box.size, box.every, phase, receivers)
    return boxes.compact() or boxes


def exchange_seconds(machine: Machine, n: int, axes: Axes, box: Box, row_bytes: float, chunk: int) -> float:
    """Time of an exchange from shards of `chunk` elements; `row_bytes` is the bytes of one index in a shard."""
    return exchanges_seconds(machine, (boxes_of(n, axes, box, chunk),), (math.ceil(row_bytes),), axes)


def exchanges_seconds(machine: Machine, boxes: Sequence[Boxes], row_bytes: Sequence[int], axes: Axes) -> float:
    """Time of the exchanges of one op."""
    stages = _stages(tuple(boxes), tuple(row_bytes), axes_size(axes))
    return math.inf if stages is None else sum(messages_seconds(machine, axes, nbytes) for nbytes in stages)


def exchanges_received(boxes: Sequence[Boxes], row_bytes: Sequence[int], axes: Axes) -> int:
    """Bytes that the worst device receives in the exchanges of one op, which must be few enough to be written."""
    stages = _stages(tuple(boxes), tuple(row_bytes), axes_size(axes))
    assert stages is not None
    return sum(stages)


def cannot_be_written(boxes: Sequence[Boxes], row_bytes: Sequence[int], axes: Axes) -> bool:
    """Whether these exchanges of one op take more rounds than are worth writing, or positions that do not fit in
    s32."""
    return _stages(tuple(boxes), tuple(row_bytes), axes_size(axes)) is None


@functools.lru_cache(maxsize=2**14)
def _stages(boxes: tuple[Boxes, ...], row_bytes: tuple[int, ...], devices: int) -> tuple[int, ...] | None:
    """The bytes that the worst device receives in each stage of the exchanges of one op; None if they take too many
    rounds to be written. It is cached, because searches for reshards ask for the same exchanges many times."""
    if max((each.furthest(devices) for each in boxes), default=0) > s32.highest:
        return None
    ways = [hops(each, devices) for each in boxes]
    last = tuple(way[-1] for way in ways)
    if sum(each.least_rounds(devices) for each in last) > _MAX_ROUNDS * len(boxes):
        return None
    pieces = divided(last, row_bytes, devices)
    if sum(len(part.rounds(devices)) for parts in pieces for part in parts) > _MAX_ROUNDS * len(boxes):
        return None
    stages = [(last, row_bytes)]
    stages.extend(((hop,), (row,)) for way, row in zip(ways, row_bytes, strict=True) for hop in way[:-1])
    return tuple(received(divided(*stage, devices), stage[1], devices) for stage in stages)


def exchanges_accessed(boxes: Sequence[Boxes], row_bytes: Sequence[int], axes: Axes) -> int:
    """Bytes of memory that a device reads and writes for the exchanges of one op, which must be few enough to be
    written. They are those of the kernels into which a compiler fuses what is written: what is sent is cut out, unless
    it is a whole shard, and received, and the op reads what arrived beside its own shard. Where parts belong at
    different places on different devices, they are put together in a buffer before."""
    return _accessed(tuple(boxes), tuple(row_bytes), axes_size(axes))


@functools.lru_cache(maxsize=2**14)
def _accessed(boxes: tuple[Boxes, ...], row_bytes: tuple[int, ...], devices: int) -> int:
    ways = [hops(each, devices) for each in boxes]
    last = divided(tuple(way[-1] for way in ways), row_bytes, devices)
    written = [(part, row) for parts, row in zip(last, row_bytes, strict=True) for part in parts]
    for way, row in zip(ways, row_bytes, strict=True):
        written.extend((part, row) for hop in way[:-1] for part in divided((hop,), (row,), devices)[0])
    return sum(row * _accessed_elements(part, devices) for part, row in written)


def _accessed_elements(boxes: Boxes, devices: int) -> int:
    """The elements that a device reads and writes for boxes that are exchanged in one piece."""
    held = -(-boxes.chunk // boxes.every)
    moved = sum(elements * (3 if elements == held else 5) for _, elements in boxes.rounds(devices))
    return moved if _advance_alike(boxes) else moved + boxes.count + 2 * held


def _advance_alike(boxes: Boxes) -> bool:
    """Whether shards and boxes advance equally: all devices then have the same parts at the same places."""
    return (boxes.every, boxes.step) == (1, boxes.chunk)


def exchange(b: RegionBuilder, x: Value, dim: int, n: int, axes: Axes, box: Box, *, fill: Value | None = None) -> Value:
    """Each device's box of a dim of size n that is split over `axes`, from its shard `x`."""
    (result,) = exchange_all(b, axes, (Request(x, dim, n, box, fill=fill),))
    return result


def exchange_all(b: RegionBuilder, axes: Axes, requests: Sequence[Request]) -> list[Value]:
    """The boxes that one op needs of several tensors, all split over the same axes, with the wanted elements only."""
    asked = [(r, boxes_of(r.n, axes, r.box, r.x.shape[r.dim] * r.dilation)) for r in requests]
    simple = [_at_constant_places(b, request, each) for request, each in asked]
    requests, boxes = [request for request, _ in simple], [each for _, each in simple]
    ways = [hops(each, axes_size(axes)) for each in boxes]
    weights = tuple(r.x.type.nbytes // max(1, r.x.shape[r.dim]) for r in requests)
    last = divided(tuple(way[-1] for way in ways), weights, axes_size(axes))
    found: list[Value] = []
    for request, weight, whole, way, pieces in zip(requests, weights, boxes, ways, last, strict=True):
        request = _on_the_way(b, request, whole, way, weight, axes)
        found.append(_Writer(b, request, axes, way[-1]).written(pieces))
    return found


def _at_constant_places(b: RegionBuilder, request: Request, boxes: Boxes) -> tuple[Request, Boxes]:
    """The exchange with all places constant, if that makes no difference to the first device, and only it needs a box,
    or has elements: boxes then advance as shards do, or shards are as large as boxes advance."""
    if boxes.receivers == 1 and request.fill is None:
        return request, replace(boxes, step=boxes.chunk)
    if request.box.every == 1 and boxes.n <= boxes.chunk < boxes.step:
        return replace(request, x=resize(b, request.x, request.dim, boxes.step)), replace(boxes, chunk=boxes.step)
    return request, boxes


def cut(b: RegionBuilder, x: Value, dim: int, axes: Axes, box: Box, *, fill: Value | None) -> Value:
    """Each device's box of a dim that all devices along `axes` have whole. All elements of the box are wanted."""
    n, place = x.shape[dim], position(b, axes) * box.step + box.start
    low, high = (min(max(0, beyond), box.size) for beyond in (-place.low, place.high + box.size - n))
    if low or high:
        along = [tuple(size if d == dim else 0 for d in range(x.type.rank)) for size in (low, high, 0)]
        fill = fill or padding_of(b, TensorType((), x.dtype))
        x = b.op("pad", x, fill, name=x.name, low=along[0], high=along[1], interior=along[2])
    start = clamped(b, place, -low, n + high - box.size) + low
    return _dynamic_slice(b, x, dim, start, box.size, x.name)


def _on_the_way(
    b: RegionBuilder, request: Request, whole: Boxes, way: Sequence[Boxes], weight: int, axes: Axes
) -> Request:
    """The request that remains after all hops but the last are written."""
    if len(way) == 1:
        return request
    unit = unit_of(whole)
    thinned = unit if whole.every > 1 else request.box.every
    request = replace(request, box=replace(request.box, every=thinned))
    for hop in way[:-1]:
        (pieces,) = divided((hop,), (weight,), axes_size(axes))
        x = _Writer(b, request, axes, hop).unfilled(pieces)
        request = replace(request, x=x, n=hop.n, box=Box(0, 1, hop.size), dilation=1)
    return replace(request, box=replace(request.box, every=whole.every), dilation=unit)


def spread(
    b: RegionBuilder, axes: Axes, dim: int, parts: Sequence[tuple[Value, Box]], whole: Box, fill: Value
) -> Value:
    """The box `whole` with the wanted elements of its parts at their positions, and `fill` elsewhere."""
    result: Value | None = None
    for x, part in parts:
        partitioned = _placed(b, axes, dim, x, part, whole, fill)
        if result is None:
            result = partitioned
            continue
        every = splat(b, True, x.type.with_dtype(pred))
        here = _placed(b, axes, dim, every, part, whole, splat(b, False, TensorType((), pred)))
        result = b.op("select", here, partitioned, result, name=x.name)
    assert result is not None
    return result


def _placed(b: RegionBuilder, axes: Axes, dim: int, x: Value, part: Box, whole: Box, fill: Value) -> Value:
    """The elements of a part, `every` apart, at their positions in the whole box."""
    every, count, before = part.every, x.shape[dim], part.start - whole.start
    if count == 0:
        return b.op("broadcast_in_dim", fill, name=x.name, shape=_with_dim(x, dim, whole.size), dims=())
    behind = whole.size - before - (count - 1) * every - 1

    def padded(low: int, high: int) -> Value:
        def along(size: int) -> tuple[int, ...]:
            return tuple(size if d == dim else 0 for d in range(x.type.rank))

        return b.op("pad", x, fill, name=x.name, low=along(low), high=along(high), interior=along(every - 1))

    if part.step % every == 0:
        gap = (part.phase - part.start) % every
        return padded(before + gap, behind - gap)
    loose = padded(before + every - 1, behind)
    begin = position(b, axes) * part.step + (part.start - part.phase)
    first = divided_up(b, begin, every) * every - begin
    return _dynamic_slice(b, loose, dim, Affine(number=every - 1) - first, whole.size, x.name)


def _with_dim(x: Value, dim: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:dim], size, *x.shape[dim + 1 :])


def _dynamic_slice(b: RegionBuilder, x: Value, dim: int, place: Affine, size: int, name: str) -> Value:
    """`size` elements from `place`, which dynamic_slice clamps."""
    if size == x.shape[dim]:
        return x
    if place.is_number:
        return _slice(b, x, dim, min(max(place.number, 0), x.shape[dim] - size), size, name)
    return take_shard(b, x, dim, written(b, place), size, name)


def _slice(b: RegionBuilder, x: Value, dim: int, low: int, size: int, name: str, stride: int = 1) -> Value:
    """`size` elements from `low`, `stride` apart."""
    if (size, stride) == (x.shape[dim], 1):
        return x
    if (low, stride) == (0, 1):
        return resize(b, x, dim, size)
    return b.op("slice", x, name=name, **slice_along(x.shape, dim, low, low + (size - 1) * stride + 1, stride))


def _shards_of(boxes: Boxes) -> Iterator[tuple[int, int, int, int]]:
    """The shards that a box overlaps where shards and boxes advance equally: for each the distance in positions, the
    round in which it comes, and the first and last of its elements in the box."""
    chunk, start, size = boxes.chunk, boxes.start, boxes.size
    for r, shift in enumerate(range(start // chunk, (start + size - 1) // chunk + 1)):
        yield shift, r, max(start - shift * chunk, 0), min(start + size - shift * chunk, chunk)


class _Writer:
    """Writes one exchange."""

    def __init__(self, b: RegionBuilder, request: Request, axes: Axes, boxes: Boxes) -> None:
        self.b = b
        self.request = request
        self.x = request.x
        self.dim = request.dim
        self.axes = axes
        self.boxes = boxes
        self.name = request.x.name
        self.devices = axes_size(axes)
        self.index = position(b, axes)

    def written(self, pieces: Sequence[Boxes]) -> Value:
        """The box of wanted elements, made of its pieces."""
        boxes, fill = self.boxes, self.request.fill
        result = self.unfilled(pieces)
        if fill is None or not boxes.reaches_outside(self.devices) or self._arrives_as_zero(fill, pieces):
            return result
        return self._filled(result, fill)

    def _arrives_as_zero(self, fill: Value, pieces: Sequence[Boxes]) -> bool:
        """Whether elements outside the tensor are 0 without being filled, because a device that receives nothing from a
        permute gets zeros.

        That is so if every position outside belongs to a shard that does not exist, and all shards are full.
        """
        boxes, request = self.boxes, self.request
        all_full = -(-request.n // request.dilation) == request.x.shape[self.dim] * self.devices
        return (
            all_full
            and _advance_alike(boxes)
            and is_zero(self.b.constants.get(fill))
            and all(self._all_sent(piece) for piece in pieces)
        )

    def _all_sent(self, piece: Boxes) -> bool:
        """Whether each existing part of the piece that belongs to another shard is received from it."""
        moves = dict(piece.rounds(self.devices))
        return all(moves.get(r, 0) >= high - low for shift, r, low, high in _shards_of(piece) if shift)

    def unfilled(self, pieces: Sequence[Boxes]) -> Value:
        """The box of wanted elements, with arbitrary elements outside the tensor."""
        boxes = self.boxes
        if self.request.n == 0 or boxes.count == 0 or self.x.type.size == 0:
            return self._nothing(boxes.count)
        self.x = self._thinned()
        if _advance_alike(boxes):
            return self._concatenated(pieces)
        return self._joined([self._assembled(piece) for piece in pieces])

    def _thinned(self) -> Value:
        """The shard's wanted elements. If shards hold different numbers of them, the last one may be arbitrary."""
        box, x, chunk = self.request.box, self.x, self.x.shape[self.dim]
        stride = box.every // self.request.dilation
        if stride == 1:
            return x
        first = box.phase % box.every // self.request.dilation
        if chunk % stride == 0:
            return _slice(self.b, x, self.dim, first, chunk // stride, self.name, stride)
        count = -(-chunk // stride)
        loose = resize(self.b, x, self.dim, count * stride)
        begin = self._first_held(self.index, self.boxes) * stride + first - self.index * chunk
        run = _dynamic_slice(self.b, loose, self.dim, begin, (count - 1) * stride + 1, self.name)
        return _slice(self.b, run, self.dim, 0, count, self.name, stride)

    # Shards and boxes advance equally.

    def _concatenated(self, pieces: Sequence[Boxes]) -> Value:
        """The concatenation of the parts of the shards that the box overlaps, which are the same on every device."""
        parts: list[Value | tuple[int, int]] = []
        for boxes in pieces:
            moves = dict(boxes.rounds(self.devices))
            for shift, r, low, high in _shards_of(boxes):
                last = parts[-1] if parts else None
                if shift:
                    parts.extend(self._received(boxes, r, low, high - low, moves.get(r, 0)))
                elif isinstance(last, tuple):
                    parts[-1] = (last[0], high)
                else:
                    parts.append((low, high))
        return self._joined(
            [
                _slice(self.b, self.x, self.dim, p[0], p[1] - p[0], self.name) if isinstance(p, tuple) else p
                for p in parts
            ]
        )

    def _received(self, boxes: Boxes, r: int, low: int, size: int, sent: int) -> Iterator[Value]:
        """`size` elements from `low` on of another device's shard, whose first `sent` elements are sent in round r."""
        if sent:
            yield self._permute(_slice(self.b, self.x, self.dim, low, sent, self.name), boxes, r)
        if sent < size:
            yield self._nothing(size - sent)

    def _joined(self, parts: Sequence[Value]) -> Value:
        return parts[0] if len(parts) == 1 else self.b.op("concatenate", *parts, name=self.name, dim=self.dim)

    # Shards and boxes advance differently.

    def _assembled(self, boxes: Boxes) -> Value:
        """The box, written into a buffer with a margin on both sides for elements beside the box.

        Every piece is written to the position of its elements in the tensor, so overlapping pieces agree. A device that
        receives nothing in a round gets zeros, at positions of a shard that comes in a lower round or is its own. Hence
        the order: rounds descend, and the device's own shard comes last.
        """
        held = self.x.shape[self.dim]
        buffer = self._nothing(boxes.count + 2 * held)
        for r, elements in reversed(boxes.rounds(self.devices)):
            receiver = boxes.receiver_of(self.index, r, self._down)
            sent = self._first_needed(receiver, boxes) - self._first_held(self.index, boxes)
            place = clamped(self.b, sent, 0, held - elements)
            piece = _dynamic_slice(self.b, self.x, self.dim, place, elements, self.name)
            piece = self._permute(piece, boxes, r)
            source = boxes.source_of(self.index, r, self._down)
            got = self._first_needed(self.index, boxes) - self._first_held(source, boxes)
            place = clamped(self.b, got, 0, held - elements) - got
            buffer = self._put(buffer, piece, place + held, boxes, source)
        if boxes.keeps_own(self.devices):
            own = self._first_needed(self.index, boxes) - self._first_held(self.index, boxes)
            buffer = self._put(buffer, self.x, Affine(number=held) - own, boxes, self.index)
        return _slice(self.b, buffer, self.dim, held, boxes.count, self.name)

    def _put(self, buffer: Value, piece: Value, place: Affine, boxes: Boxes, source: Affine) -> Value:
        """The buffer with the piece. Of thinned shards that are not all full, only the elements that the source holds
        are written."""
        updated = put_shard(self.b, buffer, piece, self.dim, written(self.b, place))
        if boxes.chunk % boxes.every == 0:
            return updated
        needed = self._first_needed(self.index, boxes) - self.x.shape[self.dim]
        low, high = (self._first_held(j, boxes) - needed for j in (source, source + 1))
        inside = self._between(low, high, buffer)
        return self.b.op("select", inside, updated, buffer, name=self.name)

    # Wanted elements are numbered from the first that exists.

    def _first_needed(self, i: Affine, boxes: Boxes) -> Affine:
        """The number of the first wanted element in device i's box."""
        return divided_up(self.b, i * boxes.step + (boxes.start - boxes.phase), boxes.every)

    def _first_held(self, j: Affine, boxes: Boxes) -> Affine:
        """The number of the first wanted element in device j's shard."""
        return divided_up(self.b, j * boxes.chunk - boxes.phase, boxes.every)

    def _down(self, a: Affine, by: int) -> Affine:
        return divided_down(self.b, a, by)

    # Pieces.

    def _nothing(self, size: int) -> Value:
        return padding_of(self.b, self.x.type.with_shape(_with_dim(self.x, self.dim, size)))

    def _permute(self, piece: Value, boxes: Boxes, r: int) -> Value:
        axes = merge_axes(self.axes)
        return self.b.op("box_permute", piece, name=self.name, axes=axes, boxes=boxes.to_attr(), round=r)

    def _between(self, low: Affine | None, high: Affine | None, like: Value) -> Value:
        """Where an index of the dim is not less than `low`, and less than `high`."""
        counter = like.type.with_dtype(s32)
        place = self.b.op("iota", name="position", type=counter, dim=self.dim)
        bounds = [(bound, way) for bound, way in ((low, "GE"), (high, "LT")) if bound is not None]
        inside: Value | None = None
        for bound, direction in bounds:
            limit = (
                splat(self.b, bound.number, counter)
                if bound.is_number
                else self.b.op("broadcast_in_dim", written(self.b, bound), name="bound", shape=like.shape, dims=())
            )
            side = self.b.op("compare", place, limit, name="inside", direction=direction)
            inside = side if inside is None else self.b.op("and", inside, side, name="inside")
        assert inside is not None
        return inside

    def _filled(self, box: Value, fill: Value) -> Value:
        """The box with `fill` in place of what is outside the tensor."""
        if box.type.size == 0:
            return box
        boxes = self.boxes
        outside = self.b.op("broadcast_in_dim", fill, name="fill", shape=box.shape, dims=())
        if boxes.n == 0:
            return outside
        ends = boxes.start, boxes.start + boxes.step * (self.devices - 1)
        first = self._first_needed(self.index, boxes)
        low = Affine() - first if min(ends) < 0 else None
        high = Affine(number=boxes.number(boxes.n)) - first if max(ends) + boxes.size > boxes.n else None
        return self.b.op("select", self._between(low, high, box), box, outside, name=self.name)
