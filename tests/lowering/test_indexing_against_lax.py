"""Kernels and JAX text of the ops at computed indices and of sorting agree with jax.lax.

Indices out of range, duplicates, NaN, any dimension numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir.builder import RegionBuilder
from ir.ops.indexing import SCATTER_KINDS
from ir.program import Program
from ir.types import DTYPES, DType, TensorType, dtype_of
from lowering import jax as lowering_jax
from lowering.reference import evaluate

Array = np.ndarray[Any, Any]

ALL = tuple(DTYPES[n] for n in ("pred", "s8", "s32", "u8", "u32", "s64", "u64", "bf16", "f16", "f32", "f64"))
INDICES = ("s8", "u8", "s32", "u32", "s64", "u64")
SCATTERS = {
    "replace": lax.scatter,
    "sum": lax.scatter_add,
    "prod": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}

pytestmark = pytest.mark.usefixtures("devices")


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        yield


def run(opname: str, *arrays: Array, lower: bool = True, **attrs: Any) -> tuple[Array, ...]:
    """The op's results by its kernel, which are also those of its JAX text."""
    b = RegionBuilder()
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    program = Program((), {"main": b.function("main", b.append(opname, params, dict(attrs)))})
    results = evaluate(program, *arrays)
    if lower:
        for got, want in zip(lowering_jax.compile(program)(*arrays), results, strict=True):
            same(np.asarray(got), want)
    return results


def same(got: Array, want: Any) -> None:
    """Equal; 0.0 and -0.0 are, and so are NaNs."""
    wanted = np.asarray(want)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    exact: Any = np.float64 if dtype_of(wanted.dtype).is_float else wanted.dtype
    np.testing.assert_array_equal(got.astype(exact), wanted.astype(exact))


def numbers(shape: Sequence[int], dtype: DType, seed: int = 0) -> Array:
    """Small integers, many of them equal."""
    low, high = (0 if dtype.kind in ("unsigned", "pred") else -4), (2 if dtype.kind == "pred" else 5)
    return np.random.default_rng(seed).integers(low, high, tuple(shape)).astype(dtype.numpy)


def with_specials(x: Array) -> Array:
    """Some of the elements as NaN, of either sign, infinities, and zeros of both signs."""
    specials = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]).astype(x.dtype)
    chosen: Any = np.random.default_rng(7).integers(0, 12, x.shape)
    return np.where(chosen < 6, specials[chosen % specials.size], x)


def at(values: Any, index: str) -> Array:
    """Indices in a type, those that it does not have left out by clipping."""
    dtype = DTYPES[index]
    low, high = max(int(dtype.lowest), -(2**62)), min(int(dtype.highest), 2**62)
    return np.clip(np.asarray(values, np.int64), low, high).astype(dtype.numpy)


@pytest.mark.parametrize("index", INDICES)
def test_dynamic_update_slice_clamps_starts_out_of_range(index: str) -> None:
    x, update = numbers((6, 7), DTYPES["f32"]), numbers((3, 5), DTYPES["f32"], 1) + 100
    for start in range(-14, 15):
        starts = at(start, index), at(3 - start, index)
        want = x.copy()
        first, second = min(max(int(starts[0]), 0), 3), min(max(int(starts[1]), 0), 2)
        want[first : first + 3, second : second + 5] = update
        same(run("dynamic_update_slice", x, update, *starts, lower=start % 7 == 0)[0], want)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_dynamic_update_slice_of_any_type_and_of_nothing(dtype: DType) -> None:
    zero = np.array(0, np.int32)
    x, update = numbers((5, 4), dtype), numbers((1, 4), dtype, 1)
    want = lax.dynamic_update_slice(x, update, (np.int32(3), zero))
    same(run("dynamic_update_slice", x, update, np.array(3, np.int32), zero)[0], want)
    same(run("dynamic_update_slice", x, update[:0], zero, zero)[0], x)
    scalar = numbers((), dtype)
    same(run("dynamic_update_slice", scalar, numbers((), dtype, 1))[0], numbers((), dtype, 1))


