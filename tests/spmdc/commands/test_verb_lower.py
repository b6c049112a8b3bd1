"""`spmdc lower`: programs as Python, StableHLO and HLO."""

from __future__ import annotations

from pathlib import Path

from command_line import Run


def test_lower_writes_a_module(spmdc: Run) -> None:
    ended = spmdc("lower", "p.spmd", "--emit", "jax")
    assert ended.status == 0
    compile(ended.out, "out.py", "exec")
    assert "shard_map" in ended.out
    assert spmdc("lower", "p.spmd", "-o", "out.py").out == ""
    assert Path("out.py").read_text() == ended.out
    assert "shard_map" not in spmdc("lower", "p.spmd", "--unpartitioned").out


def test_lower_writes_stablehlo_and_hlo_of_one_device(spmdc: Run) -> None:
    assert "func.func @main" in spmdc("lower", "p.spmd", "--emit", "stablehlo").out
    assert spmdc("lower", "p.spmd", "--emit", "hlo").out.startswith("HloModule p,")


def test_an_output_that_cannot_be_written(spmdc: Run) -> None:
    ended = spmdc("lower", "p.spmd", "-o", "no/such/folder/out.py")
    assert ended.status == 1
    assert "error[E005]: cannot write" in ended.err
    assert "= help: make the folder that it is to be in first" in ended.err
