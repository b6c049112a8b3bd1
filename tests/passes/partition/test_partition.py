"""Partitioning: what is communicated, how much, and what is done about padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spmdc
from ir.program import all_ops
from passes.partition.plan.sides import Sides, StrategyQuery
from passes.partition.plan.splits import Options
from passes.partition.plan.strategies import StrategySelector, _Candidate
from passes.partition.strategy import Strategy
from spmdc.testing import check_equivalence

PROGRAMS = Path(__file__).parents[2] / "programs"


def partitioned(text: str) -> spmdc.PartitionedProgram:
    """The SPMD program, after checking that it computes what the program says."""
    program = spmdc.parse(text)
    check_equivalence(program)
    return spmdc.partition(program)


def kinds(q: spmdc.PartitionedProgram) -> list[str]:
    return [c.kind for c in q.collectives()]


def total_bytes(q: spmdc.PartitionedProgram) -> int:
    return sum(c.bytes for c in q.collectives())


def ops(q: spmdc.PartitionedProgram) -> list[str]:
    return [op.name for op in all_ops(q.program)]


def test_sums_of_partial_products_are_added_before_they_are_reduced() -> None:
    """f32[256, 256] on 8 devices: one all_reduce of 458,752 bytes, where reducing each product takes two."""
    q = partitioned(
        """
        mesh (d=8)
        def main(x: f32[256, 256@d], w: f32[256@d, 256], y: f32[256, 256@d], v: f32[256@d, 256]) -> (z: f32[256, 256]) {
          return replicate(einsum("ij,jk->ik", x, w) + einsum("ij,jk->ik", y, v))
        }
        """
    )
    assert kinds(q) == ["all_reduce"]
    assert total_bytes(q) == 458_752


def test_a_partial_sum_that_is_wanted_split_is_reduce_scattered() -> None:
    q = partitioned(
        """
        mesh (d=8)
        def main(x: f32[256, 256@d], w: f32[256@d, 256], y: f32[256, 256@d], v: f32[256@d, 256])
            -> (z: f32[256@d, 256]) {
          return einsum("ij,jk->ik", x, w) + einsum("ij,jk->ik", y, v)
        }
        """
    )
    assert kinds(q) == ["reduce_scatter"]
    assert total_bytes(q) == 229_376


def test_a_reduction_stays_owed_through_linear_ops_to_be_done_with_another() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4], z: f32[8@d, 4], s: f32[4]) -> (y: f32[2, 2]) {
          total = sum(x, dims=[0])
          return reshape(-(total * s) + sum(z, dims=[0]), [2, 2])
        }
        """
    )
    assert kinds(q) == ["all_reduce"]
    assert ops(q).index("all_reduce") > ops(q).index("add")


def test_a_reduction_of_which_several_things_are_made_is_done_once_and_before_them() -> None:
    """Each of them alone could wait for it."""
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4], s: f32[4]) -> (y: f32[2, 2], v: f32[8@d, 4]) {
          total = sum(x, dims=[0])
          mean = broadcast_in_dim(total / 8.0, shape=[8, 4], dims=[1])
          return reshape(-(total * s), [2, 2]), x - mean
        }
        """
    )
    assert kinds(q) == ["all_reduce"]


def test_a_reduction_is_done_before_an_op_that_is_not_linear() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4]) -> (y: f32[4]) { return abs(sum(x, dims=[0])) }
        """
    )
    assert ops(q).index("all_reduce") < ops(q).index("abs")


@pytest.mark.parametrize("expression", ["rsqrt(total + s)", "s - total * 0.5", "abs(total - s)"])
def test_what_is_added_to_a_sum_that_is_reduced_at_once_is_added_to_the_whole_sum(expression: str) -> None:
    """One device would have to add it to its part, and the others zeros."""
    q = partitioned(
        f"""
        mesh (d=4)
        def main(x: f32[8@d, 4], s: f32[4]) -> (y: f32[4]) {{
          total = sum(x, dims=[0])
          return {expression}
        }}
        """
    )
    assert kinds(q) == ["all_reduce"]
    assert "select" not in ops(q)


