"""Emitters of collectives. Over axes of size 1, or none, they do nothing.

If the axes are of a mesh whose devices are in another order than JAX's mesh, the shards are first permuted, so that
each group is along axes of JAX's mesh, and permuted back after the collective.

XLA's all-reduce for extremes of floats may drop NaNs, and treats both zeros as equal. One on integers that are ordered
in the same way does neither.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from ir.mesh import Mesh, axes_size
from ir.ops.collective import axes_attr, orders_attr
from ir.ops.rule_helpers import int_attr
from ir.program import DeviceOrder, Op, Value
from ir.types import DType, bf16
from lowering.jax.axes import permuted_axis_names
from lowering.jax.kernels import is_cut_alike
from lowering.jax.names import quoted, tuple_text
from lowering.jax.ops.elementwise import converted, unpacked
from lowering.jax.ops.reduction import reduced
from lowering.jax.writer import FunctionWriter, dtype_text, emits

_IN_ONE_CALL = {"sum": "psum", "max": "pmax", "min": "pmin"}
_OF_PRED = {"and": "pmin", "or": "pmax"}


def _along(
    w: FunctionWriter,
    op: Op,
    collective: Callable[[str, str], str],
    *,
    reduces: bool = False,
    operand: Value | None = None,
) -> str:
    """`collective` of the operand and the text of the axes. The operand is made to vary over all of the axes, as JAX
    requires."""
    operand, refs = operand or op.operands[0], axes_attr(op.attrs)
    axis_names = w.axis_names(refs)
    if not axis_names:
        return w[operand]
    dtype = operand.dtype
    if w.module.spmd_axes.in_place(refs):
        moved = collective(_carried(w, w.vary(operand, axis_names), dtype, reduces=reduces), quoted(axis_names))
        return _arrived(w, moved, dtype, reduces=reduces)
    mesh = w.module.spmd_axes.mesh_of(refs)
    default = w.module.program.mesh
    everywhere = quoted(w.module.spmd_axes.default.names)
    given = _carried(w, w[operand], dtype, reduces=reduces)
    there = f"lax.ppermute({given}, {everywhere}, {_between(w, _whole(default), _whole(mesh))})"
    back = _between(w, _whole(mesh), _whole(default))
    moved = collective(there, quoted(axis_names))
    return _arrived(w, f"lax.ppermute({moved}, {everywhere}, {back})", dtype, reduces=reduces)


def _carried(w: FunctionWriter, text: str, dtype: DType, *, reduces: bool = False) -> str:
    """`text`, of that element type, in the type in which it is sent."""
    if _goes_as_bits(w, dtype, reduces=reduces):
        return f"lax.bitcast_convert_type({text}, jnp.uint{dtype.bits})"
    return converted(text, dtype, unpacked(dtype))


def _arrived(w: FunctionWriter, text: str, dtype: DType, *, reduces: bool = False) -> str:
    """The inverse of `_carried`."""
    if _goes_as_bits(w, dtype, reduces=reduces):
        return f"lax.bitcast_convert_type({text}, {dtype_text(dtype)})"
    return converted(text, unpacked(dtype), dtype)


def _goes_as_bits(w: FunctionWriter, dtype: DType, *, reduces: bool) -> bool:
    """Whether floats are sent as bits, if nothing is computed from them on the way: XLA's CPU backend would send 16
    bits of short ones, and 32 of bf16. Bits have no derivatives."""
    is_sent_wide = dtype == bf16 and w.module.compiles_on_cpu and w.module.is_sealed
    is_widened = dtype.is_float and (dtype.is_short or is_sent_wide)
    return is_widened and not reduces and not w.module.is_differentiated


def _whole(mesh: Mesh) -> DeviceOrder:
    return DeviceOrder(mesh, mesh.whole_axes())


@emits("axis_index")
def _axis_index(w: FunctionWriter, op: Op) -> str:
    refs = axes_attr(op.attrs)
    axes = w.module.spmd_axes
    if axes.in_place(refs):
        axis_names = w.axis_names(refs)
        return w.position(axis_names) if axis_names else "np.int32(0)"
    mesh = axes.mesh_of(refs)
    sizes, ids = w.module.mesh_constants(mesh)
    tile = w.module.helper("tile_of_device")
    index = f"{tile}({sizes}, {ids}, {tuple_text(_literals(axes.of(mesh).axis_names(refs)))}, DEVICE_IDS)"
    return f"jnp.array({index}, jnp.int32)[lax.axis_index({quoted(axes.default.names)})]"


@emits("all_reduce")
def _all_reduce(w: FunctionWriter, op: Op) -> str:
    kind, dtype = str(op.attrs["kind"]), unpacked(op.result.dtype)

    def reduction(collective: Callable[[str, str], str]) -> str:
        return _along(w, op, collective, reduces=True)

    is_chosen = kind in ("max", "min") and dtype.is_float
    if is_chosen and not w.module.is_differentiated:
        bits, floats = map(w.module.helper, _ordering(dtype))
        order = f"nan_is_largest={kind == 'max'}"
        back = dtype_text(dtype) if floats == "floats_of" else f"{dtype_text(dtype)}, {order}"
        return reduction(lambda x, axes: f"{floats}(lax.p{kind}({bits}({x}, {order}), {axes}), {back})")
    name = None if is_chosen else _IN_ONE_CALL.get(kind) or (_OF_PRED.get(kind) if dtype.kind == "pred" else None)
    if name is not None:
        return reduction(lambda x, axes: f"lax.{name}({x}, {axes})")
    gathered = _along(w, op, lambda x, axes: f'lax.all_gather({x}, {axes}, to="invarying")')
    return _reduced_here(w, op, gathered, 0) if w.axis_names(axes_attr(op.attrs)) else gathered


def _reduced_here(w: FunctionWriter, op: Op, parts: str, dim: int) -> str:
    """The reduction along `dim` of what has arrived from all devices."""
    dtype, wide = op.result.dtype, unpacked(op.result.dtype)
    return converted(reduced(converted(parts, dtype, wide), str(op.attrs["kind"]), (dim,), wide), wide, dtype)


def _ordering(dtype: DType) -> tuple[str, str]:
    """The helpers that turn floats of a type into integers in the same order, and back."""
    if not dtype.has_zero:
        return "ordered_bits_of_scales", "scales_of"
    if not dtype.format.has_negative_zero:
        return "ordered_bits_of_fnuz", "fnuz_of"
    return "ordered_bits", "floats_of"


@emits("all_gather")
def _all_gather(w: FunctionWriter, op: Op) -> str:
    if op.result.type.size == 0:
        return f"jnp.zeros({tuple_text(op.result.shape)}, {dtype_text(op.result.dtype)})"
    dim = int_attr(op.attrs, "dim")
    if _is_inside(w, op, dim):
        return _along(w, op, lambda x, axes: f"{w.module.helper('gathered_inside')}({x}, {axes}, {dim})")
    options = f'axis={dim}, tiled=True, to="invarying"'
    return _along(w, op, lambda x, axes: f"lax.all_gather({x}, {axes}, {options})")


def _is_inside(w: FunctionWriter, op: Op, dim: int) -> bool:
    """Whether XLA's CPU backend would lay out both operand and result with that dim first, and copy them."""
    return w.module.compiles_on_cpu and math.prod(op.operands[0].shape[:dim]) > 1


