"""Who sends what to whom in a box exchange along one dim.

A dim of size n is in shards of `chunk` elements on a row of devices, and device i needs the elements of the box
[start + step · i, start + step · i + size). Both are arithmetic progressions, so everything here is closed-form
arithmetic on a device's position, whatever the number of devices.

Only elements phase + every · k are wanted: those that a strided slice keeps, or those that exist, where there are holes
between the elements. They are numbered by k; shards and boxes hold as many of them as they hold, which may differ by
one from device to device.

The transfers are grouped into rounds, each of which is a permutation. If boxes advance at least as fast as shards,
round r takes receiver i to the r-th shard that its box touches; otherwise source j to the r-th box that touches its
shard. Either way no device sends or receives twice in a round. A device takes part in rounds that follow one another,
and all in the same ones but those near the ends of the tensor, whose rounds `passes/optimize/rounds.py` sends with
others: then boxes that do not overlap take at most one message more than the busiest device has transfers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ir.program import Attr

Counts = npt.NDArray[np.int64]


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
        """Whether rounds are numbered by the shards a receiver takes from, not by the boxes a source sends to."""
        return abs(self.step) >= self.chunk

    def number(self, position: Any) -> Any:
        """How many elements are wanted before a position, or before each of an array of them: k of the next one."""
        return -((self.phase - position) // self.every)

    @property
    def count(self) -> int:
        """The most wanted elements in a box, real or not."""
        return -(-self.size // self.every)

    @property
    def held(self) -> int:
        """The most wanted elements in a shard."""
        return -(-self.chunk // self.every)

    def box(self, i: int) -> tuple[int, int]:
        """The wanted elements that device i needs, [low, high); empty if low >= high."""
        if 0 < self.receivers <= i:
            return 0, 0
        first = self.start + self.step * i
        return max(self.number(first), 0), min(self.number(first + self.size), self.number(self.n))

    def shard(self, j: int) -> tuple[int, int]:
        """The wanted elements that device j holds, [low, high)."""
        return self.number(self.chunk * j), self.number(min(self.chunk * (j + 1), self.n))

    def overlap(self, receiver: int, source: int) -> int:
        """How many wanted elements the source holds that the receiver needs."""
        low, high = self.box(receiver)
        first, end = self.shard(source)
        return max(0, min(high, end) - max(low, first))

    def source_of(self, i: Any, round: Any) -> Any:
        """Where receiver i takes from in a round numbered by receivers; may be outside the row."""
        return (self.start + self.step * i) // self.chunk + round

    def receiver_of(self, j: Any, round: Any) -> Any:
        """Where source j sends to in a round numbered by sources; may be outside the row."""
        if self.step > 0:
            return (self.chunk * j - self.start - self.size) // self.step + 1 + round
        return (self.start - self.chunk * (j + 1)) // -self.step + 1 + round

    def pairs(self, round: int, devices: int) -> tuple[tuple[int, int], ...]:
        """(source, receiver) of each transfer between different devices in a round."""
        k = np.arange(devices, dtype=np.int64)
        j, i = (self.source_of(k, round), k) if self.by_receiver else (k, self.receiver_of(k, round))
        first = self.start + self.step * i
        low = np.maximum(np.maximum(self.number(first), 0), self.number(self.chunk * j))
        high = np.minimum(self.number(first + self.size), self.number(np.minimum(self.chunk * (j + 1), self.n)))
        takes_part = (i != j) & (low < high) & (j >= 0) & (j < devices) & (i >= 0)
        takes_part &= i < (self.receivers or devices)
        return tuple(zip(j[takes_part].tolist(), i[takes_part].tolist(), strict=True))

    def rounds(self, devices: int) -> tuple[tuple[int, int], ...]:
        """(round, elements): each round in which anything moves, and the most that one of its transfers carries."""
        _, rounds, moved = self.transfers(devices)
        numbers, which = np.unique(rounds, return_inverse=True)
        most = np.zeros(len(numbers), np.int64)
        np.maximum.at(most, which, moved)
        return tuple((int(r), int(m)) for r, m in zip(numbers, most, strict=True))

    def keeps_own(self, devices: int) -> bool:
        """Whether any device needs something of its own shard."""
        return any(self.overlap(i, i) for i in self._receivers(devices))

    def reaches_outside(self, devices: int) -> bool:
        """Whether any device's box has elements outside the tensor."""
        ends = [self.start, self.start + self.step * (devices - 1)]
        return min(ends) < 0 or max(ends) + self.size > self.n

    def furthest(self, devices: int) -> int:
        """How far from the tensor's first element anything lies that is reckoned with: shards and boxes, and those next
        to them."""
        begins = abs(self.start), abs(self.start + self.step * devices)
        return max(self.n, self.chunk * devices, *begins) + abs(self.step) + self.size + self.chunk

    def involved(self, devices: int) -> int:
        """The devices of the row before which all are that have something to send or to receive."""
        return min(devices, max(1, self._receivers(devices).stop, -(-self.n // self.chunk)))

    def received(self, devices: int) -> Counts:
        """Wanted elements that each device receives: of every round in which it takes part, the largest transfer."""
        receivers, rounds, _ = self.transfers(devices)
        totals = np.zeros(devices, np.int64)
        for r, elements in self.rounds(devices):
            totals[receivers[rounds == r]] += elements
        return totals

    def lacking(self, devices: int) -> Counts:
        """Wanted elements that each device needs and does not hold."""
        receivers, _, moved = self.transfers(devices)
        totals = np.zeros(devices, np.int64)
        np.add.at(totals, receivers, moved)
        return totals

    def boundaries(self, devices: int) -> tuple[int, ...]:
        """Where boxes enter a shard or the tensor, counted in wanted elements from the beginning of a box."""
        i, low, high = self._needed(devices)
        begin = (self.phase + self.every * low) // self.chunk
        touched = int((self._last(high) - begin).max(initial=-1)) + 1
        edges = [low, high, *(np.minimum(self.number(self.chunk * (begin + t)), high) for t in range(1, touched))]
        places = np.unique(np.concatenate([edge - self.number(self.start + self.step * i) for edge in edges]))
        return tuple(int(place) for place in places if 0 < place < self.count)

    def cut(self, places: Sequence[int]) -> tuple[Boxes, ...]:
        """Boxes side by side that make up these; `places` are counted in wanted elements from the beginning."""
        ends = [0, *places, self.count]
        parts: list[Boxes] = []
        for first, end in itertools.pairwise(ends):
            size = min(self.every * end, self.size) - self.every * first
            parts.append(replace(self, start=self.start + self.every * first, size=size))
        return tuple(parts)

    def compact(self) -> Boxes | None:
        """The same exchange of the wanted elements alone, if all shards and all boxes hold as many of them."""
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

    def transfers(self, devices: int) -> tuple[Counts, Counts, Counts]:
        """Receiver, round and number of wanted elements of each transfer between different devices."""
        i, low, high = self._needed(devices)
        begin = (self.phase + self.every * low) // self.chunk
        touched = int((self._last(high) - begin).max(initial=-1)) + 1
        found: list[tuple[Counts, Counts, Counts]] = []
        for j in (begin + t for t in range(touched)):
            moved = np.minimum(high, self.number(np.minimum(self.chunk * (j + 1), self.n)))
            moved = moved - np.maximum(low, self.number(self.chunk * j))
            r = j - self.source_of(i, 0) if self.by_receiver else i - self.receiver_of(j, 0)
            some = (moved > 0) & (i != j) & (j < devices)
            found.append((i[some], r[some], moved[some]))
        if not found:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        receivers, rounds, amounts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return receivers, rounds, amounts

    def _needed(self, devices: int) -> tuple[Counts, Counts, Counts]:
        """The devices that need elements of the tensor, and their boxes as `box` returns them."""
        i = np.array(self._receivers(devices), np.int64)
        first = self.start + self.step * i
        low = np.maximum(self.number(first), 0)
        high = np.minimum(self.number(first + self.size), self.number(self.n))
        some = low < high
        return i[some], low[some], high[some]

    def _last(self, high: Any) -> Any:
        """The shard with the last of the wanted elements before `high`."""
        return (self.phase + self.every * (high - 1)) // self.chunk

    def _receivers(self, devices: int) -> range:
        """The devices whose boxes may have elements of the tensor."""
        ends = sorted(((-self.start - self.size) // self.step, (self.n - self.start) // self.step))
        last = min(devices, ends[1] + 2)
        return range(max(0, ends[0]), min(last, self.receivers) if self.receivers else last)

    def to_attr(self) -> tuple[int, ...]:
        """As the attribute `boxes` of an op: `[n, chunk, start, step, size]`, then what is not usual."""
        usual = self.n, self.chunk, self.start, self.step, self.size
        if (self.every, self.receivers) == (1, 0):
            return usual
        return (*usual, self.every, self.phase, self.receivers)

    @staticmethod
    def from_attr(value: Attr) -> Boxes:
        """From the attribute `boxes` of an op."""
        assert isinstance(value, tuple)
        return Boxes(*(v for v in value if isinstance(v, int)))
