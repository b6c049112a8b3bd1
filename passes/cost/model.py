"""The one cost model: planning reshards, choosing how to split an op, and reports all ask here.

Bytes are those that the worst device receives, with the usual bandwidth-optimal algorithms; seconds add latency: that
of a message, once for each time that the number of devices that have heard of one another can double. So one collective
over two axes takes as long as one over each, and none is cheap because its group is large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.mesh import axes_size
from ir.ops import OPS
from ir.ops.collective import COLLECTIVES, axes_attr
from ir.program import DeviceOrder, Op, Value, callee_of, values_of
from passes.cost.machine import TPU_V3, Topology


def received_bytes(kind: str, group: int, operand_bytes: int) -> float:
    """Bytes that a device receives in a collective over `group` devices, each of which puts in `operand_bytes`.

    all_gather and reduce_scatter pass every other device's share; all_reduce is one of each.
    """
    if group == 1:
        return 0.0
    share = (group - 1) / group
    if kind == "all_gather":
        return (group - 1) * operand_bytes
    if kind == "all_reduce":
        return 2 * share * operand_bytes
    if kind in ("reduce_scatter", "all_to_all"):
        return share * operand_bytes
    if kind in ("collective_permute", "box_permute"):
        return operand_bytes
    raise KeyError(kind)


def collective_group(op: Op) -> int:
    """How many devices take part in one group of a collective."""
    if op.name == "collective_permute":
        target = op.attrs["target"]
        assert isinstance(target, DeviceOrder)
        return axes_size(target.axes)
    return axes_size(axes_attr(op.attrs))


def collective_bytes(op: Op) -> int:
    """Bytes that the worst device receives in one execution of a collective."""
    return math.ceil(received_bytes(op.name, collective_group(op), op.operands[0].type.nbytes))


def communication_seconds(kind: str, group: int, operand_bytes: int, topology: Topology = TPU_V3) -> float:
    """Time of one collective."""
    if group == 1:
        return 0.0
    nbytes = received_bytes(kind, group, operand_bytes)
    return hops(kind, group) * topology.latency + nbytes / topology.link_bandwidth


def reduction_in_parts(group: int, operand_bytes: int) -> tuple[tuple[str, int], ...]:
    """The collectives, and what a device puts into each, by which all devices get a reduction that no backend has in
    one call: everything from everyone; or, where that is faster, a part from everyone, and then their reductions."""
    part = math.ceil(operand_bytes / group)
    ways = (("all_gather", operand_bytes),), (("all_to_all", part * group), ("all_gather", part))
    return min(ways, key=lambda way: sum(communication_seconds(kind, group, nbytes) for kind, nbytes in way))


def hops(kind: str, group: int) -> float:
    """Messages that wait for one another in a collective."""
    if kind in ("collective_permute", "box_permute"):
        return 1.0
    return math.log2(group)


def messages_seconds(nbytes: int, topology: Topology = TPU_V3) -> float:
    """Time in which a device receives so many bytes, all in permutes that do not wait for one another."""
    return topology.latency + nbytes / topology.link_bandwidth if nbytes else 0.0


def loop_seconds(turns: int, compute: float, communication: float, topology: Topology = TPU_V3) -> float:
    """Time of a loop that computes in each turn and, in all but one, sends what the next one needs at the same time."""
    return (turns - 1) * max(compute, communication) + compute + turns * topology.turn


def least_communication_seconds(sources: int, nbytes: float, topology: Topology = TPU_V3) -> float:
    """The least time in which a device can receive so many bytes, if they come from so many devices, it among them."""
    return math.log2(sources) * topology.latency + nbytes / topology.link_bandwidth


def memory_seconds(nbytes: float, topology: Topology = TPU_V3) -> float:
    """Time to read or write that many bytes of a device's own memory."""
    return nbytes / topology.memory_bandwidth


def compute_seconds(op: Op, parts: int, local_bytes: Sequence[float], topology: Topology = TPU_V3) -> float:
    """Time of an op on one device, its factors split into `parts`: arithmetic or memory, whichever is slower."""
    flops = OPS[op.name].flops
    work = flops(op) if flops is not None else sum(v.type.size for v in op.results)
    return max(work / parts / topology.flops, memory_seconds(sum(local_bytes), topology))


_DEFAULT_TRIPS = 10
"""How often a loop is taken to run whose trips are not known."""
LOOP_HOIST_WEIGHT = 1 / _DEFAULT_TRIPS
"""What part of the steps of such a loop one execution in front of it is."""


def trips_of(op: Op) -> int:
    """How often a loop runs, as far as that is known."""
    trips = op.attrs.get("trip_count")
    return trips if isinstance(trips, int) else _DEFAULT_TRIPS


def seconds_of(ops: Sequence[Op], callees: Mapping[str, float], topology: Topology = TPU_V3) -> float:
    """Time of ops of an SPMD program on one device, one after another, but for parts that travel while other ops run.

    `callees` are the seconds of functions. Of a case, the slowest branch counts. What it takes to loop is left out
    where the loop is the user's: it is the same however that is partitioned.
    """
    computed, sent = 0.0, 0.0
    arrived: dict[Value, float] = {}
    for op in ops:
        seconds = _seconds_of(op, callees, topology)
        begin = max((arrived[v] for v in op.operands if v in arrived), default=0.0)
        if _travels(op):
            sent = max(begin, computed, sent) + seconds
            arrived[op.result] = sent
        else:
            computed = max(begin, computed) + seconds
    return max(computed, sent)


def _travels(op: Op) -> bool:
    """Whether it is a part of a windowed einsum on its way to the device that multiplies with it next."""
    return op.name == "collective_permute" and op.attrs["shift"] != 0


def _seconds_of(op: Op, callees: Mapping[str, float], topology: Topology) -> float:
    if op.name == "while":
        extra = topology.turn if any(_travels(inner) for inner in op.regions[1].ops) else 0.0
        return trips_of(op) * (extra + sum(seconds_of(r.ops, callees, topology) for r in op.regions))
    if op.name == "call":
        return callees[callee_of(op) or ""]
    if op.regions:
        return max(seconds_of(r.ops, callees, topology) for r in op.regions)
    nbytes = [v.type.nbytes for v in values_of(op)]
    if op.name in COLLECTIVES:
        sent = communication_seconds(op.name, collective_group(op), op.operands[0].type.nbytes, topology)
        return sent + memory_seconds(sum(nbytes), topology)
    return compute_seconds(op, 1, _touched(op, nbytes), topology)


def _touched(op: Op, nbytes: Sequence[int]) -> Sequence[int]:
    """The bytes that an op reads and writes, of those of its operands and results: of some only a box."""
    if op.name in ("slice", "dynamic_slice"):
        return (2 * nbytes[-1],)
    if op.name == "dynamic_update_slice":
        return (2 * nbytes[1],)
    return nbytes
