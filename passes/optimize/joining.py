"""Small collectives of one kind that may be sent at the same time are sent as one.

Every message has a latency, however little it carries. So the operands of such collectives are concatenated, each as
one row for each device that a part of it goes to, sent together, and cut out of the result. Collectives are joined only
if their copies take less time than the saved latency, and one waits for others only if the longest chain of messages,
each of which depends on the one before, stays as long as it was. Rounds of box exchanges, of any size, are joined too
where no device sends in two of them or receives in two, and no device comes to receive more than the one that receives
most: they take the time of one, and nothing is copied. all_reduces are left to XLA, which joins them without a copy.
The user's collectives in manual regions are not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.builder import Names, RegionBuilder
from ir.causes import Cause
from ir.graph import Graph, dataflow
from ir.ops import OPS
from ir.ops.collective import axes_attr, collective_axes, collective_group, communication_of
from ir.ops.rule_helpers import int_attr
from ir.program import Attr, Function, Op, Program, Region, Value, all_regions
from ir.verify.varying import Varying, varying
from passes.cost.machine import Machine
from passes.cost.model import latency_seconds, memory_seconds
from passes.optimize import rounds
from passes.optimize.communicating import Communicating, communicates, communicating_functions
from passes.optimize.rounds import Load, Rounds, is_round
from passes.rewrite import with_parts

_Message = tuple[Rounds, ...]
"""Collectives that are sent as one: those between the same devices are concatenated, and other rounds share the message
without copies."""


def _dims(op: Op) -> tuple[str, ...]:
    """The attributes that name the dims along which an op cuts or joins parts. In rows these are all the first dim."""
    sends = communication_of(op.name)
    return tuple(name for name in (sends.cut, sends.joined) if name)


_MOST_WAITING = 32
"""The most rounds that wait, those that are due soonest, for which room is looked for in the messages of others."""


@dataclass(frozen=True, slots=True)
class _Context:
    """The functions of the program that communicate, the axes that its values vary over, and what limits joining."""

    communicating: Communicating
    varying: Mapping[Value, Varying]
    machine: Machine
    memory_limit: int
    load: Load


def join_collectives(program: Program, machine: Machine, memory_limit: int) -> Program:
    """The SPMD program with small collectives that may be sent at the same time joined, as long as the operands,
    results and copies of one take no more than `memory_limit` bytes. Received bytes are unchanged."""
    if not any(_may_be_joined(machine, region.ops) for region in all_regions(program)):
        return program
    communicating = communicating_functions(program)
    context = _Context(communicating, varying(program), machine, memory_limit, Load(program))
    return with_parts(program, functions={name: _function(f, context) for name, f in program.functions.items()})


def is_small(machine: Machine, op: Op) -> bool:
    """Whether the copies into and out of a joined collective take at most half of a message's latency for this one:
    then any two are faster as one. On a network a copy also takes a kernel's launch. With equal links, latencies are
    those of a message among many in flight, and copies are taken to overlap in the same way."""
    copied = 2 * (op.operands[0].type.nbytes + op.result.type.nbytes)
    latency = latency_seconds(machine, op.name, collective_axes(op))
    launches = 2 * machine.kernels.launch if machine.network and machine.kernels is not None else 0.0
    return copied > 0 and launches + memory_seconds(machine, copied) <= latency / 2


def _may_be_joined(machine: Machine, ops: Sequence[Op]) -> bool:
    kinds = [kind_of(op) for op in ops if _is_candidate(machine, op)]
    return len(kinds) > len(set(kinds))


def _is_candidate(machine: Machine, op: Op) -> bool:
    """Whether it is a small collective of the partitioner's, which has a cause, or a round of boxes."""
    sends = OPS[op.name].communication
    if sends is None or sends.joins_itself or len(op.operands) > 1:
        return False
    return is_round(op) or (op.cause is not None and op.cause.is_decided and is_small(machine, op))


def kind_of(op: Op) -> object:
    """A key that is equal for collectives that differ only in the dims of their parts, or in which devices send to
    which."""
    if is_round(op):
        return op.name, op.operands[0].dtype, axes_attr(op.attrs)
    others = {name: value for name, value in op.attrs.items() if name not in _dims(op)}
    return op.name, op.operands[0].dtype, OPS[op.name].means(others)


def _function(function: Function, context: _Context) -> Function:
    names = Names.beside(function)
    return with_parts(function, body=_region(function.body, names, context))


def _region(region: Region, names: Names, context: _Context) -> Region:
    ops = [
        with_parts(op, regions=tuple([_region(r, names, context) for r in op.regions])) if op.regions else op
        for op in region.ops
    ]
    return with_parts(region, ops=tuple(_joined_ops(ops, names, context)))


def _joined_ops(ops: Sequence[Op], names: Names, context: _Context) -> Iterable[Op]:
    if not _may_be_joined(context.machine, ops):
        return ops
    graph = dataflow(ops)
    messages = [message for message in _sent(graph, context) if len(message) > 1 or len(message[0]) > 1]
    if not messages:
        return ops
    message_of: dict[Op, _Message] = {}
    group_of: dict[Op, tuple[Op, ...]] = {}
    for message in messages:
        group = tuple(op for alike in message for op in alike)
        message_of.update(dict.fromkeys(group, message))
        group_of.update(dict.fromkeys(group, group))
    written: list[Op] = []
    for group in _in_order(graph, group_of):
        written.extend(_as_one(message_of[group[0]], names) if len(group) > 1 else group)
    return written


