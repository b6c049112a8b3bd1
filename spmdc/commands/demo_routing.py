"""What a gating function decided, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens went to experts. `load` counts the tokens of each expert, `full` the groups in which its room
    is used up. `twice`, `once` and `dropped` count the tokens that went to two experts, one, and none.

    `room` is what an expert can take: its `capacity` in a group times the number of groups.
    """

    tokens: int
    groups: int
    capacity: int
    room: int
    load: tuple[int, ...]
    full: tuple[int, ...]
    twice: int
    once: int
    dropped: int


def routing_of(combine: npt.NDArray[Any], tokens: int) -> Routing:
    """Reads combine weights of shape [groups, tokens, experts, capacity] (GShard, section 3.1).

    The first `tokens` tokens count, the others being padding; they take up room all the same.
    """
    groups, size, experts, capacity = combine.shape
    taken = (combine != 0).any(axis=3)
    sent = taken.reshape(groups * size, experts)
    choices = sent[:tokens].sum(axis=1)
    load = sent[:tokens].sum(axis=0)
    room = groups * capacity
    return Routing(
        tokens,
        groups,
        capacity,
        room,
        tuple(int(n) for n in load),
        tuple(int(n) for n in (taken.sum(axis=1) >= capacity).sum(axis=0)),
        int(np.count_nonzero(choices == 2)),
        int(np.count_nonzero(choices == 1)),
        int(np.count_nonzero(choices == 0)),
    )
