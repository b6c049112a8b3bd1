"""`spmdc why`: where a sharding comes from."""

from __future__ import annotations

from command_line import Run


def test_why_names_the_annotation(spmdc: Run) -> None:
    ended = spmdc("why", "p.spmd", "h")
    assert ended.status == 0
    assert "h: f32[16@x, 8@y]" in ended.out
    assert "annotated" in ended.out
    assert "p.spmd:3" in ended.out
    ended = spmdc("why", "p.spmd", "hh")
    assert ended.status == 1
    assert "error[E101]" in ended.err
    assert "did you mean" in ended.err
