"""`spmdc compile` prints what became of a program's collectives, and the module itself."""

from __future__ import annotations

from pathlib import Path

from command_line import Run


def test_memory_and_collectives_are_printed(spmdc: Run) -> None:
    ended = spmdc("compile", "p.spmd", "--target", "cpu")
    assert ended.status == 0
    assert ended.out.startswith("cpu: 8 devices, compiled by jaxlib ")
    assert "all_reduce" in ended.out


def test_the_module_is_printed_and_written(spmdc: Run) -> None:
    ended = spmdc("compile", "p.spmd", "--target", "cpu", "--emit", "hlo", "-o", "out.hlo")
    assert ended.status == 0
    assert ended.out.startswith("HloModule ")
    assert Path("out.hlo").read_text() == ended.out


def test_json_has_all_figures(spmdc: Run) -> None:
    found = spmdc("compile", "p.spmd", "--target", "cpu", "--json").json
    assert found["devices"] == 8
    assert [o["kind"] for o in found["outcomes"]] == [c["kind"] for o in found["outcomes"] for c in o["compiled"]]
    assert found["memory"]["total"] > 0


def test_a_target_that_does_not_exist_is_reported(spmdc: Run) -> None:
    ended = spmdc("compile", "p.spmd", "--target", "tpu-v33:2x2")
    assert ended.status == 1
    assert "E516" in ended.err
