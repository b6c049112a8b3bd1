"""The one cost model: planning reshards, choosing how to split an op, and reports all ask here.

Bytes are those that the worst device receives, with the usual bandwidth-optimal algorithms; seconds add latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.mesh import axes_size
from ir.ops import OPS
from ir.ops.collective import axes_attr
from ir.program import DeviceOrder, Op
from passes.topology import TPU_V3, Topology


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
    return topology.latency + received_bytes(kind, group, operand_bytes) / topology.link_bandwidth


def memory_seconds(nbytes: float, topology: Topology = TPU_V3) -> float:
    """Time to read or write that many bytes of a device's own memory."""
    return nbytes / topology.memory_bandwidth


def compute_seconds(op: Op, parts: int, local_bytes: Sequence[int], topology: Topology = TPU_V3) -> float:
    """Time of an op on one device, its factors split into `parts`: arithmetic or memory, whichever is slower."""
    flops = OPS[op.name].flops
    work = flops(op) if flops is not None else sum(v.type.size for v in op.results)
    return max(work / parts / topology.flops, memory_seconds(sum(local_bytes), topology))
