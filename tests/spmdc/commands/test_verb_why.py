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


def test_why_starts_from_a_collective_or_a_line(spmdc: Run) -> None:
    ended = spmdc("why", "p.spmd", "all_reduce")
    assert ended.out.startswith("all_reduce over x, y: 7 bytes  at p.spmd:6\n  total: [] partial(x,y) -> []")
    assert spmdc("why", "p.spmd", "6").out == ended.out
    assert [c["kind"] for c in spmdc("why", "p.spmd", "6", "--json").json["collectives"]] == ["all_reduce"]
    for what in ("5", "all_gather"):
        ended = spmdc("why", "p.spmd", what)
        assert ended.status == 1
        assert "error[E101]" in ended.err
        assert "the program's collectives: all_reduce" in ended.err


def test_why_tells_messages_of_one_cause_together(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[10@x], b: f32[7@x]) -> (o: f32[17@x]) { return concatenate([a, b], dim=0) }"
    ended = spmdc("why", "-", "collective_permute", "--json", stdin=text)
    causes = [c["cause"] for c in ended.json["collectives"]]
    assert all(cause["kind"] == "halo" for cause in causes)
    assert len(causes) > len(ended.json["text"].splitlines()) // 2 == len({str(cause) for cause in causes})


def test_boxes_that_are_exchanged_say_what_for(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[16@x]) -> (o: f32[16@x]) { return reverse(a, [0]) }"
    ended = spmdc("why", "-", "collective_permute", stdin=text)
    assert "halo exchange: " in ended.out
    assert "needs elements of a from other devices" in ended.out
