"""callback and await_callbacks: calls of the functions that a module has in CALLBACKS; and inspect."""

from __future__ import annotations

from collections.abc import Iterable

from ir.mesh import AxisRef
from ir.ops.host import callbacks_of, host_function, once_axes
from ir.ops.rule_helpers import types_attr
from ir.program import Op
from lowering.jax.names import quoted, tuple_text
from lowering.jax.writer import FunctionWriter, dtype_text, emits

TABLES = '''CALLBACKS = {}
"""What the program calls on the host, by name: each takes numpy arrays, and returns a sequence of results."""

FAILURES = {}
"""What one has raised and nobody yet has heard of, by the place of the device that called."""'''


@emits("callback")
def _callback(w: FunctionWriter, op: Op) -> str:
    types = tuple_text(f"({tuple_text(t.shape)}, {dtype_text(t.dtype)})" for t in types_attr(op.attrs))
    helper, options = "call_host_of_jax", list[str]()
    if not w.module.is_differentiated:
        helper, options = "call_host", _where(w, op)
        varying = w.varying(op.results[0]) if op.results else frozenset[str]()
        options += [f"varying={_names(w, varying)}"] if varying else []
    options += ["has_token=True"] if op.attrs["effect"] else []
    arguments = [f'"{host_function(op.attrs).name}"', types, tuple_text(w.names(op.operands)), *options]
    call = f"{w.module.helper(helper)}({', '.join(arguments)})"
    return call if len(op.results) != 1 else f"{call}[0]"


@emits("await_callbacks")
def _await_callbacks(w: FunctionWriter, op: Op) -> str:
    """Calls that are no callbacks raise nothing, nor do those that JAX itself makes."""
    if w.module.is_differentiated or not callbacks_of(w.module.program):
        return f"lax.optimization_barrier({tuple_text(w.names(op.operands))})"
    arguments = [tuple_text(w.names(op.operands)), *_where(w, op)]
    return f"{w.module.helper('raise_failures')}({', '.join(arguments)})"


@emits("inspect")
def _inspect(w: FunctionWriter, op: Op) -> str:
    return w.names(op.operands)[1]


def _where(w: FunctionWriter, op: Op) -> list[str]:
    """The arguments that specify which device calls, and whether it does."""
    once = _once(w, op)
    return [f"place={_place(w)}", *([f"once={_names(w, once)}"] if once else [])]


def _once(w: FunctionWriter, op: Op) -> frozenset[str]:
    """The axes along which only the first device calls."""
    if w.module.program.stage == "global":
        return frozenset()
    axes: tuple[AxisRef, ...] = once_axes(op.attrs, w.module.program.mesh)
    return frozenset(w.module.spmd_axes.axis_names(axes))


def _place(w: FunctionWriter) -> str:
    """The device's position on the mesh."""
    if w.module.program.stage == "global":
        return "jnp.int32(0)"
    return f"lax.axis_index({quoted(w.module.spmd_axes.default.names)})"


def _names(w: FunctionWriter, axes: Iterable[str]) -> str:
    names = set(axes)
    return tuple_text(f'"{n}"' for n in w.module.spmd_axes.default.names if n in names)
