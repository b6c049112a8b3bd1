"""Statements of one shape are built alike: as the grammar makes them, each by itself."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from ir.diagnostics import Diagnostics, Source
from spmdc.frontends.spmd.syntax.engine import by_grammar
from spmdc.frontends.spmd.syntax.lexer import tokenize
from spmdc.frontends.spmd.syntax.parser import parse_text
from spmdc.frontends.spmd.syntax.shapes import flat_statements

SHIPPED = sorted(Path(str(files("spmdc") / "programs")).glob("*.spmd"))
TESTED = sorted((Path(__file__).parents[2] / "programs").glob("*.spmd"))


@pytest.mark.parametrize("path", [*SHIPPED, *TESTED], ids=lambda path: path.stem)
def test_a_text_has_the_tree_that_the_grammar_makes_of_all_its_tokens(path: Path) -> None:
    source = Source(str(path), path.read_text())
    found = Diagnostics()
    tree = parse_text(source, found)
    assert not found.items
    assert tree.items == tuple(by_grammar(tokenize(source).tokens, "program", source))


def statements(body: str) -> list[str]:
    """The statements without blocks in the body of a function, their tokens in a row."""
    cut = tokenize(Source("a", f"const N = 2 mesh (x=N) def f(a: f32[N]) -> f32[N] {{ {body} }}"))
    return [" ".join(token.text for token in cut.tokens[first:behind]) for first, behind in flat_statements(cut)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("b = a return b", ["b = a", "return b"]),
        ("b: f32[2]{partial: x, max y} = a c = b", ["b : f32 [ 2 ] { partial : x , max y } = a", "c = b"]),
        ("b, c = f(a, [x, y]) check(b) return", ["b , c = f ( a , [ x , y ] )", "check ( b )", "return"]),
        ("b = 1 + 2 c = 'x' d = a[0] e = value=[1, 2]", ["b = 1 + 2", "c = 'x'", "d = a [ 0 ]", "e = value = [1, 2]"]),
        ("b = loop i < 3 (c = a) { d = c return d } return b", ["d = c", "return d", "return b"]),
        ("b = case (i) { return a } or { return c }", ["return a", "return c"]),
        ("b = g(while (c = a) cond { return p } do { return c }) return b",
         ["b = g ( while ( c = a ) cond { return p } do { return c } )", "return b"]),
    ],
)  # fmt: skip
def test_statements_without_blocks_are_found_wherever_they_are(body: str, expected: list[str]) -> None:
    assert statements(body) == expected


def test_errors_that_a_token_says_alone_are_reported_in_each_statement_of_a_shape() -> None:
    digits = "9" * 101
    source = Source("a", f"def f(a: f32[2]) -> f32[2] {{ b = 1 c = {digits} d = {digits} return a }}")
    found = Diagnostics()
    parse_text(source, found)
    places = [(d.code, d.message, d.span.column) for d in found.items if d.span is not None]
    assert places == [("E001", "the number has 101 digits", column) for column in (40, 40 + 101 + len(" d = "))]
