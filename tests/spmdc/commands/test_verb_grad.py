"""`spmdc grad`: gradients as programs."""

from __future__ import annotations

from command_line import Run


def test_grad_prints_a_program(spmdc: Run) -> None:
    ended = spmdc("grad", "p.spmd", "--wrt", "w", "--of", "out")
    assert ended.status == 0
    assert "d_w" in ended.out
    assert spmdc("grad", "p.spmd", "--wrt", "w", "--of", "out", "-o", "g.spmd").out == ""
    assert spmdc("check", "g.spmd").status == 0
    assert "error[E101]" in spmdc("grad", "p.spmd", "--wrt", "nothing").err
    assert spmdc("grad", "p.spmd", "--wrt", "w,,b").status == 2
