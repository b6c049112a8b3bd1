"""`spmdc visualize`: which part of a value each device holds."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from command_line import Run


def test_a_value_is_drawn_in_letters(spmdc: Run) -> None:
    ended = spmdc("visualize", "p.spmd", "h")
    assert ended.status == 0
    assert ended.out.startswith("h: f32[16@x, 8@y]\n8 blocks of [4, 4] on 8 devices, mesh (x=4, y=2)\n")
    assert "│ 0…3 │" in ended.out


def test_a_picture_is_written_to_a_file(spmdc: Run, tmp_path: Path) -> None:
    out = tmp_path / "h.svg"
    ended = spmdc("visualize", "p.spmd", "h", "-o", str(out))
    assert (ended.status, ended.out) == (0, "")
    root = ElementTree.fromstring(out.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "dark" in (root[0].text or ""), "nothing around it says in which colour its letters can be read"


def test_what_each_device_holds_is_there_as_data(spmdc: Run) -> None:
    figures = spmdc("visualize", "p.spmd", "h", "--json").json
    assert (figures["shape"], figures["parts"], figures["shard"]) == ([16, 8], [4, 2], [4, 4])
    assert figures["blocks"][3] == {"start": [4, 4], "stop": [8, 8], "devices": [3]}


def test_an_unknown_value_is_reported_with_names_like_it(spmdc: Run) -> None:
    ended = spmdc("visualize", "p.spmd", "hh")
    assert ended.status == 1
    assert "error[E101]" in ended.err
    assert "did you mean h?" in ended.err
