"""Emitters of manual regions, as `shard_map` over the mesh of the context. Only programs that JAX differentiates have
them: in SPMD programs they have become plain code.

`shard_map` requires dims that divide evenly: operands are padded with zeros, and results are cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.manual import free_part, manual_part, region_axes
from ir.mesh import axes_size
from ir.ops.collective import axes_attr
from ir.ops.reduction import neutral_of
from ir.program import Op, Region, Value
from ir.sharding import Sharding
from lowering.jax.names import quoted, tuple_text
from lowering.jax.ops.creation import scalar_text
from lowering.jax.writer import EMITTERS, FunctionWriter, emits


@emits("manual")
def _manual(w: FunctionWriter, op: Op) -> str:
    manual, region = region_axes(op), op.regions[0]
    outer = [manual_part(_placed(v), manual) for v in op.results]
    function = w.fresh(f"{op.results[0].name}_on_shards")
    with w.block(f"def {function}({', '.join([w.define(p) for p in region.params])}):"):
        for param in region.params:
            _take(w, param, manual_part(_placed(param), manual))
            w.annotate(param, free_part(_placed(param), manual))
        w.ops(Region((), region.ops, region.results))
        w.line(f"return {w.returned([_given(w, op, v, s) for v, s in zip(region.results, outer, strict=True)])}")
    axis_names = w.axis_names(axes_attr(op.attrs))
    arguments = [_filled(w, v, p, manual) for v, p in zip(op.operands, region.params, strict=True)]
    call = f"{function}({', '.join(arguments)})"
    if axis_names:
        taken = tuple_text(_spec(w, manual_part(_placed(p), manual)) for p in region.params)
        given = w.returned([_spec(w, s) for s in outer])
        names = "{" + ", ".join(f'"{name}"' for name in axis_names) + "}"
        mapped = f"jax.shard_map({function}, in_specs={taken}, out_specs={given}, axis_names={names})"
        call = f"{mapped}({', '.join(arguments)})"
    whole = [_whole_shape(v, s) for v, s in zip(op.results, outer, strict=True)]
    if all(shape == v.shape for shape, v in zip(whole, op.results, strict=True)):
        return call
    padded = [w.fresh(v.name) for v in op.results]
    w.line(f"{', '.join(padded)} = {call}")
    return w.returned([_cut_to(name, s, v.shape) for name, s, v in zip(padded, whole, op.results, strict=True)])


def _placed(value: Value) -> Sharding:
    assert value.sharding is not None
    return value.sharding


def _spec(w: FunctionWriter, sharding: Sharding) -> str:
    names = [w.axis_names(axes) for axes in sharding.axes]
    return f"P({', '.join(quoted(dim) if dim else 'None' for dim in names)})"


def _whole_shape(value: Value, sharding: Sharding) -> tuple[int, ...]:
    """The shape that the shards make up, padding included."""
    parts = map(axes_size, sharding.axes)
    return tuple(-(-n // p) * p for n, p in zip(value.shape, parts, strict=True))


def _filled(w: FunctionWriter, value: Value, param: Value, manual: frozenset[str]) -> str:
    shape = _whole_shape(value, manual_part(_placed(param), manual))
    if shape == value.shape:
        return w[value]
    edges = tuple_text(f"(0, {n - m}, 0)" for n, m in zip(shape, value.shape, strict=True))
    return f"lax.pad({w[value]}, {scalar_text(0, value.dtype)}, {edges})"


def _cut_to(name: str, whole: Sequence[int], shape: Sequence[int]) -> str:
    if tuple(whole) == tuple(shape):
        return name
    return f"lax.slice({name}, {tuple_text([0] * len(shape))}, {tuple_text(shape)})"


def _take(w: FunctionWriter, param: Value, sharding: Sharding) -> None:
    """A parameter that is a part of a reduction: the first device has all of it, the others have the identity."""
    if not sharding.partial:
        return
    axis_names = w.axis_names(tuple(axis for axis, _ in sharding.partial))
    if axis_names:
        nothing = scalar_text(neutral_of(sharding.partial[0][1], param.dtype), param.dtype)
        name = w[param]
        w.line(f"{name} = jnp.where(lax.axis_index({quoted(axis_names)}) == 0, {name}, {nothing})")


def _given(w: FunctionWriter, op: Op, value: Value, sharding: Sharding) -> str:
    """A result as JAX requires it: pending reductions are done, and a result that JAX cannot prove equal on all devices
    is taken from the first one."""
    axes = tuple(axis for axis, _ in sharding.partial)
    if axes:
        attrs = {"axes": axes, "kind": sharding.partial[0][1]}
        return EMITTERS["all_reduce"](w, Op("all_reduce", (value,), (value,), attrs, (), op.span))
    used = {*w.axis_names(tuple(sharding.used_axes()))}
    same = [a for a in w.axis_names(axes_attr(op.attrs)) if a in w.varying(value) and a not in used]
    if not same:
        return w[value]
    zeros = scalar_text(0, value.dtype)
    return f"lax.psum(jnp.where(lax.axis_index({quoted(same)}) == 0, {w[value]}, {zeros}), {quoted(same)})"