def test_numbers_that_a_sum_is_scaled_by_and_that_are_added_to_it_wait_for_the_whole_sum() -> None:
    """What follows the sum is then one kernel."""
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8, 4@d]) -> (y: f32[8]) { return rsqrt(mean(x, dims=[1]) + 0.5) }
        """
    )
    assert kinds(q) == ["all_reduce"]
    assert ops(q).index("reduce") < ops(q).index("all_reduce") < ops(q).index("divide") < ops(q).index("add")


def test_what_is_added_between_two_partial_sums_is_added_to_a_part() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4], y: f32[8@d, 4], s: f32[4]) -> (z: f32[4]) {
          return (sum(x, dims=[0]) + s) + sum(y, dims=[0])
        }
        """
    )
    assert kinds(q) == ["all_reduce"]


def test_a_partial_argument_is_summed_once() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8]{partial: d}, y: f32[8]) -> (z: f32[8]) { return x + y }
        """
    )
    assert kinds(q) == ["all_reduce"]


def test_a_partial_result_is_left_to_the_caller() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[6, 8@d], w: f32[8@d, 6]) -> (z: f32[6, 6]{partial: d}) { return einsum("ij,jk->ik", x, w) }
        """
    )
    assert kinds(q) == []


def test_functions_hand_on_partial_results() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4]) -> (y: f32[]) { return total(x) + total(x * x) }
        def total(v: f32[8, 4]) -> (t: f32[]) { return sum(v, dims=[0, 1]) }
        """
    )
    assert kinds(q) == ["all_reduce"]


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_padding_of_an_uneven_dim_does_not_reach_a_reduction(kind: str) -> None:
    q = partitioned(
        f"""
        mesh (d=4)
        def main(x: f32[7@d, 3]) -> (y: f32[3]) {{ return reduce(x, dims=[0], kind={kind}) }}
        """
    )
    assert "select" in ops(q)
    x = np.full((7, 3), -2.0, np.float32)
    (y,) = q.simulate(x)
    np.testing.assert_array_equal(y, getattr(np, kind)(x, axis=0))


def test_padding_of_both_operands_of_a_product_is_masked() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[3, 7@d], w: f32[7@d, 5]) -> (y: f32[3, 5]) { return einsum("ij,jk->ik", x, w) }
        """
    )
    assert ops(q).count("select") == 2


def test_padding_that_no_reduction_sees_is_left_alone() -> None:
    q = partitioned("mesh (d=4)\ndef main(x: f32[7@d]) -> (y: f32[7@d]) { return exp(x) * 2.0 }")
    assert "select" not in ops(q)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5])
def test_a_dim_smaller_than_the_number_of_devices_works(size: int) -> None:
    partitioned(
        f"""
        mesh (d=8)
        def main(x: f32[{size}@d, 4]) -> (y: f32[{size}@d, 4], z: f32[4], t: f32[4, {size}@d]) {{
          return x * 2.0, sum(x, dims=[0]), transpose(x, [1, 0])
        }}
        """
    )


def test_argmax_over_a_split_dim_exchanges_candidates_only() -> None:
    q = partitioned("mesh (d=8)\ndef main(x: f32[64, 1000@d]) -> (i: s32[64]) { return argmax(x, 1) }")
    assert kinds(q) == ["all_to_all", "all_to_all", "all_gather"]
    assert total_bytes(q) == 2 * 7 * 8 * 4 + 7 * 8 * 4


def test_argmax_gathers_candidates_where_their_parts_would_be_uneven() -> None:
    q = partitioned("mesh (d=8)\ndef main(x: f32[63, 1000@d]) -> (i: s32[63]) { return argmax(x, 1) }")
    assert kinds(q) == ["all_gather", "all_gather"]
    assert total_bytes(q) == 2 * 7 * 63 * 4


def test_each_device_draws_its_part_of_the_same_random_bits() -> None:
    q = partitioned(
        """
        mesh (x=2, y=4)
        def main(k: u32[2]) -> (r: f32[6@x, 10@y]) { return uniform(k, f32[6, 10]) }
        """
    )
    assert kinds(q) == []


def test_an_iota_in_a_narrow_type_counts_as_the_whole_one_does() -> None:
    partitioned("mesh (d=4)\ndef main() -> (i: bf16[1001@d]) { return iota(bf16[1001], dim=0) }")


def test_what_a_loop_uses_from_outside_is_resharded_outside() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8], w: f32[8@d, 8]) -> (y: f32[8]) {
          n, y = while(i: s32[] = 0, v: f32[8] = x, trip_count=3) cond { return i < 3 } do {
            return i + 1, einsum("ij,j->i", replicate(w), v)
          }
          return y
        }
        """
    )
    (gather,) = q.collectives()
    assert (gather.kind, gather.count) == ("all_gather", 1)


def test_a_collective_in_a_loop_counts_once_for_each_trip() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8], w: f32[8, 8@d]) -> (y: f32[8]) {
          n, y = while(i: s32[] = 0, v: f32[8]{replicated} = x, trip_count=3) cond { return i < 3 } do {
            return i + 1, einsum("ij,j->i", w * f32(i), v)
          }
          return y
        }
        """
    )
    assert [(c.kind, c.count) for c in q.collectives()] == [("all_reduce", 3)]


