"""Emitters of ops that read and write at computed indices.

HLO clamps a negative start to 0, where jax.lax counts from the end. jax.lax requires index vectors along the last dim.

XLA merges a slice of a slice into one by adding their starts, without clamping each to its own tensor (seen with jaxlib
0.10.2 on CPU); so the starts of both, unless they are known, are clamped beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.ops.addressing import GATHER, SCATTER, Spelling
from ir.ops.creation import constant_value
from ir.ops.indexing import gather_fill
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Attr, Op, Value
from ir.types import DType, TensorType, s32
from lowering.jax.names import tuple_text
from lowering.jax.ops.creation import number_text, scalar_text
from lowering.jax.ops.elementwise import converted
from lowering.jax.ops.reduction import accumulator
from lowering.jax.writer import FunctionWriter, dtype_text, emits
from lowering.jax.xla_faults import MOVED_AS_BITS

_SCATTERS = {
    "replace": "scatter",
    "sum": "scatter_add",
    "prod": "scatter_mul",
    "max": "scatter_max",
    "min": "scatter_min",
}


@emits("dynamic_slice")
def _dynamic_slice(w: FunctionWriter, op: Op) -> str:
    operand, *starts = op.operands
    sizes = ints_attr(op.attrs, "sizes")
    is_clamped = op.result in w.module.guards.clamped and _are_alike(starts)
    places = (_clamped if is_clamped else _starts)(w, starts, sizes, operand.shape)
    dtype = operand.dtype
    held = dtype if _begins_at_bytes(operand.type, sizes) else w.module.held(dtype)
    whole = converted(w[operand], dtype, held)
    text = f"lax.dynamic_slice({whole}, {places}, {tuple_text(sizes)}, allow_negative_indices=False)"
    return converted(text, held, dtype)


def _begins_at_bytes(whole: TensorType, sizes: Sequence[int]) -> bool:
    """Whether a slice begins at a whole byte wherever it begins. XLA's GPU backend refuses others in loops (jaxlib
    0.11.2)."""
    cut = max((d for d, size in enumerate(sizes) if size < whole.shape[d]), default=-1)
    return math.prod(whole.shape[cut + 1 :]) * whole.dtype.bits % 8 == 0


def _clamped(w: FunctionWriter, starts: Sequence[Value], sizes: Sequence[int], shape: Sequence[int]) -> str:
    """The starts, clamped so that the slice is within bounds."""
    return tuple_text(_clamped_start(w, v, n - size) for v, size, n in zip(starts, sizes, shape, strict=True))


def _clamped_start(w: FunctionWriter, start: Value, most: int) -> str:
    known = _known_start(w, start, most)
    low, high = (scalar_text(n, start.dtype) for n in (0, min(most, int(start.dtype.highest))))
    return f"lax.clamp({low}, {w[start]}, {high})" if known is None else known


def _known_start(w: FunctionWriter, start: Value, most: int) -> str | None:
    """A constant start, clamped: JAX rejects starts out of range, where HLO clamps them."""
    value = constant_value(w.maker(start))
    if not isinstance(value, int):
        return None
    within = min(max(value, 0), most)
    return w[start] if within == value else scalar_text(within, start.dtype)


@emits("dynamic_update_slice")
def _dynamic_update_slice(w: FunctionWriter, op: Op) -> str:
    operand, update, *starts = op.operands
    is_clamped = (w.module.runs_on_gpu or op.result in w.module.guards.clamped) and _are_alike(starts)
    places = (_clamped if is_clamped else _starts)(w, starts, update.shape, operand.shape)
    into, written, dtype = w[operand], w[update], op.result.dtype
    by_itself = op.result in w.module.guards.twice and w.module.runs_on_cpu
    into = w.vary(operand, w.varying(op.result)) if by_itself else into
    as_bits = dtype in MOVED_AS_BITS and w.module.program.stage == "spmd"
    if as_bits:
        into, written = (f"lax.bitcast_convert_type({x}, jnp.uint{dtype.bits})" for x in (into, written))
    held = w.module.held(dtype)
    into, written = converted(into, dtype, held), converted(written, dtype, held)
    if by_itself:
        text = f"{w.module.helper('update_by_itself')}({into}, {written}, {places})"
    else:
        text = f"lax.dynamic_update_slice({into}, {written}, {places}, allow_negative_indices=False)"
    return f"lax.bitcast_convert_type({text}, {dtype_text(dtype)})" if as_bits else converted(text, held, dtype)


def _are_alike(starts: Sequence[Value]) -> bool:
    """Whether the starts have a common type, of whole bytes."""
    return len({start.dtype for start in starts}) < 2 and all(start.dtype.bits >= 8 for start in starts)


def _starts(w: FunctionWriter, starts: Sequence[Value], sizes: Sequence[int], shape: Sequence[int]) -> str:
    """The starts in the common type that jax.lax requires. Starts of several types, or of types with fewer bits than a
    byte, are clamped here and become s32."""
    if _are_alike(starts):
        most = [n - size for n, size in zip(shape, sizes, strict=True)]
        return tuple_text(_start(w, v, m) for v, m in zip(starts, most, strict=True))
    places: list[str] = []
    for start, size, n in zip(starts, sizes, shape, strict=True):
        low, high = (scalar_text(k, start.dtype) for k in (0, min(n - size, int(start.dtype.highest))))
        places.append(converted(f"lax.clamp({low}, {w[start]}, {high})", start.dtype, s32))
    return tuple_text(places)


def _start(w: FunctionWriter, start: Value, most: int) -> str:
    """A start as it is, unless JAX may find that it is out of range: a function's parameter may be a constant."""
    if w.maker(start) is not None or w.version.function.name == w.module.program.entry:
        return _known_start(w, start, most) or w[start]
    return _clamped_start(w, start, most)


