"""`spmdc propagate`: every value with its sharding."""

from __future__ import annotations

from command_line import Run


def test_propagate_prints_every_sharding(spmdc: Run) -> None:
    ended = spmdc("propagate", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert "h: f32[16@x, 8@y] = dot_general(a, w" in ended.out
    assert spmdc("propagate", "p.spmd", "--json").json["text"] == ended.out


def test_what_propagate_prints_is_a_program(spmdc: Run) -> None:
    text = spmdc("propagate", "p.spmd").out
    assert spmdc("propagate", "-", stdin=text.encode()).out == text
