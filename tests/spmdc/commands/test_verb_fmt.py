"""`spmdc fmt`: the standard layout, and files that are never half written."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import UGLY, Run


def test_fmt_rewrites_in_place_and_then_has_nothing_to_do(spmdc: Run) -> None:
    path = Path("ugly.spmd")
    path.write_text(UGLY)
    path.chmod(0o640)
    before = spmdc("propagate", "ugly.spmd").out
    ended = spmdc("fmt", "ugly.spmd", "p.spmd")
    assert (ended.status, ended.out, ended.err) == (0, "reformatted ugly.spmd\n", "")
    text = path.read_text()
    assert "  return a + a\n" in text
    assert "# why" in text
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in Path().iterdir()) == ["p.spmd", "ugly.spmd"]
    assert spmdc("propagate", "ugly.spmd").out == before
    assert spmdc("fmt", "ugly.spmd").out == ""


def test_fmt_only_tells_when_asked_to(spmdc: Run) -> None:
    Path("ugly.spmd").write_text(UGLY)
    ended = spmdc("fmt", "--check", "p.spmd", "ugly.spmd")
    assert (ended.status, ended.out) == (1, "would reformat ugly.spmd\n")
    ended = spmdc("fmt", "--diff", "ugly.spmd")
    assert ended.status == 1
    assert "+  return a + a\n" in ended.out
    assert Path("ugly.spmd").read_text() == UGLY
    assert spmdc("fmt", "--check", "p.spmd").status == 0


def test_fmt_of_standard_input_goes_to_standard_output(spmdc: Run) -> None:
    ended = spmdc("fmt", "-", stdin=UGLY.encode())
    assert ended.status == 0
    assert "  return a + a\n" in ended.out


def test_fmt_leaves_a_faulty_file_alone_and_goes_on(spmdc: Run) -> None:
    Path("bad.spmd").write_text("def main( {")
    Path("ugly.spmd").write_text(UGLY)
    ended = spmdc("fmt", "bad.spmd", "ugly.spmd", "missing.spmd")
    assert ended.status == 1
    assert ended.out == "reformatted ugly.spmd\n"
    assert "--> bad.spmd:1" in ended.err
    assert "error[E005]" in ended.err
    assert Path("bad.spmd").read_text() == "def main( {"


def test_fmt_reports_as_json(spmdc: Run) -> None:
    Path("p.spmd").write_text("def main( a:f32[8] )->f32[8]{return a}")
    Path("q.spmd").write_text("def main(\n")
    ended = spmdc("fmt", "--check", "--json", "p.spmd", "q.spmd")
    assert (ended.status, ended.err) == (1, "")
    assert ended.json["files"] == [
        {"file": "p.spmd", "ok": True, "changed": True},
        {"file": "q.spmd", "ok": False},
    ]
    assert {d["code"] for d in ended.json["diagnostics"]} == {"E001"}
    assert "+def main(a: f32[8]) -> f32[8] {" in spmdc("fmt", "--diff", "--json", "p.spmd").json["files"][0]["diff"]
    assert spmdc("fmt", "-", "--json", stdin=b"const  A=1").json["files"][0]["text"] == "const A = 1\n"
    assert spmdc("fmt", "p.spmd", "--json").json["files"] == [{"file": "p.spmd", "ok": True, "changed": True}]
    assert spmdc("fmt", "p.spmd", "--json").json["files"] == [{"file": "p.spmd", "ok": True, "changed": False}]


def test_an_interrupted_fmt_loses_nothing(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    Path("ugly.spmd").write_text(UGLY)
    monkeypatch.setattr("os.fsync", interrupt)
    assert spmdc("fmt", "ugly.spmd").status == 130
    assert Path("ugly.spmd").read_text() == UGLY
    assert sorted(p.name for p in Path().iterdir()) == ["p.spmd", "ugly.spmd"]
