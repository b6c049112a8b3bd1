"""reduce_window and select_and_scatter. Sums and products of 16-bit floats are taken in f32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.diagnostics import InternalError
from ir.ops.reduction import neutral_of, reduction_kind
from ir.ops.window import Window, padding_value, window_of
from ir.program import Op
from ir.sharding import ReductionKind
from ir.types import DType
from lowering.jax.names import tuple_text
from lowering.jax.ops.creation import number_text, scalar_text
from lowering.jax.ops.elementwise import converted
from lowering.jax.ops.reduction import accumulator
from lowering.jax.writer import FunctionWriter, dtype_text, emits

_REDUCERS = {
    "sum": "lax.add", "prod": "lax.mul", "max": "lax.max", "min": "lax.min",
    "and": "lax.bitwise_and", "or": "lax.bitwise_or",
}  # fmt: skip


@emits("reduce_window")
def _reduce_window(w: FunctionWriter, op: Op) -> str:
    kind, dtype, windows = reduction_kind(op.attrs), op.result.dtype, window_of(op)
    if kind is None:
        raise InternalError(f"reduce_window has no kind {op.attrs['kind']!r}")
    exact = w.module.held(accumulator(kind, dtype))
    operand = converted(w[op.operands[0]], dtype, exact)
    start = scalar_text(neutral_of(kind, dtype if dtype.is_integer else exact), exact)
    if _only_cut(windows):
        edges = tuple_text((d.low, d.high, d.base_dilation - 1) for d in windows)
        operand = f"lax.pad({operand}, {start}, {edges})"
        windows = tuple(replace(d, low=0, high=0, base_dilation=1) for d in windows)
    if _is_apart_in_windows(windows) and not w.module.is_for_others:
        operand, windows = _put_apart(operand, start, windows)
    if w.module.is_differentiated and exact.is_float:
        return converted(_differentiable(w, kind, operand, windows, exact), exact, dtype)
    arguments = [operand, start, _REDUCERS[kind], *_places(windows)]
    if any(d.base_dilation != 1 or d.dilation != 1 for d in windows):
        arguments.append(tuple_text(d.base_dilation for d in windows))
        arguments.append(tuple_text(d.dilation for d in windows))
    return converted(f"lax.reduce_window({', '.join(arguments)})", exact, dtype)


def _differentiable(
    w: FunctionWriter, kind: ReductionKind, operand: str, windows: Sequence[Window], dtype: DType
) -> str:
    """JAX has derivatives of sums, and of extremes whose windows are not dilated; of others, slices are combined.

    It knows its own reductions by their first value, a number of numpy's.
    """
    start = f"np.array({number_text(neutral_of(kind, dtype), dtype)}, {dtype_text(dtype)})"
    reducer = _REDUCERS[kind]
    if kind != "sum" and any(d.base_dilation != 1 for d in windows):
        operand, windows = _put_apart(operand, start, windows)
    dilations = [tuple_text(d.base_dilation for d in windows), tuple_text(d.dilation for d in windows)]
    if kind == "prod" or (kind != "sum" and any(d.dilation != 1 for d in windows)):
        arguments = ", ".join([operand, start, reducer, *_places(windows), dilations[1]])
        return f"{w.module.helper('reduce_slices')}({arguments})"
    return f"lax.reduce_window({', '.join([operand, start, reducer, *_places(windows), *dilations])})"


def _put_apart(operand: str, fill: str, windows: Sequence[Window]) -> tuple[str, tuple[Window, ...]]:
    """The operand with `fill` between the elements that its windows put apart, and windows over that."""
    padded = f"lax.pad({operand}, {fill}, {tuple_text((0, 0, d.base_dilation - 1) for d in windows)})"
    return padded, tuple(replace(d, base_dilation=1) for d in windows)


def _is_apart_in_windows(windows: Sequence[Window]) -> bool:
    """Whether some windows have several elements that are put apart before. XLA's CPU backend asks in each place of a
    window whether there is one, and takes longer than if zeros are between them."""
    return any(1 < d.base_dilation < d.size for d in windows)


def _only_cut(windows: Sequence[Window]) -> bool:
    """Whether windows of one element leave out some: there XLA takes them for none, and aborts (jaxlib 0.10.2)."""
    return all(d.size == 1 for d in windows) and any(d.low < 0 or d.high < 0 for d in windows)


def _places(windows: Sequence[Window]) -> list[str]:
    """Sizes, strides and padding."""
    return [
        tuple_text(d.size for d in windows),
        tuple_text(d.stride for d in windows),
        tuple_text((d.low, d.high) for d in windows),
    ]


@emits("select_and_scatter")
def _select_and_scatter(w: FunctionWriter, op: Op) -> str:
    """JAX's own op where there is no padding, or one that may be selected, which XLA's CPU backend wants to have been
    put there before. On scalars XLA fails: theirs is the source."""
    given, windows, select = op.result.dtype, window_of(op), str(op.attrs["select"]).lower()
    dtype = w.module.held(given)
    exact = accumulator("sum", dtype)
    axes = w.varying(op.result)
    if not windows:
        return w.vary(op.operands[1], axes)
    operand, source = (converted(w.vary(v, axes), given, dtype) for v in op.operands)
    fill, back = padding_value(op), ""
    if any(d.low or d.high for d in windows) and (
        fill is not None or not any(d.low > 0 or d.high > 0 for d in windows)
    ):
        held = scalar_text(0 if fill is None else fill, dtype)
        operand = f"lax.pad({operand}, {held}, {tuple_text((d.low, d.high, 0) for d in windows)})"
        back = tuple_text((-d.low, -d.high, 0) for d in windows)
        windows = tuple(replace(d, low=0, high=0) for d in windows)
    operand, source = (converted(x, dtype, exact) for x in (operand, source))
    sizes, strides, padding = _places(windows)
    has_derivative = select in ("ge", "le") or not w.module.is_differentiated
    if any(d.low or d.high for d in windows) or not has_derivative:
        helper = w.module.helper("select_and_scatter")
        text = f"{helper}({operand}, {source}, {sizes}, {strides}, {padding}, lax.{select})"
    else:
        text = (
            f"lax.select_and_scatter_add_p.bind({source}, {operand}, select_prim=lax.{select}_p, "
            f"window_dimensions={sizes}, window_strides={strides}, padding={padding})"
        )
    text = converted(text, exact, dtype)
    return converted(f"lax.pad({text}, {scalar_text(0, dtype)}, {back})" if back else text, dtype, given)