@emits("reduce_scatter")
def _reduce_scatter(w: FunctionWriter, op: Op) -> str:
    dim, kind = int_attr(op.attrs, "dim"), str(op.attrs["kind"])
    if kind == "sum":
        if _is_inside(w, op, dim):
            devices, helper = axes_size(axes_attr(op.attrs)), w.module.helper("scattered_inside")
            return _along(w, op, lambda x, axes: f"{helper}({x}, {axes}, {dim}, {devices})", reduces=True)
        options = f"scatter_dimension={dim}, tiled=True"
        return _along(w, op, lambda x, axes: f"lax.psum_scatter({x}, {axes}, {options})", reduces=True)
    shape = op.result.shape
    parts = op.operands[0].shape[dim] // max(1, shape[dim])
    stacked = tuple_text((*shape[:dim], parts, *shape[dim:]))
    received = _along(w, op, lambda x, axes: _exchanged(w, op, x, axes, dim, dim))
    return _reduced_here(w, op, f"lax.reshape({received}, {stacked})", dim)


@emits("all_to_all")
def _all_to_all(w: FunctionWriter, op: Op) -> str:
    split, concat = int_attr(op.attrs, "split"), int_attr(op.attrs, "concat")
    return _along(w, op, lambda x, axes: _exchanged(w, op, x, axes, split, concat))


def _exchanged(w: FunctionWriter, op: Op, x: str, axes: str, split: int, concat: int) -> str:
    whole = f"lax.optimization_barrier({x})" if op.result in w.module.guards.apart else x
    devices = axes_size(axes_attr(op.attrs))
    if w.module.compiles_on_cpu and is_cut_alike(op.operands[0].type, split, devices):
        parts = f"{w.module.helper('of_parts')}({whole}, {split}, {devices})"
        return f"lax.all_to_all({parts}, {axes}, {split}, {concat}, tiled=True)"
    if split != concat and op.operands[0].shape[concat] == 1:
        return f"{w.module.helper('exchanged')}({whole}, {axes}, {devices}, {split}, {concat})"
    return f"lax.all_to_all({whole}, {axes}, {split}, {concat}, tiled=True)"


