"""`spmdc grad`: gradients as programs."""

from __future__ import annotations

from pathlib import Path

from command_line import Run


def test_grad_prints_a_program(spmdc: Run) -> None:
    ended = spmdc("grad", "p.spmd", "--wrt", "w", "--of", "out")
    assert ended.status == 0
    assert "d_w" in ended.out
    assert spmdc("grad", "p.spmd", "--wrt", "w", "--of", "out", "-o", "g.spmd").out == ""
    assert spmdc("check", "g.spmd").status == 0
    assert "error[E101]" in spmdc("grad", "p.spmd", "--wrt", "nothing").err
    assert spmdc("grad", "p.spmd", "--wrt", "w,,b").status == 2


def test_grad_computes_blocks_again_to_stay_below_a_limit(spmdc: Run, tmp_path: Path) -> None:
    (tmp_path / "layers.spmd").write_text("""mesh (d=4)
def main(x: f32[4096@d, 16], w: f32[6, 16, 128] = normal(0.2)) -> (loss: f32[]) {
  y = loop l < 6 (h = x) { return h + sum(sin(matmul(h, w[l])), 1, keepdims=true) }
  return sum(square(y))
}""")
    ended = spmdc("grad", "layers.spmd", "--memory-limit", "4MiB", "-o", "g.spmd")
    assert ended.status == 0
    assert "warning[W004]: the gradient takes" in ended.err
    assert "the loop of y at line 3" in ended.err
    assert spmdc("check", "g.spmd").status == 0
    assert "warning" not in spmdc("grad", "layers.spmd", "--memory-limit", "4GiB").err
    assert "error[E603]" in spmdc("grad", "layers.spmd", "--memory-limit", "4MiB", "--machine", "tpu-v9").err
