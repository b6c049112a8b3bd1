"""Reads and writes at computed indices, and top_k, where operands are split: right to the bit, and without gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmdc
from ir.program import all_ops
from ir.types import DTYPES, dtype_of
from spmdc.api import PartitionedProgram

Array = np.ndarray[Any, Any]

TAKE = "offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1, slice_sizes=[1, 3]"
PUT = "update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1"


def checked(text: str, *arrays: Array | np.generic) -> PartitionedProgram:
    """The partitioned program, which on these inputs equals the unpartitioned one to the bit, signs of zeros aside."""
    program = spmdc.parse(text)
    q = spmdc.partition(program)
    for got, want in zip(q.simulate(*arrays), spmdc.evaluate(program, *arrays), strict=True):
        assert got.dtype == want.dtype
        exact = np.float64 if dtype_of(want.dtype).is_float else want.dtype
        np.testing.assert_array_equal(got.astype(exact), want.astype(exact))
    return q


def kinds(q: PartitionedProgram) -> list[str]:
    return [c.kind for c in q.collectives()]


def received(q: PartitionedProgram) -> int:
    return sum(c.bytes * (c.count or 1) for c in q.collectives())


def table(rows: int = 13, columns: int = 3) -> Array:
    """Rows of distinct numbers, with a row of NaN and one of infinities."""
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    x[2], x[rows - 1] = np.nan, np.inf
    return x


def test_rows_of_a_split_table_come_from_their_owners_and_nothing_leaks_from_other_shards() -> None:
    indices = np.array([0, 2, 28, 29, -1, 99, -(2**31), 2**31 - 1, 5, 5], np.int32)
    q = checked(
        f"mesh (d=8)\ndef main(t: f32[29@d, 3], i: s32[10]) -> (y: f32[10, 3]) {{ return gather(t, i, {TAKE}) }}",
        table(29),
        indices,
    )
    assert kinds(q) == ["all_reduce"]
    assert q.warnings == ()


@pytest.mark.parametrize("dtype", ["s8", "u8", "u32", "s64"])
def test_indices_of_any_type_are_clamped_as_those_of_the_whole_table(dtype: str) -> None:
    element = DTYPES[dtype]
    indices = np.array([element.lowest, element.highest, 0, 1, 100, 12, 11, 7], element.numpy)
    mesh = "mesh (d=8)\n"
    take = f"def main(t: f32[13@d, 3], i: {dtype}[8]) -> (y: f32[8, 3]) {{ return gather(t, i, {TAKE}) }}"
    assert kinds(checked(mesh + take, table(), indices)) == ["all_reduce"]
    put = f"def main(t: f32[13@d, 3], i: {dtype}[8], u: f32[8, 3]) -> (y: f32[13@d, 3])"
    text = f"{mesh}{put} {{ return scatter(t, i, u, {PUT}, kind=sum) }}"
    assert kinds(checked(text, table(), indices, np.ones((8, 3), np.float32))) == []
    read = (
        f"def main(t: f32[200@d, 3], i: {dtype}[]) -> (y: f32[1, 3]) {{ return dynamic_slice(t, i, i, sizes=[1, 3]) }}"
    )
    for i in indices:
        assert kinds(checked(mesh + read, table(200), i)) == ["all_reduce"]


def test_a_truth_value_read_by_its_owner_is_the_or_of_what_devices_hold() -> None:
    q = checked(
        "mesh (d=4)\ndef main(t: pred[8@d], i: s32[]) -> (y: pred[1]) { return dynamic_slice(t, i, sizes=[1]) }",
        np.array([0, 1, 0, 0, 1, 1, 0, 1], np.bool_),
        np.int32(5),
    )
    assert kinds(q) == ["all_reduce"]


def test_a_box_at_indices_of_two_split_dims_is_read_by_the_one_device_that_has_it() -> None:
    text = """
        mesh (x=2, y=4)
        def main(t: f32[5@x, 7@y, 3], i: s32[2, 6]) -> (y: f32[3, 6]) {
          return gather(t, i, offset_dims=[0], collapsed_slice_dims=[0, 1], start_index_map=[1, 0], index_vector_dim=0,
                        slice_sizes=[1, 1, 3])
        }
    """
    indices = np.array([[0, 6, 7, -3, 3, 2], [4, 0, 9, 1, 2, 3]], np.int32)
    q = checked(text, table(35).reshape(5, 7, 3), indices)
    assert set(kinds(q)) == {"all_reduce"}


def test_rows_taken_from_a_split_table_by_split_indices_cost_less_than_gathering_the_table() -> None:
    q = checked(
        "mesh (d=8)\ndef main(t: f32[1024@d, 64], i: s32[256@d]) -> (y: f32[256@d, 64]) { return take(t, i, 0) }",
        np.random.default_rng(0).normal(size=(1024, 64)).astype(np.float32),
        np.random.default_rng(1).integers(-10, 1034, 256, np.int32),
    )
    assert kinds(q) == ["all_to_all", "all_gather", "all_to_all"]
    assert received(q) <= 40_000


def test_batch_dims_and_whole_dims_are_split_without_communication() -> None:
    text = """
        mesh (x=2, y=2)
        def main(t: f32[3@x, 9, 5@y], i: s32[3@x, 4]) -> (y: f32[3@x, 4, 5@y]) {
          return gather(t, i, offset_dims=[2], collapsed_slice_dims=[1], operand_batching_dims=[0],
                        indices_batching_dims=[0], start_index_map=[1], index_vector_dim=2, slice_sizes=[1, 1, 5])
        }
    """
    t = np.random.default_rng(0).normal(size=(3, 9, 5)).astype(np.float32)
    i = np.random.default_rng(1).integers(-3, 12, (3, 4), np.int32)
    q = checked(text, t, i)
    assert kinds(q) == []
    np.testing.assert_array_equal(q.simulate(t, i)[0], t[np.arange(3)[:, None], np.clip(i, 0, 8)])


@pytest.mark.parametrize("kind", ["replace", "sum", "prod", "max", "min"])
def test_updates_are_written_by_the_owners_of_their_rows(kind: str) -> None:
    q = checked(
        f"""
        mesh (d=8)
        def main(t: f32[13@d, 3], i: s32[9], u: f32[9, 3]) -> (y: f32[13@d, 3]) {{
          return scatter(t, i, u, {PUT}, kind={kind})
        }}
        """,
        np.full((13, 3), 3, np.float32),
        np.array([0, 12, 12, 13, -1, 7, 7, 5, 0], np.int32),
        np.arange(27, dtype=np.float32).reshape(9, 3) - 9,
    )
    assert kinds(q) == []


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("index", ["s32", "u32"])
def test_updates_that_lie_on_several_devices_are_reduced_and_the_operand_counts_once(kind: str, index: str) -> None:
    q = checked(
        f"""
        mesh (d=4)
        def main(t: f32[5, 3], i: {index}[9@d], u: f32[9@d, 3]) -> (y: f32[5, 3]) {{
          return scatter(t, i, u, {PUT}, kind={kind})
        }}
        """,
        np.full((5, 3), 3, np.float32),
        np.array([0, 1, 2, 2, 0, 7, 3, 1, 0], np.int32 if index == "s32" else np.uint32),
        np.arange(27, dtype=np.float32).reshape(9, 3) % 4 - 2,
    )
    assert "all_gather" not in kinds(q) or kind == "prod"


@pytest.mark.parametrize("start", ["0.0", "-0.0"])
def test_sums_that_begin_from_zeros_begin_from_them_on_every_device(start: str) -> None:
    text = f"""
        mesh (d=4)
        def main(i: s32[8@d], u: f32[8@d, 1]) -> (y: f32[8@d, 1]) {{
          return scatter(constant(value={start}, type=f32[8, 1]), i, u, {PUT}, kind=sum)
        }}
    """
    i, u = np.array([0, 1, 1, 2, 2, 3, 3, 3], np.int32), np.array([[-0.0, -0.0, 0.0, 1, -1, 2, -0.0, -2]], np.float32).T
    q = checked(text, i, u)
    assert "select" not in [op.name for op in all_ops(q.program)]
    (whole,) = q.simulate(i, u)
    np.testing.assert_array_equal(np.signbit(whole), np.signbit(spmdc.evaluate(spmdc.parse(text), i, u)[0]))


def test_updates_in_padding_leave_the_sign_of_a_zero() -> None:
    text = f"""
        mesh (d=2)
        def main(t: f32[4, 1], i: s32[3@d], u: f32[3@d, 1]) -> (y: f32[4, 1]) {{
          return scatter(t, i, u, {PUT}, kind=sum)
        }}
    """
    t, i, u = np.full((4, 1), -0.0, np.float32), np.array([1, 2, 3], np.int32), np.full((3, 1), -0.0, np.float32)
    (y,) = checked(text, t, i, u).simulate(t, i, u)
    assert np.signbit(y).all()


def test_the_gradient_of_a_lookup_adds_rows_where_both_table_and_updates_are_split() -> None:
    q = checked(
        f"""
        mesh (x=2, y=2)
        def main(i: s32[6@y], u: f32[6@y, 3]) -> (y: f32[7@x, 3]) {{
          return scatter(zeros([7, 3]), i, u, {PUT}, kind=sum)
        }}
        """,
        np.array([6, 1, 1, 3, 9, 0], np.int32),
        np.arange(18, dtype=np.float32).reshape(6, 3),
    )
    assert "all_gather" not in kinds(q)


def test_a_cache_that_is_split_along_its_positions_is_written_where_it_lies() -> None:
    text = """
        mesh (d=4)
        def main(cache: f32[2, 10@d, 3], new: f32[2, 1, 3], at: s32[]) -> (y: f32[2, 10@d, 3]) {
          return dynamic_update_slice(cache, new, 0, at, 0)
        }
    """
    cache = np.arange(60, dtype=np.float32).reshape(2, 10, 3)
    for at in (-20, -1, 0, 3, 9, 10, 20):
        assert kinds(checked(text, cache, np.full((2, 1, 3), -1, np.float32), np.int32(at))) == []


@pytest.mark.parametrize("index", ["s8", "u8", "s32", "u64"])
def test_a_layer_is_read_by_its_owner(index: str) -> None:
    text = f"""
        mesh (d=8)
        def main(layers: f32[13@d, 3], at: {index}[]) -> (y: f32[1, 3]) {{
          return dynamic_slice(layers, at, at, sizes=[1, 3])
        }}
    """
    element = DTYPES[index]
    for at in (element.lowest, 0, 1, 2, 7, 12, 13, 26, element.highest):
        assert kinds(checked(text, table(), np.array(at, element.numpy))) == ["all_reduce"]


def test_top_k_over_a_split_dim_exchanges_candidates_only() -> None:
    q = checked(
        "mesh (d=8)\ndef main(x: f32[64, 1024@d]) -> (y: f32[64, 2], i: s32[64, 2]) { return top_k(x, 2) }",
        np.random.default_rng(0).integers(-9, 9, (64, 1024)).astype(np.float32),
    )
    assert received(q) <= 8192


@pytest.mark.parametrize("k", [0, 1, 2, 5, 13])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "s32", "u8", "pred"])
def test_top_k_over_an_uneven_dim_takes_ties_by_index_and_no_padding(k: int, dtype: str) -> None:
    text = f"mesh (d=8)\ndef main(x: {dtype}[4, 13@d]) -> ({dtype}[4, {k}], s32[4, {k}]) {{ return top_k(x, {k}) }}"
    element = DTYPES[dtype]
    x = np.random.default_rng(k).integers(0, 3, (4, 13)).astype(element.numpy)
    x[1] = element.lowest
    if element.is_float:
        x[2, ::3], x[2, 1::3], x[3] = np.nan, -np.inf, -0.0
        x[3, ::2] = 0.0
    checked(text, x)


def test_top_k_may_take_all_that_a_shard_holds_as_candidates() -> None:
    """Where a plan says so, for it sends less to gather the elements themselves: 3 of each row, and their indices, come
    from each of 3 other devices, in one message."""
    header = "def main(x: s32[3, 10@d]) -> (v: s32[3, 5], i: s32[3, 5])"
    program = spmdc.parse(f"mesh (d=4)\n{header} {{ return top_k(x, 5) }}")
    q = spmdc.partition(spmdc.plan(program).replace("v", "j=d"))
    assert [c.bytes for c in q.collectives()] == [2 * 3 * 3 * 3 * 4]
    x = np.array([[1, 0, 2, 2, 1, 0, 2, 1, 1, 2], [0] * 10, [-3, 5, 5, -3, 5, 5, 5, -3, -3, 5]], np.int32)
    for got, want in zip(q.simulate(x), spmdc.evaluate(program, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("first", [1, 3, 13])
@pytest.mark.parametrize("descending", ["true", "false"])
@pytest.mark.parametrize("dtype", ["f32", "f8e4m3fn", "f4e2m1fn", "s32", "u8", "pred"])
def test_the_first_of_a_sort_are_found_among_candidates(first: int, descending: str, dtype: str) -> None:
    text = f"""
        mesh (d=4)
        def main(x: {dtype}[4, 13@d], y: s32[4, 13@d]) -> ({dtype}[4, {first}], s32[4, {first}]) {{
          p, q = sort(x, y, dim=1, descending={descending}, first={first})
          return p, q
        }}"""
    element = DTYPES[dtype]
    x = np.random.default_rng(first).integers(0, 3, (4, 13)).astype(element.numpy)
    x[1] = element.lowest
    if dtype == "f32":
        x[2, ::3], x[2, 1::3], x[3] = np.nan, np.inf, np.nan
        x[3, ::5] = -np.nan
    checked(text, x, np.arange(52, dtype=np.int32).reshape(4, 13))


def test_the_first_of_a_sort_are_gathered_where_that_takes_fewer_bytes() -> None:
    """Of 8 candidates each of 4 devices has 4, which are all that it has; and indices would travel beside them."""
    q = checked(
        "mesh (d=4)\ndef main(x: f32[64, 16@d]) -> (y: f32[64, 8], i: s32[64, 8]) { return top_k(x, 8) }",
        np.random.default_rng(0).integers(-9, 9, (64, 16)).astype(np.float32),
    )
    assert received(q) == 64 * 12 * 4


@pytest.mark.parametrize("start", [-9, 0, 3, 7, 40])
@pytest.mark.parametrize("dtype", ["s32", "s8", "u8"])
def test_at_constant_starts_boxes_are_exchanged_and_clamped(start: int, dtype: str) -> None:
    start = max(start, int(DTYPES[dtype].lowest))
    q = checked(
        f"""mesh (d=4)
        def main(x: f32[13@d, 3], u: f32[7@d, 2]) -> (read: f32[7@d, 2], written: f32[13@d, 3]) {{
          read = dynamic_slice(x, {dtype}({start}), {dtype}(1), sizes=[7, 2])
          return read, dynamic_update_slice(x, u, {dtype}({start}), {dtype}(1))
        }}""",
        table(),
        np.arange(14, dtype=np.float32).reshape(7, 2),
    )
    assert set(kinds(q)) <= {"collective_permute"}
    assert q.warnings == ()
