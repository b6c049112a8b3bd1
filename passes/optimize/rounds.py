"""Which rounds of box exchanges are sent in one message.

In many rounds only some devices send or receive: those whose shards and boxes overlap near one end of a tensor. Rounds
share a message if no device sends in two of them or receives in two, as do all parts that a concatenate takes from one
device, or that a split sends to one. A message takes as long as its longest round, for all that receive it. A shorter
round is added to longer ones only where its receivers receive less than others in total, so that the device that
receives most receives no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ir.executions import executions, in_all_regions
from ir.mesh import Axes
from ir.ops import OPS
from ir.ops.boxes import Round, row_of_rounds
from ir.ops.collective import axes_attr, rounds_of
from ir.ops.rows import Positions
from ir.program import Op, Program, all_ops
from passes.cost.model import sent_bytes

Places = npt.NDArray[np.bool_]
"""Whether each of the sampled positions sends, or receives."""

Rounds = tuple[Op, ...]
"""Rounds with the same pairs of senders and receivers."""


def is_round(op: Op) -> bool:
    """Whether the op is a round of a box exchange."""
    sends = OPS[op.name].communication
    return sends is not None and sends.rounds is not None


class Load:
    """The bytes that devices receive in rounds of box exchanges in one run of the program, by the axes of the exchange,
    at the sampled positions `chosen`, which represent all. Loops of unknown trip count count `unknown_trips` times."""

    def __init__(self, program: Program, unknown_trips: int = 1) -> None:
        self.times = _times(program, unknown_trips)
        self._ends: dict[tuple[Round, Axes], tuple[Places, Places]] = {}
        rounds: dict[Axes, list[tuple[Round, int]]] = {}
        for op, times in self.times.items():
            rounds.setdefault(axes_attr(op.attrs), []).append((rounds_of(op.attrs)[0], times * sent_bytes(op)))
        self.chosen: dict[Axes, Positions] = {}
        self.received: dict[Axes, Positions] = {}
        for axes, along in rounds.items():
            chosen = self.chosen[axes] = row_of_rounds({each for each, _ in along}).chosen
            self.received[axes] = np.zeros(len(chosen), np.int64)
            for each, nbytes in along:
                self.received[axes] += nbytes * (each.sources(chosen) >= 0)
        self.most = {axes: int(received.max(initial=0)) for axes, received in self.received.items()}

    def ends(self, round: Round, axes: Axes) -> tuple[Places, Places]:
        """Which of the sampled positions along the axes send in the round, and which receive."""
        found = self._ends.get((round, axes))
        if found is None:
            chosen = self.chosen[axes]
            found = self._ends[round, axes] = round.receivers(chosen) >= 0, round.sources(chosen) >= 0
        return found

    def takes(self, op: Op, receivers: Places, extra: int) -> bool:
        """Whether these receivers can receive that many more bytes at each run of the op without exceeding the device
        that receives most. If so, the bytes are added."""
        axes, more = axes_attr(op.attrs), extra * self.times[op]
        received = self.received[axes] + more * receivers
        if np.any(received > self.most[axes]):
            return False
        self.received[axes] = received
        return True


@dataclass(eq=False)
class _Message:
    """Rounds that share a message, and the bytes of the longest."""

    longest: int
    rounds: list[Rounds]
    senders: Places
    receivers: Places

    def is_apart_from(self, other: _Message) -> bool:
        return not np.any(self.senders & other.senders) and not np.any(self.receivers & other.receivers)

    def add(self, other: _Message) -> None:
        self.rounds.extend(other.rounds)
        self.senders = self.senders | other.senders
        self.receivers = self.receivers | other.receivers


def messages(ops: Sequence[Op], small: Collection[Op], load: Load) -> list[tuple[Rounds, ...]]:
    """The rounds, which may all be sent at the same time along the same axes, grouped by message.

    Rounds of equal length are grouped first, then shorter ones are added to longer ones. Only `small` ones between the
    same devices are concatenated, which takes copies.
    """
    alike: dict[tuple[Round, Op | None], list[Op]] = {}
    for op in ops:
        alike.setdefault((rounds_of(op.attrs)[0], None if op in small else op), []).append(op)
    found: list[_Message] = []
    for (round, _), each in alike.items():
        senders, receivers = load.ends(round, axes_attr(each[0].attrs))
        one = _Message(sum(map(sent_bytes, each)), [tuple(each)], senders, receivers)
        together = next((m for m in found if m.longest == one.longest and m.is_apart_from(one)), None)
        if together is None:
            found.append(one)
        else:
            together.add(one)
    found.sort(key=lambda message: -message.longest)
    for short in reversed(tuple(found)):
        for long in found[: found.index(short)]:
            op, extra = short.rounds[0][0], long.longest - short.longest
            if extra and long.is_apart_from(short) and load.takes(op, short.receivers, extra):
                long.add(short)
                found.remove(short)
                break
    return [tuple(message.rounds) for message in found]


def _times(program: Program, unknown_trips: int) -> dict[Op, int]:
    """How often each round of a box exchange runs."""

    def times(often: int, runs: int | None) -> int:
        return often * (unknown_trips if runs is None else runs)

    unreached = {op: 0 for op in all_ops(program) if is_round(op)}
    return unreached | {op: n for op, n in executions(program, 1, in_all_regions(times)) if op in unreached}
