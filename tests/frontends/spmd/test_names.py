"""What names refer to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir.ops import OPS
from ir.types import DTYPES
from spmdc.frontends.spmd import read
from spmdc.frontends.spmd.expand.constants import WORDS
from spmdc.frontends.spmd.names import Definition, Word, names_of
from spmdc.frontends.spmd.syntax.lexer import tokenize

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.spmd"))
SAID_OTHERWISE = {*DTYPES, *WORDS, "replicated", "partial", "devices", "trip_count", "axes"} | {
    word for opdef in OPS.values() for attr in opdef.attrs for word in attr.choices
}
"""Names that stand for nothing that a text, an op or a composition defines."""


def test_every_name_of_the_programs_is_known_and_what_it_is_bound_to() -> None:
    unknown: list[str] = []
    for path in PROGRAMS:
        reading = read(path.read_text(), path.name)
        names = names_of(reading.module)
        places = {(o.span.line, o.span.column) for o in names.occurrences}
        assert len(places) == len(names.occurrences)
        unknown += [
            f"{path.name}:{t.line} {t.text}"
            for t in tokenize(reading.source).tokens
            if t.type == "NAME" and (t.line, t.column) not in places and t.text not in SAID_OTHERWISE
        ]
        bound = [d for d in names.definitions if d.kind in ("value", "parameter", "const")]
        assert {(d.span.line, d.span.column) for d in bound} <= reading.bound.keys()
    assert unknown == []


def target(text: str, line: int, column: int) -> tuple[str, int] | str | None:
    """The name and line of what the name at a place refers to."""
    found = names_of(read(text).module).at((line, column))
    if found is None or isinstance(found.target, Word):
        return found.target.name if found is not None else None
    assert isinstance(found.target, Definition)
    return found.target.name, found.target.span.line


LOOP = """\
def main(x: f32[8]) -> (y: f32[8]) {
  n, y = while(i = 0, x = x, trip_count=3) cond {
    return i < 3
  } do {
    return i + 1, x + 1
  }
  z = repeat k < 2 (x = y) {
    return x * k
  }
  return z
}
"""


@pytest.mark.parametrize(
    ("place", "means"),
    [((2, 27), ("x", 1)), ((5, 19), ("x", 2)), ((3, 12), ("i", 2)), ((8, 12), ("x", 7)), ((8, 16), ("k", 7))],
)
def test_blocks_see_their_own_names_before_outer_ones(place: tuple[int, int], means: tuple[str, int]) -> None:
    assert target(LOOP, *place) == means


def test_a_function_may_have_the_name_of_an_op_that_programs_of_this_stage_lack() -> None:
    text = "def reshard(x: f32[8]) -> (y: f32[8]) {\n  return x\n}\n"
    assert target(f"{text}def main(x: f32[8]) -> (y: f32[8]) {{\n  return reshard(x)\n}}\n", 5, 10) == ("reshard", 1)


def test_names_of_statements_that_do_not_parse_mean_what_is_in_scope() -> None:
    text = "def main(x: f32[8]) -> (y: f32[8]) {\n  y = x + + (\n  return add(y\n"
    assert target(text, 2, 7) == ("x", 1)
    assert target(text, 3, 14) == ("y", 2)
    assert target(text, 3, 10) == "add"
