"""Kernels of the ops that only place elements. Most return views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op
from ir.types import Array
from lowering.reference.registry import Machine, kernel


@kernel("broadcast_in_dim")
def _broadcast(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    (x,) = arrays
    lead, dims, shape = machine.lead, ints_attr(op.attrs, "dims"), op.result.shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    x = x.transpose(*range(lead), *(lead + i for i in order))
    sizes = {dims[i]: op.operands[0].shape[i] for i in order}
    x = x.reshape((*x.shape[:lead], *(sizes.get(d, 1) for d in range(len(shape)))))
    return (np.broadcast_to(x, x.shape[:lead] + shape),)


@kernel("reshape")
def _reshape(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    (x,) = arrays
    return (x.reshape(x.shape[: machine.lead] + op.result.shape),)


@kernel("transpose")
def _transpose(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    perm = ints_attr(op.attrs, "perm")
    return (arrays[0].transpose(*range(machine.lead), *(machine.lead + p for p in perm)),)


@kernel("slice")
def _slice(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    start, limit = ints_attr(op.attrs, "start"), ints_attr(op.attrs, "limit")
    stride = ints_attr(op.attrs, "stride") or (1,) * len(start)
    devices = (slice(None),) * machine.lead
    return (arrays[0][(*devices, *map(slice, start, limit, stride))],)


@kernel("pad")
def _pad(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    x, value = arrays
    shape, lead = op.result.shape, machine.lead
    low = ints_attr(op.attrs, "low")
    interior = ints_attr(op.attrs, "interior") or (0,) * len(low)
    value = value.reshape((*value.shape, *(1,) * len(shape)))
    devices = np.broadcast_shapes(x.shape[:lead], value.shape[:lead])
    result = np.empty(devices + shape, x.dtype)
    result[...] = value
    sources, targets = [], []
    for n, size, before, gap in zip(op.operands[0].shape, shape, low, interior, strict=True):
        step = gap + 1
        first = max(0, -(before // step))
        last = min(n - 1, (size - 1 - before) // step)
        count = max(0, last - first + 1)
        sources.append(slice(first, first + count))
        targets.append(slice(before + first * step, before + first * step + count * step, step) if count else slice(0))
    every = (slice(None),) * lead
    result[(*every, *targets)] = x[(*every, *sources)]
    return (result,)


@kernel("reverse")
def _reverse(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    return (np.flip(arrays[0], tuple(machine.lead + d for d in ints_attr(op.attrs, "dims"))),)


@kernel("concatenate")
def _concatenate(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    lead = machine.lead
    devices = np.broadcast_shapes(*(x.shape[:lead] for x in arrays))
    parts = [np.broadcast_to(x, devices + x.shape[lead:]) for x in arrays]
    return (np.concatenate(parts, lead + int_attr(op.attrs, "dim")),)


@kernel("shard", "reshard", "optimization_barrier")
def _unchanged(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    return arrays
