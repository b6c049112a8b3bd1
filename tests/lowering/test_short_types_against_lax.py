"""The numpy kernels agree with jax.lax on CPU in floats of 8 and 4 bits and integers of 4 and 2, on all their numbers.

Each type's functions are compiled at once. XLA takes the smallest number of f8e8m0fnu for zero, as it does other
subnormal numbers: that type, which has nothing but powers of two, is tested with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from ir.builder import RegionBuilder
from ir.diagnostics import SpmdcError
from ir.mesh import Mesh
from ir.program import Attr, Program
from ir.types import DTYPES, DType, TensorType, dtype_of, f32, s32, u8
from lowering.reference import evaluate
from lowering.reference.arrays import bits_of

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.optimised

SHORT = tuple(t for t in DTYPES.values() if t.is_short)
FLOATS = tuple(t for t in SHORT if t.is_float)
INTEGERS = tuple(t for t in SHORT if t.is_integer)
SUMMED = tuple(t for t in SHORT if t.has_zero)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def run(opname: str, *arrays: Any, **attrs: Attr) -> Array:
    """The first result of one op on these operands."""
    b = RegionBuilder()
    settings: dict[str, Any] = dict(attrs)
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    results = b.multi(opname, *params, **settings)
    return evaluate(Program((Mesh((("x", 1),)),), {"main": b.function("main", results)}), *arrays)[0]


def same(ours: Array, theirs: Any, what: str = "", *, zeros: bool = True) -> None:
    """Equal bit for bit, but for the bits of NaN; unless `zeros`, zeros of both signs are equal too."""
    wanted = np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), what
    equal: Array = np.asarray(bits_of(ours) == bits_of(wanted))
    if dtype_of(ours.dtype).is_float:
        equal |= np.isnan(ours) & np.isnan(wanted)
        if not zeros:
            equal |= (ours == 0) & (wanted == 0)
    assert equal.all(), f"{what}: {ours[~equal][:5]} here and {wanted[~equal][:5]} there"


def every(dtype: DType) -> Array:
    """All numbers of the type, but for one that XLA takes for zero."""
    numbers = np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)
    return numbers if dtype.has_zero else numbers[1:]


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Each number with each; with some of them if they are many."""
    x = every(dtype)
    y = x[:: 11 if len(x) > 16 else 1]
    return np.repeat(x, len(y)), np.tile(y, len(x))


Lax = Callable[..., Any]
_UNSIGNED = {t.numpy: DTYPES[f"u{t.bits}"].numpy for t in INTEGERS}
"""XLA's CPU backend counts the copies of a sign as bits, too."""

