"""The cost model: reshards are planned, ops are split and reports are made by these costs and no others.

Bytes are those that the worst device receives, with the usual bandwidth-optimal algorithms. Seconds add latency: that
of one message for each time that the number of devices with data of one another can double. So one collective over two
axes takes as long as one over each, and no collective is cheap because its group is large. Where axes have different
links, the slowest limits the bandwidth. On a network the times are those of its rings, lines and switches
(`passes.cost.network`), and measured times take precedence over all of these (`passes.cost.measured`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ir.mesh import Axes, AxisRef, axes_size
from ir.ops import OPS
from ir.ops.collective import COLLECTIVES, collective_axes, collective_group, communication_of
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Value, all_ops, callee_of, values_of
from ir.records import record
from passes.cost.machine import Machine
from passes.cost.measured import measured_seconds
from passes.cost.network import Link, neighbour_seconds, network_seconds


def received_bytes(kind: str, group: int, operand_bytes: int) -> float:
    """Bytes that a device receives in a collective over `group` devices, each of which puts in `operand_bytes`."""
    return communication_of(kind).received(group, operand_bytes) if group > 1 else 0.0


def collective_bytes(op: Op) -> int:
    """Bytes that the worst device receives in one execution of a collective."""
    return math.ceil(received_bytes(op.name, collective_group(op), sent_bytes(op)))


def sent_bytes(op: Op) -> int:
    """Bytes that a device puts into a collective. One with several operands sends one of them."""
    return max(v.type.nbytes for v in op.operands)


def communication_seconds(machine: Machine, kind: str, axes: Axes, operand_bytes: int) -> float:
    """Time of one collective over `axes`."""
    group = axes_size(axes)
    if group == 1:
        return 0.0
    found = measured_seconds(machine.measured, kind, group, operand_bytes)
    if found is not None:
        return found
    if machine.network:
        if communication_of(kind).kind == "collective_permute":
            return neighbour_seconds(machine.reaches(axes), operand_bytes)
        return network_seconds(kind, machine.reaches(axes), operand_bytes)
    return _seconds_along(kind, machine.links_of(axes), received_bytes(kind, group, operand_bytes))


def reduction_in_parts(machine: Machine, axes: Axes, operand_bytes: int) -> tuple[tuple[str, int], ...]:
    """The collectives that compute an all_reduce which no backend has in one call, with the bytes that a device puts
    into each: an all_gather of all operands, or, where that is faster, an exchange of parts and an all_gather of the
    reduced ones."""
    group = axes_size(axes)
    part = math.ceil(operand_bytes / group)
    ways = (("all_gather", operand_bytes),), (("all_to_all", part * group), ("all_gather", part))
    return min(ways, key=lambda way: sum(communication_seconds(machine, kind, axes, nbytes) for kind, nbytes in way))


def latency_seconds(machine: Machine, kind: str, axes: Iterable[AxisRef]) -> float:
    """Time of the messages of a collective that depend on one another. The latencies of several axes add up."""
    if machine.network:
        return network_seconds(kind, machine.reaches(tuple(axes)), 0)
    return _latency(kind, machine.links_of(axes))


def _latency(kind: str, links: Mapping[Link, int]) -> float:
    messages = communication_of(kind).messages
    return sum([messages(devices) * link.latency for link, devices in links.items()])


def _seconds_along(kind: str, links: Mapping[Link, int], received: float) -> float:
    return _latency(kind, links) + received / min([link.bandwidth for link in links])


def messages_seconds(machine: Machine, axes: Axes, nbytes: int) -> float:
    """Time in which a device receives that many bytes from its neighbours, by permutes along `axes` that do not depend
    on one another."""
    if not nbytes:
        return 0.0
    found = measured_seconds(machine.measured, "collective_permute", axes_size(axes), nbytes)
    if found is not None:
        return found
    if machine.network:
        return neighbour_seconds(machine.reaches(axes), nbytes)
    return _seconds_along("box_permute", machine.links_of(axes), nbytes)


def in_loops(machine: Machine) -> Machine:
    """The machine as an iteration of a loop finds it. A message takes two latencies there: devices begin it one after
    the other, and none goes on before the last one has sent what it has. On a network it takes one."""
    return machine.with_latencies(2.0)


def loop_seconds(machine: Machine, turns: int, compute: float, communication: float) -> float:
    """Time of a loop that computes in each iteration and, in all but one, sends what the next one needs: at the same
    time, if the machine can."""
    if not machine.asynchronous:
        return (turns - 1) * communication + turns * (compute + machine.turn)
    return (turns - 1) * max(compute, communication) + compute + turns * machine.turn


def least_communication_seconds(machine: Machine, axes: Iterable[AxisRef], sources: int, nbytes: float) -> float:
    """The least time in which a device can receive that many bytes along `axes`, if they come from that many devices,
    itself included."""
    if machine.measured:
        return 0.0
    if machine.network:
        reaches = machine.reaches(tuple(axes))
        most = sum(2 * reach.bandwidth * reach.stride for reach in reaches)
        latency = min((reach.latency for reach in reaches), default=0.0)
        return math.log2(sources) * latency + (nbytes / most if most else 0.0)
    links = machine.links_of(axes) if machine.links else (machine.usual_link,)
    latency, bandwidth = min([link.latency for link in links]), max([link.bandwidth for link in links])
    return math.log2(sources) * latency + nbytes / bandwidth


def memory_seconds(machine: Machine, nbytes: float) -> float:
    """Time to read or write that many bytes of a device's own memory."""
    return nbytes / machine.memory_bandwidth


def arithmetic_seconds(machine: Machine, op: Op) -> float:
    """Time of an op's arithmetic on one device."""
    return arithmetic_of(op) / machine.flops_of(dtype_of_arithmetic(op))


