"""Kernels of callback, which calls the function for one device after another in order, of await_callbacks and of
inspect.

An exception of the function ends the run at once, so await_callbacks has nothing to report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.ops.collective import axes_attr
from ir.ops.host import TOKEN, host_function, once_axes
from ir.ops.rule_helpers import types_attr
from ir.program import Op
from ir.types import Array
from lowering.reference.interpreter import Interpreter, kernel


@kernel("callback")
def _callback(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    types, function = types_attr(op.attrs), host_function(op.attrs)
    operands = arrays[: len(arrays) - bool(op.attrs["effect"])]
    shape = _calling(op, operands, machine)
    results = [np.zeros((*shape, *type.shape), type.dtype.numpy) for type in types]
    running = np.broadcast_to(machine.running, shape)
    once = _once(op, machine)
    for place in np.ndindex(*shape):
        if running[place] and not any(place[d] for d in once):
            given = function.results([_part(x, place) for x in operands], types)
            for result, array in zip(results, given, strict=True):
                result[place] = array
    tokens = [np.zeros((1,) * machine.lead, TOKEN.dtype.numpy)] if op.attrs["effect"] else []
    return [*results, *tokens]


def _calling(op: Op, operands: Sequence[Array], machine: Interpreter) -> tuple[int, ...]:
    """The device dims along which calls, or their results, differ."""
    lead, grid = machine.lead, machine.grids.default
    shape = list(np.broadcast_shapes((1,) * lead, machine.running.shape, *(x.shape[:lead] for x in operands)))
    for d in (*grid.dims(axes_attr(op.attrs, "each")), *_once(op, machine)):
        shape[d] = grid.shape[d]
    return tuple(shape)


def _once(op: Op, machine: Interpreter) -> tuple[int, ...]:
    """The device dims along which only the first device calls; outside a manual region there is a single device."""
    grid = machine.grids.default
    return grid.dims(once_axes(op.attrs, grid.mesh)) if machine.program.stage == "spmd" else ()


def _part(x: Array, place: tuple[int, ...]) -> Array:
    """A copy of the operand on the device at that place."""
    at = tuple(min(i, n - 1) for i, n in zip(place, x.shape, strict=False))
    return np.array(x[at], order="C")


@kernel("await_callbacks")
def _await_callbacks(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return ()


@kernel("inspect")
def _inspect(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return [arrays[1]]