@emits("collective_permute")
def _collective_permute(w: FunctionWriter, op: Op) -> str:
    given_orders = orders_attr(op.attrs)
    assert given_orders is not None
    target, source = given_orders
    over = permuted_axis_names(w.module.spmd_axes, target, source)
    if not over:
        return w[op.operands[0]]
    if target.mesh == source.mesh == w.module.program.mesh:
        orders = f"{_order(w, target, source)}, {_order(w, source, target)}"
        pairs = f"{w.module.helper('permutation')}(MESH_AXES, {tuple_text(_literals(over))}, {orders})"
    else:
        pairs = _between(w, target, source)
    if shift := int_attr(op.attrs, "shift"):
        pairs = f"{w.module.helper('shifted')}({pairs}, {axes_size(source.axes)}, {shift})"
    dtype = op.result.dtype
    given = _carried(w, w.vary(op.operands[0], over), dtype)
    return _arrived(w, f"lax.ppermute({given}, {quoted(over)}, {pairs})", dtype)


@emits("box_permute")
def _box_permute(w: FunctionWriter, op: Op) -> str:
    (sent,) = _rounds(w, op)
    return sent


@emits("box_permutes")
def _box_permutes(w: FunctionWriter, op: Op) -> str:
    refs, dtype = axes_attr(op.attrs), op.operands[0].dtype
    axis_names = w.axis_names(refs)
    if not axis_names or not w.module.spmd_axes.in_place(refs):
        return tuple_text(_rounds(w, op))
    over = _in_mesh_order(w, axis_names)
    given = tuple_text([_carried(w, w.vary(x, axis_names), dtype) for x in op.operands])
    pairs = tuple_text([_round_pairs(w, op, k, axis_names) for k in range(len(op.operands))])
    sent = f"{w.module.helper('sent_together')}({given}, {quoted(over)}, {pairs}, {axes_size(refs)})"
    return sent if _arrived(w, "x", dtype) == "x" else f"[{_arrived(w, 'x', dtype)} for x in {sent}]"


def _rounds(w: FunctionWriter, op: Op) -> list[str]:
    """The text of each round by itself. A device that is the only one receives nothing, and gets zeros."""
    axis_names = w.axis_names(axes_attr(op.attrs))
    if not axis_names:
        everything = frozenset[str]().union(*map(w.varying, op.operands))
        given = [w.vary(x, everything) for x in op.operands]
        return [f"jnp.where(False, {x}, jnp.zeros_like({x}))" for x in given]
    over = quoted(_in_mesh_order(w, axis_names))
    sent: list[str] = []
    for k, x in enumerate(op.operands):
        permute = functools.partial(_permuted, over, _round_pairs(w, op, k, axis_names))
        sent.append(_along(w, op, permute, operand=x))
    return sent


def _permuted(over: str, pairs: str, x: str, _: str) -> str:
    return f"lax.ppermute({x}, {over}, {pairs})"


def _in_mesh_order(w: FunctionWriter, axis_names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in w.module.spmd_axes.default.names if name in axis_names)


def _round_pairs(w: FunctionWriter, op: Op, k: int, axis_names: tuple[str, ...]) -> str:
    """The text of the senders and receivers of operand `k`."""
    boxes, round = op.attrs["boxes"], op.attrs["round"]
    if op.name == "box_permutes":
        assert isinstance(boxes, tuple)
        assert isinstance(round, tuple)
        boxes, round = boxes[k], round[k]
    assert isinstance(boxes, tuple)
    devices, over = axes_size(axes_attr(op.attrs)), _in_mesh_order(w, axis_names)
    pairs = f"{w.module.helper('box_pairs')}({tuple_text(map(str, boxes))}, {round}, {devices})"
    if over == axis_names:
        return pairs
    orders = f"{tuple_text(_literals(over))}, {tuple_text(_literals(axis_names))}"
    return f"{w.module.helper('in_mesh_order')}(MESH_AXES, {orders}, {pairs})"


def _literals(names: tuple[str, ...]) -> list[str]:
    return [f'"{name}"' for name in names]


def _order(w: FunctionWriter, order: DeviceOrder, other: DeviceOrder) -> str:
    """The axes of the order, followed by those of the same mesh that only the other order names."""
    axes = w.module.spmd_axes.of(order.mesh)
    named = axes.axis_names(order.axes)
    also = axes.axis_names(other.axes) if other.mesh == order.mesh else ()
    return tuple_text(_literals((*named, *(a for a in also if a not in named))))


def _between(w: FunctionWriter, target: DeviceOrder, source: DeviceOrder) -> str:
    def devices(order: DeviceOrder, other: DeviceOrder) -> str:
        sizes, ids = w.module.mesh_constants(order.mesh)
        return f"{w.module.helper('device_order')}({sizes}, {ids}, {_order(w, order, other)})"

    pairs = f"{devices(target, source)}, {devices(source, target)}"
    return f"{w.module.helper('permutation_of_devices')}({pairs}, DEVICE_IDS)"
