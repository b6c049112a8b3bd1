"""Samples of the positions along axes that represent all positions.

What a device sends and receives in a box exchange follows from its position by arithmetic. Between the ends of the
tensor it repeats, so a few positions show what all do: the stretches in which nothing repeats, and two periods of
each of the others.

    boxes     ┃ beside ┃ cut by an end ┃ a b c a b c a b c a b c ┃ cut by an end ┃ beside ┃
    period        1          none                  3                   none          1
    looked at     ..       .......           a b c a b c              .......        ..

So the time that passes and reports take does not grow with the number of devices.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

FEW = 64
"""So many positions are all examined: finding equal ones would take longer."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions from `low` to below `high`. Those `period` apart are equal; 0 if none are."""

    low: int
    high: int
    period: int


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Positions along some axes, in consecutive stretches, and the samples that represent all: `chosen`."""

    stretches: tuple[Stretch, ...]
    chosen: Positions

    def like(self, positions: Positions) -> Positions:
        """For each of these positions, the index in `chosen` of an equal one."""
        numbers = np.searchsorted([s.low for s in self.stretches], positions, side="right") - 1
        lows = np.array([s.low for s in self.stretches])[numbers]
        periods = np.array([s.period or s.high for s in self.stretches])[numbers]
        counts = itertools.accumulate((len(_chosen(s)) for s in self.stretches), initial=0)
        places: Positions = np.array(list(counts))[numbers] + (positions - lows) % periods
        return places


def row_of(stretches: Iterable[Sequence[Stretch]], positions: int) -> Row:
    """The row in which positions are equal that are equal in each of these lists of stretches, which all cover it."""
    if positions <= FEW:
        return _whole(positions)
    different = set(map(tuple, stretches))
    cuts = sorted({0, positions, *(s.low for each in different for s in each)})
    found: list[Stretch] = []
    for low, high in itertools.pairwise(cuts):
        periods = [each[bisect_right(each, low, key=_low) - 1].period for each in different]
        found.append(Stretch(low, high, math.lcm(*periods)))
    return Row(tuple(found), np.concatenate([np.array(_chosen(s), np.int64) for s in found]))


def _low(stretch: Stretch) -> int:
    return stretch.low


def _chosen(stretch: Stretch) -> range:
    """Two periods: equal positions may differ by a number that grows linearly, which two periods show."""
    low, high = stretch.low, stretch.high
    return range(low, min(high, low + 2 * stretch.period) if stretch.period else high)


@functools.lru_cache(maxsize=256)
def _whole(positions: int) -> Row:
    return Row((Stretch(0, positions, 0),), np.arange(positions, dtype=np.int64))
