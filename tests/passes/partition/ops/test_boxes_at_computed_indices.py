"""Boxes of several elements at computed indices, where the dims that they are in are split.

Each device reads and writes what it owns of a box, so what travels are boxes, never the tensor that they are in.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import Names, RegionBuilder
from ir.ops.addressing import GATHER, SCATTER
from ir.program import Program, Result, Value
from ir.sharding import Sharding
from ir.types import DType, TensorType, bf16, c64, f32, pred, s8, s32, u8, u32
from spmdc.api import PartitionedProgram
from spmdc.testing import meshes, shardings

Array = np.ndarray[Any, Any]

DTYPES: tuple[DType, ...] = (f32, s32, bf16, u8, pred, c64)
INDICES: tuple[DType, ...] = (s32, s8, u8, u32)


def elements(type: TensorType, rng: np.random.Generator) -> Array:
    """Distinct small numbers, and what is easily lost on the way: NaN, infinities, -0.0, the extremes of integers."""
    dtype = type.dtype
    if dtype.is_complex:
        part = type.with_dtype(dtype.component)
        both = np.empty(type.shape, dtype.numpy)
        both.real, both.imag = elements(part, rng), elements(part, rng)
        return both
    if dtype == pred:
        return rng.integers(0, 2, type.shape).astype(np.bool_)
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0] if dtype.is_float else [dtype.lowest, dtype.highest, 0]
    plain = rng.integers(1, 100, type.shape).astype(dtype.numpy)
    return np.where(rng.random(type.shape) < 0.3, rng.choice(np.array(special, dtype.numpy), type.shape), plain)


def assert_same(got: Array, want: Array, *, signs: bool = True) -> None:
    """Equal elements, of which zeros have the same sign if `signs`. All NaNs are alike."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "V":
        got, want = got.astype(np.float32), want.astype(np.float32)
    if np.iscomplexobj(want):
        assert_same(got.real, want.real, signs=signs)
        assert_same(got.imag, want.imag, signs=signs)
        return
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind == "f" and signs:
        number = want == want
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


def run(program: Program, *arrays: Array | np.generic, jax: bool = False) -> PartitionedProgram:
    """The partitioned program, which on these inputs equals the unpartitioned one.

    Not so the signs of zeros on JAX's CPU devices, where XLA begins the sum over devices with 0.0.
    """
    q = spmdc.partition(program)
    for got, want in zip(q.simulate(*arrays), spmdc.evaluate(program, *arrays), strict=True):
        assert_same(got, want)
    if jax:
        for on_jax, want in zip(q.to_jax()(*arrays), spmdc.evaluate(program, *arrays), strict=True):
            assert_same(np.asarray(on_jax), want, signs=False)
    return q


def transfers(q: PartitionedProgram) -> list[tuple[str, int]]:
    return [(c.kind, c.bytes) for c in q.collectives()]


def function(b: RegionBuilder, result: Value, sharding: Sharding | None) -> Program:
    declared = [Result("out", result.type, sharding)]
    mesh = next(p.sharding for p in b.params if p.sharding is not None).mesh
    return Program((mesh,), {"main": b.function("main", [result], declared)})


# dynamic_slice and dynamic_update_slice


@st.composite
def box_programs(draw: st.DrawFn) -> tuple[Program, tuple[Array, ...]]:
    """Reads or overwrites a box at starts from -2n to 2n of a tensor in any sharding."""
    mesh = draw(meshes(max_devices=12))
    shape = tuple(draw(st.lists(st.sampled_from((13, 7, 16, 5, 1, 24)), min_size=1, max_size=3)))
    sizes = tuple(draw(st.integers(0, n)) for n in shape)
    type = TensorType(shape, draw(st.sampled_from(DTYPES)))
    placed = shardings(mesh, type, partial=False)
    b = RegionBuilder(Names())
    x = b.param("x", type, draw(placed))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = [elements(type, rng)]
    update: Value | None = None
    if draw(st.booleans()):
        box = type.with_shape(sizes)
        update = b.param("update", box, draw(st.none() | shardings(mesh, box, partial=False)))
        arrays.append(elements(box, rng))
    starts: list[Value] = []
    for d, n in enumerate(shape):
        dtype = draw(st.sampled_from(INDICES))
        starts.append(b.param(f"i{d}", TensorType((), dtype)))
        low = max(int(dtype.lowest), -2 * n)
        arrays.append(np.array(draw(st.integers(low, 2 * n) | st.just(int(dtype.highest))), dtype.numpy))
    if update is not None:
        result = b.op("dynamic_update_slice", x, update, *starts)
    else:
        result = b.op("dynamic_slice", x, *starts, sizes=sizes)
    sharding = draw(st.none() | shardings(mesh, result.type, partial=False))
    return function(b, result, sharding), tuple(arrays)


