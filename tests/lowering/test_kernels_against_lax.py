"""The numpy kernels agree with jax.lax on CPU, special values included: integers, booleans, movement exactly.

Types of so few bits that all their numbers can be compared are in `test_short_types_against_lax.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import spmdc
from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.ops import OPS
from ir.ops.contraction import free_dims
from ir.program import Attr, Program
from ir.types import DTYPES, DType, TensorType, dtype_of
from lowering.reference import KERNELS, evaluate

Array = np.ndarray[Any, Any]

ALL = tuple(t for t in DTYPES.values() if not t.is_complex and not t.is_short)
FLOATS = tuple(t for t in ALL if t.is_float)
INTEGERS = tuple(t for t in ALL if t.is_integer)
NUMBERS = tuple(t for t in ALL if t.kind != "pred")


_finfo: Callable[[Any], Any] = ml_dtypes.finfo


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        yield


def run(opname: str, *arrays: Any, **attrs: Attr) -> tuple[Array, ...]:
    """One op's results on these operands."""
    b = RegionBuilder()
    settings: dict[str, Any] = dict(attrs)
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    results = b.multi(opname, *params, **settings)
    return evaluate(Program((Mesh((("x", 1),)),), {"main": b.function("main", results)}), *arrays)


def same(ours: Array, theirs: Any, *, ulps: int = 0) -> None:
    """Equal bit for bit but for NaN payloads; with `ulps`, within that many of the last place of the element type.

    XLA's CPU backend takes subnormal numbers for zero, so any two of these are equal.
    """
    wanted = np.asarray(theirs)
    assert ours.dtype == wanted.dtype
    assert ours.shape == wanted.shape
    if not dtype_of(ours.dtype).is_float:
        np.testing.assert_array_equal(ours, wanted)
        return
    got64, want64 = ours.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got64), np.isnan(want64))
    info = _finfo(ours.dtype)
    tiny = float(info.tiny)
    got64, want64 = (np.where(np.abs(a) < tiny, np.copysign(0, a), a) for a in (got64, want64))
    real = ~np.isnan(got64)
    zeros = real & (want64 == 0) & (got64 == 0)
    np.testing.assert_array_equal(np.signbit(got64[zeros]), np.signbit(want64[zeros]))
    if not ulps:
        np.testing.assert_array_equal(got64[real], want64[real])
        return
    unit = np.maximum(np.abs(want64) * float(info.eps), tiny)
    finite = real & np.isfinite(want64)
    np.testing.assert_array_equal(got64[real & ~finite], want64[real & ~finite])
    np.testing.assert_array_less(np.abs(got64[finite] - want64[finite]), (ulps + 0.5) * unit[finite])


def special(dtype: DType) -> Array:
    """The values at which implementations differ."""
    if dtype.kind == "pred":
        return np.array([False, True])
    if dtype.is_float:
        info = _finfo(dtype.numpy)
        values = [0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, -3, 7.25, -100]
        return np.array([*values, float(info.max), float(info.min), float(info.tiny)]).astype(dtype.numpy)
    low, high = int(dtype.lowest), int(dtype.highest)
    values = [low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 7, 8, 31, 64]
    negative = [-1, -2, -3, -5] if dtype.kind == "signed" else []
    return np.array([*values, *negative], dtype.numpy)


def drawn(dtype: DType, shape: tuple[int, ...], seed: int = 0, *, small: bool = False) -> Array:
    """Random elements; `small` integers do not wrap in a product of a few."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "pred":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return (rng.normal(size=shape) * 4).astype(dtype.numpy)
    low, high = (0, 5) if small else (int(dtype.lowest), int(dtype.highest))
    return rng.integers(low, high, shape, dtype=dtype.numpy, endpoint=True)


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Every pair of special values, and random ones."""
    values = special(dtype)
    x, y = (a.reshape(-1) for a in np.meshgrid(values, values))
    return np.concatenate([x, drawn(dtype, (200,), 1)]), np.concatenate([y, drawn(dtype, (200,), 2)])


