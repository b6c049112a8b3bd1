"""How random programs (`spmdc.testing`) draw constants, complex numbers, the bits of numbers, and random bits."""

from __future__ import annotations

from hypothesis import strategies as st

from ir.program import Value
from ir.types import DType, TensorType, bf16, f16, f32, pred, s8, s16, s32, u8, u16, u32, u64
from spmdc.verification.random_programs.writer import Write, Writer

_INTEGERS = (u8, s8, u16, s16, u32, s32)
_FEWEST_MANTISSA_BITS = 7
"""The mantissa bits of bf16: an integer that is exact in any float type stays exact when it is rounded to this many."""


def constant(w: Writer) -> None:
    type = w.type()
    w.keep(w.constant(w.draw(st.integers(0, 3)), type), 3)


def iota(w: Writer) -> None:
    type = w.type()
    if type.rank and type.dtype != pred:
        w.keep(w.b.op("iota", type=type, dim=w.draw(st.integers(0, type.rank - 1))), max(type.shape))


def random_bits(w: Writer) -> None:
    key = w.b.op("constant", value=(w.draw(st.integers(0, 9)), 7), type=TensorType((2,), u32))
    w.keep(w.b.op("random_bits", key, type=w.type().with_dtype(u32)), 2**32)


def complex_numbers(w: Writer) -> None:
    """A complex number made of two floats, which is kept or split into its parts again."""
    x = w.pick(lambda v: v.dtype == f32)
    y = w.pick(lambda v: v.type == x.type)
    z = w.b.op("complex", x, y)
    bound = max(w.bounds[x], w.bounds[y])
    if not w.adds(x) or w.draw(st.booleans()):
        w.keep(z, bound)
        return
    z = w.b.op("multiply", z, z)
    w.keep(w.b.op(w.draw(st.sampled_from(["real", "imag"])), z), 2 * bound * bound)


def parts(w: Writer) -> None:
    """The real or imaginary part of a complex number."""
    z = w.pick(lambda v: v.dtype.is_complex)
    w.keep(w.b.op(w.draw(st.sampled_from(["real", "imag"])), z), w.bounds[z])


def equal(w: Writer) -> None:
    """Whether complex numbers are equal."""
    z = w.pick(lambda v: v.dtype.is_complex)
    other = w.pick(lambda v: v.type == z.type)
    w.keep(w.b.op("compare", z, other, direction=w.draw(st.sampled_from(["EQ", "NE"]))), 1)


def bitcast_convert(w: Writer) -> None:
    """The bits of integers, also as wider or narrower ones. If any number is allowed, also those of floats that are
    given: the bits of a computed NaN differ from machine to machine."""
    types = (*_INTEGERS, f32, f16, bf16) if w.anything else _INTEGERS

    def fits(x: Value, target: DType) -> bool:
        ratio = target.bits // x.dtype.bits
        return ratio <= 1 or (x.type.rank > 0 and x.shape[-1] == ratio)

    x = w.pick(lambda v: v.dtype in _INTEGERS or (v.dtype in types and v in w.b.params))
    target = w.draw(st.sampled_from([t for t in types if fits(x, t)]))
    w.keep(w.b.op("bitcast_convert", x, dtype=target), 2**target.bits)


def reduce_precision(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype.is_float)
    bits = w.draw(st.integers(_FEWEST_MANTISSA_BITS, 12))
    w.keep(w.b.op("reduce_precision", x, exponent_bits=8, mantissa_bits=bits), 2 * w.bounds[x])


def rng_bit_generator(w: Writer) -> None:
    state = w.b.op("constant", value=(w.draw(st.integers(0, 9)), 7), type=TensorType((2,), u64))
    algorithm = w.draw(st.sampled_from(["PHILOX", "THREE_FRY"]))
    dtype = w.draw(st.sampled_from([u8, u32]))
    _, bits = w.b.multi("rng_bit_generator", state, type=w.type().with_dtype(dtype), algorithm=algorithm)
    w.keep(bits, 2**dtype.bits)


WRITERS: tuple[Write, ...] = (
    constant, iota, random_bits, complex_numbers, parts, equal, bitcast_convert, reduce_precision, rng_bit_generator,
)  # fmt: skip
