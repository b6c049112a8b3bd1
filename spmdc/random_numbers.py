"""How random programs (`spmdc.testing`) draw complex numbers, the bits of numbers, and random bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from ir.program import Value
from ir.types import DType, TensorType, f32, s8, s16, s32, u8, u16, u32, u64

if TYPE_CHECKING:
    from spmdc.testing import Writer

_INTEGERS = (u8, s8, u16, s16, u32, s32)
_FEWEST_MANTISSA_BITS = 7
"""Those of bf16: rounded to as many, an integer that is exact in any float type stays exact."""


def complex_numbers(w: Writer) -> None:
    """A complex number of two floats, which stays one or is taken apart again."""
    if not w.has(lambda v: v.dtype == f32):
        return
    x = w.pick(lambda v: v.dtype == f32)
    y = w.pick(lambda v: v.type == x.type)
    z = w.b.op("complex", x, y)
    bound = max(w.bounds[x], w.bounds[y])
    if w.draw(st.booleans()):
        w.keep(z, bound)
        return
    z = w.b.op("multiply", z, z)
    w.keep(w.b.op(w.draw(st.sampled_from(["real", "imag"])), z), 2 * bound * bound)


def parts(w: Writer) -> None:
    """The real or imaginary part of a complex number."""
    if w.has(lambda v: v.dtype.is_complex):
        z = w.pick(lambda v: v.dtype.is_complex)
        w.keep(w.b.op(w.draw(st.sampled_from(["real", "imag"])), z), w.bounds[z])


def equal(w: Writer) -> None:
    """Whether complex numbers are equal."""
    if w.has(lambda v: v.dtype.is_complex):
        z = w.pick(lambda v: v.dtype.is_complex)
        other = w.pick(lambda v: v.type == z.type)
        w.keep(w.b.op("compare", z, other, direction=w.draw(st.sampled_from(["EQ", "NE"]))), 1)


def bitcast_convert(w: Writer) -> None:
    """The bits of integers, as wider or narrower ones too."""

    def fits(x: Value, target: DType) -> bool:
        ratio = target.bits // x.dtype.bits
        return ratio <= 1 or (x.type.rank > 0 and x.shape[-1] == ratio)

    if not w.has(lambda v: v.dtype.is_integer):
        return
    x = w.pick(lambda v: v.dtype.is_integer)
    target = w.draw(st.sampled_from([t for t in _INTEGERS if fits(x, t)]))
    w.keep(w.b.op("bitcast_convert", x, dtype=target), 2**target.bits)


def reduce_precision(w: Writer) -> None:
    if not w.has(lambda v: v.dtype.is_float):
        return
    x = w.pick(lambda v: v.dtype.is_float)
    bits = w.draw(st.integers(_FEWEST_MANTISSA_BITS, 12))
    w.keep(w.b.op("reduce_precision", x, exponent_bits=8, mantissa_bits=bits), 2 * w.bounds[x])


def rng_bit_generator(w: Writer) -> None:
    state = w.b.op("constant", value=(w.draw(st.integers(0, 9)), 7), type=TensorType((2,), u64))
    algorithm = w.draw(st.sampled_from(["PHILOX", "THREE_FRY"]))
    dtype = w.draw(st.sampled_from([u8, u32]))
    _, bits = w.b.multi("rng_bit_generator", state, type=w.type().with_dtype(dtype), algorithm=algorithm)
    w.keep(bits, 2**dtype.bits)


WRITERS: tuple[Callable[[Writer], None], ...] = (
    complex_numbers,
    parts,
    equal,
    bitcast_convert,
    reduce_precision,
    rng_bit_generator,
)