def singles(dtype: DType) -> Array:
    return np.concatenate([special(dtype), drawn(dtype, (200,), 3)])


def test_every_op_has_a_kernel() -> None:
    assert sorted(OPS.keys() - KERNELS.keys()) == []
    assert sorted(KERNELS.keys() - OPS.keys()) == []


Lax = Callable[..., Any]

UNARY: dict[str, tuple[Lax, tuple[DType, ...], int]] = {
    "abs": (lax.abs, (*(t for t in NUMBERS if t.kind != "unsigned"),), 0),
    "cbrt": (lax.cbrt, FLOATS, 4),
    "ceil": (lax.ceil, FLOATS, 0),
    "cosine": (lax.cos, FLOATS, 4),
    "count_leading_zeros": (lax.clz, INTEGERS, 0),
    "erf": (lax.erf, FLOATS, 4),
    "exponential": (lax.exp, FLOATS, 4),
    "exponential_minus_one": (lax.expm1, FLOATS, 4),
    "floor": (lax.floor, FLOATS, 0),
    "is_finite": (lax.is_finite, FLOATS, 0),
    "log": (lax.log, FLOATS, 4),
    "log_plus_one": (lax.log1p, FLOATS, 4),
    "logistic": (lax.logistic, FLOATS, 4),
    "negate": (lax.neg, NUMBERS, 0),
    "not": (lax.bitwise_not, tuple(t for t in ALL if not t.is_float), 0),
    "popcnt": (lax.population_count, INTEGERS, 0),
    "round_nearest_afz": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), FLOATS, 0),
    "round_nearest_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), FLOATS, 0),
    "rsqrt": (lax.rsqrt, FLOATS, 4),
    "sign": (lax.sign, tuple(t for t in NUMBERS if t.kind != "unsigned"), 0),
    "sine": (lax.sin, FLOATS, 4),
    "sqrt": (lax.sqrt, FLOATS, 1),
    "stop_gradient": (lax.stop_gradient, ALL, 0),
    "tan": (lax.tan, FLOATS, 4),
    "tanh": (lax.tanh, FLOATS, 4),
}

BINARY: dict[str, tuple[Lax, tuple[DType, ...], int]] = {
    "add": (lax.add, NUMBERS, 0),
    "and": (lax.bitwise_and, tuple(t for t in ALL if not t.is_float), 0),
    "atan2": (lax.atan2, FLOATS, 4),
    "divide": (lax.div, NUMBERS, 0),
    "maximum": (lax.max, ALL, 0),
    "minimum": (lax.min, ALL, 0),
    "multiply": (lax.mul, NUMBERS, 0),
    "or": (lax.bitwise_or, tuple(t for t in ALL if not t.is_float), 0),
    "power": (lax.pow, FLOATS, 8),
    "remainder": (lax.rem, NUMBERS, 0),
    "shift_left": (lax.shift_left, INTEGERS, 0),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, INTEGERS, 0),
    "shift_right_logical": (lax.shift_right_logical, INTEGERS, 0),
    "subtract": (lax.sub, NUMBERS, 0),
    "xor": (lax.bitwise_xor, tuple(t for t in ALL if not t.is_float), 0),
}


_IN_TEST_COMPLEX_NUMBERS = ("complex", "real", "imag", "bitcast_convert", "reduce_precision")


def cases(table: dict[str, tuple[Lax, tuple[DType, ...], int]]) -> list[Any]:
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype}", marks=pytest.mark.optimised if ulps else ())
        for name, (_, dtypes, ulps) in table.items()
        for dtype in dtypes
    ]


def test_every_elementwise_op_is_compared() -> None:
    declared = {name for name, opdef in OPS.items() if opdef.family == "elementwise"}
    assert declared == {*UNARY, *BINARY, "compare", "select", "clamp", "convert", *_IN_TEST_COMPLEX_NUMBERS}


