"""Random numbers: keys and uniform draws, bit for bit those of jax.random (threefry, partitionable)."""

from __future__ import annotations

from ir.diagnostics import error
from ir.program import Value
from ir.types import DTYPES, TensorType, f32, u32
from spmdc.frontends.spmd.items import Item, check_type
from spmdc.frontends.spmd.library.declare import composition
from spmdc.frontends.spmd.library.emitter import Emitter, Operand

_KEY_MASK = 0xFFFFFFFF


@composition(computes=False)
def key(e: Emitter, seed: Operand) -> Value:
    """A key, u32[2], as jax.random.key_data(jax.random.key(seed)) makes it; of a number or of an integer scalar."""
    if isinstance(seed, Value):
        if seed.type.rank or not seed.dtype.is_integer:
            raise error("E201", f"a seed must be an integer scalar, and is {seed.type}", e.span)
        low = e.reshape(e.convert(seed, u32), (1,))
        return e.op("concatenate", e.constant(0, u32, (1,)), low, dim=0)
    if isinstance(seed, float):
        raise error("E207", f"a seed must be an integer, and is {seed}", e.span)
    return e.op("constant", value=(0, int(seed) & _KEY_MASK), type=TensorType((2,), u32))


@composition(computes=False)
def uniform(e: Emitter, key: Value, type: Item, low: float = 0.0, high: float = 1.0) -> Value:
    """Numbers drawn evenly from [low, high): of a type f32[…], or of a shape. As jax.random.uniform draws them."""
    drawn = _float_type(e, type)
    mantissa = drawn.dtype.format.mantissa_bits
    width = max(8, drawn.dtype.bits) if mantissa >= 8 else 8
    bits = e.op("random_bits", key, type=drawn.with_dtype(DTYPES[f"u{width}"]))
    fraction = e.convert(e.binary("shift_right_logical", bits, width - mantissa), drawn.dtype)
    unit = e.binary("multiply", fraction, 2.0**-mantissa)
    if (low, high) == (0.0, 1.0):
        return unit
    spread = e.binary("add", e.binary("multiply", unit, high - low), low)
    return e.binary("maximum", spread, low)


def _float_type(e: Emitter, item: Item) -> TensorType:
    if isinstance(item, TensorType) and item.dtype.is_float and item.dtype.bits >= 8 and item.dtype.has_zero:
        return item
    if isinstance(item, tuple) and all(isinstance(n, int) and n >= 0 for n in item):
        return check_type(TensorType(tuple(n for n in item if isinstance(n, int)), f32), e.span)
    message = "uniform draws a tensor of floats of 8 bits or more, of a type with a zero: give its type or its shape"
    raise error("E203", message, e.span, help="uniform(key, f32[4, 8])")


@composition(computes=False)
def bits(e: Emitter, key: Value, type: TensorType) -> Value:
    """Random bits of an unsigned type, as jax.random.bits draws them."""
    return e.op("random_bits", key, type=type)
