"""The window ops and convolution agree with jax.lax on CPU, over any window, padding, dilation and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.ops.window import Window, dilated
from ir.program import Attr, Program
from ir.types import DTYPES, DType, TensorType, dtype_of
from lowering.reference import evaluate

Array = np.ndarray[Any, Any]

SIZES = st.sampled_from([1, 2, 3, 5, 7])
DTYPE_NAMES = ("f32", "bf16", "f16", "s8", "u8", "s32", "u32", "f64")


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        yield


def run(opname: str, *arrays: Any, **attrs: Attr) -> Array:
    b = RegionBuilder()
    given_attrs: dict[str, Any] = dict(attrs)
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    result = b.op(opname, *params, **given_attrs)
    (value,) = evaluate(Program((Mesh((("x", 1),)),), {"main": b.function("main", [result])}), *arrays)
    return value


def same(got: Array, want: Any) -> None:
    wanted = np.asarray(want)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


def numbers(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Integers so small that sums are exact in every type."""
    low = 0 if dtype.kind in ("unsigned", "pred") else -2
    drawn = np.random.default_rng(seed).integers(low, 2 if dtype.kind == "pred" else 3, shape)
    return np.asarray(drawn).astype(dtype.numpy)


@st.composite
def windows(draw: st.DrawFn, n: int, largest: int = 3) -> Window:
    """Windows of any settings over a dim of size n, padding from -2 on as far as it leaves something."""
    base = draw(st.integers(1, 3))
    room = dilated(n, base)
    low = draw(st.integers(max(-2, -room), 3))
    high = draw(st.integers(max(-2, -room - low), 3))
    return Window(draw(st.integers(1, largest)), draw(st.integers(1, 3)), low, high, base, draw(st.integers(1, 3)))


@st.composite
def windowed(draw: st.DrawFn, max_rank: int = 3) -> tuple[tuple[int, ...], tuple[Window, ...]]:
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=max_rank)))
    return shape, tuple(draw(windows(n)) for n in shape)


def attrs_of(given_windows: tuple[Window, ...]) -> dict[str, Attr]:
    return {
        "stride": tuple(w.stride for w in given_windows),
        "padding_low": tuple(w.low for w in given_windows),
        "padding_high": tuple(w.high for w in given_windows),
    }


LAX: dict[str, Callable[..., Any]] = {
    "sum": lax.add, "prod": lax.mul, "max": lax.max, "min": lax.min, "and": lax.bitwise_and, "or": lax.bitwise_or,
}  # fmt: skip


def identity(kind: str, dtype: DType) -> Any:
    every = True if dtype.kind == "pred" else -1 if dtype.kind == "signed" else dtype.highest
    value: Any = {"sum": 0, "prod": 1, "max": dtype.lowest, "min": dtype.highest, "or": 0, "and": every}[kind]
    return np.array(value).astype(dtype.numpy)


def lax_reduce_window(x: Array, kind: str, given_windows: tuple[Window, ...]) -> Any:
    return lax.reduce_window(
        x,
        identity(kind, dtype_of(x.dtype)),
        LAX[kind],
        tuple(w.size for w in given_windows),
        tuple(w.stride for w in given_windows),
        tuple((w.low, w.high) for w in given_windows),
        tuple(w.base_dilation for w in given_windows),
        tuple(w.dilation for w in given_windows),
    )


def our_reduce_window(x: Array, kind: str, given_windows: tuple[Window, ...]) -> Array:
    return run(
        "reduce_window",
        x,
        kind=kind,
        window=tuple(w.size for w in given_windows),
        base_dilation=tuple(w.base_dilation for w in given_windows),
        window_dilation=tuple(w.dilation for w in given_windows),
        **attrs_of(given_windows),
    )


