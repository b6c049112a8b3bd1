"""Gradients take no more memory than they may, by computing blocks of the program again."""

from __future__ import annotations

import pytest

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import all_ops
from passes.optimize.checkpoints import blocks_of

LOOP = """mesh (d=4)
def main(x: f32[4096@d, 16], w: f32[6, 16, 128] = normal(0.2), v: f32[6, 128, 16] = normal(0.2)) -> (loss: f32[]) {
  y = loop l < 6 (h = x) { return h + matmul(gelu(matmul(h, w[l])), v[l]) }
  return mean(square(y))
}"""


def products(program: spmdc.PartitionedProgram) -> int:
    return sum(op.name == "dot_general" for op in all_ops(program.program))


def test_a_gradient_beyond_the_limit_computes_its_largest_block_again() -> None:
    program = spmdc.parse(LOOP)
    found = spmdc.checkpointed(program, 4 << 20)
    assert found.blocks == ("the loop of y at line 3",)
    assert found.after.peak <= 4 << 20 < found.before.peak
    kept, again = (spmdc.partition(measured.gradient) for measured in (found.before, found.after))
    assert again.cost().peak == found.after.peak
    assert products(again) == products(kept) + 1
    (warning,) = found.warnings(4 << 20)
    assert warning.code == "W004"
    assert f"takes {found.after.peak:,} bytes on each device instead of {found.before.peak:,}" in warning.message
    assert warning.notes[0] == "computed again: the loop of y at line 3"
    assert not warning.help


def test_a_gradient_within_the_limit_keeps_all_and_none_is_computed_again_in_vain() -> None:
    program = spmdc.parse(LOOP)
    found = spmdc.checkpointed(program, 1 << 30)
    assert found.blocks == ()
    assert found.after is found.before
    assert found.warnings(1 << 30) == ()


def test_a_limit_that_cannot_be_kept_is_reported_with_the_least_that_was_found() -> None:
    found = spmdc.checkpointed(spmdc.parse(LOOP), 1000)
    (warning,) = found.warnings(1000)
    assert "and not the 1,000 that it may" in warning.message
    assert "more devices" in warning.help


def test_a_program_without_blocks_cannot_take_less() -> None:
    text = "mesh (d=2) def main(x: f32[8@d, 4], w: f32[4, 4] = normal(1)) -> f32[] { return sum(sin(matmul(x, w))) }"
    found = spmdc.checkpointed(spmdc.parse(text), 16)
    (warning,) = found.warnings(16)
    assert (
        warning.message == f"the gradient takes {found.before.peak:,} bytes on each device, and not the 16 that it may"
    )
    assert warning.notes == ("no loop and no function makes it less if it is computed again",)


def test_a_block_that_is_not_needed_after_all_is_kept() -> None:
    """The first loop computes more, of which a gradient keeps little; without the second, the limit cannot be met."""
    scaled = " * 1.01" * 100
    program = spmdc.parse(f"""mesh (d=2)
def main(x: f32[512@d, 64], w: f32[64, 64] = normal(0.1), v: f32[64, 512] = normal(0.1)) -> (loss: f32[]) {{
  a = loop l < 3 (h = x) {{ return tanh(matmul(h, w){scaled}) }}
  b = loop l < 3 (h = a) {{ return h + sum(sin(matmul(h, v)), 1, keepdims=true) }}
  return sum(square(b))
}}""")
    assert [block.name for block in blocks_of(program)] == ["the loop of a at line 3", "the loop of b at line 4"]
    least = spmdc.checkpointed(program, 1000).after.peak
    found = spmdc.checkpointed(program, (least + spmdc.checkpointed(program, 1 << 40).before.peak) // 2)
    assert found.blocks == ("the loop of b at line 4",)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(SpmdcError, match="E601"):
        spmdc.checkpointed(spmdc.parse(LOOP), -1)
