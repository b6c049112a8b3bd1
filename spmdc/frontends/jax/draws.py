"""Random bits that remain a single op when a program goes through JAX: to its gradient, and into `spmdc.jit`.

JAX lowers `jax.random.bits` to the ops that compute it, with a separate loop for each element. This primitive draws the
same bits, and the importer reads the op back from a custom call.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.ir import IntegerType, RankedTensorType

from spmdc.frontends.jax.annotations import is_importing
from spmdc.frontends.stablehlo.annotation_text import DRAW_TARGET


def drawn_bits(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The bits that `jax.random.bits` draws with a key, u32[2]."""
    return _draw_p.bind(key, shape=shape, dtype=jax.numpy.dtype(dtype))


def _drawn(key: Any, *, shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), shape, dtype)


_draw_p: Any = Primitive(DRAW_TARGET)
_draw_p.def_impl(jax.jit(_drawn, static_argnames=("shape", "dtype")))
_draw_p.def_abstract_eval(lambda _, *, shape, dtype: jax.core.ShapedArray(shape, dtype))


def _batched(operands: tuple[Any], dims: tuple[int], **draw: Any) -> tuple[Any, int]:
    return jax.vmap(lambda key: _drawn(key, **draw), in_axes=dims[0])(operands[0]), 0


batching.primitive_batchers[_draw_p] = _batched
_inline = mlir.lower_fun(_drawn, multiple_results=False)


def _lowered(context: Any, key: Any, *, shape: tuple[int, ...], dtype: Any) -> Any:
    if not is_importing():
        return _inline(context, key, shape=shape, dtype=dtype)
    type = RankedTensorType.get(shape, IntegerType.get_unsigned(8 * dtype.itemsize))
    return stablehlo.CustomCallOp([type], [key], DRAW_TARGET).results


mlir.register_lowering(_draw_p, _lowered)
