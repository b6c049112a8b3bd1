"""Ops that create a tensor from nothing or from a key: constant, undefined, iota, random_bits, rng_bit_generator."""

from __future__ import annotations

import functools
import math
import sys

from ir.literals import Flat, flattened, written
from ir.ops.declaration import (
    OPS,
    AttrDef,
    Attrs,
    Factor,
    FactorKind,
    FactorRule,
    InKernels,
    TypeRuleError,
    Types,
    declare,
)
from ir.ops.rule_helpers import check_dim, int_attr, ints_attr, pointwise
from ir.program import Attr, Op
from ir.types import DType, TensorType, pred, u32, u64


def _type_attr(attrs: Attrs) -> TensorType:
    t = attrs["type"]
    assert isinstance(t, TensorType)
    return t


def _infer_constant(types: Types, attrs: Attrs) -> Types:
    result = _type_attr(attrs)
    literal = flattened(attrs["value"])
    if literal.shape is None:
        raise TypeRuleError("the rows of the literal have different lengths")
    if literal.shape and literal.shape != result.shape:
        raise TypeRuleError(f"the literal has shape {list(literal.shape)}, its type is {result}")
    check_numbers(literal, result.dtype)
    return (result,)


def check_numbers(literal: Flat, dtype: DType) -> None:
    """Raises TypeRuleError for a number that the element type cannot represent."""
    if not are_all_numbers_of(literal, dtype):
        for number in literal.numbers:
            _check_number(number, dtype)


def _check_number(value: Attr, dtype: DType) -> None:
    if not isinstance(value, int | float | complex):
        raise TypeRuleError(f"{value!r} is no number")
    if isinstance(value, complex) and not dtype.is_complex:
        raise TypeRuleError(f"{dtype} has no complex numbers", "give the constant the type c64 or c128")
    if dtype.is_continuous:
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise TypeRuleError(f"{dtype} has no number as large as that")
        if isinstance(value, int | float) and dtype.is_float and not dtype.format.holds(value):
            raise TypeRuleError(f"{dtype} has no {value}", numbers_of(dtype))
        return
    if isinstance(value, float) and not value.is_integer():
        raise TypeRuleError(f"{dtype} has no {value}", "write an integer, or give the constant a floating-point type")
    if dtype == pred and value not in (0, 1):
        raise TypeRuleError(f"pred has no {value}", "write true or false")
    if isinstance(value, int | float) and not dtype.lowest <= value <= dtype.highest:
        raise TypeRuleError(f"{dtype} has no {value}: it goes from {dtype.lowest} to {dtype.highest}")


def are_all_numbers_of(literal: Flat, dtype: DType) -> bool:
    """Whether all of many numbers obviously belong to the type, without examining each."""
    _, numbers, kinds = literal
    if not kinds <= ({bool, int, float, complex} if dtype.is_complex else {bool, int, float}):
        return False
    if dtype.is_complex:
        lowest, highest, fits = -sys.float_info.max, sys.float_info.max, True
    elif dtype.is_float:
        lowest, highest = -sys.float_info.max, sys.float_info.max
        fits = _holds_usual(dtype, float in kinds)
    else:
        lowest, highest = dtype.lowest, dtype.highest
        fits = float not in kinds
    integers = numbers if kinds <= {bool, int} else [n for n in numbers if type(n) is int] if int in kinds else ()
    return fits and (not integers or (lowest <= min(integers) and max(integers) <= highest))


@functools.cache
def _holds_usual(dtype: DType, has_floats: bool) -> bool:
    """Whether a float type has zero and negative numbers, and, with `has_floats`, NaN and infinities."""
    return all(map(dtype.format.holds, (0.0, -1.0, *((math.nan, math.inf) if has_floats else ()))))


def numbers_of(dtype: DType) -> str:
    """A description of the numbers that a short float type has, and of those that it lacks."""
    known = dtype.format
    lacks = [] if known.has_nan else ["NaN"]
    lacks += [] if known.has_infinity else ["infinities"]
    lacks += [] if known.has_zero else ["zero", "negative numbers"]
    return f"{dtype} goes from {known.lowest:g} to {known.highest:g}, without {' and '.join(lacks)}"


@functools.lru_cache(maxsize=2**14)
def _elements(shape: tuple[int, ...], *, is_splat: bool) -> FactorRule:
    kind = FactorKind.PARALLEL if is_splat else FactorKind.NEED_REPLICATION
    return FactorRule(tuple(Factor(n, kind) for n in shape), (), (tuple((i,) for i in range(len(shape))),))


def is_made_of_nothing(op: Op) -> bool:
    """Whether each device can compute any part of the only result, a constant or an iota, without operands."""
    return OPS[op.name].made_anywhere and not op.operands


def holds_nothing(op: Op | None) -> bool:
    """Whether the op is `undefined`, whose result may have any elements."""
    return op is not None and op.name == "undefined"


def constant_value(op: Op | None) -> Attr:
    """The number that the op returns for every element, or the nested list of numbers; None if the op is no
    constant."""
    return op.attrs["value"] if op is not None and op.name == "constant" else None


declare(
    "constant",
    "creation",
    0,
    _infer_constant,
    lambda op: _elements(op.result.shape, is_splat=not isinstance(op.attrs["value"], tuple)),
    (AttrDef("value", "value"), AttrDef("type", "type")),
    doc="A number for every element, or a nested list of the result's shape.",
    made_anywhere=True,
    meaning=lambda attrs: written(attrs["value"]),
    in_kernels=InKernels.GIVEN,
)