@pytest.mark.parametrize(("name", "dtype"), cases(UNARY))
def test_unary(name: str, dtype: DType) -> None:
    function, _, ulps = UNARY[name]
    x = singles(dtype)
    same(run(name, x)[0], function(x), ulps=ulps)


@pytest.mark.parametrize(("name", "dtype"), cases(BINARY))
def test_binary(name: str, dtype: DType) -> None:
    function, _, ulps = BINARY[name]
    x, y = pairs(dtype)
    same(run(name, x, y)[0], function(x, y), ulps=ulps)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_power_wraps_and_negative_exponents_give_zero_unless_the_base_is_a_unit(dtype: DType) -> None:
    x, y = pairs(dtype)
    bits, got = 2**dtype.bits, run("power", x, y)[0]
    for base, exponent, result in zip(x.tolist(), y.tolist(), got.tolist(), strict=True):
        if exponent >= 0:
            assert result % bits == pow(base, exponent, bits)
        else:
            assert result == {1: 1, -1: -1 if exponent % 2 else 1}.get(base, 0)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_compare(dtype: DType) -> None:
    x, y = pairs(dtype)
    directions = ("EQ", "NE", "LT", "LE", "GT", "GE")
    wanted = jax.jit(lambda a, b: [getattr(lax, d.lower())(a, b) for d in directions])(x, y)
    for direction, want in zip(directions, wanted, strict=True):
        same(run("compare", x, y, direction=direction)[0], want)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_select_by_tensor_and_by_scalar(dtype: DType) -> None:
    x, y = pairs(dtype)
    which = drawn(DTYPES["pred"], x.shape)
    same(run("select", which, x, y)[0], lax.select(which, x, y))
    same(run("select", np.array(True), x, y)[0], x)
    same(run("select", np.array(False), x, y)[0], y)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_clamp_between_tensors_and_between_scalars(dtype: DType) -> None:
    low, x = pairs(dtype)
    high = drawn(dtype, x.shape, 9)
    same(run("clamp", low, x, high)[0], lax.clamp(low, x, high))
    bounds = np.array([1, 3]).astype(dtype.numpy)
    same(run("clamp", bounds[0], x, bounds[1])[0], lax.clamp(bounds[0], x, bounds[1]))


@pytest.mark.parametrize("source", ALL, ids=str)
def test_convert(source: DType) -> None:
    x = singles(source)
    if source.is_float:
        edges = np.array([127.5, -128.5, 255.5, 3e4, -0.9, 2e9, 1e19, -1e19], np.float32)
        x = np.concatenate([x, edges.astype(source.numpy)])
    wanted = jax.jit(lambda a: [lax.convert_element_type(a, t.numpy) for t in ALL])(x)
    for target, want in zip(ALL, wanted, strict=True):
        same(run("convert", x, dtype=target)[0], want)


def _dot_shapes(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, tuple[int, ...]]]:
    rng = np.random.default_rng(seed)
    batch, contract = rng.integers(0, 3), rng.integers(0, 3)
    sizes = [int(n) for n in rng.integers(1, 5, batch + contract)]
    ranks = [int(batch + contract + rng.integers(0, 3)) for _ in range(2)]
    shapes, dims = [], {}
    for side, rank in zip(("lhs", "rhs"), ranks, strict=True):
        shape = [int(n) for n in rng.integers(1, 6, rank)]
        places = [int(d) for d in rng.permutation(rank)[: batch + contract]]
        for place, size in zip(places, sizes, strict=True):
            shape[place] = size
        dims[f"{side}_batch"], dims[f"{side}_contract"] = tuple(places[:batch]), tuple(places[batch:])
        shapes.append(tuple(shape))
    return shapes[0], shapes[1], dims


