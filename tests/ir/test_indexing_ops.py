"""Ops at computed indices and of sorting: types, factor rules, what is refused, and the compositions over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmdc
from ir.builder import RegionBuilder, infer_types
from ir.diagnostics import SpmdcError
from ir.ops import OPS
from ir.program import Attr
from ir.types import DTYPES, TensorType

Array = np.ndarray[Any, Any]

GATHER: dict[str, Attr] = {
    "offset_dims": (1, 2),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "index_vector_dim": 1,
    "slice_sizes": (1, 3, 4),
}
SCATTER: dict[str, Attr] = {
    "update_window_dims": (1, 2),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
    "kind": "sum",
}


def tensor(text: str) -> TensorType:
    dtype, _, sizes = text.removesuffix("]").partition("[")
    return TensorType(tuple(map(int, sizes.split(","))) if sizes else (), DTYPES[dtype])


def rule(opname: str, *types: str, **attrs: Attr) -> str:
    b = RegionBuilder()
    b.append(opname, [b.param("p", tensor(t)) for t in types], dict(attrs))
    factors = OPS[opname].factors
    assert factors is not None
    return str(factors(b.ops[-1]))


def test_the_factors_of_each_op() -> None:
    s = "s32[]"
    found = {
        "slice": rule("dynamic_slice", "f32[8,6,4]", s, s, s, sizes=(1, 6, 2)),
        "slice of truth values": rule("dynamic_slice", "pred[8]", s, sizes=(1,)),
        "update": rule("dynamic_update_slice", "f32[8,6,4]", "f32[1,6,2]", s, s, s),
        "gather": rule("gather", "f32[9,3,4]", "s32[5]", **GATHER),
        "gather of boxes": rule("gather", "f32[9,3,4]", "s32[5]", **{**GATHER, "slice_sizes": (1, 2, 4)}),
        "batched gather": rule(
            "gather",
            "f32[2,9]",
            "s32[2,5,1]",
            offset_dims=(),
            collapsed_slice_dims=(1,),
            operand_batching_dims=(0,),
            indices_batching_dims=(0,),
            start_index_map=(1,),
            index_vector_dim=2,
            slice_sizes=(1, 1),
        ),
        "sum": rule("scatter", "f32[9,3,4]", "s32[5]", "f32[5,3,4]", **SCATTER),
        "replace": rule("scatter", "f32[9,3,4]", "s32[5]", "f32[5,3,4]", **{**SCATTER, "kind": "replace"}),
        "sort": rule("sort", "f32[3,4]", "s32[3,4]", dim=0),
        "first of a sort": rule("sort", "f32[3,4]", "s32[3,4]", dim=0, first=2),
        "top_k": rule("top_k", "f32[3,4]", k=2),
    }
    assert found == {
        "slice": "i k l, , ,  -> j k m  {i: reduction(sum), j: window, l: reduction(sum), m: window}",
        "slice of truth values": "i,  -> j  {i: reduction(or), j: window}",
        "update": "i k l, j k m, , ,  -> i k l  {j: window, m: window}",
        "gather": "j k l, i -> i k l  {j: reduction(sum)}",
        "gather of boxes": "j k m, i -> i l m  {j: reduction(sum), k: reduction(sum), l: window}",
        "batched gather": "i k, i j l -> i j  {k: reduction(sum), l: need_replication}",
        "sum": "j k l, i, i k l -> j k l  {i: reduction(sum)}",
        "replace": "j k l, i, i k l -> j k l  {i: need_replication}",
        "sort": "i j, i j -> i j, i j  {i: need_replication}",
        "first of a sort": "i j, i j -> k j, k j  {i: reduction, k: need_replication}",
        "top_k": "i j -> i k, i k  {j: reduction, k: need_replication}",
    }


@pytest.mark.parametrize(
    ("change", "indices", "message"),
    [
        ({}, "f32[5]", "the indices must be integers, and are f32[5]"),
        ({"index_vector_dim": 2}, "s32[5]", "index_vector_dim is 2: it must be from 0 to 1"),
        ({"index_vector_dim": 0}, "s32[5,2]", "start_index_map names 1 dims, and index vectors have 5 components"),
        ({"collapsed_slice_dims": (3,)}, "s32[5]", "dim 3 is out of range: valid dims are 0 to 2"),
        ({"collapsed_slice_dims": (0, 1)}, "s32[5]", "those have 2, 2 and 0"),
        ({"start_index_map": (4,)}, "s32[5]", "dim 4 is out of range"),
        ({"offset_dims": (2, 1)}, "s32[5]", "offset_dims=[2, 1] must be in ascending order"),
        ({"offset_dims": (1, 3)}, "s32[5]", "offset_dims: dim 3 is out of range"),
        ({"slice_sizes": (1, 3)}, "s32[5]", "slice_sizes=[1, 3] must have a size for each of the 3 dims"),
        ({"slice_sizes": (1, 3, 5)}, "s32[5]", "slice size 5 of dim 2 must be between 0 and 4"),
        ({"slice_sizes": (2, 3, 4)}, "s32[5]", "dim 0 is not in the result, so its slice size must be 1, and is 2"),
        ({"indices_batching_dims": (0,)}, "s32[5]", "must have as many dims as one another"),
        (
            {
                "offset_dims": (1,),
                "operand_batching_dims": (1,),
                "indices_batching_dims": (0,),
                "slice_sizes": (1, 1, 4),
            },
            "s32[5]",
            "dim 1 of f32[9, 3, 4] and dim 0 of s32[5] are walked together",
        ),
        (
            {
                "offset_dims": (1,),
                "operand_batching_dims": (1,),
                "indices_batching_dims": (1,),
                "slice_sizes": (1, 1, 4),
            },
            "s32[3,1]",
            "must not name the dim of index vectors, 1",
        ),
    ],
)
def test_a_gather_whose_dimension_numbers_do_not_fit_is_refused(
    change: dict[str, Attr], indices: str, message: str
) -> None:
    with pytest.raises(SpmdcError) as caught:
        infer_types("gather", [tensor("f32[9,3,4]"), tensor(indices)], {**GATHER, **change})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E201"
    assert message in diagnostic.message


@pytest.mark.parametrize(
    ("dtype", "fill", "message"),
    [
        ("pred", 2, "pred has no 2"),
        ("u8", -1, "u8 has no -1"),
        ("s32", 0.5, "s32 has no 0.5"),
        ("f32", 1j, "no complex"),
    ],
)
def test_a_fill_that_the_type_does_not_have_is_refused(dtype: str, fill: Attr, message: str) -> None:
    with pytest.raises(SpmdcError) as caught:
        infer_types(
            "gather", [tensor(f"{dtype}[9,3,4]"), tensor("s32[5]")], {**GATHER, "mode": "fill", "fill_value": fill}
        )
    (diagnostic,) = caught.value.diagnostics
    assert message in diagnostic.message


@pytest.mark.parametrize(
    ("opname", "types", "attrs", "message"),
    [
        ("gather", "s32[9,3,4] s32[5]", {**GATHER, "fill_value": 1}, "fill_value is what mode=fill puts"),
        ("gather", "s32[9,3,4] s32[5]", {**GATHER, "mode": "fill", "fill_value": 0.5}, "s32 has no 0.5"),
        ("gather", "s32[9,3,4] s32[5]", {**GATHER, "mode": "fill", "fill_value": (1, 2)}, "must be one number"),
        ("gather", "s32[9,3,4] s32[5]", {**GATHER, "mode": "wrap"}, "mode is 'wrap'"),
        ("scatter", "f32[9,3,4] s32[5] s32[5,3,4]", SCATTER, "the updates must have the operand's element type, f32"),
        ("scatter", "f32[9,3,4] s32[5] f32[6,3,4]", SCATTER, "not in update_window_dims must be [5]"),
        ("scatter", "f32[9,3,4] s32[5] f32[5,4]", SCATTER, "the updates must have rank 3"),
        ("scatter", "f32[9,3,4] s32[5] f32[5,3,5]", SCATTER, "boxes of size 5 do not fit into dim 2"),
        ("scatter", "pred[9,3,4] s32[5] pred[5,3,4]", SCATTER, "pred has no sum"),
        ("scatter", "f32[9,3,4] s32[5] f32[5,3,4]", {**SCATTER, "kind": "average"}, "kind is 'average'"),
        ("dynamic_slice", "f32[4] s32[]", {"sizes": (5,)}, "size 5 of dim 0 must be between 0 and 4"),
        ("dynamic_slice", "f32[4] f32[]", {"sizes": (1,)}, "a start must be an integer scalar, and is f32[]"),
        ("dynamic_slice", "f32[4]", {"sizes": (1,)}, "a start for each of the 1 dims"),
        ("dynamic_slice", "f32[4] s32[]", {"sizes": ()}, "a size for each of the 1 dims"),
        ("dynamic_update_slice", "f32[4]", {}, "it takes an operand, an update, and a start"),
        ("dynamic_update_slice", "f32[4] f32[5] s32[]", {}, "dim 0 of the update, f32[5], is larger"),
        ("dynamic_update_slice", "f32[4] s32[2] s32[]", {}, "the update must be of the operand's element type"),
        ("dynamic_update_slice", "f32[4] f32[2]", {}, "a start for each of the 1 dims"),
        ("sort", "", {"dim": 0}, "there is nothing to sort"),
        ("sort", "f32[4] f32[5]", {"dim": 0}, "must have one shape"),
        ("sort", "f32[4]", {"dim": 1}, "dim 1 is out of range"),
        ("sort", "f32[4] f32[4]", {"dim": 0, "num_keys": 3}, "num_keys is 3: it must be from 1 to 2"),
        ("top_k", "f32[2,4]", {"k": 5}, "k is 5: it must be from 0 to 4"),
        ("top_k", "f32[]", {"k": 1}, "the operand is a scalar"),
        ("sort", "f32[2,4]", {"dim": 1, "first": 5}, "first is 5: it must be from 0 to 4, the size of dim 1"),
    ],
)
def test_operands_that_do_not_fit_are_refused(opname: str, types: str, attrs: dict[str, Attr], message: str) -> None:
    with pytest.raises(SpmdcError) as caught:
        infer_types(opname, [tensor(t) for t in types.split()], dict(attrs))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in ("E201", "E203")
    assert message in diagnostic.message


def outcome(body: str, signature: str, *arrays: Array) -> tuple[Array, ...]:
    return spmdc.evaluate(spmdc.parse(f"def main{signature} {{ return {body} }}"), *arrays)


def test_take_puts_the_dims_of_the_indices_in_the_place_of_dim() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    i = np.array([[0, 2], [-5, 9], [1, 1]], np.int32)
    for dim in (0, 1, 2, -1):
        want = np.take(x, np.clip(i, 0, x.shape[dim] - 1), dim)
        shape = ", ".join(map(str, want.shape))
        (got,) = outcome(f"take(x, i, {dim})", f"(x: f32[2, 3, 4], i: s32[3, 2]) -> f32[{shape}]", x, i)
        np.testing.assert_array_equal(got, want)
    (one,) = outcome("take(x, i, 1)", "(x: f32[2, 3, 4], i: s32[]) -> f32[2, 4]", x, np.array(2, np.int32))
    np.testing.assert_array_equal(one, x[:, 2])


def test_an_index_out_of_range_can_take_a_given_number() -> None:
    x, i = np.arange(6, dtype=np.int32).reshape(3, 2), np.array([0, 3, -1, 2], np.int32)
    (got,) = outcome("take(x, i, 0, fill=-7)", "(x: s32[3, 2], i: s32[4]) -> s32[4, 2]", x, i)
    np.testing.assert_array_equal(got, [[0, 1], [-7, -7], [-7, -7], [4, 5]])


def test_nothing_can_be_taken_from_a_dim_without_elements() -> None:
    with pytest.raises(SpmdcError, match="no element to take"):
        spmdc.parse("def main(x: f32[0, 3], i: s32[2]) -> f32[2, 3] { return take(x, i, 0) }")


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort_along_any_dim(dim: int, descending: bool) -> None:
    x = np.random.default_rng(0).integers(0, 4, (6, 5)).astype(np.int32)
    settings = f"dim={dim}, descending={str(descending).lower()}"
    values, order = outcome(
        f"sort(x, {settings}), argsort(x, {settings})", "(x: s32[6, 5]) -> (s32[6, 5], s32[6, 5])", x
    )
    wanted = np.argsort(-x if descending else x, dim, kind="stable")
    np.testing.assert_array_equal(order, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, dim))


def test_sort_takes_the_last_dim_unless_told_and_a_printed_one_reads_back() -> None:
    program = spmdc.parse("def main(x: s32[2, 3]) -> (s32[2, 3], s32[2, 3]) { return sort(x), sort(x, 0, true) }")
    assert [op.attrs["dim"] for op in program.main.body.ops] == [1, 0]
    text = spmdc.parse("def main(x: s32[4], y: f32[4]) -> (s32[4], f32[4]) { return sort(x, y, dim=0, num_keys=2) }")
    (op,) = text.main.body.ops
    assert (len(op.results), op.attrs["num_keys"]) == (2, 2)


def test_top_k_along_another_dim_is_that_of_the_transposed_tensor() -> None:
    x = np.random.default_rng(0).integers(0, 4, (3, 6, 2)).astype(np.float32)
    values, places = outcome("top_k(x, 4, dim=1)", "(x: f32[3, 6, 2]) -> (f32[3, 4, 2], s32[3, 4, 2])", x)
    wanted = np.argsort(-x, 1, kind="stable")[:, :4]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))
