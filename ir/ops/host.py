"""Calls of Python functions on the host: callback, await_callbacks at the end of a program with callbacks, and inspect.

Every op is pure, and effects are no exception: a callback with an effect takes a token and returns the next one. Later
callbacks need that one, so that callbacks happen in the order of their tokens, once each, and one is dropped only if
nothing needs its token. `await_callbacks` at the end needs the last.
"""

from __future__ import annotations

from ir.host import HostFunction
from ir.mesh import AxisRef, Mesh
from ir.ops.collective import axes_attr
from ir.ops.declaration import AttrDef, Attrs, FactorKind, FactorRule, TypeRuleError, Types, Unclaimed, declare
from ir.ops.rule_helpers import all_apart, types_attr
from ir.program import Op, Program, all_ops
from ir.sharding import REDUCTION_KINDS
from ir.types import TensorType, u32

TOKEN = TensorType((), u32)
"""The type of a token. Its number is 0; only the op that it comes from matters."""


def host_function(attrs: Attrs) -> HostFunction:
    """The function that a callback calls."""
    value = attrs["function"]
    assert isinstance(value, HostFunction)
    return value


def once_axes(attrs: Attrs, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes of the mesh along which only the first device calls."""
    each = {axis.name for axis in axes_attr(attrs, "each")}
    return tuple(axis for axis in mesh.whole_axes() if axis.name not in each and axis.size > 1)


def _differs(op: Op, mesh: Mesh) -> tuple[tuple[AxisRef, ...], ...]:
    """If only the first device calls, it gets other results than the others; tokens are the same."""
    once = once_axes(op.attrs, mesh)
    return tuple(once if i < len(types_attr(op.attrs)) else () for i in range(len(op.results)))


def callbacks_of(program: Program) -> dict[str, HostFunction]:
    """The functions that the program calls on the host, by name."""
    found = (host_function(op.attrs) for op in all_ops(program) if op.name == "callback")
    return {function.name: function for function in found}


def _infer_callback(types: Types, attrs: Attrs) -> Types:
    results = types_attr(attrs)
    if not attrs["effect"]:
        return results
    if not types or types[-1] != TOKEN:
        raise TypeRuleError(f"a callback with an effect takes a token, {TOKEN}, behind its operands", "u32(0)")
    return (*results, TOKEN)


def _callback_factors(op: Op) -> FactorRule:
    """Every dim has a factor of its own: the function gets whole tensors, or, with `split`, the part that each device
    has."""
    return all_apart(op, FactorKind.PARALLEL if op.attrs["split"] else FactorKind.NEED_REPLICATION)


def _infer_inspect(types: Types, attrs: Attrs) -> Types:
    if len(types) != 2 or types[1] != TOKEN:
        raise TypeRuleError(f"inspect takes a tensor and a token, {TOKEN}", "inspect(x, u32(0), function=show)")
    return (TOKEN,)


_each = AttrDef("each", "axes", default=(), required=False)

declare(
    "callback",
    "host",
    None,
    _infer_callback,
    _callback_factors,
    (
        AttrDef("function", "host", doc="the name of a function of the host: function=log_loss"),
        AttrDef("types", "types", default=(), required=False, doc="types of the results: types=[f32[2], s32[]]"),
        _each,
        AttrDef("effect", "bool", default=False, required=False),
        AttrDef("split", "bool", default=False, required=False),
    ),
    differs=_differs,
    doc=(
        "What a Python function on the host returns for the operands, called once, by the first device; along "
        "the axes `each` every device calls it for itself, with `split` on its own part of the operands. In an "
        "SPMD program devices that do not call get zeros. With `effect`, the last operand and the last result are "
        "tokens."
    ),
)

declare(
    "await_callbacks",
    "host",
    None,
    lambda types, attrs: (),
    None,
    (_each,),
    doc=(
        "Once the operands are computed, what a callback has raised is raised, by the devices that are first along "
        "all axes but `each`. Until then a callback that fails, and those after it, return zeros: so no device "
        "waits for another."
    ),
)

declare(
    "inspect",
    "host",
    2,
    _infer_inspect,
    lambda op: all_apart(op, FactorKind.PARALLEL),
    (AttrDef("function", "host", doc="the name of a function of the host: function=show"),),
    stages=("global", "plan"),
    unclaimed=(Unclaimed(REDUCTION_KINDS, "tokens are never pending"),),
    doc=(
        "The token. `spmdc.jit` tells the function how the tensor is sharded, as `jax.debug.inspect_array_sharding` "
        "does, once that is known; in an SPMD program nothing is left of the op."
    ),
)