declare(
    "undefined",
    "creation",
    0,
    lambda types, attrs: (_type_attr(attrs),),
    lambda op: _elements(op.result.shape, is_splat=True),
    (AttrDef("type", "type"),),
    stages=("plan", "spmd"),
    doc="A tensor whose elements may be anything: padding that no real element of a result depends on.",
    made_anywhere=True,
    in_kernels=InKernels.GIVEN,
)


def _infer_iota(types: Types, attrs: Attrs) -> Types:
    result = _type_attr(attrs)
    check_dim(int_attr(attrs, "dim"), result.rank)
    if result.dtype == pred:
        raise TypeRuleError("iota counts, and pred cannot", "use s32 and compare")
    if not result.dtype.has_zero:
        raise TypeRuleError(f"iota counts from 0, which {result.dtype} does not have", "use s32 and convert")
    return (result,)


declare(
    "iota",
    "creation",
    0,
    _infer_iota,
    pointwise,
    (AttrDef("type", "type"), AttrDef("dim", "int")),
    made_anywhere=True,
    doc="Each element is its index along dim.",
    in_kernels=InKernels.ELEMENTS,
)


def _infer_random_bits(types: Types, attrs: Attrs) -> Types:
    key, starts = types[0], types[1:]
    result = _type_attr(attrs)
    if key != TensorType((2,), u32):
        raise TypeRuleError(f"the key must be u32[2], and is {key}")
    _check_draw(result, starts, attrs)
    return (result,)


def _check_draw(result: TensorType, starts: Types, attrs: Attrs) -> None:
    """Raises TypeRuleError if no box of that type can be drawn at these starts."""
    if result.dtype.kind != "unsigned" or result.dtype.bits < 8:
        raise TypeRuleError(f"random bits are unsigned integers of 8 bits or more, not {result.dtype}")
    whole = ints_attr(attrs, "whole") or result.shape
    if len(whole) != result.rank:
        raise TypeRuleError(f"whole={list(whole)} must have a size for each dim of {result}")
    if starts and (len(starts) != result.rank or any(s.rank or not s.dtype.is_integer for s in starts)):
        raise TypeRuleError(f"the starts must be {result.rank} integer scalars, one for each dim")


def _drawn_factors(op: Op) -> FactorRule:
    """Each element is drawn separately, from the whole state. If there are two results, the first is the next state."""
    shape = op.results[-1].shape
    starts: tuple[tuple[tuple[int, ...], ...], ...] = tuple(() for _ in op.operands[1:])
    factors = (Factor(2, FactorKind.NEED_REPLICATION), *(Factor(n) for n in shape))
    state, drawn = ((0,),), tuple((d + 1,) for d in range(len(shape)))
    return FactorRule(factors, (state, *starts), (state, drawn) if len(op.results) > 1 else (drawn,))


declare(
    "random_bits",
    "creation",
    None,
    _infer_random_bits,
    _drawn_factors,
    (AttrDef("type", "type"), AttrDef("whole", "ints", default=(), required=False)),
    made_anywhere=True,
    doc=(
        "Threefry-2x32 of the key (u32[2]) and each element's row-major position, as jax.random.bits draws them. "
        "With `whole` and a start index for each dim, the box at those starts of a draw of that shape."
    ),
    in_kernels=InKernels.DRAW,
)

ALGORITHMS = ("DEFAULT", "PHILOX", "THREE_FRY")


def _infer_rng_bit_generator(types: Types, attrs: Attrs) -> Types:
    state, starts = types[0], types[1:]
    result = _type_attr(attrs)
    words = (2,) if attrs["algorithm"] == "THREE_FRY" else (2, 3)
    if state.dtype != u64 or state.shape not in [(n,) for n in words]:
        also = ", of one word or, for Philox, two," if len(words) > 1 else ","
        raise TypeRuleError(f"the state must be u64[{words[-1]}], a key and a counter{also} and is {state}")
    _check_draw(result, starts, attrs)
    return (state, result)


def generator_split(shape: tuple[int, ...]) -> int | None:
    """The dim along which THREE_FRY assigns the two words of a counter to neighbours: the first even one, else the
    first of the largest. None for a scalar, which takes the first word."""
    even = next((d for d, n in enumerate(shape) if n % 2 == 0), None)
    return even if even is not None else max(range(len(shape)), key=lambda d: shape[d], default=None)


def generator_steps(attrs: Attrs) -> int:
    """By how much the whole draw advances the counter."""
    result = _type_attr(attrs)
    shape = ints_attr(attrs, "whole") or result.shape
    size = math.prod(shape)
    if attrs["algorithm"] != "THREE_FRY":
        words = 2 if result.dtype.bits == u64.bits else 4
        return -(-size // words)
    split = generator_split(shape)
    if result.dtype.bits == u64.bits or split is None or not size:
        return size
    return size // shape[split] * -(-shape[split] // 2)


declare(
    "rng_bit_generator",
    "creation",
    None,
    _infer_rng_bit_generator,
    _drawn_factors,
    (
        AttrDef("type", "type"),
        AttrDef("algorithm", "word", default="DEFAULT", required=False, choices=ALGORITHMS),
        AttrDef("whole", "ints", default=(), required=False),
    ),
    doc=(
        "The advanced state and random bits, as XLA draws them: by Philox-4x32, the DEFAULT, or Threefry-2x32. The "
        "state is a key and a counter: u64[2], or u64[3] with the upper word of Philox's, which is the key elsewhere. "
        "With `whole` and a start index for each dim, the box at those starts of a draw of that shape."
    ),
)
