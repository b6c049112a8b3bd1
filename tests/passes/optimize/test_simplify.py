"""Programs made simple: the same to the bit, with index arithmetic folded and reads at known indices as slices."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simplified import check_same, ops, simplified

import spmdc
from ir.program import Program, all_ops
from lowering.reference.shards import same_bits
from passes.optimize.fold.simplify import simplify
from spmdc.testing import FAMILIES, programs


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_any_program_made_simple_computes_the_same_to_the_bit(family: str | None) -> None:
    @settings(max_examples=examples(50))
    @given(programs(family=family, anything=True), st.integers(0, 1000))
    def holds(program: Program, seed: int) -> None:
        check_same(program, simplify(program), seed)

    holds()


_NOTHING = {
    "x + 0": "s32[4]",
    "0 + x": "s32[4]",
    "x - 0": "s32[4]",
    "x + -0.0": "f32[4]",
    "x - 0.0": "f32[4]",
    "x * 1": "s32[4]",
    "x * 1.0": "bf16[4]",
    "x / 1.0": "f32[4]",
    "negate(negate(x))": "f32[4]",
    "not(not(x))": "s8[4]",
    "maximum(x, full([4], -inf))": "f32[4]",
    "minimum(full([4], inf), x)": "f32[4]",
    "maximum(x, full(u8[4], 0))": "u8[4]",
    "minimum(full(u8[4], 255), x)": "u8[4]",
    "clamp(full(u8[4], 0), x, full(u8[4], 255))": "u8[4]",
    "where(iota(s32[4], 0) < 4, x, x * 2.0)": "f32[4]",
    "where(iota(s32[4], 0) >= 4, x * 2.0, x)": "f32[4]",
    "where(y, x, x)": "f32[4]",
    "convert(x, f32)": "f32[4]",
    "convert(convert(x, f32), bf16)": "bf16[4]",
    "convert(convert(x, s32), pred)": "pred[4]",
    "convert(convert(x, f32), s8)": "s8[4]",
    "transpose(transpose(x, [1, 0]), [1, 0])": "f32[4, 3]",
    "reshape(reshape(x, [12]), [4, 3])": "f32[4, 3]",
    "reshape(broadcast_in_dim(x, shape=[1, 4, 1, 3], dims=[1, 3]), [4, 3])": "f32[4, 3]",
    "reverse(reverse(x, [0]), [0])": "f32[4]",
    "slice(x, start=[0], limit=[4])": "f32[4]",
    "concatenate(x, dim=0)": "f32[4]",
    "pad(x, 0.0, low=[0], high=[0])": "f32[4]",
    "slice(concatenate(x * 2.0, x, dim=0), start=[4], limit=[8])": "f32[4]",
    "dynamic_slice(x, 3, sizes=[4])": "f32[4]",
    "dynamic_update_slice(x * 2.0, x, 3)": "f32[4]",
}
"""Ops without effect, with the type of their operand."""


@pytest.mark.parametrize("expression", _NOTHING)
def test_ops_without_effect_are_left_out(expression: str) -> None:
    type = _NOTHING[expression]
    after = simplified(f"def main(x: {type}, y: pred[4]) -> (r: {type}) {{ return {expression} }}")
    assert ops(after) == []


_SOMETHING = {
    "x + 0.0": "f32[4]",
    "0.0 - x": "f32[4]",
    "x * 0.0": "f32[4]",
    "x * 1": "c64[4]",
    "convert(convert(x, bf16), f32)": "f32[4]",
    "convert(convert(x, f32), s32)": "s32[4]",
    "convert(convert(x, pred), s32)": "s32[4]",
    "maximum(x, full(s8[4], -127))": "s8[4]",
    "reshape(reshape(transpose(reshape(x, [2, 2]), [1, 0]), [4]), [4])": "f32[4]",
    "reshape(broadcast_in_dim(x, shape=[2, 1, 2], dims=[2, 0]), [2, 2])": "f32[2, 2]",
}
"""Ops that are not without effect, though they look so: -0.0 + 0.0 is 0.0, and inf * 0.0 is NaN."""


@pytest.mark.parametrize("expression", _SOMETHING)
def test_ops_with_an_effect_stay(expression: str) -> None:
    type = _SOMETHING[expression]
    assert ops(simplified(f"def main(x: {type}) -> (r: {type}) {{ return {expression} }}"))


@pytest.mark.parametrize("type", ["f32[64]", "bf16[64]"])
@pytest.mark.parametrize(
    ("extreme", "numbers", "compared"),
    [
        ("maximum(x, y)", (1.0, 0.0, 2.0, 1.0), ["GE", "GT"]),
        ("minimum(y, x)", (1.0, 0.0, 2.0, 1.0), ["LE", "LT"]),
        ("maximum(x, y)", (1.0, -0.0, 2.0, 1.0), ["EQ", "EQ"]),
        ("maximum(x, y)", (1.0, 0.0, 3.0, 1.0), ["EQ", "EQ"]),
        ("maximum(x, x)", (1.0, 0.0, 2.0, 1.0), ["EQ", "EQ"]),
    ],
)
def test_which_part_of_an_extreme_a_value_is_is_counted(
    extreme: str, numbers: tuple[float, ...], compared: list[str], type: str
) -> None:
    """As the derivative of one needs; what only looks like it stays."""
    a, b, c, d = (f"full({type}, {n})" for n in numbers)
    after = simplified(f"""
        def main(x: {type}, y: {type}) -> (r: {type}) {{
          z = {extreme}
          return where(x == z, {a}, {b}) / where(y == z, {c}, {d})
        }}
    """)
    assert [op.attrs["direction"] for op in all_ops(after) if op.name == "compare"] == compared


@pytest.mark.parametrize("type", ["f32[3, 5]", "f64[3, 5]", "f32[0, 5]"])
def test_negated_numbers_are_summed_and_then_negated(type: str) -> None:
    """Signs of zeros included: a sum begins with 0.0, and what is taken from that is no -0.0."""
    text = f"mesh (d=1)\ndef main(x: {type}) -> (y: {type[:-6]}[5]) {{\n  return sum(-x, dim=0)\n}}\n"
    assert ops(simplified(text)) == ["reduce", "constant", "subtract"]
    program = spmdc.parse(text)
    for zero in (0.0, -0.0):
        zeros = np.full(program.main.params[0].shape, zero, program.main.params[0].dtype.numpy)
        (want,), (got,) = spmdc.evaluate(program, zeros), spmdc.evaluate(simplify(program), zeros)
        assert same_bits(want, got)


@pytest.mark.parametrize(("type", "dims"), [("f32[5]", "[]"), ("f32[1, 5]", "[0]")])
def test_negated_numbers_that_are_summed_along_no_or_short_dims_stay_negated(type: str, dims: str) -> None:
    """Along none, nothing is added to them: the negation of 0.0 stays -0.0."""
    text = f"mesh (d=1)\ndef main(x: {type}) -> (y: f32[5]) {{\n  return reduce(-x, dims={dims}, kind=sum)\n}}\n"
    assert "negate" in ops(simplified(text))
    program = spmdc.parse(text)
    zeros = np.zeros(program.main.params[0].shape, np.float32)
    (want,), (got,) = spmdc.evaluate(program, zeros), spmdc.evaluate(simplify(program), zeros)
    assert same_bits(want, got)


_FOLDED = {
    "where(iota(s32[4], 0) < 0, iota(s32[4], 0) + 4, iota(s32[4], 0))": "iota",
    "iota(s32[4], 0) * 0 + 3": "constant",
    "remainder(iota(s32[4], 0), full(s32[4], 3))": "constant",
    "broadcast_in_dim(reshape(iota(s32[4, 1], 0), [4]), shape=[4], dims=[0])": "iota",
    "convert(convert(iota(s32[4], 0) < 9, s32), s32)": "constant",
    "maximum(minimum(x, 7), 9)": "constant",
}
"""Index arithmetic with a known outcome, and the op that is left."""


@pytest.mark.parametrize("expression", _FOLDED)
def test_index_arithmetic_of_known_outcome_is_folded(expression: str) -> None:
    after = simplified(f"def main(x: s32[4]) -> (r: s32[4]) {{ return {expression} }}")
    assert ops(after) == [_FOLDED[expression]]


_ROWS = "collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1, slice_sizes=[1, 6]"
_POINTS = "offset_dims=[], collapsed_slice_dims=[0, 1], start_index_map=[0, 1], slice_sizes=[1, 1]"
_INTO_ROWS = (
    "update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1, kind="
)
_INTO_ALL = (
    "update_window_dims=[0, 1], inserted_window_dims=[], scatter_dims_to_operand_dims=[], index_vector_dim=0, kind="
)
_READ = [
    ("3, 2", "dynamic_slice(x, 2, 9, sizes=[3, 2])", ["slice"]),
    ("4, 6", f"gather(x, iota(s32[4, 1], 0), offset_dims=[1], {_ROWS})", ["slice"]),
    ("4, 6", f"gather(x, iota(s32[4, 1], 0) * -2 + 6, offset_dims=[1], {_ROWS})", ["slice", "reverse"]),
    ("6, 4", f"gather(x, iota(s32[4, 1], 0), offset_dims=[0], {_ROWS})", ["slice", "transpose"]),
    ("5, 6", f"gather(x, full(s32[5, 1], 3), offset_dims=[1], {_ROWS})", ["slice", "reshape", "broadcast_in_dim"]),
    ("4, 6", f"gather(x, iota(s32[4, 1], 0) + 4, offset_dims=[1], {_ROWS})", ["add", "gather"]),
    (
        "2, 3",
        f"gather(x, concatenate(iota(s32[2, 3, 1], 0), iota(s32[2, 3, 1], 1), dim=2), {_POINTS}, index_vector_dim=2)",
        ["slice"],
    ),
    ("4", f"gather(x, iota(s32[4, 2], 0), {_POINTS}, index_vector_dim=1)", ["iota", "gather"]),
    ("7, 6", f"scatter(x, iota(s32[3, 1], 0) * 2, y, {_INTO_ROWS}sum)", ["constant", "pad", "add"]),
    (
        "7, 6",
        f"scatter(x, iota(s32[3, 1], 0) + 1, y, {_INTO_ROWS}replace)",
        ["constant", "constant", "dynamic_update_slice"],
    ),
    ("7, 6", f"scatter(x, iota(s32[3, 1], 0) * -1 + 5, y, {_INTO_ROWS}max)", ["reverse", "constant", "pad", "maximum"]),
    ("7, 6", f"scatter(x, full(s32[3, 1], 1), y, {_INTO_ROWS}sum)", ["constant", "scatter"]),
    ("7, 6", f"scatter(x, full(s32[0], 0), negate(x), {_INTO_ALL}replace)", ["negate"]),
    ("7, 6", f"scatter(x, full(s32[0], 0), negate(x), {_INTO_ALL}sum)", ["negate", "add"]),
    (
        "2, 7, 6",
        "gather(x, full(s32[2, 0], 0), offset_dims=[1, 2], collapsed_slice_dims=[], start_index_map=[], "
        "index_vector_dim=1, slice_sizes=[7, 6])",
        ["broadcast_in_dim"],
    ),
]
"""Reads and writes of a table x: f32[7, 6] at known indices: their shape, and the ops that are left. Rows beyond the
table, a diagonal, and rows written several times stay what they are. Vectors without components address all of it, as
in `x.at[:].set(y)`."""


@pytest.mark.parametrize(("shape", "expression", "left"), _READ)
def test_reads_and_writes_at_known_indices_are_slices_and_pads(shape: str, expression: str, left: list[str]) -> None:
    after = simplified(f"def main(x: f32[7, 6], y: f32[3, 6]) -> (r: f32[{shape}]) {{ return {expression} }}")
    assert ops(after)[-len(left) :] == left
    assert "gather" in left or "scatter" in left or not {"gather", "scatter", "iota"}.intersection(ops(after))


_VECTORS = "concatenate(iota(s32[7, 1], 0), reshape(labels, [7, 1]), dim=1)"
_LABELLED = [
    f"gather(x, {_VECTORS}, offset_dims=[], collapsed_slice_dims=[0, 1], start_index_map=[0, 1], "
    "index_vector_dim=1, slice_sizes=[1, 1], mode=fill)",
    f"gather(x, {_VECTORS}, offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0, 1], "
    "index_vector_dim=1, slice_sizes=[1, 2])",
    f"scatter(x, {_VECTORS}, y, update_window_dims=[], inserted_window_dims=[0, 1], "
    "scatter_dims_to_operand_dims=[0, 1], index_vector_dim=1, kind=sum)",
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("expression", _LABELLED)
def test_a_dim_that_indices_count_is_walked_with_them_and_may_be_split(expression: str, seed: int) -> None:
    shape = "7, 6" if expression.startswith("scatter") else "7, 2" if "[1, 2]" in expression else "7"
    text = "def main(x: f32[7@d, 6], y: f32[7@d], labels: s32[7@d]) -> (r: f32[{}]) {{ return {} }}"
    program = spmdc.parse("mesh (d=2)\n" + text.format(shape.replace("7", "7@d"), expression))
    after = simplify(program)
    check_same(program, after, seed)
    assert "iota" not in ops(after)
    assert spmdc.partition(after).received_bytes() == 0
    assert spmdc.partition(program).received_bytes() == 0


_SHIFTS = [(1, 0, 0, 7), (0, 1, 1, 8), (2, 3, 1, 11), (3, 3, 0, 4), (0, -2, 1, 4), (4, 0, 4, 11)]


@pytest.mark.parametrize(("low", "high", "start", "limit"), _SHIFTS)
def test_a_pad_and_a_slice_are_one_pad(low: int, high: int, start: int, limit: int) -> None:
    expression = f"slice(pad(x, 9.0, low=[{low}], high=[{high}]), start=[{start}], limit=[{limit}])"
    text = f"def main(x: f32[7]) -> (r: f32[{limit - start}]) {{ return {expression} }}"
    assert ops(simplified(text)) in (["constant", "pad"], [])
    check_same(spmdc.parse(text), simplified(text), 0)


def test_a_pad_and_a_slice_are_one_pad_that_lies_as_what_was_padded_was_annotated() -> None:
    program = spmdc.parse(
        "mesh (x=4)\ndef main(p: f32[64@x]) -> (s: f32[64]) { w: f32[65@x] = pad(p, 2.0, low=[1], high=[0])\n"
        "return w[0:64] }"
    )
    after = simplify(program)
    check_same(program, after, 0)
    assert ops(after) == ["constant", "pad", "pad", "shard"]
    assert spmdc.partition(after).received_bytes() == 4


def test_a_barrier_of_propagation_between_a_pad_and_a_slice_stays() -> None:
    text = (
        "mesh (x=4)\ndef main(p: f32[64@x]) -> (s: f32[64]) { w = shard(pad(p, 2.0, low=[1], high=[0]), passes=none)\n"
    )
    after = simplify(spmdc.parse(text + "return w[0:64] }"))
    assert ops(after) == ["constant", "pad", "shard", "slice"]


def test_what_a_slice_takes_of_padding_only_is_left_as_it_is() -> None:
    text = "def main(x: f32[2]) -> (r: f32[2]) { return slice(pad(x, 9.0, low=[9], high=[0]), start=[0], limit=[2]) }"
    check_same(spmdc.parse(text), simplified(text), 0)


def test_a_dim_that_indices_count_only_in_part_is_not_walked_with_them() -> None:
    vectors = "concatenate(iota(s32[5, 1], 0), reshape(labels, [5, 1]), dim=1)"
    after = simplified(
        f"def main(x: f32[7, 6], labels: s32[5]) -> (r: f32[5]) {{ return gather(x, {vectors}, offset_dims=[], "
        "collapsed_slice_dims=[0, 1], start_index_map=[0, 1], index_vector_dim=1, slice_sizes=[1, 1]) }"
    )
    assert "iota" in ops(after)


def test_few_elements_of_what_is_split_over_more_devices_stay_gathered() -> None:
    text = """
        mesh (d={})
        def main(x: f32[16@d, 4]) -> (r: f32[3, 4]) {{
          return gather(x, iota(s32[3, 1], 0), offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0],
            index_vector_dim=1, slice_sizes=[1, 4])
        }}
        """
    assert ops(simplify(spmdc.parse(text.format(2)))) == ["slice"]
    assert ops(simplify(spmdc.parse(text.format(8)))) == ["iota", "gather"]


def test_a_counter_of_a_loop_is_known_to_lie_inside_its_trips() -> None:
    after = simplified(
        """
        def main(x: f32[6, 4]) -> (y: f32[4]) {
          n, y = while(i: s32[] = 0, total: f32[4] = zeros([4]), trip_count=6) cond { return i < 6 } do {
            at = where(i < 0, i + 6, i)
            row = reshape(dynamic_slice(x, at, 0, sizes=[1, 4]), [4])
            return i + 1, maximum(total, row)
          }
          return y
        }
        """
    )
    assert "select" not in ops(after)


@pytest.mark.parametrize(("trips", "left"), [(0, []), (1, ["tanh"]), (2, ["while", "tanh"])])
def test_a_loop_of_one_iteration_or_none_is_written_without_the_loop(trips: int, left: list[str]) -> None:
    after = simplified(
        f"""
        def main(x: s32[1, 4]) -> (n: s32[], y: f32[4], seen: f32[1, 4]) {{
          first = f32(x[0])
          n, y, seen = while(i = 0, y = first, all = f32(x), trip_count={trips}) cond {{ return i < {trips} }} do {{
            z = tanh(y)
            return i + 1, z, dynamic_update_slice(all, expand_dims(z, 0), i, 0)
          }}
          return n, y, seen
        }}
        """
    )
    assert [name for name in ops(after) if name in ("while", "tanh", "dynamic_update_slice")] == left


@pytest.mark.parametrize(("index", "left"), [(0, "abs"), (1, "tanh"), (2, "floor"), (-1, "floor")])
def test_a_conditional_of_known_index_is_the_region_that_runs(index: int, left: str) -> None:
    after = simplified(
        f"""
        mesh (x=2)
        def main(a: f32[4], k: s32[]) -> (y: f32[4]) {{
          y: f32[4@x] = case(k * 0 + {index}) {{ return abs(a) }} or {{ return tanh(a) }} or {{ return floor(a) }}
          return y
        }}
        """
    )
    assert ops(after) == [left, "shard"]


def test_a_conditional_of_one_region_is_that_region() -> None:
    text = "def main(a: f32[4], k: s32[]) -> (y: f32[4]) { y = case(k) { return tanh(a) }\n return y }"
    assert ops(simplified(text)) == ["tanh"]


def test_an_annotated_result_of_a_function_within_an_inlined_one_gets_a_name_of_its_own() -> None:
    after = simplified(
        """
        mesh (x=2)
        def main(a: f32[4], b: f32[4]) -> (p: f32[4], q: f32[4]) {
          y: f32[4@x] = floor(b)
          return outer(a), y
        }
        def outer(a: f32[4]) -> (y: f32[4]) {
          y: f32[4@x] = inner(a)
          return -y
        }
        def inner(a: f32[4]) -> (y: f32[4]) { return abs(a) }
        """
    )
    names = [op.result.name for op in all_ops(after)]
    assert len(set(names)) == len(names) == 4


def test_annotations_of_what_a_loop_of_one_iteration_carries_and_returns_are_kept() -> None:
    after = simplified(
        """
        mesh (x=2)
        def main(a: f32[4]) -> (y: f32[4@x]) {
          n, y: f32[4@x] = while(i = 0, y: f32[4@x] = a, trip_count=1) cond { return i < 1 } do {
            return i + 1, tanh(y)
          }
          return y
        }
        """
    )
    assert ops(after) == ["shard", "tanh", "shard"]


def test_a_counter_that_functions_of_functions_raise_is_known() -> None:
    after = simplified(
        """
        def main(m: s32[]) -> (r: s32[]) {
          n, r = while(i: s32[] = 0, m: s32[] = m, trip_count=6) cond { return i < 6 } do {
            return outer(i), where(i < 0, 7, m)
          }
          return r
        }
        def outer(i: s32[]) -> (j: s32[]) { return inner(i) }
        def inner(i: s32[]) -> (j: s32[]) { return i + 1 }
        """
    )
    assert "select" not in ops(after)


def test_small_functions_are_written_where_they_are_called_each_time_with_what_is_known_there() -> None:
    after = simplified(
        """
        def main(x: s32[4]) -> (a: s32[4], b: s32[4]) { return wrapped(iota(s32[4], 0)), wrapped(x) }
        def wrapped(i: s32[4]) -> (j: s32[4]) { return where(i < 0, i + 4, i) }
        """
    )
    assert list(after.functions) == ["main"]
    assert ops(after).count("select") == 1


def test_an_inlined_loop_is_known_anew_at_each_call() -> None:
    after = simplified(
        """
        def main(x: f32[6], s: s32[]) -> (a: s32[], b: s32[]) { return last(0), last(s) }
        def last(start: s32[]) -> (m: s32[]) {
          n, m = while(i: s32[] = start, m: s32[] = 0, trip_count=3) cond { return i < start + 3 } do {
            return i + 1, where(i < 0, 7, m)
          }
          return m
        }
        """
    )
    assert ops(after).count("select") == 1


_ANNOTATED = """
mesh (x=2)
def main(a: f32[4], i: s32[4]) -> (r: f32[4], s: s32[4]) {
  unused: f32[4@x] = a * 2.0
  kept: f32[4@x] = a + -0.0
  folded: s32[4@x] = iota(s32[4], 0) * 0
  through: f32[1, 4@x] = reshape(a, [1, 4])
  return reshape(through, [4]) * kept, i + folded
}
"""


@pytest.mark.parametrize(("shape", "dims"), [("2, 1, 3", (0, 2)), ("1, 2, 3, 1", (1, 2)), ("2, 3, 1", (0, 1))])
def test_dims_of_size_1_that_are_broadcast_need_not_be_added_before(shape: str, dims: tuple[int, ...]) -> None:
    wide = ", ".join("4" if n == "1" else n for n in shape.split(", "))
    order = list(range(len(shape.split(", "))))
    broadcast = f"broadcast_in_dim(reshape(x, shape=[{shape}]), shape=[{wide}], dims={order})"
    after = simplified(f"def main(x: f32[2, 3]) -> (y: f32[{wide}]) {{\n  return {broadcast}\n}}\n")
    (op,) = all_ops(after)
    assert (op.name, op.attrs["dims"]) == ("broadcast_in_dim", dims)


@pytest.mark.parametrize("reshape", ["x: f32[2, 3]) -> (y: f32[4, 3, 2]", "x: f32[1, 6]) -> (y: f32[4, 3, 2]"])
def test_what_a_reshape_cuts_otherwise_is_reshaped_before_it_is_broadcast(reshape: str) -> None:
    body = "broadcast_in_dim(reshape(x, shape=[3, 2]), shape=[4, 3, 2], dims=[1, 2])"
    assert ops(simplified(f"def main({reshape}) {{\n  return {body}\n}}\n")) == ["reshape", "broadcast_in_dim"]


def test_annotations_and_spans_survive() -> None:
    program = spmdc.parse(_ANNOTATED, "a.spmd")
    after = simplify(program)
    check_same(program, after, 1)
    placed = {v.name: v.sharding for op in all_ops(after) for v in op.results if v.sharding is not None}
    before = {v.name: v.sharding for op in all_ops(program) for v in op.results if v.sharding is not None}
    assert placed.keys() == {"unused", "kept", "folded", "through"}
    assert placed == before
    assert all(op.span is not None and op.span.source.name == "a.spmd" for op in all_ops(after))


def test_a_constant_that_two_ops_share_ties_their_operands_together_no_more() -> None:
    program = spmdc.parse(
        """
        mesh (x=2)
        def main(a: f32[4@x], b: f32[4]) -> (r: f32[4], s: f32[4]) {
          zero: f32[4] = 0.0
          return maximum(a, zero), maximum(b, zero)
        }
        """
    )
    tied, free = spmdc.propagate(program), spmdc.propagate(simplify(program))
    assert "b: f32[4@x]" in tied.text()
    assert "b: f32[4@x]" not in free.text()


def test_what_few_ops_compute_of_constants_is_computed_for_each_use() -> None:
    """Of a shared one, the first use would split both dims that are summed, and the second would be reduced."""
    text = """
