"""Measured times of collectives, which take precedence over those computed from links."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a collective among `group` devices, for each operand size in `nbytes`, ascending."""

    kind: str
    group: int
    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, nbytes: float) -> float:
        """Seconds for that many bytes, interpolated linearly on logarithmic scales. Below the measured sizes the time
        is constant, above them it is proportional to the bytes."""
        if nbytes <= self.nbytes[0]:
            return self.seconds[0]
        if nbytes >= self.nbytes[-1]:
            return self.seconds[-1] * nbytes / self.nbytes[-1]
        i = bisect.bisect_right(self.nbytes, nbytes)
        return _between(nbytes, self.nbytes[i - 1 : i + 1], self.seconds[i - 1 : i + 1])


def measured_seconds(tables: Sequence[Measured], kind: str, group: int, nbytes: float) -> float | None:
    """The measured time of a collective, interpolated between group sizes on logarithmic scales. None if the group is
    smaller or larger than any that was measured."""
    if not tables:
        return None
    own = sorted((table for table in tables if table.kind == kind), key=lambda table: table.group)
    below = [table for table in own if table.group <= group][-1:]
    above = [table for table in own if table.group >= group][:1]
    if not below or not above:
        return None
    if below == above:
        return below[0].at(nbytes)
    return _between(group, (below[0].group, above[0].group), (below[0].at(nbytes), above[0].at(nbytes)))


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    share = math.log(x / xs[0]) / math.log(xs[1] / xs[0])
    return math.exp(math.log(ys[0]) + share * math.log(ys[1] / ys[0]))