def test_an_op_that_cannot_be_split_along_a_dim_gathers_it_and_warns() -> None:
    q = partitioned("mesh (d=4)\ndef main(x: f32[8@d, 4]) -> (y: f32[8@d, 4]) { return sort(x, 0) }")
    (warning,) = q.warnings
    assert warning.code == "W001"
    assert "sort gathers x: 96 bytes" in warning.message
    assert warning.span is not None
    assert warning.help


def test_a_warning_of_a_gather_says_what_is_sent_for_what_is_computed_again() -> None:
    q = partitioned(
        """
        mesh (x=4)
        def main(a: f32[24@x]) -> (y: f32[24]) { return sort(convert(convert(a, dtype=bf16), dtype=f32), dim=0) }
        """
    )
    assert [(c.kind, c.bytes) for c in q.collectives()] == [("all_gather", 36)]
    (warning,) = q.warnings
    assert "36 bytes" in warning.message
    assert "y.2 has no other dim" in warning.help
    assert any("computed again" in note for note in warning.notes)


def test_ops_are_computed_where_their_data_is() -> None:
    """The result is wanted split the other way: the small result moves, not the large operands."""
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[16@d, 256], w: f32[256, 16]) -> (y: f32[16, 16@d]) { return einsum("ij,jk->ik", x, w) }
        """
    )
    assert total_bytes(q) <= 16 * 16 * 4 * 3 // 16


def test_each_collective_names_the_line_that_caused_it_and_why() -> None:
    text = "mesh (d=4)\ndef main(x: f32[8@d, 8]) -> (y: f32[8, 8]) {\n  return replicate(x)\n}\n"
    (gather,) = spmdc.partition(spmdc.parse(text, "line.spmd")).collectives()
    assert gather.source == "line.spmd:3"
    assert "[d, -] -> [-, -]" in gather.reason
    assert (gather.axes, gather.bytes) == ("d", 3 * 8 * 8)


def test_partitioning_an_spmd_program_again_is_refused() -> None:
    q = partitioned("mesh (d=4)\ndef main(x: f32[8@d]) -> (y: f32[8@d]) { return -x }")
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.partition(spmdc.parse(q.text()))
    assert caught.value.diagnostics[0].code == "E406"


def test_a_program_runs_on_a_mesh_of_another_size() -> None:
    program = spmdc.parse("mesh (d=4)\ndef main(x: f32[7@d]) -> (y: f32[]) { return sum(x, dims=[0]) }")
    for devices in (1, 2, 3, 8):
        q = spmdc.partition(program, {"d": devices})
        assert q.simulate(np.arange(7, dtype=np.float32))[0] == 21


def test_a_mesh_that_lacks_an_axis_is_refused() -> None:
    program = spmdc.parse("mesh (d=4)\ndef main(x: f32[7@d]) -> (y: f32[]) { return sum(x, dims=[0]) }")
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.partition(program, {"e": 4})
    assert {d.code for d in caught.value.diagnostics} == {"E301"}


def test_the_program_of_one_device_has_no_collectives() -> None:
    q = partitioned("mesh (d=1)\ndef main(x: f32[8@d, 4]) -> (y: f32[4]) { return sum(x, dims=[0]) }")
    assert kinds(q) == []


@pytest.mark.parametrize(
    "made",
    [
        "ones([64, 64])",
        "iota(f32[64, 64], dim=0)",
        "uniform(key(0), f32[64, 64])",
        "where(iota(s32[64, 64], dim=0) >= iota(s32[64, 64], dim=1), zeros([64, 64]), full([64, 64], -1.0))",
        "broadcast_in_dim(replicate(v), shape=[64, 64], dims=[1])",
    ],
)
def test_what_every_device_can_make_itself_is_not_sent(made: str) -> None:
    q = partitioned(
        f"""
        mesh (x=8)
        def main(a: f32[64@x, 64], b: f32[64, 64@x], v: f32[64]) -> (o: f32[64@x, 64], p: f32[64, 64@x]) {{
          i = {made}
          return a + i, b + i
        }}
        """
    )
    assert kinds(q) == []


def test_a_long_chain_of_constants_is_partitioned_like_any_other() -> None:
    chain = "\n".join(f"  c{i + 1} = c{i} + 1.0" for i in range(600))
    text = f"mesh (x=2)\ndef main(a: f32[8@x]) -> (o: f32[8@x], p: f32[8]) {{\n  c0 = ones([8])\n{chain}\n"
    check_equivalence(spmdc.parse(text + "  return a + c600, replicate(c600)\n}\n"))


def test_a_value_gathered_for_several_ops_is_warned_of_once_with_what_it_costs() -> None:
    q = partitioned(
        "mesh (d=4)\ndef main(x: f32[8@d, 4]) -> (y: f32[8, 4]) { return sort(x, 0) + cumsum(sort(x, 0), 0) }"
    )
    assert [w.message for w in q.warnings] == ["sort gathers x: 96 bytes to each device"]


def test_a_reshape_of_a_dim_that_leads_nothing_moves_its_axis_to_one_that_does() -> None:
    q = partitioned("mesh (d=4)\ndef main(x: f32[3, 12@d]) -> (y: f32[9, 4]) { return reshape(x, [9, 4]) }")
    assert not q.warnings
    assert kinds(q) == ["all_to_all"]


def test_a_sort_along_a_split_dim_moves_its_axis_away_and_back() -> None:
    q = partitioned("mesh (d=4)\ndef main(x: f32[1024@d, 512]) -> (y: f32[1024@?, 512@?]) { return sort(x, dim=0) }")
    assert kinds(q) == ["all_to_all", "all_to_all"]
    assert q.received_bytes() == 2 * 3 * 1024 * 512 * 4 // 16


def test_what_passes_a_barrier_stays_where_it_lies_each_by_itself() -> None:
    text = """
        mesh (x=2, y=2)
        def main(a: f32[8@x, 6], b: f32[6, 8@x], c: f32[8@y], d: f32[4, 8@x], e: f32[8@x, 4])
            -> (p: f32[8@x, 6], q: f32[6, 8@x], r: f32[8@y], s: f32[4@x, 4]) {
          p, q, r, s = optimization_barrier(a, b, c, matmul(d, e))
          return p, q, r, s
        }
    """
    assert kinds(partitioned(text)) == ["reduce_scatter"]
    check_equivalence(spmdc.parse(text))


def test_a_vector_is_moved_before_it_is_broadcast_and_not_after() -> None:
    q = partitioned(
        """
        mesh (x=4, y=2)
        def main(a: f32[1024@x], b: f32[1024@x]) -> (c: f32[1024@x, 1024@y]) {
          return broadcast_in_dim(a, shape=[1024, 1024], dims=[0]) * broadcast_in_dim(b, shape=[1024, 1024], dims=[1])
        }
        """
    )
    assert q.received_bytes() == 1024 // 2 * 4


def test_layers_whose_weights_are_split_over_the_devices_of_the_data_gather_weights_only() -> None:
    """Fully sharded data parallelism: what is known of the first layer's result reaches the second before its weights
    say otherwise."""
    q = partitioned(
        """
        mesh (x=8)
        def main(a: f32[512@x, 256], v: f32[256@x, 256], w: f32[256@x, 256]) -> (c: f32[512@x, 256]) {
          return matmul(relu(matmul(a, v)), w)
        }
        """
    )
    assert kinds(q) == ["all_gather", "all_gather"]
    assert q.received_bytes() == 2 * 7 * 32 * 256 * 4


@pytest.mark.parametrize(("columns", "sent", "warned"), [(4096, ["all_to_all"] * 2, 0), (3, ["all_gather"], 1)])
def test_windows_over_very_many_shards_move_the_axis_away_or_warn(columns: int, sent: list[str], warned: int) -> None:
    type = f"f32[1280@x, {columns}]"
    window = "window=[701, 1], padding_low=[350, 0], padding_high=[350, 0]"
    q = partitioned(
        f"mesh (x=128)\ndef main(a: {type}) -> (r: {type}) {{ return reduce_window(a, {window}, kind=sum) }}"
    )
    assert kinds(q) == sent
    assert [w.code for w in q.warnings] == ["W001"] * warned


def test_concatenating_two_split_tensors_sends_only_what_devices_lack() -> None:
    q = partitioned(
        """
        mesh (d=8)
        def main(a: f32[1024@d, 64], b: f32[1024@d, 64]) -> (c: f32[2048@d, 64]) { return concatenate([a, b], dim=0) }
        """
    )
    assert q.received_bytes() == 65_536
    assert q.warnings == ()


def test_a_running_sum_over_a_split_dim_sends_totals() -> None:
    q = partitioned("mesh (d=8)\ndef main(x: f32[1024@d, 64]) -> (y: f32[1024@d, 64]) { return cumsum(x, 0) }")
    assert q.received_bytes() == 7 * 64 * 4


@pytest.mark.parametrize(
    ("op", "result", "rows"),
    [
        ("x[8:1016]", "f32[1008@d, 64]", 6),
        ("pad(x, 0.0, low=[8, 0], high=[8, 0])", "f32[1040@d, 64]", 6),
        ("x[:512]", "f32[512@d, 64]", 64),
        ("reverse(x, dims=[0])", "f32[1024@d, 64]", 128),
        ("concatenate([x[1:], x[:1]], dim=0)", "f32[1024@d, 64]", 1),
        ("reshape(x, [512, 128])", "f32[512@d, 128]", 0),
    ],
)
def test_layout_ops_along_a_split_dim_send_what_the_worst_device_lacks(op: str, result: str, rows: int) -> None:
    q = partitioned(f"mesh (d=8)\ndef main(x: f32[1024@d, 64]) -> (y: {result}) {{ return {op} }}")
    assert q.warnings == ()
    assert q.received_bytes() == rows * 64 * 4


def test_a_dim_that_an_op_makes_whole_is_made_whole_and_then_cut() -> None:
    partitioned(
        """
        mesh (x=4)
        def main() -> (y: u8[2, 4@x]) {
          b: s32[2] = constant(value=0, type=s32[2])
          return bitcast_convert(b, dtype=u8)
        }
        """
    )


@pytest.mark.parametrize("op", ["sort(x, 1)", "fft(complex(x, x), kind=FFT, length=[128])"])
def test_axes_of_a_dim_that_must_be_whole_move_to_another_dim_and_back(op: str) -> None:
    """A pencil decomposition: two all_to_alls of shards in the place of a gather of the whole."""
    kind = "f32" if op.startswith("sort") else "c64"
    q = partitioned(f"mesh (d=4)\ndef main(x: f32[256, 128@d]) -> (y: {kind}[256, 128@d]) {{ return {op} }}")
    assert kinds(q) == ["all_to_all"] * 2
    assert not q.warnings


@pytest.mark.parametrize("name", ["loops_nested", "manual_functions", "function_called_with_different_shardings"])
def test_an_op_that_lies_as_it_should_is_split_as_if_all_ways_had_been_compared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be better than what comes first, nothing else is looked at."""
    program = spmdc.load(f"{PROGRAMS}/{name}.spmd")
    found = spmdc.partition(program).text()
    answers: list[bool] = []

    def never(selector: StrategySelector, sides: Sides, options: Options, candidate: _Candidate) -> bool:
        answers.append(is_unbeaten(selector, sides, options, candidate))
        return False

    is_unbeaten = StrategySelector._is_unbeaten
    monkeypatch.setattr(StrategySelector, "_is_unbeaten", never)
    assert spmdc.partition(program).text() == found
    assert True in answers


