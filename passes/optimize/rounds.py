"""Which rounds of box exchanges go in one message.

In many rounds only some devices send or receive: those whose shards and boxes meet near one end of a tensor. Rounds go
together if no device sends in two of them or receives in two, as do all parts that a concatenate takes from one
device, or a split sends to one. A message is as long as the longest of its rounds, for all that receive it: one goes
along with longer ones only where its receivers have room, for then the device that receives most receives no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ir.mesh import Axes
from ir.ops import OPS
from ir.ops.collective import Pairs, axes_attr, rounds_of
from ir.ops.control import runs_of_region
from ir.program import Op, Program, Region, callee_of, callees_first
from passes.cost.model import sent_bytes

Rounds = tuple[Op, ...]
"""Rounds in which the same devices send to the same ones."""


def is_round(op: Op) -> bool:
    """Whether it is a round of boxes."""
    sends = OPS[op.name].communication
    return sends is not None and sends.receivers is not None


class Load:
    """The bytes that each position along some axes receives in rounds of boxes in one run of the program.

    Loops whose trips are not known count once.
    """

    def __init__(self, program: Program) -> None:
        self.times = _times(program)
        self.received: dict[Axes, Counter[int]] = {}
        for op, times in self.times.items():
            received = self.received.setdefault(axes_attr(op.attrs), Counter())
            for _, receiver in rounds_of(op.attrs)[0]:
                received[receiver] += times * sent_bytes(op)
        self.most = {axes: max(received.values(), default=0) for axes, received in self.received.items()}

    def takes(self, op: Op, receivers: Iterable[int], extra: int) -> bool:
        """Whether these can receive so many bytes more where the op is, and none is then the one that receives most.
        If so, they do from now on."""
        axes, more = axes_attr(op.attrs), extra * self.times[op]
        received, most = self.received[axes], self.most[axes]
        if any(received[i] + more > most for i in receivers):
            return False
        received.update(dict.fromkeys(receivers, more))
        return True


@dataclass(eq=False)
class _Message:
    """Rounds that go together, and the bytes of the longest."""

    longest: int
    rounds: list[Rounds] = field(default_factory=list[Rounds])
    senders: set[int] = field(default_factory=set[int])
    receivers: set[int] = field(default_factory=set[int])

    def is_apart_from(self, other: _Message) -> bool:
        return self.senders.isdisjoint(other.senders) and self.receivers.isdisjoint(other.receivers)

    def add(self, other: _Message) -> None:
        self.rounds.extend(other.rounds)
        self.senders |= other.senders
        self.receivers |= other.receivers


def messages(ops: Sequence[Op], small: Collection[Op], load: Load) -> list[tuple[Rounds, ...]]:
    """The rounds, all of which may be sent at one time along the same axes, by the message that they go in.

    First those of one length, then what is shorter with what is longer. Only `small` ones are put side by side, which
    takes copies, to go from one device to another as one.
    """
    alike: dict[tuple[Pairs, Op | None], list[Op]] = {}
    for op in ops:
        alike.setdefault((rounds_of(op.attrs)[0], None if op in small else op), []).append(op)
    found: list[_Message] = []
    for (pairs, _), each in alike.items():
        senders, receivers = ({pair[end] for pair in pairs} for end in (0, 1))
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

    def count(region: Region, often: int) -> None:
        for op in region.ops:
            if is_round(op):
                times[op] += often
            callee = callee_of(op)
            if callee is not None:
                calls[callee] += often
            for i, inside in enumerate(op.regions):
                runs = runs_of_region(op, i)
                count(inside, often * (runs if runs is not None else 1))

    for function in reversed(list(callees_first(program))):
        count(function.body, calls[function.name])
    return times
