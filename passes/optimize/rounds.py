"""Which rounds of box exchanges go in one message.

In many rounds only some devices send or receive: those whose shards and boxes meet near one end of a tensor. Rounds go
together if no device sends in two of them or receives in two, as do all parts that a concatenate takes from one
device, or a split sends to one. A message is as long as the longest of its rounds, for all that receive it: one goes
along with longer ones only where its receivers have room, for then the device that receives most receives no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ir.mesh import Axes
from ir.ops import OPS
from ir.ops.boxes import Round, row_of_rounds
from ir.ops.collective import axes_attr, rounds_of
from ir.ops.control import runs_of_region
from ir.ops.rows import Positions
from ir.program import Op, Program, Region, callee_of, callees_first
from passes.cost.model import sent_bytes

Places = npt.NDArray[np.bool_]
"""At which of the positions that stand for all."""

Rounds = tuple[Op, ...]
"""Rounds in which the same devices send to the same ones."""


def is_round(op: Op) -> bool:
    """Whether it is a round of boxes."""
    sends = OPS[op.name].communication
    return sends is not None and sends.rounds is not None


class Load:
    """The bytes that devices receive in rounds of boxes along some axes in one run of the program, at those positions
    that stand for all, `chosen`. Loops whose trips are not known count once.
    """

    def __init__(self, program: Program) -> None:
        self.times = _times(program)
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

    def takes(self, op: Op, receivers: Places, extra: int) -> bool:
        """Whether these can receive so many bytes more where the op is, and none is then the one that receives most.
        If so, they do from now on."""
        axes, more = axes_attr(op.attrs), extra * self.times[op]
        received = self.received[axes] + more * receivers
        if np.any(received > self.most[axes]):
            return False
        self.received[axes] = received
        return True


@dataclass(eq=False)
class _Message:
    """Rounds that go together, and the bytes of the longest."""

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
    """The rounds, all of which may be sent at one time along the same axes, by the message that they go in.

    First those of one length, then what is shorter with what is longer. Only `small` ones are put side by side, which
    takes copies, to go from one device to another as one.
    """
    alike: dict[tuple[Round, Op | None], list[Op]] = {}
    for op in ops:
        alike.setdefault((rounds_of(op.attrs)[0], None if op in small else op), []).append(op)
    found: list[_Message] = []
    for (round, _), each in alike.items():
        chosen = load.chosen[axes_attr(each[0].attrs)]
        senders, receivers = round.receivers(chosen) >= 0, round.sources(chosen) >= 0
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


def _times(program: Program) -> Counter[Op]:
    """How often each round of boxes runs."""
    calls: Counter[str] = Counter({program.main.name: 1})
    times: Counter[Op] = Counter()
    for function in reversed(list(callees_first(program))):
        _count(function.body, calls[function.name], times, calls)
    return times


def _count(region: Region, often: int, times: Counter[Op], calls: Counter[str]) -> None:
    """Adds how often rounds and calls run in a region that runs so often."""
    for op in region.ops:
        if is_round(op):
            times[op] += often
        callee = callee_of(op)
        if callee is not None:
            calls[callee] += often
        for i, inside in enumerate(op.regions):
            runs = runs_of_region(op, i)
            _count(inside, often * (runs if runs is not None else 1), times, calls)