@settings(max_examples=examples(60), deadline=None)
@given(windowed(), st.sampled_from(["sum", "max", "min", "prod"]), st.sampled_from(DTYPE_NAMES), st.integers(0, 99))
def test_reduce_window_of_any_window(
    case: tuple[tuple[int, ...], tuple[Window, ...]], kind: str, name: str, seed: int
) -> None:
    shape, given_windows = case
    x = numbers(DTYPES[name], shape, seed)
    same(our_reduce_window(x, kind, given_windows), lax_reduce_window(x, kind, given_windows))


@pytest.mark.parametrize("kind", ["and", "or", "max", "min"])
@pytest.mark.parametrize("name", ["pred", "s16", "u64"])
def test_reduce_window_of_truth_values_and_integers(kind: str, name: str) -> None:
    given_windows = (Window(2, 1, 1, 0, 2, 1), Window(3, 2, -1, 2, 1, 2), Window(1))
    x = numbers(DTYPES[name], (3, 7, 2), 5)
    same(our_reduce_window(x, kind, given_windows), lax_reduce_window(x, kind, given_windows))


def test_a_window_larger_than_the_tensor_fits_nowhere() -> None:
    assert our_reduce_window(np.ones((3, 2), np.float32), "sum", (Window(4), Window(1))).shape == (0, 2)


def test_a_nan_reaches_the_maximum_of_the_windows_that_hold_it_only() -> None:
    x = np.array([1, np.nan, -0.0, 0.0, -0.0], np.float32)
    got = our_reduce_window(x, "max", (Window(2),))
    np.testing.assert_array_equal(got, np.asarray(lax_reduce_window(x, "max", (Window(2),))))
    assert not np.signbit(got[2:]).any()


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_window_sums_of_16_bit_floats_are_rounded_once(name: str) -> None:
    x = np.array([256, 1, 1, 1, 1], np.float32).astype(DTYPES[name].numpy)
    same(our_reduce_window(x, "sum", (Window(5),)), np.array([260]).astype(x.dtype))


SELECT = {"GE": lax.ge_p, "GT": lax.gt_p, "LE": lax.le_p, "LT": lax.lt_p}


@settings(max_examples=examples(30), deadline=None)
@given(windowed(), st.sampled_from(sorted(SELECT)), st.sampled_from(["f32", "s32"]), st.integers(0, 99))
def test_select_and_scatter_of_any_window(
    case: tuple[tuple[int, ...], tuple[Window, ...]], select: str, name: str, seed: int
) -> None:
    shape, drawn = case
    given_windows = tuple(Window(w.size, w.stride, max(w.low, 0), max(w.high, 0)) for w in drawn)
    dtype = DTYPES[name]
    operand = numbers(dtype, shape, seed)
    source = numbers(dtype, tuple(w.count(n) for n, w in zip(shape, given_windows, strict=True)), seed + 1)
    got = run(
        "select_and_scatter",
        operand,
        source,
        window=tuple(w.size for w in given_windows),
        select=select,
        **attrs_of(given_windows),
    )
    worst = np.array(-100 if select in ("GE", "GT") else 100).astype(operand.dtype)
    padding = [(w.low, w.high, 0) for w in given_windows]
    want = lax.select_and_scatter_add_p.bind(
        source,
        lax.pad(operand, worst, padding),
        select_prim=SELECT[select],
        window_dimensions=tuple(w.size for w in given_windows),
        window_strides=tuple(w.stride for w in given_windows),
        padding=((0, 0),) * len(shape),
    )
    if all(w.low < w.size and w.high < w.size for w in given_windows):
        same(got, lax.pad(want, np.zeros((), want.dtype), [(-low, -high, 0) for low, high, _ in padding]))


def test_select_and_scatter_drops_what_belongs_to_a_window_of_nothing_but_padding() -> None:
    x, source = np.full(2, -np.inf, np.float32), np.array([8, 4, 2, 1], np.float32)
    attrs: dict[str, Attr] = {"window": (1,), "padding_low": (1,), "padding_high": (1,)}
    same(run("select_and_scatter", x, source, **attrs), np.array([4, 2], np.float32))


