"""`spmdc compare`: what both partitioners communicate."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Run


def test_compare_prints_both_partitioners_bytes(spmdc: Run) -> None:
    ended = spmdc("compare", "p.spmd")
    assert ended.status == 0
    assert "spmdc / XLA: " in ended.out
    assert json.loads(spmdc("compare", "p.spmd", "--json").out)["ratio"] <= 1


def test_a_program_with_a_manual_region_cannot_be_compared_and_has_our_side_elsewhere(spmdc: Run) -> None:
    Path("m.spmd").write_text(
        "mesh (x=4)\ndef main(a: f32[8@x]) -> (r: f32[8]) {\n"
        "  y: f32[8@x] = manual(v of f32[8@x] = a) { return v * 2 }\n  return y\n}\n"
    )
    ended = spmdc("compare", "m.spmd")
    assert "error[E412]" in ended.err
    assert "spmdc partition --stats" in ended.err


def test_for_a_target_both_are_compiled(spmdc: Run) -> None:
    ended = spmdc("compare", "p.spmd", "--target", "cpu")
    assert ended.status == 0
    assert ended.out.startswith("cpu ")
    assert "received, bytes" in ended.out
    assert "cycles" not in ended.out