OF_FLOATS: dict[str, Lax] = {
    "abs": lax.abs,
    "ceil": lax.ceil,
    "floor": lax.floor,
    "is_finite": lax.is_finite,
    "negate": lax.neg,
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "sign": lax.sign,
}
OF_INTEGERS: dict[str, Lax] = {
    "count_leading_zeros": lax.clz,
    "negate": lax.neg,
    "not": lax.bitwise_not,
    "popcnt": lambda x: lax.population_count(x.astype(_UNSIGNED[x.dtype])).astype(x.dtype),
}
OF_TWO: dict[str, Lax] = {
    "add": lax.add,
    "divide": lax.div,
    "maximum": lax.max,
    "minimum": lax.min,
    "multiply": lax.mul,
    "remainder": lax.rem,
    "subtract": lax.sub,
}
OF_TWO_INTEGERS: dict[str, Lax] = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "xor": lax.bitwise_xor,
}
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_elementwise(dtype: DType) -> None:
    unary = OF_FLOATS if dtype.is_float else OF_INTEGERS
    binary = OF_TWO if dtype.is_float else OF_TWO | OF_TWO_INTEGERS
    x, (a, b) = every(dtype), pairs(dtype)

    def theirs(x: Any, a: Any, b: Any) -> list[Any]:
        ones = [f(x) for f in unary.values()]
        twos = [f(a, b) for f in binary.values()]
        return ones + twos + [getattr(lax, d.lower())(a, b) for d in DIRECTIONS] + [lax.clamp(a, b, b[::-1])]

    wanted = iter(jax.jit(theirs)(x, a, b))
    for name in unary:
        same(run(name, x), next(wanted), name, zeros=dtype.bits > 4)
    for name in binary:
        rounds = not dtype.has_zero and name in ("add", "subtract", "multiply", "divide", "remainder")
        ours, theirs_ = run(name, a, b), np.asarray(next(wanted))
        seen = theirs_.astype(np.float32) >= 2.0**-126 if rounds else np.ones(a.shape, np.bool_)
        same(ours[seen], theirs_[seen], name, zeros=dtype.bits > 4)
    for direction in DIRECTIONS:
        same(run("compare", a, b, direction=direction), next(wanted), direction)
    same(run("clamp", a, b, b[::-1]), next(wanted), "clamp")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_floats_are_rounded_once(dtype: DType) -> None:
    """Within one number of XLA's, whose functions are computed in f16 or f32 as ours are, by other polynomials."""
    functions: dict[str, Lax] = {
        "exponential": lax.exp, "log": lax.log, "tanh": lax.tanh, "rsqrt": lax.rsqrt, "sqrt": lax.sqrt,
    }  # fmt: skip
    x = every(dtype)
    wanted = jax.jit(lambda x: [f(x) for f in functions.values()])(x)
    for name, want in zip(functions, map(np.asarray, wanted), strict=True):
        got = run(name, x)
        same(np.isnan(got), np.isnan(want), name)
        real = ~np.isnan(got)
        apart = np.abs(bits_of(got[real]).astype(int) - bits_of(want[real]).astype(int))
        assert ((apart <= 1) | (got[real] == want[real])).all(), name


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_convert_to_and_from_every_type(dtype: DType) -> None:
    """XLA's CPU backend takes 6.0 of f4e2m1fn for out of range of any integer; it is converted by way of f32."""
    x = every(dtype)
    targets = [t for t in DTYPES.values() if t.bits < 64]

    def converted(a: Any) -> list[Any]:
        wide = a.astype(np.float32) if dtype.is_float and dtype.bits == 4 else a
        return [lax.convert_element_type(wide if t.is_integer else a, t.numpy) for t in targets]

    wanted = jax.jit(converted)(x)
    for target, want in zip(targets, wanted, strict=True):
        if not target.is_complex:
            same(run("convert", x, dtype=target), want, str(target))
    numbers = x.astype(np.float32)
    known = np.sort(numbers[np.isfinite(numbers)])
    between = ((known[1:].astype(np.float64) + known[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(between, np.float32(end)) for end in (-np.inf, np.inf)]
    sources = [
        np.concatenate([between, *near, -known, known * 9]),
        np.arange(2**16, dtype=np.uint16).view(DTYPES["bf16"].numpy),
        np.arange(2**16, dtype=np.uint16).view(np.float16),
        np.arange(-300, 300, dtype=np.int32), np.arange(256, dtype=np.uint8), np.array([False, True]),
    ]  # fmt: skip
    wanted = jax.jit(lambda *a: [lax.convert_element_type(v, dtype.numpy) for v in a])(*sources)
    for source, want in zip(sources, wanted, strict=True):
        same(run("convert", source, dtype=dtype), want, str(source.dtype), zeros=dtype.bits > 4 or not dtype.is_float)


def _small(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Numbers whose sums of a few are exact."""
    rng = np.random.default_rng(seed)
    low, high = (1, 2) if not dtype.has_zero else (-1, 1) if dtype.lowest < 0 else (0, 1)
    return rng.integers(low, high + 1, shape).astype(dtype.computed.numpy).astype(dtype.numpy)


def _exact(x: Array) -> Array:
    wide = dtype_of(x.dtype).computed
    return x.astype(np.float64 if wide.is_float else np.int64)


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
def test_products_are_summed_in_the_wide_type(dtype: DType) -> None:
    lhs, rhs = _small(dtype, (3, 5)), _small(dtype, (5, 4), 1)
    dims: dict[str, Attr] = {"lhs_contract": (1,), "rhs_contract": (0,)}
    exact = _exact(lhs) @ _exact(rhs)
    wide = f32 if dtype.is_float else s32
    same(run("dot_general", lhs, rhs, **dims, dtype=wide), exact.astype(wide.numpy))
    same(run("dot_general", lhs, rhs, **dims), run("convert", exact.astype(wide.numpy), dtype=dtype), zeros=False)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_reductions_and_scans(dtype: DType) -> None:
    """Of nothing they are the identity, which is a finite number where there is no infinity."""
    x = _small(dtype, (3, 7))
    kinds = ["max", "min"] + (["sum", "prod"] if dtype.has_zero else []) + (["and", "or"] if dtype.is_integer else [])
    reducers: dict[str, Any] = {
        "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
        "or": np.bitwise_or,
    }  # fmt: skip
    for kind in kinds:
        exact = reducers[kind].reduce(_exact(x), 1)
        wanted = exact.astype(dtype.computed.numpy).astype(dtype.numpy)
        same(run("reduce", x, dims=(1,), kind=kind), wanted, kind, zeros=False)
    ends = {"max": dtype.lowest, "min": dtype.highest}
    for kind, end in ends.items():
        assert float(run("reduce", x[:, :0], dims=(1,), kind=kind)[0]) == end
        name = f"cum{kind}"
        wanted = reducers[kind].accumulate(_exact(x), 1).astype(dtype.numpy)
        same(run(name, x, dim=1), wanted, name, zeros=False)
        index = np.broadcast_to(np.arange(7, dtype=np.int32), x.shape)
        b = RegionBuilder()
        operands = [b.param("x", TensorType(x.shape, dtype)), b.param("i", TensorType(x.shape, s32))]
        b_results = b.multi("reduce", *operands, dims=(1,), kind=f"arg{kind}")
        program = Program((Mesh((("x", 1),)),), {"main": b.function("main", b_results)})
        expected = np.argmax(_exact(x), 1) if kind == "max" else np.argmin(_exact(x), 1)
        same(evaluate(program, x, index)[1], expected.astype(np.int32), name)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_sort_iota_and_movement(dtype: DType) -> None:
    """NaN is sorted behind every number."""
    x = np.random.default_rng(0).permutation(every(dtype))
    wide = x.astype(dtype.computed.numpy)
    same(run("sort", x, dim=0), np.sort(wide, kind="stable").astype(dtype.numpy), zeros=False)
    best = run("top_k", x, k=3)
    same(best, np.flip(np.sort(wide))[:3].astype(dtype.numpy))
    same(run("concatenate", x, x, dim=0), np.concatenate([x, x]))
    same(run("pad", x, x[1], low=(2,), high=(-1,)), np.concatenate([x[[1, 1]], x[:-1]]))
    if dtype.has_zero:
        same(run("iota", type=TensorType((5,), dtype), dim=0), jax.jit(lambda: lax.iota(dtype.numpy, 5))())


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_bits_are_those_of_jax_at_every_width(dtype: DType) -> None:
    x = np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)
    if dtype.bits == 8:
        same(run("bitcast_convert", x, dtype=u8), jax.jit(lambda a: lax.bitcast_convert_type(a, np.uint8))(x))
        same(run("bitcast_convert", run("bitcast_convert", x, dtype=u8), dtype=dtype), x)
        return
    count = 8 // dtype.bits
    wide = np.arange(256, dtype=np.uint8)
    parts = run("bitcast_convert", wide, dtype=dtype)
    assert parts.shape == (256, count)
    bits = bits_of(parts).astype(int)
    np.testing.assert_array_equal(sum(bits[:, k] << (dtype.bits * k) for k in range(count)), wide)
    same(run("bitcast_convert", parts, dtype=u8), wide)
    if dtype.bits == 4:
        same(parts, jax.jit(lambda a: lax.bitcast_convert_type(a, dtype.numpy))(wide))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reduce_precision(dtype: DType) -> None:
    x = every(dtype)
    for exponent, mantissa in ((5, 1), (3, 2), (8, 7)):
        wanted = jax.jit(lambda a, e=exponent, m=mantissa: lax.reduce_precision(a, e, m))(x)
        same(run("reduce_precision", x, exponent_bits=exponent, mantissa_bits=mantissa), wanted, zeros=dtype.bits > 4)


def test_a_float_of_powers_of_two_alone_has_no_sum_and_no_zero() -> None:
    scales = np.ones((4, 4), DTYPES["f8e8m0fnu"].numpy)
    for op, attrs in (("reduce", {"dims": (0,), "kind": "sum"}), ("cumsum", {"dim": 0})):
        with pytest.raises(SpmdcError, match="f8e8m0fnu has no zero"):
            run(op, scales, **attrs)
    with pytest.raises(SpmdcError, match="f8e8m0fnu has no zero"):
        run("dot_general", scales, scales, lhs_contract=(1,), rhs_contract=(0,))
