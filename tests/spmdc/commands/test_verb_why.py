"""`spmdc why`: where a sharding comes from."""

from __future__ import annotations

import pytest
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


def test_why_starts_from_a_collective_or_a_line(spmdc: Run) -> None:
    ended = spmdc("why", "p.spmd", "all_reduce")
    assert ended.out.startswith("all_reduce over x, y: 7 bytes  at p.spmd:6\n  total: [] partial(x,y) -> []")
    assert spmdc("why", "p.spmd", "6").out == ended.out
    assert [c["kind"] for c in spmdc("why", "p.spmd", "6", "--json").json["collectives"]] == ["all_reduce"]
    for what in ("5", "all_gather"):
        ended = spmdc("why", "p.spmd", what)
        assert ended.status == 1
        assert "error[E101]" in ended.err
        assert "the program's collectives: all_reduce of line 6" in ended.err


def test_why_tells_messages_of_one_cause_together(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[10@x], b: f32[7@x]) -> (o: f32[17@x]) { return concatenate([a, b], dim=0) }"
    ended = spmdc("why", "-", "collective_permute", "--json", stdin=text)
    causes = [c["cause"] for c in ended.json["collectives"]]
    assert all(cause["kind"] == "halo" for cause in causes)
    first, _, *origins = ended.json["text"].splitlines()
    assert (first[0], len({str(cause) for cause in causes})) == (str(len(causes)), 1)
    assert [line.split()[5].rstrip(":") for line in origins] == ["a", "b"]


def test_boxes_that_are_exchanged_say_what_for(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[16@x]) -> (o: f32[16@x]) { return reverse(a, [0]) }"
    ended = spmdc("why", "-", "collective_permute", stdin=text)
    assert "halo exchange: " in ended.out
    assert "needs elements of a from other devices" in ended.out


def test_a_collective_leads_to_the_annotation_that_split_what_it_moves(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[16@x]) -> (o: f32[16]) {\n h = exp(a)\n return replicate(reverse(h, [0]))\n}"
    ended = spmdc("why", "-", "all_gather", stdin=text)
    assert ended.out.splitlines()[2:] == ["  x in dim 0 of h: a is annotated  at <stdin>:2:10"]


def test_a_value_whose_name_has_become_another_leads_nowhere(spmdc: Run) -> None:
    """Both functions are written where they are called, and what is h in the second is then no h."""
    text = b"""mesh (x=4)
def main(a: f32[16@x], b: s32[16@x]) -> (o: f32[16], p: s32[16]) { return f(a), g(b) }
def f(v: f32[16]) -> (o: f32[16]) {
  h = exp(v)
  return replicate(reverse(h, [0]))
}
def g(w: s32[16]) -> (o: s32[16]) {
  h = abs(w)
  return replicate(reverse(h, [0]))
}"""
    first, second = (spmdc("why", "-", line, stdin=text).out for line in ("5", "9"))
    assert "a is annotated  at <stdin>:2:10" in first
    assert "is annotated" not in second


def test_a_sum_leads_to_what_splits_its_terms(spmdc: Run) -> None:
    ended = spmdc("why", "p.spmd", "all_reduce")
    assert ended.out.splitlines()[2:] == [
        "  x in dim 0 of g: a is annotated  at p.spmd:3:10",
        "  y in dim 1 of g: w is annotated  at p.spmd:3:28",
    ]


_GATHERED = b"""mesh (x=4)
def main(a: f32[8@x, 8], b: f32[8@x, 8]) -> (o: f32[8@x, 8]) {
  return matmul(a, b)
}"""


@pytest.mark.parametrize("verb", ["why", "visualize"])
def test_a_name_that_only_the_partitioned_program_has_leads_to_what_can_be_asked(spmdc: Run, verb: str) -> None:
    assert "b.1" in spmdc("partition", "-", stdin=_GATHERED).out
    ended = spmdc(verb, "-", "b.1", stdin=_GATHERED)
    assert ended.status == 1
    assert "in the partitioned program, all_gather makes it from 'b': ask for 'b' or `spmdc why FILE 3`" in ended.err