def _sent(graph: Graph, context: _Context) -> Iterator[_Message]:
    """The messages of the candidates, in the order in which they are sent. Time is counted in communicating ops that
    depend on one another.

    A candidate waits until another of its kind with which it shares a message cannot wait any longer, because the ops
    that depend on it would then end later than without waiting. All other ops run as soon as possible.
    """
    latest = _latest(graph, context)
    missing = {op: len(graph.pred[op]) for op in graph}
    ready = [op for op in graph if not missing[op]]
    waiting: dict[object, list[Op]] = {}
    due: dict[int, list[object]] = {}
    order = {op: number for number, op in enumerate(graph)}
    time = 0
    while ready or waiting:
        running: list[Op] = []
        while ready:
            op = ready.pop()
            if _is_candidate(context.machine, op):
                kind = kind_of(op)
                waiting.setdefault(kind, []).append(op)
                due.setdefault(latest[op], []).append(kind)
            elif communicates(op, context.communicating):
                running.append(op)
            else:
                ready.extend(_released(graph.succ[op], missing))
        for kind in dict.fromkeys(due.pop(time, ())):
            alike = sorted(waiting.pop(kind, ()), key=lambda op: (latest[op], order[op]))
            due_now = frozenset(op for op in alike if latest[op] <= time)
            likely = alike[: len(due_now) + _MOST_WAITING] if alike and is_round(alike[0]) else alike
            sent = _with_those_due(sorted(likely, key=lambda op: order[op]), due_now, context)
            yield from sent
            now = dict.fromkeys(op for message in sent for each in message for op in each)
            running.extend(now)
            if len(now) < len(alike):
                waiting[kind] = [op for op in alike if op not in now]
        ready = [user for op in running for user in _released(graph.succ[op], missing)]
        time += 1


def _with_those_due(ops: Sequence[Op], due: Collection[Op], context: _Context) -> Sequence[_Message]:
    """The messages with those of these collectives of one kind that are due; others wait if they share none of them."""
    before = dict(context.load.received)
    found = _joined_of_one_kind(ops, context)
    sent = [message for message in found if any(op in due for alike in message for op in alike)]
    if len(sent) == len(found) or all(context.load.received[axes] is received for axes, received in before.items()):
        return sent
    context.load.received = before
    return _joined_of_one_kind([op for message in sent for alike in message for op in alike], context)


def _joined_of_one_kind(ops: Sequence[Op], context: _Context) -> Sequence[_Message]:
    """The messages in which these collectives of one kind may be sent at the same time: those that vary over the same
    axes are joined, so that a result that is equal on all devices does not come to vary with the others."""
    found: dict[object, list[Op]] = {}
    for op in ops:
        found.setdefault(context.varying.get(op.result), []).append(op)
    joined: list[_Message] = []
    for alike in found.values():
        for group in _that_fit(alike, context.memory_limit):
            small = frozenset(op for op in group if is_small(context.machine, op))
            joined.extend(rounds.messages(group, small, context.load) if is_round(group[0]) else [(group,)])
    return joined


def _released(users: Iterable[Op], missing: dict[Op, int]) -> Iterator[Op]:
    for user in users:
        missing[user] -= 1
        if not missing[user]:
            yield user


def _latest(graph: Graph, context: _Context) -> dict[Op, int]:
    """The latest time at which each op may run, counted in communicating ops, so that all end as early as possible."""
    behind: dict[Op, int] = {}
    for op in reversed(tuple(graph)):
        behind[op] = communicates(op, context.communicating) + max((behind[user] for user in graph.succ[op]), default=0)
    end = max(behind.values(), default=0)
    return {op: end - count for op, count in behind.items()}


def _that_fit(ops: Sequence[Op], limit: int) -> Iterator[tuple[Op, ...]]:
    """The ops in order, grouped so that each group fits within the limit."""
    group: list[Op] = []
    taken = 0
    for op in ops:
        needed = 2 * (op.operands[0].type.nbytes + op.result.type.nbytes)
        if group and taken + needed > limit:
            yield tuple(group)
            group, taken = [], 0
        group.append(op)
        taken += needed
    yield tuple(group)


def _in_order(graph: Graph, group_of: Mapping[Op, tuple[Op, ...]]) -> Iterator[tuple[Op, ...]]:
    """Each op by itself or with its group, after all ops that it depends on, and otherwise in the original order, with
    a group at the position of its last op."""
    done: set[Op] = set()
    opened: set[Op] = set()
    for start in graph:
        if start in group_of and start is not group_of[start][-1]:
            continue
        stack = [start]
        while stack:
            op = stack[-1]
            if op in done:
                stack.pop()
                continue
            group = group_of.get(op, (op,))
            if op not in opened:
                opened.update(group)
                stack.extend(reversed([made for each in group for made in graph.pred[each] if made not in done]))
                continue
            done.update(group)
            yield group