@pytest.mark.parametrize("seed", range(25))
def test_dot_general_over_random_dimension_numbers(seed: int) -> None:
    left, right, dims = _dot_shapes(seed)
    numbers = ((dims["lhs_contract"], dims["rhs_contract"]), (dims["lhs_batch"], dims["rhs_batch"]))
    dtype = NUMBERS[seed % len(NUMBERS)]
    x, y = drawn(dtype, left, seed), drawn(dtype, right, seed + 1)
    if dtype.is_float:
        x, y = np.rint(widened(x)).astype(dtype.numpy), np.rint(widened(y)).astype(dtype.numpy)
    got, want = run("dot_general", x, y, **dims)[0], np.asarray(lax.dot_general(x, y, numbers))
    same(got + np.zeros((), got.dtype), want + np.zeros((), want.dtype))


def widened(x: Array) -> Array:
    return x.astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dot_general_of_floats_accumulates_in_f32_or_wider(dtype: DType) -> None:
    x, y = drawn(dtype, (5, 300), 1), drawn(dtype, (300, 7), 2)
    exact = widened(x) @ widened(y)
    got = run("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,))[0]
    rounding = max(float(_finfo(dtype.numpy).eps), 0.0)
    slack = (
        300
        * float(np.finfo(np.float64 if dtype.bits == 64 else np.float32).eps)
        * (np.abs(widened(x)) @ np.abs(widened(y)))
    )
    assert (np.abs(widened(got) - exact) <= rounding * np.abs(exact) + slack).all()


@pytest.mark.parametrize(
    ("source", "target"), [("s8", "s32"), ("u8", "s32"), ("bf16", "f32"), ("f16", "f32"), ("s32", "s64")]
)
def test_dot_general_with_a_wider_result_does_not_round_or_wrap_in_between(source: str, target: str) -> None:
    x, y = drawn(DTYPES[source], (3, 40), 1), drawn(DTYPES[source], (40, 2), 2)
    wide = DTYPES[target]
    got = run("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,), dtype=wide)[0]
    want = x.astype(wide.numpy) @ y.astype(wide.numpy)
    if wide.is_float:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)


def test_dot_general_of_large_integers_wraps_exactly() -> None:
    x, y = drawn(DTYPES["s64"], (3, 50), 1), drawn(DTYPES["s64"], (50, 2), 2)
    got = run("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,))[0]
    exact = x.astype(object) @ y.astype(object)
    assert [int(v) % 2**64 for v in exact.reshape(-1)] == [int(v) % 2**64 for v in got.reshape(-1)]


def test_dot_general_over_an_empty_dim_is_zero() -> None:
    got = run("dot_general", np.ones((2, 0), np.int32), np.ones((0, 3), np.int32), lhs_contract=(1,), rhs_contract=(0,))
    np.testing.assert_array_equal(got[0], np.zeros((2, 3), np.int32))
    assert free_dims(3, (1,)) == (0, 2)


REDUCTIONS: dict[str, tuple[Lax, tuple[DType, ...]]] = {
    "sum": (lax.add, NUMBERS),
    "prod": (lax.mul, NUMBERS),
    "max": (lax.max, ALL),
    "min": (lax.min, ALL),
    "and": (lax.bitwise_and, tuple(t for t in ALL if not t.is_float)),
    "or": (lax.bitwise_or, tuple(t for t in ALL if not t.is_float)),
}


def _identity(kind: str, dtype: DType) -> Any:
    value: Any = {"sum": 0, "prod": 1, "max": dtype.lowest, "min": dtype.highest, "or": 0}.get(kind)
    if kind == "and":
        value = True if dtype.kind == "pred" else -1 if dtype.kind == "signed" else dtype.highest
    return np.array(value).astype(dtype.numpy)


@pytest.mark.parametrize(("kind", "dtype"), [(k, t) for k, (_, dtypes) in REDUCTIONS.items() for t in dtypes], ids=str)
def test_reduce(kind: str, dtype: DType) -> None:
    x = drawn(dtype, (3, 4, 5), 4)
    if dtype.is_float and kind in ("sum", "prod"):
        x = np.rint(widened(x) / 4).astype(dtype.numpy)
    chosen, first = ((0,), (1, 2), (2, 0), (), (0, 1, 2)), _identity(kind, dtype)
    wanted = jax.jit(lambda a: [lax.reduce(a, first, REDUCTIONS[kind][0], dims) for dims in chosen])(x)
    for dims, want in zip(chosen, wanted, strict=True):
        same(run("reduce", x, dims=dims, kind=kind)[0], want)
    empty = np.zeros((2, 0), dtype.numpy)
    same(run("reduce", empty, dims=(1,), kind=kind)[0], np.full(2, _identity(kind, dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_reduce_of_special_floats(kind: str, dtype: DType) -> None:
    rows = [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [np.nan, 1], [1, np.nan], [np.inf, -np.inf], [-np.inf, -np.inf]]
    x = np.array(rows).astype(dtype.numpy)
    same(run("reduce", x, dims=(1,), kind=kind)[0], lax.reduce(x, _identity(kind, dtype), REDUCTIONS[kind][0], (1,)))


@pytest.mark.parametrize("dtype", [DTYPES["bf16"], DTYPES["f16"]], ids=str)
def test_sums_of_16_bit_floats_are_rounded_once(dtype: DType) -> None:
    x = drawn(dtype, (4, 1000), 5)
    got, exact = run("reduce", x, dims=(1,), kind="sum")[0], widened(x).sum(1)
    assert (np.abs(widened(got) - exact) <= float(_finfo(dtype.numpy).eps) * np.abs(exact) + 1e-2).all()


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_the_lower_index_wins_a_tie(kind: str, dtype: DType) -> None:
    x = drawn(dtype, (6, 50), 6, small=True)
    x = np.rint(widened(x) / 4).astype(dtype.numpy) if dtype.is_float else x
    index = np.broadcast_to(np.arange(50, dtype=np.int32), x.shape)
    values, places = run("reduce", x, index, dims=(1,), kind=kind)
    want = (np.argmax if kind == "argmax" else np.argmin)(widened(x), 1)
    same(places, getattr(lax, kind)(x, 1, np.int32))
    same(places, want.astype(np.int32))
    np.testing.assert_array_equal(values, np.take_along_axis(x, want[:, None], 1)[:, 0])


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_a_nan_wins_argmax_and_argmin_and_the_first_nan_of_several(kind: str) -> None:
    x = np.array([[1, np.nan, 3, np.nan], [2, 2, 0, 2], [-np.inf] * 4, [np.inf] * 4], np.float32)
    index = np.broadcast_to(np.arange(4, dtype=np.int32)[::-1], x.shape)
    values, places = run("reduce", x[:, ::-1].copy(), index.copy(), dims=(1,), kind=kind)
    same(places, getattr(np, kind)(x, 1).astype(np.int32))
    assert np.isnan(values[0])


def test_argmax_over_two_dims_and_over_nothing() -> None:
    x = drawn(DTYPES["f32"], (3, 4, 5), 7)
    index = np.broadcast_to(np.arange(20, dtype=np.uint64).reshape(4, 5), x.shape)
    values, places = run("reduce", x, index.copy(), dims=(2, 1), kind="argmax")
    np.testing.assert_array_equal(places, x.reshape(3, 20).argmax(1))
    np.testing.assert_array_equal(values, x.reshape(3, 20).max(1))
    values, places = run("reduce", x[:, :0, 0].copy(), np.zeros((3, 0), np.int32), dims=(1,), kind="argmin")
    np.testing.assert_array_equal(values, [np.inf] * 3)
    np.testing.assert_array_equal(places, [0] * 3)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_cumsum(dtype: DType) -> None:
    x = drawn(dtype, (4, 9), 8)
    x = np.rint(widened(x)).astype(dtype.numpy) if dtype.is_float else x
    chosen = tuple(itertools.product((0, 1), (False, True)))
    wanted = jax.jit(lambda a: [lax.cumsum(a, dim, reverse) for dim, reverse in chosen])(x)
    for (dim, reverse), want in zip(chosen, wanted, strict=True):
        same(run("cumsum", x, dim=dim, reverse=reverse)[0], want)


@pytest.mark.parametrize("dtype", [DTYPES[n] for n in ("pred", "s8", "u64", "bf16", "f32")], ids=str)
def test_layout_ops(dtype: DType) -> None:
    x, y = drawn(dtype, (3, 4, 5), 1), drawn(dtype, (3, 2, 5), 2)
    same(run("transpose", x, perm=(2, 0, 1))[0], lax.transpose(x, (2, 0, 1)))
    same(run("reshape", x, shape=(2, 30))[0], lax.reshape(x, (2, 30)))
    same(run("concatenate", x, y, x, dim=1)[0], lax.concatenate([x, y, x], 1))
    same(run("slice", x, start=(1, 0, 0), limit=(3, 4, 4))[0], lax.slice(x, (1, 0, 0), (3, 4, 4)))
    strided = run("slice", x, start=(0, 1, 0), limit=(3, 4, 5), stride=(2, 2, 3))[0]
    same(strided, lax.slice(x, (0, 1, 0), (3, 4, 5), (2, 2, 3)))
    same(
        run("broadcast_in_dim", x, shape=(3, 2, 4, 5), dims=(0, 2, 3))[0],
        lax.broadcast_in_dim(x, (3, 2, 4, 5), (0, 2, 3)),
    )
    swapped = run("broadcast_in_dim", x[:, :1], shape=(5, 7, 3), dims=(2, 1, 0))[0]
    np.testing.assert_array_equal(swapped, np.broadcast_to(x[:, :1].transpose(2, 1, 0), (5, 7, 3)))
    for name in ("shard", "optimization_barrier"):
        same(run(name, x)[0], x)


@pytest.mark.parametrize("seed", range(20))
def test_pad_with_negative_and_interior_padding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = drawn(DTYPES["s32"], tuple(int(n) for n in rng.integers(0, 5, 2)), seed)
    config = []
    for n in x.shape:
        gap = int(rng.integers(0, 3))
        whole = n + max(0, n - 1) * gap
        low = int(rng.integers(-whole, 4))
        config.append((low, int(rng.integers(-(whole + min(low, 0)), 4)), gap))
    low_pad, high_pad, interior = zip(*config, strict=True)
    got = run("pad", x, np.array(-7, np.int32), low=low_pad, high=high_pad, interior=interior)[0]
    same(got, lax.pad(x, np.int32(-7), config))


@pytest.mark.parametrize("index", ["s8", "s32", "u32", "u64", "s64"])
def test_dynamic_slice_clamps_starts_out_of_range(index: str) -> None:
    x = drawn(DTYPES["f32"], (6, 7), 1)
    kind = DTYPES[index]
    starts = range(-14, 15) if kind.kind == "signed" else [0, 3, 14, int(kind.highest)]
    for start in starts:
        at = np.array(start, kind.numpy), np.array(2, kind.numpy)
        got = run("dynamic_slice", x, *at, sizes=(3, 5))[0]
        first = min(max(start, 0), 3)
        same(got, x[first : first + 3, 2:7])
    same(run("dynamic_slice", x, *at, sizes=(3, 5))[0], lax.dynamic_slice(x, at, (3, 5)))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8", "u64"])
def test_iota_and_constants(dtype: str) -> None:
    t = TensorType((3, 4), DTYPES[dtype])
    same(run("iota", type=t, dim=1)[0], lax.broadcasted_iota(t.dtype.numpy, (3, 4), 1))
    same(run("iota", type=t, dim=0)[0], lax.broadcasted_iota(t.dtype.numpy, (3, 4), 0))
    same(run("constant", type=t, value=3)[0], np.full((3, 4), 3, t.dtype.numpy))
    small = t.with_shape((2, 2))
    same(run("constant", type=small, value=((1, 2), (3, 4)))[0], np.array([[1, 2], [3, 4]]).astype(t.dtype.numpy))


def test_constants_at_the_ends_of_their_types() -> None:
    scalar = {name: TensorType((), t) for name, t in DTYPES.items()}
    assert run("constant", type=scalar["u64"], value=2**64 - 1)[0] == 2**64 - 1
    assert run("constant", type=scalar["s64"], value=-(2**63))[0] == -(2**63)
    assert run("constant", type=scalar["pred"], value=True)[0]
    assert run("constant", type=scalar["f32"], value=float("-inf"))[0] == -np.inf


@pytest.mark.parametrize("dtype", ["u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4, 5)], ids=str)
def test_random_bits_are_those_of_jax(dtype: str, shape: tuple[int, ...]) -> None:
    key = np.array([0x12345678, 0x9ABCDEF0], np.uint32)
    t = TensorType(shape, DTYPES[dtype])
    same(run("random_bits", key, type=t)[0], jax.random.bits(key, shape, t.dtype.numpy))


@pytest.mark.parametrize("index", ["s32", "u32", "s64"])
def test_random_bits_of_a_box_are_that_box_of_the_whole_draw(index: str) -> None:
    key = np.array([7, 42], np.uint32)
    whole = np.asarray(jax.random.bits(key, (6, 5, 8), np.uint32))
    starts = [np.array(s, DTYPES[index].numpy) for s in (2, 1, 3)]
    got = run("random_bits", key, *starts, type=TensorType((3, 4, 5), DTYPES["u32"]), whole=(6, 5, 8))[0]
    same(got, whole[2:5, 1:5, 3:8])


def test_a_box_beyond_four_billion_elements_uses_the_high_word_of_the_position() -> None:
    key = np.array([7, 42], np.uint32)
    draw = TensorType((2, 1), DTYPES["u32"])
    far = [np.array(s, np.int64) for s in (2**33, 0)]
    near = [np.array(s, np.int64) for s in (0, 0)]
    got = [run("random_bits", key, *s, type=draw, whole=(2**40, 1))[0] for s in (far, near)]
    assert (got[0] != got[1]).all()


@pytest.mark.parametrize(
    ("op", "dtype"), [("atan2", "f32"), ("power", "f32"), ("multiply", "c64"), ("exponential", "f32")]
)
def test_results_do_not_depend_on_where_numbers_lie_in_memory(op: str, dtype: str) -> None:
    y = "" if op == "exponential" else ", b"
    text = f"def main(a: {dtype}[33], b: {dtype}[33]) -> (r: {dtype}[33]) {{ return {op}(a{y}) }}"
    reverse = text.replace(f"{op}(a", f"{op}(reverse(a, dims=[0])")
    draw = np.random.default_rng(0)
    a, b = (draw.uniform(0.1, 3, 33) + (1j * draw.normal(size=33) if dtype == "c64" else 0) for _ in range(2))
    arrays = [x.astype(np.complex64 if dtype == "c64" else np.float32) for x in (a, b)]
    (expected,) = spmdc.evaluate(spmdc.parse(text), arrays[0][::-1].copy(), arrays[1])
    (result,) = spmdc.evaluate(spmdc.parse(reverse), *arrays)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("op", "dtype"), [("atan2", "f32"), ("power", "f32"), ("multiply", "c64")])
def test_ops_of_two_scalars_give_a_scalar(op: str, dtype: str) -> None:
    program = spmdc.parse(f"def main(a: {dtype}[], b: {dtype}[]) -> (r: {dtype}[]) {{ return {op}(a, b) }}")
    two = np.array(2, np.complex64 if dtype == "c64" else np.float32)
    (result,) = spmdc.evaluate(program, two, two)
    assert result.shape == ()
