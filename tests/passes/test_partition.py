"""Partitioning: what is communicated, how much, and what is done about padding."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import all_ops
from spmdc.testing import check_equivalence


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


def test_a_reduction_stays_owed_through_linear_ops() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4], s: f32[4]) -> (y: f32[2, 2]) {
          total = sum(x, dims=[0])
          return reshape(-(total * s), [2, 2])
        }
        """
    )
    assert kinds(q) == ["all_reduce"]
    assert ops(q).index("all_reduce") > ops(q).index("reshape")


def test_a_reduction_is_done_before_an_op_that_is_not_linear() -> None:
    q = partitioned(
        """
        mesh (d=4)
        def main(x: f32[8@d, 4]) -> (y: f32[4]) { return abs(sum(x, dims=[0])) }
        """
    )
    assert ops(q).index("all_reduce") < ops(q).index("abs")


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
    assert kinds(q) == ["all_gather", "all_gather"]
    assert total_bytes(q) == 2 * 7 * 64 * 4


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
            return i + 1, einsum("ij,j->i", w, v)
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
    assert "[d, _] -> [_, _]" in gather.reason
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