def _as_one(message: _Message, names: Names) -> Iterator[Op]:
    """The ops that send a message. Collectives between the same devices are concatenated as rows, one for each
    receiver; other rounds are unchanged."""
    b = RegionBuilder(names)
    group = [op for alike in message for op in alike]
    parts = 1 if not _dims(group[0]) else collective_group(group[0])
    rows: dict[Op, Value] = {}
    sent: list[Value] = []
    for alike in message:
        if len(alike) == 1:
            sent.append(alike[0].operands[0])
            continue
        for op in alike:
            with b.at(op.span, op.cause):
                rows[op] = _rows(b, op, parts)
        name = f"{alike[0].result.name}.joined"
        with b.at(alike[0].span, joined_cause(alike)):
            sent.append(b.op("concatenate", *(rows[op] for op in alike), name=name, dim=1))
    with b.at(group[0].span, joined_cause(group)):
        arrived = _sent_as_one(b, message, sent)
    yield from b.ops
    for alike, whole in zip(message, arrived, strict=True):
        start = 0
        for op in alike if len(alike) > 1 else ():
            cut = RegionBuilder(names, span=op.span, cause=op.cause)
            end = start + rows[op].shape[1]
            limit = (whole.shape[0], end)
            columns = cut.op("slice", whole, name=op.result.name, start=(0, start), limit=limit, stride=(1, 1))
            _unrow(cut, op, columns, parts)
            start = end
            yield from cut.in_place_of(op)


def _sent_as_one(b: RegionBuilder, message: _Message, sent: Sequence[Value]) -> Sequence[Value]:
    """The received value of each. A round by itself is sent as it was."""
    first = message[0][0]
    names = [f"{alike[0].result.name}.joined" for alike in message]
    if len(message) == 1:
        attrs: dict[str, Attr] = {**first.attrs, **dict.fromkeys(_dims(first), 0)}
        return b.append(first.name, sent, attrs, names=names)
    firsts = [alike[0].attrs for alike in message]
    boxes, numbers = tuple(attrs["boxes"] for attrs in firsts), tuple(attrs["round"] for attrs in firsts)
    attrs = {"axes": first.attrs["axes"], "boxes": boxes, "round": numbers}
    arrived = b.append("box_permutes", sent, attrs, names=names)
    results = tuple(
        alike[0].result if len(alike) == 1 else whole for alike, whole in zip(message, arrived, strict=True)
    )
    b.ops[-1] = replace(b.ops[-1], results=results)
    return results


def joined_cause(group: Sequence[Op]) -> Cause:
    """The cause of a message that these are sent as."""
    causes = [op.cause or Cause("written", op.name) for op in group]
    return Cause("joined", parts=tuple([part for cause in causes for part in cause.parts or (cause,)]))


def _rows(b: RegionBuilder, op: Op, parts: int) -> Value:
    """The operand with one row for each device that a part of it goes to, or as a single row if all of it goes."""
    x, name = op.operands[0], op.result.name
    cut = communication_of(op.name).cut
    if not cut:
        return _moved(b, name, x, x.shape, 0, 0, (1, x.type.size))
    dim = int_attr(op.attrs, cut)
    apart = (*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :])
    return _moved(b, name, x, apart, dim, 0, (parts, x.type.size // parts))


def _unrow(b: RegionBuilder, op: Op, rows: Value, parts: int) -> None:
    """The result, from one row for each device that a part of it comes from, or from a single row if all of it
    comes."""
    name, shape = op.result.name, op.result.shape
    joined = communication_of(op.name).joined
    if not joined:
        _moved(b, name, rows, rows.shape, 0, 0, shape)
        return
    dim = int_attr(op.attrs, joined)
    part = (*shape[:dim], shape[dim] // parts, *shape[dim + 1 :])
    _moved(b, name, rows, (parts, *part), 0, dim, shape)


def _moved(
    b: RegionBuilder, name: str, x: Value, seen: tuple[int, ...], source: int, target: int, shape: tuple[int, ...]
) -> Value:
    """`x` reshaped to `seen`, with dim `source` moved to position `target` among the others, then reshaped to
    `shape`."""
    if source == target:
        return reshaped(b, name, x, shape)
    order = [d for d in range(len(seen)) if d != source]
    order.insert(target, source)
    return rearranged(b, name, x, seen, order, shape)


def rearranged(
    b: RegionBuilder, name: str, x: Value, seen: tuple[int, ...], order: Sequence[int], shape: tuple[int, ...]
) -> Value:
    """`x` reshaped to `seen`, with its dims in that order, then reshaped to `shape`."""
    large = [d for d in order if seen[d] > 1]
    if large != sorted(large):
        x = b.op("transpose", reshaped(b, name, x, seen), name=name, perm=tuple(order))
    return reshaped(b, name, x, shape)


def reshaped(b: RegionBuilder, name: str, x: Value, shape: tuple[int, ...]) -> Value:
    """`x` in that shape, itself if it has it."""
    return x if x.shape == shape else b.op("reshape", x, name=name, shape=shape)