mesh (x=4)
def main(a: f32[4@x, 4], s: f32[]) -> (y: f32[4, 4]{replicated}) {
  signs = constant([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], type=f32[4, 4])
  scaled = signs * s
  return matmul(matmul(scaled, a), transpose(scaled))
}
"""
    after = simplified(text)
    assert ops(after).count("multiply") == 2
    assert [(c.kind, c.bytes) for c in spmdc.partition(after).collectives()] == [("all_reduce", 96)]


def test_what_many_ops_compute_of_constants_is_computed_once() -> None:
    steps = "\n".join(f"  c{i + 1} = c{i} * c{i} + c{i}" for i in range(9))
    after = simplified(
        f"def main(x: f32[4]) -> (y: f32[4]) {{\n  c0 = x * 0 + iota(f32[4], 0)\n{steps}\n  return c9 }}"
    )
    assert len(ops(after)) < 30
    last = steps.replace("c0", "iota(f32[4], 0)")
    after = simplified(f"def main(x: f32[4]) -> (y: f32[4]) {{\n{last}\n  return x * c9 }}")
    assert len(ops(after)) < 60


def _apart(type: str, terms: str) -> Program:
    return simplified(f"def main(x: {type}[1, 3], y: {type}[2, 3]) -> (r: {type}[6, 3]) {{ return {terms} }}")


_ADDED = {
    "s32": ["concatenate"],
    "f32": ["concatenate", "add"],
    "bf16": ["concatenate", "add"],
    "c64": ["concatenate", "add"],
}


@pytest.mark.parametrize("type", _ADDED)
@pytest.mark.parametrize(
    "terms",
    [
        "pad(x, 0, low=[0, 0], high=[5, 0]) + pad(y, 0, low=[4, 0], high=[0, 0])",
        "pad(y, 0, low=[1, 0], high=[3, 0]) + pad(x, 0, low=[3, 0], high=[2, 0]) + pad(x, 0, low=[5, 0], high=[0, 0])",
        "pad(y, 0, low=[4, 0], high=[0, 0]) + pad(y, 0, low=[2, 0], high=[2, 0]) + pad(y, 0, low=[0, 0], high=[4, 0])",
        "concatenate([x, zeros(T[5, 3])], dim=0) + pad(y, 0, low=[2, 0], high=[2, 0])",
    ],
)
def test_what_lies_apart_in_zeros_and_is_added_is_put_in_a_row(terms: str, type: str) -> None:
    """Of floats, 0.0 is added to all, for -0.0 and 0.0 are 0.0."""
    found = [name for name in ops(_apart(type, terms.replace("T", type))) if name != "constant"]
    assert found == _ADDED[type]


@pytest.mark.parametrize(
    "terms",
    [
        "pad(y, 0.0, low=[0, 0], high=[4, 0]) + pad(y, 0.0, low=[1, 0], high=[3, 0])",
        "pad(y, 1.0, low=[0, 0], high=[4, 0]) + pad(y, 0.0, low=[2, 0], high=[2, 0])",
        "pad(y, -0.0, low=[0, 0], high=[4, 0]) + pad(y, 0.0, low=[2, 0], high=[2, 0])",
        "pad(y, 0.0, low=[0, 0], high=[3, 0], interior=[1, 0]) + pad(x, 0.0, low=[5, 0], high=[0, 0])",
        "pad(y, 0.0, low=[0, 0], high=[4, 0]) + zeros([6, 3])",
    ],
)
def test_what_overlaps_or_lies_in_other_numbers_is_added_as_it_is(terms: str) -> None:
    assert "concatenate" not in ops(_apart("f32", terms))


def test_the_gradient_of_layers_in_one_tensor_is_one_row_of_theirs() -> None:
    layers = [f"a{i + 1} = tanh(matmul(a{i}, reshape(w[{i}:{i + 1}], [8, 8])))" for i in range(6)]
    lines = "\n".join(["mesh (x=4)", "def main(w: f32[6, 8, 8], a0: f32[16@x, 8]) -> (loss: f32[]) {", *layers])
    gradient = spmdc.gradient(spmdc.parse(lines + "\nreturn sum(a6)\n}"), ["w"])
    assert "pad" not in ops(gradient)
    assert ops(gradient).count("concatenate") == 1
    (sent,) = spmdc.partition(gradient).collectives()
    assert (sent.kind, sent.bytes) == ("all_reduce", 2 * 6 * 64 * 4 * 3 // 4)
