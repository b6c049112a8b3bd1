"""`spmdc check`: what it says of sound and of faulty programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import PROGRAM, Run

from spmdc import files
from spmdc.frontends.spmd.syntax import lexer


def test_check_counts_ops(spmdc: Run) -> None:
    ended = spmdc("check", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "p.spmd: ok (6 ops, mesh x=4, y=2)\n"


def test_check_goes_on_after_a_faulty_file(spmdc: Run) -> None:
    Path("bad.spmd").write_text("def main(\n")
    ended = spmdc("check", "bad.spmd", "--verbose", "missing.spmd", "p.spmd")
    assert ended.status == 1
    assert "p.spmd: ok" in ended.out
    assert "bad.spmd:1" in ended.err
    assert "error[E005]: cannot read missing.spmd" in ended.err


@pytest.mark.parametrize(
    ("path", "help"),
    [
        ("folder", "that is a folder"),
        ("p.spmd/q.spmd", "a part of the path is a file"),
        ("nothing_like_it", "name a file that exists"),
        ("q.spmd", "did you mean p.spmd"),
        ("includes.spmd", "include a file of functions"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_with_a_way_out(spmdc: Run, path: str, help: str) -> None:
    Path("folder").mkdir()
    Path("includes.spmd").write_text('include "folder"\ndef main(a: f32[3]) -> (b: f32[3]) { return a }\n')
    ended = spmdc("check", path)
    assert ended.status == 1
    assert "error[E005]: cannot read" in ended.err
    assert f"= help: {help}" in ended.err


def test_check_reads_standard_input(spmdc: Run) -> None:
    ended = spmdc("check", "-", stdin=PROGRAM.encode())
    assert (ended.status, ended.out) == (0, "-: ok (6 ops, mesh x=4, y=2)\n")
    ended = spmdc("check", "-", stdin=b"mesh (x=0)\ndef main() -> () { return }\n")
    assert ended.status == 1
    assert "<stdin>:1" in ended.err


def test_check_reports_as_json(spmdc: Run) -> None:
    Path("bad.spmd").write_text("def main() -> f32[] { return y }\n")
    ended = spmdc("check", "p.spmd", "bad.spmd", "--json")
    assert (ended.status, ended.err) == (1, "")
    assert [f["ok"] for f in ended.json["files"]] == [True, False]
    (problem,) = ended.json["diagnostics"]
    assert problem["code"] == "E101"
    assert problem["span"]["file"] == "bad.spmd"


NESTED = "(" * 100 + "a" + ")" * 100
BAD_PROGRAMS = {
    "unknown op": ("E103", "def main(a: f32[8]) -> (f32[8]) {\n  return frobnicate(a)\n}"),
    "wrong shapes": ("E201", "def main(a: f32[8, 3], b: f32[8, 4]) -> (f32[8, 3]) {\n  return add(a, b)\n}"),
    "wrong result": ("E401", "def main(a: f32[8]) -> (f32[9]) {\n  return a\n}"),
    "axis twice": ("E302", "mesh (x=2)\ndef main(a: f32[8@x, 8@x]) -> (f32[8, 8]) {\n  return a\n}"),
    "axis not in the mesh": ("E301", "mesh (x=2)\ndef main(a: f32[8@z]) -> (f32[8]) {\n  return a\n}"),
    "no mesh": ("E306", "def main(a: f32[8@x]) -> (f32[8]) {\n  return a\n}"),
    "more partitions than devices": (
        "E305",
        "mesh (x=2)\ndef main(a: f32[8]) -> (f32[8]) {\n  return split(a, 0, 4)\n}",
    ),
    "device id twice": ("E304", "mesh (x=2) devices=[1, 1]\ndef main() -> () {\n  return\n}"),
    "an axis of no devices": ("E304", "mesh (x=0)\ndef main() -> () {\n  return\n}"),
    "cycle": (
        "E402",
        "def main(a: f32[8]) -> (f32[8]) {\n  return f(a)\n}\n\ndef f(a: f32[8]) -> (f32[8]) {\n  return main(a)\n}",
    ),
    "missing return": ("E401", "def main(a: f32[8]) -> (f32[8]) {\n  b = neg(a)\n}"),
    "a const that does not divide": ("E204", "const A = 7 / 2\ndef main(a: f32[A]) -> (f32[A]) {\n  return a\n}"),
    "a size that is no number": ("E205", "def main(a: f32[nan]) -> (f32[8]) {\n  return a\n}"),
    "a size below zero": ("E205", "def main(a: f32[-3]) -> (f32[-3]) {\n  return a\n}"),
    "a name not defined": ("E101", "def main(a: f32[8]) -> (f32[8]) {\n  return a + b\n}"),
    "a name defined twice": ("E102", "def main(a: f32[8]) -> (f32[8]) {\n  b = a\n  b = a\n  return b\n}"),
    "no end": ("E001", "def main(a: f32[8]) -> (f32[8]) {\n  return a\n"),
    "deep nesting": ("E003", f"def main(a: f32[8]) -> (f32[8]) {{\n  return {NESTED}\n}}"),
}


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_a_faulty_program_is_told_with_code_place_line_and_caret(spmdc: Run, name: str) -> None:
    code, text = BAD_PROGRAMS[name]
    Path("bad.spmd").write_text(f"{text}\n")
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert ended.out == ""
    assert f"error[{code}]" in ended.err, ended.err
    assert "Traceback" not in ended.err
    place = next(line for line in ended.err.splitlines() if line.startswith("  --> bad.spmd:"))
    line, column = map(int, place.split(":")[1:3])
    assert f" {line} | {text.splitlines()[line - 1][:100]}" in ended.err
    assert "^" in ended.err
    assert column >= 1


def test_binary_data_is_told_with_its_place(spmdc: Run) -> None:
    Path("bad.spmd").write_bytes(b"mesh (x=2)\ndef \xff\xfe\x00")
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert "error[E002]" in ended.err
    assert "--> bad.spmd:2:5" in ended.err
    ended = spmdc("check", "-", stdin=bytes(range(32)) * 100)
    assert ended.status == 1
    assert "error[E002]" in ended.err


def test_a_line_of_ten_megabytes_is_reported_in_a_few_words(spmdc: Run) -> None:
    Path("bad.spmd").write_text("# ok\n" + "x" * 10_000_000)
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert "error[E001]" in ended.err
    assert "--> bad.spmd:2:1" in ended.err
    assert len(ended.err) < 1000


def test_what_has_no_end_is_not_read_to_the_end(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    Path("long.spmd").write_text("#" * 1001)
    for name, shown in (("/dev/zero", "/dev/zero"), ("long.spmd", "long.spmd"), ("-", "standard input")):
        ended = spmdc("check", name, stdin=b"#" * 1001)
        assert ended.status == 1
        assert f"error[E004]: {shown} has more than 1,000 bytes" in ended.err
        assert "help: name a smaller file" in ended.err
    Path("long.spmd").write_text("#" * 1000)
    assert "E004" not in spmdc("check", "long.spmd").err


def test_of_a_line_of_too_many_names_no_more_is_read_than_of_a_program(
    spmdc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexer, "MAX_TOKENS", 1000)
    Path("bad.spmd").write_text("# ok\n" + "a " * 2000)
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert "error[E004]: the program has more than 1,000 names" in ended.err
    assert "--> bad.spmd:2:2001" in ended.err


def test_a_folder_is_not_a_program(spmdc: Run) -> None:
    ended = spmdc("check", ".")
    assert ended.status == 1
    assert "error[E005]" in ended.err
