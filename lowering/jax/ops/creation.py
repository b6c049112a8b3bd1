"""Constants, iota and random bits."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from ir.literals import flattened
from ir.ops.creation import generator_split, generator_steps
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Attr, Op, Value
from ir.types import DType
from lowering.jax.names import tuple_text
from lowering.jax.writer import FunctionWriter, dtype_text, emits

_LONGEST_LITERAL = 256
"""Arrays with more elements are written packed rather than as nested lists."""


@emits("constant")
def _constant(w: FunctionWriter, op: Op) -> str:
    value, result = op.attrs["value"], op.result
    if not isinstance(value, tuple):
        return filled(value, result)
    if result.type.size == 0:
        return f"jnp.zeros({tuple_text(result.shape)}, {dtype_text(result.dtype)})"
    if result.type.size <= _LONGEST_LITERAL:
        return f"jnp.array({_nested(value, result.dtype)}, {dtype_text(result.dtype)})"
    packed = base64.b64encode(zlib.compress(_array(value, result.dtype).tobytes(), 9)).decode("ascii")
    bytes_text = f'zlib.decompress(base64.b64decode("{packed}"))'
    return f"jnp.array(np.frombuffer({bytes_text}, {dtype_text(result.dtype)}).reshape({tuple_text(result.shape)}))"


@emits("undefined")
def _undefined(w: FunctionWriter, op: Op) -> str:
    return filled(0, op.result)


def filled(value: Attr, result: Value) -> str:
    """An array, or a scalar, filled with that value."""
    scalar = scalar_text(value, result.dtype)
    return f"lax.broadcast({scalar}, {tuple_text(result.shape)})" if result.shape else scalar


def scalar_text(value: Attr, dtype: DType) -> str:
    """A numpy scalar of exactly that element type and value: JAX would put a scalar of its own on a device during
    tracing."""
    text = dtype_text(dtype)
    is_own = getattr(np, text.removeprefix("jnp."), None) is dtype.numpy.type
    number = number_text(value, dtype)
    return f"np.{text.removeprefix('jnp.')}({number})" if is_own else f"np.array({number}, {text})"


def _element(value: Attr, dtype: DType) -> object:
    """The Python number of an element of that type; integers wrap around."""
    assert isinstance(value, (int, float, complex))
    if dtype.is_complex:
        return complex(value)
    assert not isinstance(value, complex)
    if dtype.kind == "pred":
        return bool(value)
    if dtype.kind == "float":
        return float(value)
    wrapped = int(value) % 2**dtype.bits
    return wrapped - 2**dtype.bits if dtype.kind == "signed" and wrapped >> (dtype.bits - 1) else wrapped


def number_text(value: Attr, dtype: DType) -> str:
    """The Python number of that value, as text."""
    element = _element(value, dtype)
    if isinstance(element, complex):
        return f"complex({_float(element.real)}, {_float(element.imag)})"
    return _float(element) if isinstance(element, float) else repr(element)


def _float(element: float) -> str:
    if np.isnan(element):
        return "np.nan"
    if np.isinf(element):
        return "np.inf" if element > 0 else "-np.inf"
    return repr(element)


def _nested(value: Attr, dtype: DType) -> str:
    if not isinstance(value, tuple):
        return number_text(value, dtype)
    return f"[{', '.join(_nested(v, dtype) for v in value)}]"


def _array(value: Attr, dtype: DType) -> np.ndarray[Any, Any]:
    """The elements of a nested list, in row-major order."""
    _, numbers, kinds = flattened(value)
    usual = complex if dtype.is_complex else float if dtype.is_float else None
    return np.array(numbers if kinds == {usual} else [_element(v, dtype) for v in numbers], dtype.numpy)


@emits("iota")
def _iota(w: FunctionWriter, op: Op) -> str:
    shape, dtype = op.result.shape, dtype_text(op.result.dtype)
    if len(shape) == 1:
        return f"lax.iota({dtype}, {shape[0]})"
    return f"lax.broadcasted_iota({dtype}, {tuple_text(shape)}, {int_attr(op.attrs, 'dim')})"


@emits("random_bits")
def _random_bits(w: FunctionWriter, op: Op) -> str:
    key, *starts = w.names(op.operands)
    shape, dtype = op.result.shape, dtype_text(op.result.dtype)
    whole = ints_attr(op.attrs, "whole") or shape
    if not starts and whole == shape and w.module.is_differentiated:
        return f"drawn_bits({key}, {tuple_text(shape)}, {dtype})"
    if not starts and whole == shape:
        return f'jax.random.bits(jax.random.wrap_key_data({key}, impl="threefry2x32"), {tuple_text(shape)}, {dtype})'
    starts = starts or ["np.uint32(0)"] * len(shape)
    sizes = f"{tuple_text(shape)}, {tuple_text(whole)}"
    return f"{w.module.helper('random_box')}({key}, {tuple_text(starts)}, {sizes}, {dtype})"


@emits("rng_bit_generator")
def _rng_bit_generator(w: FunctionWriter, op: Op) -> str:
    """`lax.rng_bit_generator` for a whole draw, if it accepts the state. A box of a draw, or of a draw from another
    state, is computed from each element's position in the whole draw."""
    state, *starts = w.names(op.operands)
    result, algorithm = op.results[1], str(op.attrs["algorithm"])
    shape, dtype = result.shape, dtype_text(result.dtype)
    whole = ints_attr(op.attrs, "whole") or shape
    if not starts and whole == shape and op.operands[0].shape == (2,):
        name = "THREE_FRY" if algorithm == "THREE_FRY" else "PHILOX"
        options = f"algorithm=lax.RandomAlgorithm.RNG_{name}"
        return f"lax.rng_bit_generator({state}, {tuple_text(shape)}, {dtype}, {options})"
    starts = starts or ["np.uint32(0)"] * len(shape)
    sizes = f"{tuple_text(shape)}, {tuple_text(whole)}"
    if algorithm == "THREE_FRY":
        split = generator_split(whole)
        bits = f"{w.module.helper('three_fry_box')}({state}, {tuple_text(starts)}, {sizes}, {dtype}, {split})"
    else:
        bits = f"{w.module.helper('philox_box')}({state}, {tuple_text(starts)}, {sizes}, {dtype})"
    return f"({w.module.helper('advanced')}({state}, {generator_steps(op.attrs)}), {bits})"
