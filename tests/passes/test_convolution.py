"""Convolutions split along batch, features and groups: what the devices do, and that they compute the same."""

from __future__ import annotations

import pytest

from ir.program import Op, walk
from ir.text import parse
from passes.partition import partition
from passes.propagate import propagate
from spmdc.testing import check_equivalence


def convolution(text: str) -> tuple[Op, set[str]]:
    """The convolution of one device, and the ops beside it; the program as a whole must compute the same."""
    program = parse(text)
    check_equivalence(program)
    ops = list(walk(partition(propagate(program))[0].main.body))
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


def test_a_split_that_groups_do_not_allow_is_resharded() -> None:
    op, _ = convolution("""mesh (x=4)
    def main(a: f32[2, 5, 8@x], w: f32[3, 4, 8@x]) -> (r: f32[2, 3, 8@x]) {
      return conv(a, w, "NHC,HIO->NHC", groups=2)
    }""")
    assert op.attrs["feature_group_count"] in (1, 2)