def _index_vectors(w: FunctionWriter, indices: Value, vector: int) -> str:
    """The indices with index vectors along the last dim, in a type that can represent the end of a dim of any size."""
    text, rank = w[indices], indices.type.rank
    if vector == rank:
        text = f"lax.expand_dims({text}, ({rank},))"
    elif vector != rank - 1:
        order = [*(d for d in range(rank) if d != vector), vector]
        text = f"lax.transpose({text}, {tuple_text(order)})"
    return converted(text, indices.dtype, s32) if indices.dtype.bits < 32 else text


def _numbers(attrs: Mapping[str, Attr], spelling: Spelling, names: tuple[str, str, str, str, str]) -> str:
    """The arguments of jax's dimension numbers. `names` has those for window, dropped, addressed and batching dims."""
    vector = int_attr(attrs, "index_vector_dim")
    walked = tuple(d - (d > vector) for d in ints_attr(attrs, spelling.indices_batching))
    values = (
        ints_attr(attrs, spelling.window),
        ints_attr(attrs, spelling.dropped),
        ints_attr(attrs, spelling.addressed),
        ints_attr(attrs, spelling.batching),
        walked,
    )
    shown = [(n, v) for i, (n, v) in enumerate(zip(names, values, strict=True)) if i < 3 or v]
    return ", ".join(f"{name}={tuple_text(value)}" for name, value in shown)


@emits("gather")
def _gather(w: FunctionWriter, op: Op) -> str:
    operand, indices = op.operands
    names = (GATHER.window, GATHER.dropped, GATHER.addressed, GATHER.batching, "start_indices_batching_dims")
    numbers = f"lax.GatherDimensionNumbers({_numbers(op.attrs, GATHER, names)})"
    vectors = _index_vectors(w, indices, int_attr(op.attrs, "index_vector_dim"))
    sizes, fill = tuple_text(ints_attr(op.attrs, "slice_sizes")), gather_fill(op)
    if fill is None:
        if op.result in w.module.guards.clamped:
            vectors = f"jnp.clip({vectors}, 0, {_most(op)})"
        return f'lax.gather({w[operand]}, {vectors}, {numbers}, {sizes}, mode="clip")'
    vectors = _in_32_bits(vectors, indices.dtype)
    value = number_text(fill, op.result.dtype)
    return f'lax.gather({w[operand]}, {vectors}, {numbers}, {sizes}, mode="fill", fill_value={value})'


def _most(op: Op) -> str:
    """The largest indices, for each component, at which a box of the gather is within bounds."""
    sizes, operand = ints_attr(op.attrs, "slice_sizes"), op.operands[0]
    most = [operand.shape[d] - sizes[d] for d in ints_attr(op.attrs, GATHER.addressed)]
    dtype = op.operands[1].dtype if op.operands[1].dtype.bits >= 32 else s32
    return f"np.array({most}, {dtype_text(dtype).replace('jnp', 'np')})"


def _in_32_bits(vectors: str, dtype: DType) -> str:
    """Index vectors that stay out of range when jax.lax takes the lower half of them, as it does to fill."""
    if dtype.bits < 64:
        return vectors
    low, high = (scalar_text(n, dtype) for n in (-1 if dtype.kind == "signed" else 0, 2**31 - 1))
    return f"lax.clamp({low}, {vectors}, {high})"


@emits("scatter")
def _scatter(w: FunctionWriter, op: Op) -> str:
    operand, indices, updates = op.operands
    kind = str(op.attrs["kind"])
    names = (SCATTER.window, SCATTER.dropped, SCATTER.addressed, "operand_batching_dims", SCATTER.indices_batching)
    attrs, vectors = op.attrs, _index_vectors(w, indices, int_attr(op.attrs, "index_vector_dim"))
    if not ints_attr(attrs, SCATTER.addressed):
        attrs, vectors = _at_the_first(op)
    numbers = f"lax.ScatterDimensionNumbers({_numbers(attrs, SCATTER, names)})"
    dtype = operand.dtype
    exact = w.module.held(accumulator(kind, dtype) if dtype.is_float else dtype)
    twice = op.result in w.module.guards.twice and w.module.runs_on_cpu
    x = converted(w.vary(operand, w.varying(op.result)) if twice else w.apart(operand, op), dtype, exact)
    y = converted(w[updates], dtype, exact)
    if kind == "prod" and w.module.is_differentiated and dtype.is_float and not op.attrs["unique_indices"]:
        return converted(f"{w.module.helper('scatter_product')}({x}, {vectors}, {y}, {numbers})", exact, dtype)
    unique = ", unique_indices=True" if op.attrs["unique_indices"] else ""
    options = f'{numbers}, mode="drop"{unique}'
    if twice:
        text = f"{w.module.helper('scatter_to_itself')}(lax.{_SCATTERS[kind]}, {x}, {vectors}, {y}, {options})"
    else:
        text = f"lax.{_SCATTERS[kind]}({x}, {vectors}, {y}, {options})"
    return converted(text, exact, dtype)


def _at_the_first(op: Op) -> tuple[Mapping[str, Attr], str]:
    """The attributes and indices of boxes that begin at the first element, for index vectors without components.

    With the original attributes, XLA (CPU, jax 0.10.2) uses only the last of the updates.
    """
    batching = ints_attr(op.attrs, SCATTER.batching)
    vector, shape = int_attr(op.attrs, "index_vector_dim"), op.operands[1].shape
    addressed = tuple(d for d in range(op.operands[0].type.rank) if d not in batching)[:1]
    zeros = (*(n for d, n in enumerate(shape) if d != vector), len(addressed))
    return {**op.attrs, SCATTER.addressed: addressed}, f"jnp.zeros({tuple_text(zeros)}, jnp.int32)"
