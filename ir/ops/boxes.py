"""Which device sends what to which in a box exchange along one dim.

A dim of size n is in shards of `chunk` elements on a row of devices, and device i needs the elements of the box
[start + step · i, start + step · i + size). Both are arithmetic progressions, so everything here is closed-form
arithmetic on a device's position, whatever the number of devices.

Only the elements phase + every · k are wanted: those that a strided slice keeps, or those that exist, if there are
holes between the elements. They are numbered by k. The number of wanted elements in a shard or a box may differ by one
from device to device.

The transfers are grouped into rounds, each of which is a permutation. If boxes advance at least as fast as shards,
receiver i gets data in round r from the r-th shard that its box overlaps; otherwise source j sends in round r to the
r-th box that overlaps its shard. Either way no device sends or receives twice in a round. A device takes part in
consecutive rounds, and all devices in the same ones except near the ends of the tensor. The rounds of those
`passes/optimize/rounds.py` sends with others. Boxes that do not overlap then take at most one message more than the
busiest device has transfers.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ir.ops.rows import FEW, Positions, Row, Stretch, row_of
from ir.program import Attr

Down = Callable[[Any, int], Any]


@dataclass(frozen=True, slots=True)
class Boxes:
    """The shards that devices hold and the boxes that they need. `step` may be negative, not zero.

    `phase` is less than `every`. Devices from `receivers` on need nothing; 0 if all may need something.
    """

    n: int
    chunk: int
    start: int
    step: int
    size: int
    every: int = 1
    phase: int = 0
    receivers: int = 0

    @property
    def by_receiver(self) -> bool:
        """Whether rounds are numbered by the shards that a receiver takes from, rather than by the boxes that a source
        sends to."""
        return abs(self.step) >= self.chunk

    def number(self, position: Any) -> Any:
        """The number of wanted elements before a position, or before each of an array of positions: k of the next
        one."""
        return -((self.phase - position) // self.every)

    @property
    def count(self) -> int:
        """The most wanted elements in a box, real or not."""
        return -(-self.size // self.every)

    def overlap(self, receiver: Any, source: Any) -> Any:
        """The number of wanted elements that the source has and the receiver needs, or an array of them."""
        first = self.start + self.step * receiver
        low = np.maximum(self.number(first), self.number(self.chunk * source))
        high = np.minimum(self.number(first + self.size), self.number(np.minimum(self.chunk * (source + 1), self.n)))
        moved = np.maximum(0, high - low)
        return moved * (receiver < self.receivers) if self.receivers else moved

    def source_of(self, i: Any, round: int, down: Down = operator.floordiv) -> Any:
        """The source that receiver i receives from in a round, if it receives anything.

        `down` divides and rounds down. Positions may be anything that it accepts, and that can be added and multiplied.
        """
        if self.by_receiver:
            return down(i * self.step + self.start, self.chunk) + round
        # The source j for which receiver_of(j, round) is i.
        before = i + (-1 - round)
        if self.step > 0:
            # (chunk j - start - size) // step = i - 1 - round: the least such j.
            return down(before * self.step + (self.start + self.size) + (self.chunk - 1), self.chunk)
        # (start - chunk (j + 1)) // -step = i - 1 - round: the greatest such j.
        return down(before * self.step + self.start, self.chunk) - 1

    def receiver_of(self, j: Any, round: int, down: Down = operator.floordiv) -> Any:
        """The receiver that source j sends to in a round, if it sends anything; `down` as for `source_of`."""
        if not self.by_receiver:
            if self.step > 0:
                return down(j * self.chunk - (self.start + self.size), self.step) + (1 + round)
            return down(j * -self.chunk + (self.start - self.chunk), -self.step) + (1 + round)
        # The receiver i for which source_of(i, round) is j: (start + step i) // chunk = j - round.
        begin = (j - round) * self.chunk
        if self.step > 0:
            return down(begin - self.start + (self.step - 1), self.step)
        return down(begin * -1 + (self.start + 1 - self.chunk) + (-self.step - 1), -self.step)

    def rounds(self, devices: int) -> tuple[tuple[int, int], ...]:
        """(round, elements) for each round with any transfer: the largest number of elements in one of its
        transfers."""
        _, rounds, moved = self._transfers(self.row((self,), devices).chosen, devices)
        numbers, which = np.unique(rounds, return_inverse=True)
        most = np.zeros(len(numbers), np.int64)
        np.maximum.at(most, which, moved)
        return tuple((int(r), int(m)) for r, m in zip(numbers, most, strict=True))

    def has_more_rounds(self, number: int, devices: int) -> bool:
        """Whether more than that many rounds have transfers."""
        return self.least_rounds(devices) > number or len(self.rounds(devices)) > number

    def least_rounds(self, devices: int) -> int:
        """A lower bound on the number of rounds: about the number of shards that one box overlaps, or of boxes that
        contain one element."""
        count, step = self._count(devices), abs(self.step)
        first = self.start if self.step > 0 else self.start + self.step * (count - 1)
        found = 0
        for place in (0, self.n // 2, self.n - 1):
            middle = (place - self.size // 2 - first) // step
            low, high = self._box(first + step * min(max(0, middle), count - 1))
            if low < high:
                begin, end = (self.phase + self.every * k for k in (low, high - 1))
                found = max(found, min(end // self.chunk - begin // self.chunk + 1, high - low))
            element = self.phase + self.every * (place // self.every)
            if 0 <= element < self.n:
                begin = max(0, -((first + self.size - 1 - element) // step))
                found = max(found, min(count, (element - first) // step + 1) - begin)
        return found - 1

    def keeps_own(self, devices: int) -> bool:
        """Whether any device needs elements of its own shard."""
        chosen = self.row((self,), devices).chosen
        return bool(np.any(self.overlap(chosen, chosen)))

    def reaches_outside(self, devices: int) -> bool:
        """Whether any device's box has elements outside the tensor."""
        ends = [self.start, self.start + self.step * (devices - 1)]
        return min(ends) < 0 or max(ends) + self.size > self.n

    def furthest(self, devices: int) -> int:
        """The largest distance from the tensor's first element in the arithmetic here: of shards, boxes, and their
        neighbours."""
        begins = abs(self.start), abs(self.start + self.step * devices)
        return max(self.n, self.chunk * devices, *begins) + abs(self.step) + self.size + self.chunk

    @staticmethod
    def row(exchanges: Iterable[Boxes], devices: int) -> Row:
        """The row in which devices are equal if they receive equally in all of these exchanges."""
        if devices <= FEW:
            return row_of((), devices)
        return row_of((each.receiving(devices) for each in exchanges), devices)

    def receiving(self, devices: int) -> tuple[Stretch, ...]:
        """Stretches of devices that receive equally."""
        count, step, end = self._count(devices), self.step, min(self.n, self.chunk * devices)
        firsts = (-(self.start // step), (end - self.size - self.start) // step)
        low, last = firsts if step > 0 else (-((end - self.size - self.start) // -step), self.start // -step)
        inside = range(low, min(last + 1, count))
        both = math.lcm(self.chunk, self.every)
        return self._stretches(self._receivers(devices), inside, both // math.gcd(step, both), devices)

    def sending(self, devices: int) -> tuple[Stretch, ...]:
        """Stretches of devices that send equally."""
        count, step, chunk = self._count(devices), abs(self.step), self.chunk
        first = self.start if self.step > 0 else self.start + self.step * (count - 1)
        end = first + step * (count - 1) + self.size
        some = range(max(0, first // chunk), min(devices, -(-min(self.n, end) // chunk)))
        inside = range(-((step - first - self.size) // chunk), min(self.n, first + step * count) // chunk)
        both = math.lcm(step, self.every)
        return self._stretches(some, inside, both // math.gcd(chunk, both), devices)

    def _stretches(self, some: range, inside: range, period: int, devices: int) -> tuple[Stretch, ...]:
        """The stretches if devices in `some` send or receive anything, and those `inside` all in the same way, except
        where a box overlaps the device's own shard and the neighbours' boxes do not."""
        own = self._own()
        ends = {0, devices, some.start, some.stop, inside.start, inside.stop, own.start, own.stop}
        cuts = sorted(end for end in ends if 0 <= end <= devices)
        found: list[Stretch] = []
        for low, high in itertools.pairwise(cuts):
            idle, alike = not some.start <= low < some.stop, inside.start <= low < inside.stop
            found.append(Stretch(low, high, 1 if idle else period if alike and low not in own else 0))
        return tuple(found)

    def _own(self) -> range:
        """The positions at which a box overlaps the shard of the same device; empty if that is so at all positions or
        at none."""
        faster = self.step - self.chunk
        if faster == 0:
            return range(0)
        ends = sorted(((self.chunk - self.start) // faster, (-self.start - self.size) // faster))
        return range(ends[0], ends[1] + 2)

    def received(self, chosen: Positions, devices: int) -> Positions:
        """The wanted elements that the devices `chosen` receive: the largest transfer of every round in which they take
        part."""
        which, rounds, _ = self._transfers(chosen, devices)
        totals = np.zeros(len(chosen), np.int64)
        for r, elements in self.rounds(devices):
            totals[which[rounds == r]] += elements
        return totals

    def lacking(self, chosen: Positions, devices: int) -> Positions:
        """The number of wanted elements that the devices `chosen` need and do not have."""
        which, _, moved = self._transfers(chosen, devices)
        totals = np.zeros(len(chosen), np.int64)
        np.add.at(totals, which, moved)
        return totals

    def boundaries(self, devices: int) -> tuple[int, ...]:
        """Where boxes enter a shard or the tensor, counted in wanted elements from the beginning of a box."""
        chosen = self.row((self,), devices).chosen
        which, low, high = self._needed(chosen, devices)
        i = chosen[which]
        begin, touched = self._shards(low, high)
        edges = [low, high, *(np.minimum(self.number(self.chunk * (begin + t)), high) for t in range(1, touched))]
        places = np.unique(np.concatenate([edge - self.number(self.start + self.step * i) for edge in edges]))
        return tuple(int(place) for place in places if 0 < place < self.count)

    def cut(self, places: Sequence[int]) -> tuple[Boxes, ...]:
        """Adjacent boxes that make up these boxes; `places` are counted in wanted elements from the beginning."""
        ends = [0, *places, self.count]
        parts: list[Boxes] = []
        for first, end in itertools.pairwise(ends):
            size = min(self.every * end, self.size) - self.every * first
            parts.append(replace(self, start=self.start + self.every * first, size=size))
        return tuple(parts)

    def compact(self) -> Boxes | None:
        """The same exchange with wanted elements only, if all shards and all boxes have equal numbers of them."""
        if self.chunk % self.every or self.step % self.every:
            return None
        first = self.number(self.start)
        return Boxes(
            max(0, self.number(self.n)),
            self.chunk // self.every,
            first,
            self.step // self.every,
            self.number(self.start + self.size) - first,
            receivers=self.receivers,
        )

    def _transfers(self, chosen: Positions, devices: int) -> tuple[Positions, Positions, Positions]:
        """For each transfer to the devices `chosen`: the receiver's number among these, the round, and the wanted
        elements."""
        which, low, high = self._needed(chosen, devices)
        i = chosen[which]
        begin, touched = self._shards(low, high)
        found: list[tuple[Positions, Positions, Positions]] = []
        for j in (begin + t for t in range(touched)):
            moved = np.minimum(high, self.number(np.minimum(self.chunk * (j + 1), self.n)))
            moved = moved - np.maximum(low, self.number(self.chunk * j))
            r = j - self.source_of(i, 0) if self.by_receiver else i - self.receiver_of(j, 0)
            some = (moved > 0) & (i != j) & (j < devices)
            found.append((which[some], r[some], moved[some]))
        if not found:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        indices, rounds, amounts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return indices, rounds, amounts

    def _needed(self, chosen: Positions, devices: int) -> tuple[Positions, Positions, Positions]:
        """Which of the devices `chosen` need elements of the tensor, and their boxes as returned by `_box`."""
        low, high = self._box(self.start + self.step * chosen)
        some = np.flatnonzero((low < high) & (chosen < self._count(devices)))
        return some, low[some], high[some]

    def _box(self, first: Any) -> tuple[Any, Any]:
        """The range [low, high) of wanted elements in a box that begins at `first`; empty if low >= high."""
        return np.maximum(self.number(first), 0), np.minimum(self.number(first + self.size), self.number(self.n))

    def _shards(self, low: Any, high: Any) -> tuple[Any, int]:
        """For boxes as returned by `_box`: the first shard that each has elements of, and of how many shards in a row
        any has."""
        begin = (self.phase + self.every * low) // self.chunk
        return begin, int((self._last(high) - begin).max(initial=-1)) + 1

    def _count(self, devices: int) -> int:
        """The number of devices that may need something."""
        return min(devices, self.receivers or devices)

    def _last(self, high: Any) -> Any:
        """The shard with the last of the wanted elements before `high`."""
        return (self.phase + self.every * (high - 1)) // self.chunk

    def _receivers(self, devices: int) -> range:
        """The devices whose boxes may have elements of the tensor."""
        ends = sorted(((-self.start - self.size) // self.step, (self.n - self.start) // self.step))
        last = min(devices, ends[1] + 2)
        return range(max(0, ends[0]), min(last, self.receivers) if self.receivers else last)

    def to_attr(self) -> tuple[int, ...]:
        """The attribute `boxes` of an op: `[n, chunk, start, step, size]`, then fields that differ from their
        defaults."""
        usual = self.n, self.chunk, self.start, self.step, self.size
        if (self.every, self.receivers) == (1, 0):
            return usual
        return (*usual, self.every, self.phase, self.receivers)

    @staticmethod
    def from_attr(value: Attr) -> Boxes:
        """The boxes of the attribute `boxes` of an op."""
        assert isinstance(value, tuple)
        return Boxes(*(v for v in value if isinstance(v, int)))


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """A round of an exchange on a row of devices. Rounds with the same senders and receivers are equal."""

    boxes: Boxes
    number: int
    devices: int

    def sources(self, receivers: Positions) -> Positions:
        """The device that each of these receives from; -1 if it receives nothing."""
        sources = self.boxes.source_of(receivers, self.number)
        return np.where(self._takes_part(receivers, sources), sources, -1)

    def receivers(self, sources: Positions) -> Positions:
        """The device that each of these sends to; -1 if it sends nothing."""
        receivers = self.boxes.receiver_of(sources, self.number)
        return np.where(self._takes_part(receivers, sources), receivers, -1)

    def _takes_part(self, i: Positions, j: Positions) -> Any:
        boxes = self.boxes
        exist = (i >= 0) & (i < self.devices) & (j >= 0) & (j < self.devices)
        meet = boxes.source_of(i, self.number) == j if boxes.by_receiver else boxes.receiver_of(j, self.number) == i
        return exist & meet & (i != j) & (boxes.overlap(i, j) > 0)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(source, receiver) of each transfer."""
        receivers = np.arange(self.devices, dtype=np.int64)
        sources = self.sources(receivers)
        some = sources >= 0
        return tuple(zip(sources[some].tolist(), receivers[some].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Round):
            return NotImplemented
        if (self.boxes, self.number, self.devices) == (other.boxes, other.number, other.devices):
            return True
        if self.devices != other.devices:
            return False
        chosen = Boxes.row((self.boxes, other.boxes), self.devices).chosen
        return np.array_equal(self.sources(chosen), other.sources(chosen))

    def __hash__(self) -> int:
        some = np.linspace(0, self.devices - 1, min(self.devices, FEW)).astype(np.int64)
        return hash((self.devices, self.sources(some).tobytes()))


def row_of_rounds(rounds: Collection[Round]) -> Row:
    """The row, along the axes' positions, in which devices are equal that send and receive equally in all of the
    rounds."""
    devices = max((each.devices for each in rounds), default=1)
    if devices <= FEW:
        return row_of((), devices)
    ends = (end(each.boxes, devices) for each in rounds for end in (Boxes.receiving, Boxes.sending))
    return row_of(ends, devices)