@pytest.mark.parametrize(
    "name", ["loops_nested", "loop_adds_partial_results_nested", "function_results_are_added_before_they_are_reduced"]
)
def test_equal_questions_about_ops_have_equal_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered once: what makes no difference to the answer is left out of what questions are known by."""
    choose, again = StrategySelector.choose, [0]

    def checked(selector: StrategySelector, query: StrategyQuery) -> Strategy:
        again[0] += query.key() in selector.answers
        found = choose(selector, query)
        assert found == selector._search(query)
        return found

    monkeypatch.setattr(StrategySelector, "choose", checked)
    spmdc.partition(spmdc.load(f"{PROGRAMS}/{name}.spmd"))
    assert again[0]


@pytest.mark.parametrize("type", ["f32", "s32"])
@pytest.mark.parametrize(("sum", "shape"), [("sum(a, 0)", "4"), ("max(a, 0)", "4"), ("matmul(b, a)", "4, 4")])
def test_a_sum_over_nothing_is_known_to_every_device(sum: str, shape: str, type: str) -> None:
    text = f"mesh (x=4)\ndef main(a: {type}[0@x, 4], b: {type}[4, 0@x]) -> (s: {type}[{shape}]) {{ return {sum} }}"
    program = spmdc.parse(text)
    check_equivalence(program)
    assert spmdc.partition(program).collectives() == []