class Numbers:
    """Random dimension numbers: an operand, what addresses it, and the shape of the slices."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 5))
        self.shape = tuple(int(n) for n in rng.integers(1, 6, rank))
        dims = [int(d) for d in rng.permutation(rank)]
        batching = sorted(dims[: int(rng.integers(0, rank))]) if seed % 2 else []
        free = [d for d in dims if d not in batching]
        self.addressed = tuple(free[: int(rng.integers(1, len(free) + 1))])
        self.dropped = tuple(sorted(d for d in free if rng.integers(0, 2)))
        self.sizes = tuple(
            1 if d in self.dropped or d in batching else int(rng.integers(1, n + 1)) for d, n in enumerate(self.shape)
        )
        scanned = [int(n) for n in rng.integers(1, 5, rng.integers(0, 3))]
        walked = [len(scanned) + i for i in range(len(batching))]
        scanned += [self.shape[d] for d in batching]
        order = [int(i) for i in rng.permutation(len(scanned))]
        self.scanned = tuple(scanned[i] for i in order)
        self.batching = tuple(batching)
        positions = tuple(order.index(i) for i in walked)
        self.vector = int(rng.integers(0, len(scanned) + 1))
        vectors = list(self.scanned)
        if len(self.addressed) != 1 or rng.integers(0, 2):
            vectors.insert(self.vector, len(self.addressed))
        else:
            self.vector = len(scanned)
        self.explicit = len(vectors) > len(scanned)
        self.walked = tuple(d + (self.explicit and d >= self.vector) for d in positions)
        self.jax_walked = positions
        self.indices_shape = tuple(vectors)
        kept = rank - len(self.dropped) - len(batching)
        total = kept + len(scanned)
        self.window = tuple(sorted(int(d) for d in rng.permutation(total)[:kept]))
        inside = iter([n for d, n in enumerate(self.sizes) if d not in self.dropped and d not in batching])
        outside = iter(self.scanned)
        self.slices_shape = tuple(next(inside) if d in self.window else next(outside) for d in range(total))

    def indices(self, index: str = "s32") -> Array:
        return at(self.rng.integers(-6, 9, self.indices_shape), index)

    def vectors_last(self, indices: Array) -> Array:
        return np.moveaxis(indices, self.vector, -1) if self.explicit else indices[..., None]


def test_of_boxes_out_of_range_a_gather_is_clamped_or_filled_as_in_jax() -> None:
    """With boxes that all lie inside, it is what it is where jax.lax is promised that."""
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    dims = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,))
    attrs: dict[str, Any] = {"offset_dims": (1, 2), "start_index_map": (0,), "index_vector_dim": 1}
    outside, inside = np.array([-1, 0, 4, 5, 6, 7, 99], np.int32), np.array([0, 3, 4], np.int32)
    for mode, indices in (("clip", outside), ("fill", outside), ("promise_in_bounds", inside)):
        want = lax.gather(x, indices[:, None], dims, (3, 3), mode=mode)
        for ours in ("clip", "fill") if mode == "promise_in_bounds" else (mode,):
            same(run("gather", x, indices, **attrs, slice_sizes=(3, 3), mode=ours)[0], want)


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("seed", range(44))
def test_gather_over_random_dimension_numbers(seed: int, mode: str) -> None:
    d = Numbers(seed)
    x, indices = numbers(d.shape, ALL[seed % len(ALL)], seed), d.indices(INDICES[seed % len(INDICES)])
    numbers_of_jax = lax.GatherDimensionNumbers(
        offset_dims=d.window,
        collapsed_slice_dims=d.dropped,
        start_index_map=d.addressed,
        operand_batching_dims=d.batching,
        start_indices_batching_dims=d.jax_walked,
    )
    vectors = d.vectors_last(indices).astype(np.int64 if indices.dtype != np.uint64 else np.uint64)
    fill = (None, 1)[seed // 2 % 2] if mode == "fill" else None
    want = lax.gather(x, vectors, numbers_of_jax, d.sizes, mode=mode, fill_value=fill)
    got = run(
        "gather",
        x,
        indices,
        lower=seed % 3 == 0,
        offset_dims=d.window,
        collapsed_slice_dims=d.dropped,
        operand_batching_dims=d.batching,
        indices_batching_dims=d.walked,
        start_index_map=d.addressed,
        index_vector_dim=d.vector,
        slice_sizes=d.sizes,
        mode=mode,
        fill_value=fill,
    )[0]
    same(got, want)


def scatter(d: Numbers, x: Array, indices: Array, updates: Array, kind: str, *, lower: bool) -> Array:
    return run(
        "scatter",
        x,
        indices,
        updates,
        lower=lower,
        update_window_dims=d.window,
        inserted_window_dims=d.dropped,
        input_batching_dims=d.batching,
        scatter_indices_batching_dims=d.walked,
        scatter_dims_to_operand_dims=d.addressed,
        index_vector_dim=d.vector,
        kind=kind,
        unique_indices=False,
    )[0]


def numbers_for_scatter(d: Numbers) -> lax.ScatterDimensionNumbers:
    return lax.ScatterDimensionNumbers(
        update_window_dims=d.window,
        inserted_window_dims=d.dropped,
        scatter_dims_to_operand_dims=d.addressed,
        operand_batching_dims=d.batching,
        scatter_indices_batching_dims=d.jax_walked,
    )


@pytest.mark.parametrize("seed", range(22))
@pytest.mark.parametrize("kind", SCATTER_KINDS)
def test_scatter_over_random_dimension_numbers(seed: int, kind: str) -> None:
    """Boxes that hang out are dropped whole. On CPU, XLA writes in the order of the indices: the last update wins."""
    d = Numbers(seed)
    dtypes = [t for t in ALL if t.kind != "pred" or kind in ("replace", "max", "min")]
    dtype = dtypes[seed % len(dtypes)]
    x, updates = numbers(d.shape, dtype, seed), numbers(d.slices_shape, dtype, seed + 1)
    if kind == "prod":
        updates = np.where(updates.astype(np.float64) > 2, updates, np.ones_like(updates))
    indices = d.indices(INDICES[seed % len(INDICES)])
    vectors = d.vectors_last(indices).astype(np.int64 if indices.dtype != np.uint64 else np.uint64)
    want = SCATTERS[kind](x, vectors, updates, numbers_for_scatter(d), mode="drop")
    same(scatter(d, x, indices, updates, kind, lower=seed % 6 == 0), want)


@pytest.mark.parametrize("index", INDICES)
def test_indices_at_the_ends_of_their_types_are_out_of_range(index: str) -> None:
    x = np.arange(300, dtype=np.float32)
    info = DTYPES[index]
    indices = np.array([info.lowest, info.highest, 5, 100], info.numpy)
    near = [min(max(int(i), 0), 299) for i in indices]
    attrs: dict[str, Any] = {"offset_dims": (), "collapsed_slice_dims": (0,), "start_index_map": (0,)}
    attrs |= {"index_vector_dim": 1, "slice_sizes": (1,)}
    same(run("gather", x, indices, **attrs)[0], x[near])
    filled = np.where([0 <= int(i) < 300 for i in indices], x[near], np.float32(-5))
    same(run("gather", x, indices, **attrs, mode="fill", fill_value=-5.0)[0], filled)
    want = x.copy()
    for i in indices:
        if 0 <= i < 300:
            want[int(i)] += 1
    places: dict[str, Any] = {"update_window_dims": (), "inserted_window_dims": (0,), "kind": "sum"}
    got = run(
        "scatter",
        x,
        indices,
        np.ones(4, np.float32),
        **places,
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        unique_indices=True,
    )
    same(got[0], want)


def test_sums_of_short_floats_are_rounded_once() -> None:
    bf16 = DTYPES["bf16"].numpy
    places: dict[str, Any] = {"update_window_dims": (), "inserted_window_dims": (0,), "kind": "sum"}
    got = run(
        "scatter",
        np.zeros(1, bf16),
        np.zeros(1000, np.int32),
        np.ones(1000, bf16),
        **places,
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        unique_indices=False,
    )
    assert float(got[0][0]) == 1000


@pytest.mark.parametrize("kind", ["max", "min"])
def test_zeros_of_both_signs_are_ordered_as_in_jax(kind: str) -> None:
    """Those of the operand and of updates, of which two are for the last element."""
    x, updates = np.array([0.0, -0.0, 0.0, -0.0, -1.0], "f4"), np.array([-0.0, 0.0, 0.0, -0.0, -0.0, 0.0], "f4")
    indices = np.array([0, 1, 2, 3, 4, 4], np.int32)
    places: dict[str, Any] = {"update_window_dims": (), "inserted_window_dims": (0,), "index_vector_dim": 1}
    got = run("scatter", x, indices, updates, **places, scatter_dims_to_operand_dims=(0,), kind=kind)
    want = getattr(jnp.asarray(x).at[indices], kind)(updates)
    np.testing.assert_array_equal(np.signbit(got[0]), np.signbit(want))


@pytest.mark.parametrize("kind", SCATTER_KINDS)
def test_boxes_of_index_vectors_without_components_begin_at_the_first_element(kind: str) -> None:
    x, indices, updates = np.full((4, 2), 3, np.int32), np.zeros((0, 3), np.int32), numbers((3, 4, 1), DTYPES["s32"])
    want = x.copy()
    for update in updates:
        combined = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}.get(kind)
        want[:, :1] = combined(want[:, :1], update) if combined is not None else update
    got = run(
        "scatter",
        x,
        indices,
        updates,
        update_window_dims=(1, 2),
        scatter_dims_to_operand_dims=(),
        index_vector_dim=0,
        kind=kind,
    )
    same(got[0], want)


def test_a_scatter_into_nothing_and_of_nothing() -> None:
    places: dict[str, Any] = {"update_window_dims": (1,), "inserted_window_dims": (0,), "kind": "sum"}
    rest: dict[str, Any] = {"scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1, "unique_indices": False}
    x, none = np.ones((3, 2), np.float32), np.zeros((0,), np.int32)
    same(run("scatter", x, none, np.zeros((0, 2), np.float32), **places, **rest)[0], x)
    empty = np.zeros((0, 2), np.float32)
    indices = np.zeros((4,), np.int32)
    same(run("scatter", empty, indices, np.ones((4, 2), np.float32), lower=False, **places, **rest)[0], empty)
    attrs: dict[str, Any] = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,)}
    got = run("gather", x, none, **attrs, index_vector_dim=1, slice_sizes=(1, 2))
    same(got[0], np.zeros((0, 2), np.float32))


def sorted_by_jax(*operands: Array, dim: int, num_keys: int) -> Sequence[Any]:
    return lax.sort([jnp.asarray(x) for x in operands], dimension=dim, num_keys=num_keys)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_sort_puts_nan_last_takes_zeros_for_equal_and_is_stable(dtype: DType, dim: int) -> None:
    x = numbers((9, 13), dtype)
    x = with_specials(x) if dtype.is_float else x
    index = np.broadcast_to(np.arange(13, dtype=np.int32), x.shape).copy()
    got = run("sort", x, index, dim=dim, descending=False, num_keys=1, stable=True)
    for ours, theirs in zip(got, sorted_by_jax(x, index, dim=dim, num_keys=1), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_descending_order_keeps_the_order_of_equals(dtype: DType) -> None:
    x = numbers((4, 13), dtype)
    x = with_specials(x) if dtype.is_float else x
    index = np.broadcast_to(np.arange(13, dtype=np.int32), x.shape).copy()
    values, places = run("sort", x, index, dim=1, descending=True, num_keys=1, stable=True)
    for row, order in zip(x.astype(np.float64), places, strict=True):
        keys = [(not np.isnan(v), -v if not np.isnan(v) else 0) for v in row]
        assert order.tolist() == sorted(range(13), key=keys.__getitem__)
    same(values, np.take_along_axis(x, places, 1))


def test_sort_compares_the_first_key_then_the_second_and_moves_the_rest_along() -> None:
    a, b, c = (numbers((40,), DTYPES["s32"], seed) for seed in range(3))
    got = run("sort", a, b, c, dim=0, descending=False, num_keys=2, stable=True)
    for ours, theirs in zip(got, sorted_by_jax(a, b, c, dim=0, num_keys=2), strict=True):
        same(ours, theirs)
    down = run("sort", a, b, dim=0, descending=True, num_keys=2, stable=False)
    assert list(zip(*down, strict=True)) == sorted(zip(a, b, strict=True), reverse=True)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("k", [0, 1, 5, 13])
def test_top_k_takes_ties_by_index(dtype: DType, k: int) -> None:
    x = numbers((4, 13), dtype)
    values, places = run("top_k", x, k=k)
    for ours, theirs in zip((values, places), lax.top_k(x, k), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("dtype", [t for t in ALL if t.is_float], ids=str)
def test_top_k_puts_nan_of_either_sign_first_and_takes_zeros_for_equal(dtype: DType) -> None:
    x = with_specials(numbers((6, 13), dtype))
    values, places = run("top_k", x, k=13)
    for row, order in zip(x.astype(np.float64), places, strict=True):
        keys = [(not np.isnan(v), -v if not np.isnan(v) else 0) for v in row]
        assert order.tolist() == sorted(range(13), key=keys.__getitem__)
    same(values, np.take_along_axis(x, places, 1))
    positive = np.where(np.isnan(x), np.array(np.nan).astype(x.dtype), np.where(x == 0, np.zeros_like(x), x))
    same(places, lax.top_k(positive, 13)[1])
