"""Pictures, in letters and as SVG, and what notebooks show."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

import spmdc
from ir.mesh import Mesh
from ir.notebooks import Lines
from ir.sharding import Sharding
from ir.spelling.printer import print_program
from spmdc.pictures import pages

MESH = Mesh((("x", 4), ("y", 2)))
VOID = {"br", "hr", "img"}


def test_blocks_are_drawn_with_who_holds_them_and_padding_with_dots() -> None:
    picture = spmdc.picture(Sharding.of(MESH, "x", "y"), (6, 8))
    assert str(picture).splitlines() == [
        "[6, 8] [x, y]",
        "8 blocks of [2, 4] on 8 devices, mesh (x=4, y=2); the last of dim 0 hold padding (25%), 2 devices",
        "nothing else",
        "dim 0 over x down, dim 1 over y across",
        "┌─────┬─────┬─────┐",
        "│     │ 0…3 │ 4…7 │",
        "├─────┼─────┼─────┤",
        "│ 0…1 │  0  │  1  │",
        "├─────┼─────┼─────┤",
        "│ 2…3 │  2  │  3  │",
        "├─────┼─────┼─────┤",
        "│ 4…5 │  4  │  5  │",
        "├─────┼─────┼─────┤",
        "│  -· │ ·6· │ ·7· │",
        "└─────┴─────┴─────┘",
    ]


def test_replicas_and_terms_of_sums_are_named() -> None:
    assert "│ 0…3 │ 0,2,4,6 │" in str(spmdc.picture(Sharding.of(MESH, "y", None), (8, 4)))
    assert "4 devices hold each" in str(spmdc.picture(Sharding.of(MESH, "y", None), (8, 4)))
    partial = Sharding(MESH, Sharding.of(MESH, "y").dims, ((MESH.axis("x"), "sum"),))
    assert "each device has a term of a sum over x" in str(spmdc.picture(partial, (8,)))
    assert "0-7" in str(spmdc.picture(Sharding.of(MESH), ()))


def test_each_place_of_a_third_split_dim_is_drawn_by_itself() -> None:
    cube = Mesh((("x", 2), ("y", 2), ("z", 2)))
    text = str(spmdc.picture(Sharding.of(cube, "x", "y", "z"), (4, 6, 8)))
    assert [line for line in text.splitlines() if line.startswith("dim 0:")] == ["dim 0: 0…1", "dim 0: 2…3"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_picture_fits_the_terminal(width: int) -> None:
    sharding = Sharding.of(Mesh((("x", 64), ("y", 64))), "x", "y")
    lines = spmdc.picture(sharding, (64 * 64, 64 * 64)).text(width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" in lines[-2]


def test_colours_are_escape_codes_only_where_they_are_asked_for() -> None:
    picture = spmdc.picture(Sharding.of(MESH, "x", "y"))
    assert "\x1b[" in picture.text(color=True)
    assert "\x1b[" not in picture.text()


def test_an_svg_has_a_cell_for_each_block_and_device() -> None:
    root = ElementTree.fromstring(spmdc.picture(Sharding.of(MESH, "x", "y"), (7, 8)).svg())
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = [title.text for title in root.findall(".//s:title", space)]
    assert titles[0] == "[0…1 × 0…3] on device 0"
    assert len(titles) == 8
    hatched = [r for r in root.findall(".//s:rect", space) if r.get("fill") == "url(#padding)"]
    assert sum(float(r.get("height", 0)) * float(r.get("width", 0)) > 0 for r in hatched) == 2
    fills = [r.get("fill") for r in root.findall(".//s:rect", space)]
    assert len({fill for fill in fills if fill and fill.startswith("hsl")}) == 8


def test_a_million_devices_are_drawn_in_a_short_picture() -> None:
    sharding = Sharding.of(Mesh((("x", 1024), ("y", 1024))), "x", "y")
    picture = spmdc.picture(sharding, (1 << 20, 1 << 20))
    assert len(picture.svg()) < 200_000
    assert len(picture.text()) < 5_000
    assert len(str(spmdc.picture(Sharding.replicate(sharding.mesh, 2), (4, 4)))) < 1_000


def test_a_shape_that_does_not_fit_is_reported() -> None:
    with pytest.raises(spmdc.SpmdcError, match="E303"):
        spmdc.picture(Sharding.of(MESH, "x"), (4, 4))


class Balanced(HTMLParser):
    """Sees that each tag is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(page: str) -> list[str]:
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    return parser.seen


PROGRAM = """
mesh (x=4, y=2)
def main(a: f32[8@x, 4], b: f32[4@y, 8]) -> (r: f32[8, 8]) {
  h = tanh(a)
  return einsum("ij,jk->ik", h, b)
}
"""


def test_programs_plans_and_what_is_sent_are_shown_in_notebooks() -> None:
    program = spmdc.parse(PROGRAM)
    assert "details" in tags(str(program._repr_html_()))
    assert "pre" in tags(spmdc.propagate(program)._repr_html_())
    assert "bytes of memory at the peak" in spmdc.plan(program)._repr_html_()
    partitioned = spmdc.partition(program)
    assert tags(partitioned._repr_html_()).count("tr") == 1 + len(partitioned.collectives())
    assert "nothing is sent" in spmdc.partition(program, mesh={"x": 1, "y": 1})._repr_html_()
    sharding = program.main.params[0].sharding
    assert sharding is not None
    ElementTree.fromstring(str(sharding._repr_html_()))
    ElementTree.fromstring(partitioned.picture("h")._repr_svg_())
    assert spmdc.propagate(program).picture("h").placement.parts == (4, 2)
    plan, why = spmdc.plan(program), spmdc.propagate(program).why("h")
    assert isinstance(why, Lines)
    assert "h dim 0 &lt;- a dim 0" in str(why._repr_html_())
    assert "without reshards" in plan.explain("r")._repr_html_()
    assert "pre" in tags(str(plan.diff(plan)._repr_html_()))  # type: ignore[attr-defined]


def test_a_comparison_is_a_table_of_kinds() -> None:
    program = spmdc.partition(spmdc.parse(PROGRAM))
    sides = (program.collectives(), 7), (program.collectives()[:1], 8)
    page = pages.comparison(("spmdc", "XLA"), sides, ["a < b"])
    assert "table" in tags(page)
    assert "a &lt; b" in page


def test_the_text_of_a_long_program_is_folded_and_cut() -> None:
    ops = "\n".join(f"  v{k + 1} = tanh(v{k}) + v{k}" for k in range(2000))
    program = spmdc.parse(f"mesh (x=4)\ndef main(v0: f32[8@x]) -> (r: f32[8@x]) {{\n{ops}\n  return v2000\n}}")
    page = str(program._repr_html_())
    assert "<details><summary>4,005 lines" in page
    assert "more lines: text()" in page
    assert len(page) < 300_000


def test_what_is_coloured_is_what_was_there() -> None:
    page = str(spmdc.parse(PROGRAM)._repr_html_())
    text = re.sub(r"<[^>]*>", "", page[page.index("<pre") : page.index("</pre>")])
    assert text.replace("&gt;", ">").replace("&quot;", '"') == print_program(
        spmdc.parse(PROGRAM), locations=False
    ).rstrip("\n")
