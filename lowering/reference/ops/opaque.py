"""opaque: numpy cannot make the call, so jax runs it, as a program of only that op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ir.builder import RegionBuilder
from ir.diagnostics import Span
from ir.program import Attr, Op, Program
from ir.types import Array, TensorType
from lowering.jax import compile, ensure_devices
from lowering.reference.interpreter import Interpreter, kernel


@kernel("opaque")
def _opaque(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    """One call for each of the devices between which an operand differs; a call with effects is made by each device
    that runs it."""
    run = _compiled(tuple(op.attrs.items()), tuple(v.type for v in op.operands), op.span)
    devices = np.broadcast_shapes(*(x.shape[: machine.lead] for x in arrays))
    running = np.broadcast_to(True, devices)
    if op.attrs["effect"]:
        every = machine.grids.default.shape if machine.program.stage == "spmd" else devices
        devices = np.broadcast_shapes(every, machine.running.shape)
        running = np.broadcast_to(machine.running, devices)
    results = [np.zeros((*devices, *v.shape), v.dtype.numpy) for v in op.results]
    for device in filter(running.__getitem__, np.ndindex(devices)):
        own = [x[tuple(i if n > 1 else 0 for i, n in zip(device, x.shape, strict=False))] for x in arrays]
        for whole, found in zip(results, run(*own), strict=True):
            whole[device] = np.asarray(found)
    return results


@functools.lru_cache(maxsize=256)
def _compiled(
    attrs: tuple[tuple[str, Attr], ...], operands: tuple[TensorType, ...], span: Span | None
) -> Callable[..., Sequence[object]]:
    ensure_devices(1)
    b = RegionBuilder()
    b.span = span
    params = [b.param(f"operand_{i}", type) for i, type in enumerate(operands)]
    return compile(Program((), {"main": b.function("main", b.append("opaque", params, dict(attrs)))}))
