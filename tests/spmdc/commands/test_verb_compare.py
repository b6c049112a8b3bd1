"""`spmdc compare`: what both partitioners communicate."""

from __future__ import annotations

import json

from command_line import Run


def test_compare_prints_both_partitioners_bytes(spmdc: Run) -> None:
    ended = spmdc("compare", "p.spmd")
    assert ended.status == 0
    assert "spmdc / XLA: " in ended.out
    assert json.loads(spmdc("compare", "p.spmd", "--json").out)["ratio"] <= 1


def test_for_a_target_both_are_compiled(spmdc: Run) -> None:
    ended = spmdc("compare", "p.spmd", "--target", "cpu")
    assert ended.status == 0
    assert ended.out.startswith("cpu ")
    assert "received, bytes" in ended.out
    assert "cycles" not in ended.out