def test_select_and_scatter_with_negative_padding_leaves_zeros_where_nothing_is_seen() -> None:
    x, source = np.array([9, 1, 3, 2, 9], np.float32), np.array([5, 7], np.float32)
    attrs: dict[str, Attr] = {"window": (2,), "padding_low": (-1,), "padding_high": (-1,)}
    same(run("select_and_scatter", x, source, **attrs), np.array([0, 0, 12, 0, 0], np.float32))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes and attributes of convolutions with dims in any order, groups of either kind, any window."""
    rank = draw(st.integers(0, 3))
    spatial = [draw(SIZES if rank < 3 else st.integers(1, 3)) for _ in range(rank)]
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    given_windows = [draw(windows(n)) for n in spatial]
    features, batches = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]))
    batch, inner, output = (draw(st.integers(1, 3)) for _ in range(3))
    order = [draw(st.permutations(range(rank + 2))) for _ in range(3)]
    lhs = dict(zip(order[0], (batch * batches, inner * features, *spatial), strict=True))
    rhs = dict(zip(order[1], (inner, output * features * batches, *kernel), strict=True))
    attrs: dict[str, Any] = {
        "lhs_batch": order[0][0], "lhs_feature": order[0][1], "lhs_spatial": tuple(order[0][2:]),
        "rhs_input": order[1][0], "rhs_output": order[1][1], "rhs_spatial": tuple(order[1][2:]),
        "out_batch": order[2][0], "out_feature": order[2][1], "out_spatial": tuple(order[2][2:]),
        "stride": tuple(w.stride for w in given_windows),
        "padding_low": tuple(w.low for w in given_windows), "padding_high": tuple(w.high for w in given_windows),
        "lhs_dilation": tuple(w.base_dilation for w in given_windows),
        "rhs_dilation": tuple(w.dilation for w in given_windows),
        "window_reversal": tuple(draw(st.integers(0, 1)) for _ in range(rank)),
        "feature_group_count": features, "batch_group_count": batches,
    }  # fmt: skip
    return tuple(lhs[d] for d in range(rank + 2)), tuple(rhs[d] for d in range(rank + 2)), attrs


def lax_convolution(lhs: Any, rhs: Any, a: dict[str, Any], dtype: Any = None) -> Any:
    turned = tuple(d for d, flag in zip(a["rhs_spatial"], a["window_reversal"], strict=True) if flag)
    numbers_of_dims = lax.ConvDimensionNumbers(
        (a["lhs_batch"], a["lhs_feature"], *a["lhs_spatial"]),
        (a["rhs_output"], a["rhs_input"], *a["rhs_spatial"]),
        (a["out_batch"], a["out_feature"], *a["out_spatial"]),
    )
    return lax.conv_general_dilated(
        lhs,
        np.flip(rhs, turned),
        a["stride"],
        tuple(zip(a["padding_low"], a["padding_high"], strict=True)),
        a["lhs_dilation"],
        a["rhs_dilation"],
        numbers_of_dims,
        a["feature_group_count"],
        a["batch_group_count"],
        preferred_element_type=dtype,
    )


@settings(max_examples=examples(80), deadline=None)
@given(convolutions(), st.sampled_from(["f32", "f32", "bf16", "s32", "s8", "f64"]), st.integers(0, 99))
def test_convolution_of_any_window_groups_and_order_of_dims(
    case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], name: str, seed: int
) -> None:
    left, right, attrs = case
    lhs, rhs = numbers(DTYPES[name], left, seed), numbers(DTYPES[name], right, seed + 1)
    same(run("convolution", lhs, rhs, **attrs), lax_convolution(lhs, rhs, attrs))


IMAGE: dict[str, Any] = {
    "lhs_batch": 0, "lhs_feature": 3, "lhs_spatial": (1, 2), "rhs_input": 2, "rhs_output": 3, "rhs_spatial": (0, 1),
    "out_batch": 0, "out_feature": 3, "out_spatial": (1, 2),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), [("s8", "s32"), ("bf16", "f32"), ("s32", "s64")])
def test_convolution_with_a_wider_result_does_not_round_or_wrap_in_between(source: str, target: str) -> None:
    rng, t = np.random.default_rng(1), DTYPES[source]
    lhs, rhs = (rng.integers(-100, 100, shape).astype(t.numpy) for shape in ((2, 5, 5, 3), (3, 3, 3, 4)))
    got = run("convolution", lhs, rhs, dtype=DTYPES[target], **IMAGE)
    same(got, run("convolution", *(x.astype(DTYPES[target].numpy) for x in (lhs, rhs)), **IMAGE))


def test_convolution_of_floats_is_close_to_that_of_jax() -> None:
    rng = np.random.default_rng(2)
    lhs: Any
    rhs: Any
    lhs, rhs = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 9, 8, 5), (3, 3, 5, 4)))
    want = lax.conv_general_dilated(lhs, rhs, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(run("convolution", lhs, rhs, **IMAGE), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("left", "right"), [((0, 3, 3, 2), (2, 2, 2, 3)), ((1, 3, 3, 0), (2, 2, 0, 3)),
                                             ((1, 3, 3, 2), (2, 2, 2, 0)), ((1, 0, 3, 2), (2, 2, 2, 3))])  # fmt: skip
def test_convolution_of_empty_tensors_is_zeros(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    got = run("convolution", np.ones(left, np.float32), np.ones(right, np.float32), **IMAGE)
    assert got.shape == (left[0], max(left[1] - 1, 0), left[2] - 1, right[3])
    assert not got.any()


CUMULATIVE: dict[str, Callable[..., Any]] = {"cumprod": lax.cumprod, "cummax": lax.cummax, "cummin": lax.cummin}


@pytest.mark.parametrize("name", [*DTYPE_NAMES, "u64", "s16"])
@pytest.mark.parametrize("opname", sorted(CUMULATIVE))
def test_cumulative_ops(opname: str, name: str) -> None:
    x = numbers(DTYPES[name], (5, 7), 3) if opname == "cumprod" else numbers(DTYPES["s32"], (5, 7), 3) * 17
    x = x.astype(DTYPES[name].numpy)
    for dim, reverse in ((0, False), (1, True)):
        same(run(opname, x, dim=dim, reverse=reverse), CUMULATIVE[opname](x, dim, reverse))


@pytest.mark.parametrize("name", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("opname", ["cummax", "cummin"])
def test_a_nan_stays_in_running_extremes_and_zeros_are_ordered(opname: str, name: str) -> None:
    rows = [[1, np.nan, 2, np.inf], [-0.0, 0.0, -0.0, -1], [0.0, -0.0, 0.0, 1], [-np.inf, -0.0, np.nan, 0.0]]
    x = np.array(rows).astype(DTYPES[name].numpy)
    for reverse in (False, True):
        got, want = run(opname, x, dim=1, reverse=reverse), CUMULATIVE[opname](x, 1, reverse)
        same(got, want)
        np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(np.asarray(want))[got == 0])


def test_running_extremes_of_truth_values() -> None:
    x = np.array([False, True, False])
    np.testing.assert_array_equal(run("cummax", x, dim=0), [False, True, True])
    np.testing.assert_array_equal(run("cummin", x[::-1].copy(), dim=0, reverse=True), [False, False, False])


@pytest.mark.parametrize("name", ["pred", "s8", "bf16", "f64"])
def test_reverse(name: str) -> None:
    x = numbers(DTYPES[name], (3, 4, 5), 1)
    for dims in ((), (1,), (2, 0)):
        same(run("reverse", x, dims=dims), lax.rev(x, dims))
