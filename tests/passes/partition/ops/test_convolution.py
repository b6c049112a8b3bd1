"""Convolutions split along batch, features and groups: what the devices do, and that they compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from ir.program import Op, walk
from ir.types import bf16
from passes.cost.machine import TPU_V3
from passes.partition import make_plan, write_plan
from passes.partition.options import PartitionOptions
from passes.propagation.propagate import propagate
from spmdc import evaluate
from spmdc import partition as partitioned
from spmdc.frontends.spmd import parse
from spmdc.testing import check_equivalence


def convolution(text: str) -> tuple[Op, set[str]]:
    """The convolution of one device, and the ops beside it; the program as a whole must compute the same."""
    program = parse(text)
    check_equivalence(program)
    ops = list(walk(write_plan(make_plan(propagate(program), PartitionOptions.on(TPU_V3))).main.body))
    (found,) = (op for op in ops if op.name == "convolution")
    return found, {op.name for op in ops} - {"convolution"}


def test_batch_and_output_features_split_without_communication() -> None:
    op, others = convolution("""mesh (x=2, y=2)
    def main(a: f32[4@x, 5, 5, 3], w: f32[3, 3, 3, 6@y]) -> (r: f32[4@x, 3, 3, 6@y]) { return conv(a, w) }""")
    assert (op.result.shape, others) == ((2, 3, 3, 3), set())


def test_split_input_features_leave_sums_owed_even_where_they_split_unevenly() -> None:
    op, others = convolution("""mesh (x=2)
    def main(a: f32[4, 5, 5, 3@x], w: f32[3, 3, 3@x, 6]) -> (r: f32[4, 3, 3, 6]) { return conv(a, w) }""")
    assert op.operands[0].shape == (4, 5, 5, 2)
    assert {"all_reduce", "select"} <= others


def test_a_kernel_of_one_element_lets_spatial_dims_split() -> None:
    op, others = convolution("""mesh (x=2)
    def main(a: f32[4, 5@x, 5, 3], w: f32[1, 1, 3, 6]) -> (r: f32[4, 5@x, 5, 6]) { return conv(a, w) }""")
    assert (op.result.shape, others) == ((4, 3, 5, 6), set())


@pytest.mark.parametrize(("groups", "left"), [(2, 1), (4, 2), (8, 4)])
def test_split_feature_groups_leave_each_device_fewer(groups: int, left: int) -> None:
    op, others = convolution(f"""mesh (x=2)
    def main(a: f32[2, 5, 8@x], w: f32[3, {8 // groups}, 16@x]) -> (r: f32[2, 3, 16@x]) {{
      return conv(a, w, "NHC,HIO->NHC", groups={groups})
    }}""")
    assert op.attrs["feature_group_count"] == left
    assert others == set()


def test_depthwise_channels_may_split_unevenly() -> None:
    op, others = convolution("""mesh (x=4)
    def main(a: f32[2, 5, 6@x], w: f32[3, 1, 6@x]) -> (r: f32[2, 3, 6@x]) {
      return conv(a, w, "NHC,HIO->NHC", groups=6)
    }""")
    assert op.attrs["feature_group_count"] == 2
    assert others == set()


@pytest.mark.parametrize(("batch", "left"), [(4, 2), (8, 2)])
def test_split_batch_groups_leave_each_device_fewer(batch: int, left: int) -> None:
    op, others = convolution(f"""mesh (x=2)
    def main(a: f32[{batch}@x, 5, 3], w: f32[3, 3, 8@x]) -> (r: f32[{batch // 4}, 3, 8@x]) {{
      return conv(a, w, "NHC,HIO->NHC", batch_groups=4)
    }}""")
    assert op.attrs["batch_group_count"] == left
    assert others == set()


@pytest.mark.parametrize(
    ("devices", "groups", "left"), [(4, 6, 2), (2, 3, 2), (4, 3, 1), (5, 6, 2), (4, 2, 1), (8, 6, 1)]
)
def test_groups_that_the_devices_do_not_divide_are_exchanged_so_that_each_has_whole_ones(
    devices: int, groups: int, left: int
) -> None:
    op, others = convolution(f"""mesh (x={devices})
    def main(a: f32[2, 5, {3 * groups}@x], w: f32[3, 3, {5 * groups}@x]) -> (r: f32[2, 3, {5 * groups}@x]) {{
      return conv(a, w, "NHC,HIO->NHC", groups={groups})
    }}""")
    assert (op.attrs["feature_group_count"], op.result.shape) == (left, (2, 3, 5 * left))
    assert not {"all_gather", "all_reduce", "all_to_all"} & others


def test_groups_of_the_batch_that_the_devices_do_not_divide_are_exchanged() -> None:
    op, others = convolution("""mesh (x=2)
    def main(a: f32[6@x, 5, 3], w: f32[3, 3, 12@x]) -> (r: f32[2, 3, 12@x]) {
      return conv(a, w, "NHC,HIO->NHC", batch_groups=3)
    }""")
    assert op.attrs["batch_group_count"] == 2
    assert not {"all_gather", "all_reduce", "all_to_all"} & others


def test_a_split_that_groups_do_not_allow_is_resharded() -> None:
    op, _ = convolution("""mesh (x=4)
    def main(a: f32[2, 5, 8@x], w: f32[3, 4, 8@x]) -> (r: f32[2, 3, 8@x]) {
      return conv(a, w, "NHC,HIO->NHC", groups=2)
    }""")
    assert op.attrs["feature_group_count"] in (1, 2)


@pytest.mark.parametrize("groups", ["", ", groups=2", ", batch_groups=2"])
@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_split_kernel_smaller_than_the_result_is_not_gathered(groups: str, window: int) -> None:
    features, batch = 2 if groups == ", groups=2" else 4, 2 if "batch" in groups else 4
    program = parse(f"""mesh (x=2)
    def main(a: f32[4, 16@x, 4], w: f32[{window}@x, {features}, 6]) -> (r: f32[{batch}, 16, 6]) {{
      return conv(a, w, "NHC,HIO->NHC", padding=[[{window - 1 - window // 2}, {window // 2}]]{groups})
    }}""")
    check_equivalence(program)
    assert make_plan(propagate(program), PartitionOptions.on(TPU_V3)).warnings == ()


@pytest.mark.parametrize(("n", "devices"), [(30, 4), (10, 3), (9, 4), (4, 3), (5, 4)])
@pytest.mark.parametrize("reversal", [0, 1])
def test_padding_of_a_split_kernel_meets_no_infinity(n: int, devices: int, reversal: int) -> None:
    """Zero times infinity is no number, though no window of the whole tensor has that product."""
    program = parse(f"""mesh (d={devices})
    def main(image: f32[1, {n}@d, 1], gradient: f32[1, {n}@d, 1]) -> (r: f32[1, 3, 1]) {{
      r = convolution(image, gradient, lhs_batch=0, lhs_feature=2, lhs_spatial=[1],
                      rhs_input=0, rhs_output=2, rhs_spatial=[1], out_batch=0, out_feature=2, out_spatial=[1],
                      padding_low=[1], padding_high=[1], window_reversal=[{reversal}])
      return r
    }}""")
    on_devices = partitioned(program)
    assert on_devices.warnings == ()
    for place in (0, n // 2, n - 1):
        image, gradient = np.ones((1, n, 1), np.float32), np.arange(1, n + 1, dtype=np.float32).reshape(1, n, 1)
        image[0, place, 0] = np.inf
        (want,), (got,) = evaluate(program, image, gradient), on_devices.simulate(image, gradient)
        np.testing.assert_array_equal(got, want)


def test_parts_of_a_split_kernel_in_bf16_are_summed_in_f32() -> None:
    """256 + 1 is 256 in bf16; the last device has one element of three, which all devices convolve apart."""
    program = parse("""mesh (d=2)
    def main(image: bf16[1, 5@d, 1], gradient: bf16[1, 5@d, 1]) -> (r: bf16[1, 1, 1]) {
      r = convolution(image, gradient, lhs_batch=0, lhs_feature=2, lhs_spatial=[1],
                      rhs_input=0, rhs_output=2, rhs_spatial=[1], out_batch=0, out_feature=2, out_spatial=[1])
      return r
    }""")
    image = np.ones((1, 5, 1), np.float32).astype(bf16.numpy)
    gradient = np.array([256, 1, 1, 0, 0], np.float32).astype(bf16.numpy).reshape(1, 5, 1)
    (want,), (got,) = evaluate(program, image, gradient), partitioned(program).simulate(image, gradient)
    assert got.item() == want.item() == 258


def test_a_window_whose_elements_lie_further_apart_than_any_integer_counts_is_partitioned() -> None:
    """No device finds its neighbours then, so the axis moves to the batch."""
    program = parse("""mesh (d=3)
    def main(x: f32[512, 13@d, 32], w: f32[17, 32, 8]) -> (out: f32[512, 13@d, 8]) {
      return conv(x, w, "NWC,WIO->NWC", padding="same", rhs_dilation=2147483648)
    }""")
    assert {c.kind for c in partitioned(program).collectives()} == {"all_to_all", "all_gather"}


@pytest.mark.parametrize(("stride", "dilation"), [(6, 4), (4, 6), (3, 5), (7, 7), (2, 8), (9, 6)])
@pytest.mark.parametrize("low", [0, 1, 5, 11])
def test_windows_find_the_elements_between_the_holes_of_what_they_slide_over(
    stride: int, dilation: int, low: int
) -> None:
    n = (12 * dilation + low - 3 * stride) // 2 + 1
    program = parse(f"""mesh (d=3)
    def main(x: f32[2, 13@d, 2], w: f32[4, 2, 2]) -> (out: f32[2, {n}@d, 2]) {{
      return conv(x, w, "NWC,WIO->NWC", stride=2, padding=[[{low}, 0]], lhs_dilation={dilation}, rhs_dilation={stride})
    }}""")
    check_equivalence(program)