@settings(max_examples=examples(100))
@given(box_programs())
def test_a_box_at_any_start_is_read_and_written_as_in_the_whole_tensor(
    drawn: tuple[Program, tuple[Array, ...]],
) -> None:
    program, arrays = drawn
    q = run(program, *arrays)
    assert not any(" gathers x:" in w.message for w in q.warnings)


@settings(max_examples=examples(6))
@given(box_programs())
def test_a_box_at_any_start_is_read_and_written_alike_on_jax_devices(drawn: tuple[Program, tuple[Array, ...]]) -> None:
    program, arrays = drawn
    if program.mesh.size <= 8:
        run(program, *arrays, jax=True)


def test_only_the_elements_of_a_box_travel() -> None:
    program = spmdc.parse(
        "mesh (d=8)\ndef main(x: f32[61@d, 128], k: s32[]) -> (out: f32[4, 128]) "
        "{ return dynamic_slice(x, k, 0, sizes=[4, 128]) }"
    )
    x = np.random.default_rng(0).normal(size=(61, 128)).astype(np.float32)
    for k in (-122, -1, 0, 6, 7, 8, 56, 57, 61, 122):
        q = run(program, x, np.int32(k), jax=k == 6)
    assert transfers(q) == [("all_reduce", 2 * 7 * 4 * 128 * 4 // 8)]
    assert not q.warnings


def test_a_box_wanted_split_is_scattered_as_it_is_reduced() -> None:
    program = spmdc.parse(
        "mesh (d=8)\ndef main(x: f32[256@d, 128], k: s32[]) -> (out: f32[16@d, 128]) "
        "{ return dynamic_slice(x, k, 0, sizes=[16, 128]) }"
    )
    x = np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32)
    q = run(program, x, np.int32(30))
    assert transfers(q) == [("reduce_scatter", 7 * 16 * 128 * 4 // 8)]


def test_a_box_of_two_split_dims_is_read_where_it_lies() -> None:
    program = spmdc.parse(
        "mesh (x=2, y=3) devices=[5, 3, 1, 0, 2, 4]\n"
        "def main(x: s32[31@x, 33@y], i: s32[], j: s32[]) -> (out: s32[4, 5]) "
        "{ return dynamic_slice(x, i, j, sizes=[4, 5]) }"
    )
    x = np.arange(31 * 33, dtype=np.int32).reshape(31, 33) - 500
    for i, j in itertools.product((-9, 13, 15, 99), (0, 9, 10, 30)):
        q = run(program, x, np.int32(i), np.int32(j))
    assert {c.kind for c in q.collectives()} == {"all_reduce"}


@pytest.mark.parametrize("size", [1, 2, 5, 9, 12])
def test_an_update_is_written_where_its_elements_belong_and_the_tensor_stays_where_it_is(size: int) -> None:
    program = spmdc.parse(
        f"mesh (d=4)\ndef main(x: f32[2, 13@d], new: f32[2, {size}], k: s32[]) -> (out: f32[2, 13@d]) "
        "{ return dynamic_update_slice(x, new, 0, k) }"
    )
    rng = np.random.default_rng(size)
    x, new = elements(TensorType((2, 13), f32), rng), elements(TensorType((2, size), f32), rng)
    for k in (-26, -1, 0, 2, 3, 4, 8, 12, 26):
        assert transfers(run(program, x, new, np.int32(k))) == []


def test_of_an_update_that_is_split_along_the_same_dim_only_the_update_is_gathered() -> None:
    program = spmdc.parse(
        "mesh (d=4)\ndef main(x: f32[1024@d, 8], new: f32[16@d, 8], k: s32[]) -> (out: f32[1024@d, 8]) "
        "{ return dynamic_update_slice(x, new, k, 0) }"
    )
    rng = np.random.default_rng(0)
    x, new = elements(TensorType((1024, 8), f32), rng), elements(TensorType((16, 8), f32), rng)
    assert transfers(run(program, x, new, np.int32(250), jax=True)) == [("all_gather", 3 * 4 * 8 * 4)]


@pytest.mark.parametrize(
    ("read", "rows"),
    [("take(x, i, 0)", 5), ("take(x, i, 0, fill=0.0)", 5), ("dynamic_slice(x, k, 0, sizes=[2, 3])", 2)],
)
def test_a_shard_whose_padding_is_never_read_is_not_masked(read: str, rows: int) -> None:
    signature = f"(x: f32[13@d, 3], i: s32[5], k: s32[]) -> (out: f32[{rows}, 3])"
    q = spmdc.partition(spmdc.parse(f"mesh (d=4)\ndef main{signature} {{ return {read} }}"))
    assert (4, 3) not in [op.result.shape for op in q.program.main.body.ops]


# gather and scatter


@st.composite
def indexed_programs(draw: st.DrawFn) -> tuple[Program, tuple[Array, ...]]:
    """Gathers and scatters of boxes of any sizes, out of range or not, of tensors in any shardings."""
    mesh = draw(meshes(max_devices=12))
    shape = tuple(draw(st.lists(st.sampled_from((13, 7, 16, 5, 1)), min_size=1, max_size=3)))
    type = TensorType(shape, draw(st.sampled_from(DTYPES)))
    order = draw(st.permutations(range(len(shape))))
    addressed = tuple(order[: draw(st.integers(0, len(shape)))])
    dropped = tuple(d for d in range(len(shape)) if draw(st.booleans()))
    sizes = tuple(1 if d in dropped else draw(st.integers(1, n)) for d, n in enumerate(shape))
    scanned = tuple(draw(st.lists(st.sampled_from((1, 4, 9)), max_size=2)))
    place = draw(st.integers(0, len(scanned)))
    vectors = (*scanned[:place], len(addressed), *scanned[place:])
    if len(addressed) == 1 and draw(st.booleans()):
        place, vectors = len(scanned), scanned
    kept = tuple(n for d, n in enumerate(sizes) if d not in dropped)
    window = tuple(sorted(draw(st.permutations(range(len(scanned) + len(kept))))[: len(kept)]))
    indices = TensorType(vectors, draw(st.sampled_from(INDICES)))
    b = RegionBuilder(Names())
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x = b.param("x", type, draw(shardings(mesh, type, partial=False)))
    i = b.param("i", indices, draw(st.none() | shardings(mesh, indices, partial=False)))
    given = rng.integers(0 if indices.dtype.kind == "unsigned" else -5, 20, vectors).astype(indices.dtype.numpy)
    arrays = [elements(type, rng), given]

    def dims(spelling: Any) -> dict[str, Any]:
        named = {spelling.window: window, spelling.dropped: dropped, spelling.addressed: addressed}
        return {**named, "index_vector_dim": place}

    if draw(st.booleans()):
        mode = draw(st.sampled_from(("clip", "fill")))
        value = draw(st.sampled_from((None, 3, 0))) if mode == "fill" and type.dtype != pred else None
        chosen: dict[str, Any] = {"slice_sizes": sizes, "mode": mode, "fill_value": value}
        result = b.op("gather", x, i, **dims(GATHER), **chosen)
    else:
        scan, inside = iter(scanned), iter(kept)
        slices = tuple(next(inside if d in window else scan) for d in range(len(scanned) + len(kept)))
        updates = TensorType(slices, type.dtype)
        kind = draw(
            st.sampled_from(("replace", "max") if type.dtype.is_ordered and type.dtype != pred else ("replace",))
        )
        u = b.param("u", updates, draw(st.none() | shardings(mesh, updates, partial=False)))
        arrays.append(elements(updates, rng))
        result = b.op("scatter", x, i, u, **dims(SCATTER), kind=kind)
    return function(b, result, draw(st.none() | shardings(mesh, result.type, partial=False))), tuple(arrays)


@settings(max_examples=examples(120))
@given(indexed_programs())
def test_boxes_at_indices_are_read_and_written_as_in_the_whole_tensor(drawn: tuple[Program, tuple[Array, ...]]) -> None:
    program, arrays = drawn
    q = run(program, *arrays)
    assert not any(" gathers x:" in w.message for w in q.warnings)


@settings(max_examples=examples(8))
@given(indexed_programs())
def test_boxes_at_indices_are_read_and_written_alike_on_jax_devices(drawn: tuple[Program, tuple[Array, ...]]) -> None:
    program, arrays = drawn
    if program.mesh.size <= 8:
        run(program, *arrays, jax=True)