def arithmetic_of(op: Op) -> int:
    """The number of operations of an op: as declared, or one for each element of its results."""
    flops = OPS[op.name].flops
    return flops(op) if flops is not None else sum(v.type.size for v in op.results)


def dtype_of_arithmetic(op: Op) -> str:
    """The element type that determines the rate of an op's arithmetic."""
    values = op.operands or op.results
    return values[0].dtype.name if values else ""


UNKNOWN_TRIPS = 10
"""The trip count assumed for a loop whose trip count is not known."""
LOOP_HOIST_WEIGHT = 1 / UNKNOWN_TRIPS
"""The weight of an op in front of such a loop, relative to one in its body."""
ROUNDING = 1 + 1e-9
"""The ratio up to which sums of the same costs may differ by the order of addition alone."""


def trips_of(op: Op) -> int:
    """The trip count of a loop, or the default if it is not known."""
    trips = op.attrs.get("trip_count")
    return trips if isinstance(trips, int) else UNKNOWN_TRIPS


def assumed_trips(program: Program) -> str:
    """A sentence about loops whose trip counts are not known; empty if the program has none."""
    is_unknown = any(is_loop(op) and not isinstance(op.attrs.get("trip_count"), int) for op in all_ops(program))
    return f"loops of unknown length count {UNKNOWN_TRIPS} turns" if is_unknown else ""


def seconds_of(
    machine: Machine, ops: Sequence[Op], callees: Mapping[str, float], times: Mapping[Op, OpTime] | None = None
) -> float:
    """Time of ops of an SPMD program on one device, one after another, except for parts that are sent while other ops
    run.

    `callees` has the seconds of functions, and `times` those of ops, where ops are not priced one by one. A case takes
    as long as its slowest branch. The overhead of a loop that the user wrote is left out: it is the same however the
    loop is partitioned.
    """
    return max((begin + seconds for _, begin, seconds in running(machine, ops, callees, times)), default=0.0)


def running(
    machine: Machine, ops: Sequence[Op], callees: Mapping[str, float], times: Mapping[Op, OpTime] | None
) -> Iterator[tuple[Op, float, float]]:
    """When each of the ops begins, in seconds from the beginning of the first, and how long it takes, as in
    `seconds_of`."""
    computed, sent = 0.0, 0.0
    arrived: dict[Value, float] = {}
    for op in ops:
        seconds = _seconds_of(machine, op, callees, times)
        begin = max([computed, *(arrived[v] for v in op.operands if v in arrived)]) if arrived else computed
        if machine.asynchronous and travels(op):
            begin = max(begin, sent)
            arrived[op.result] = sent = begin + seconds
        else:
            computed = begin + seconds
        yield op, begin, seconds


def travels(op: Op) -> bool:
    """Whether an op sends a part of a windowed einsum to the device that multiplies it next."""
    return op.name in COLLECTIVES and op.attrs.get("shift", 0) != 0


def cost_of_regions(op: Op, inside: Sequence[float], each_turn: float = 0.0) -> float:
    """The cost of running the regions of an op, from the cost of each: a loop's in each iteration, its condition once
    more, and the most expensive branch of a choice."""
    if is_loop(op):
        return trips_of(op) * (each_turn + sum(inside)) + inside[0]
    return max(inside, default=0.0)


def _seconds_of(machine: Machine, op: Op, callees: Mapping[str, float], times: Mapping[Op, OpTime] | None) -> float:
    if is_call(op):
        return callees[callee_of(op) or ""]
    if op.regions:
        inside = [seconds_of(machine, r.ops, callees, times) for r in op.regions]
        return cost_of_regions(op, inside, turn_seconds(machine, op))
    return (time_of(machine, op) if times is None else times[op]).seconds


def turn_seconds(machine: Machine, op: Op) -> float:
    """The overhead of each iteration of a loop. It is 0 for a loop that the user wrote."""
    return machine.turn if any(travels(inner) for r in op.regions for inner in r.ops) else 0.0


@record
class OpTime:
    """What one execution of an op takes on a device: seconds of arithmetic, memory and network, operations, bytes of
    memory read and written, bytes received, and the seconds of overhead beyond all these."""

    compute: float
    memory: float
    network: float
    flops: int
    touched: int
    received: int
    overhead: float = 0.0

    @property
    def seconds(self) -> float:
        """The total. Arithmetic and memory reads overlap; received data is written once it has arrived."""
        return max(self.compute, self.memory) + self.network + self.overhead


def accessed(op: Op, sizes: Sequence[float]) -> float:
    """The bytes that an op reads and writes if its operands and results have these sizes. A lookup reads no more of its
    table than it returns."""
    copied = OPS[op.name].copied
    if copied is not None:
        return 2 * sizes[copied]
    return sum(sizes) - max(0, sizes[0] - sizes[-1]) if op.name == "gather" else sum(sizes)


def time_of(machine: Machine, op: Op) -> OpTime:
    """The time of an op of an SPMD program that has no regions and calls nothing."""
    nbytes = int(accessed(op, [v.type.nbytes for v in values_of(op)]))
    memory = memory_seconds(machine, nbytes)
    if op.name not in COLLECTIVES:
        return OpTime(arithmetic_seconds(machine, op), memory, 0.0, arithmetic_of(op), nbytes, 0)
    axes, size = collective_axes(op), sent_bytes(op)
    is_beside = travels(op)
    sent = messages_seconds(machine, axes, size) if is_beside else communication_seconds(machine, op.name, axes, size)
    return OpTime(0.0, memory, sent, 0, nbytes, collective_bytes(op))
