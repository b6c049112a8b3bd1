"""Kernels of the ops that only place elements. Most return views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.ops.rule_helpers import int_attr, ints_attr
from ir.ops.window import Window
from ir.program import Op
from ir.types import Array
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.ops.window import padded


@kernel("broadcast_in_dim")
def _broadcast(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (x,) = arrays
    lead, dims, shape = machine.lead, ints_attr(op.attrs, "dims"), op.result.shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    x = x.transpose(*range(lead), *(lead + i for i in order))
    sizes = {dims[i]: op.operands[0].shape[i] for i in order}
    x = x.reshape((*x.shape[:lead], *(sizes.get(d, 1) for d in range(len(shape)))))
    return (np.broadcast_to(x, x.shape[:lead] + shape),)


@kernel("reshape")
def _reshape(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (x,) = arrays
    return (x.reshape(x.shape[: machine.lead] + op.result.shape),)


@kernel("transpose")
def _transpose(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    perm = ints_attr(op.attrs, "perm")
    return (arrays[0].transpose(*range(machine.lead), *(machine.lead + p for p in perm)),)


@kernel("slice")
def _slice(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    start, limit = ints_attr(op.attrs, "start"), ints_attr(op.attrs, "limit")
    stride = ints_attr(op.attrs, "stride") or (1,) * len(start)
    devices = (slice(None),) * machine.lead
    return (arrays[0][(*devices, *map(slice, start, limit, stride))],)


@kernel("pad")
def _pad(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x, value = arrays
    lead, rank = machine.lead, op.result.type.rank
    low, high = ints_attr(op.attrs, "low"), ints_attr(op.attrs, "high")
    interior = ints_attr(op.attrs, "interior") or (0,) * rank
    windows = [Window(1, 1, before, after, gap + 1) for before, after, gap in zip(low, high, interior, strict=True)]
    devices = np.broadcast_shapes(x.shape[:lead], value.shape[:lead])
    fill = value.reshape((*value.shape, *(1,) * rank))
    return (padded(np.broadcast_to(x, devices + x.shape[lead:]), lead, windows, fill),)


@kernel("reverse")
def _reverse(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return (np.flip(arrays[0], tuple(machine.lead + d for d in ints_attr(op.attrs, "dims"))),)


@kernel("concatenate")
def _concatenate(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    lead = machine.lead
    devices = np.broadcast_shapes(*(x.shape[:lead] for x in arrays))
    parts = [np.broadcast_to(x, devices + x.shape[lead:]) for x in arrays]
    return (np.concatenate(parts, lead + int_attr(op.attrs, "dim")),)


@kernel("shard", "reshard", "optimization_barrier")
def _unchanged(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return arrays
