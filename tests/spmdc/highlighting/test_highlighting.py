"""Programs in colours."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pygments.token import Comment, Error, Keyword, Name, Number, String

from ir.diagnostics import Source
from ir.ops import OPS
from ir.types import DTYPES
from spmdc.frontends.spmd.syntax.lexer import tokenize
from spmdc.highlighting.patterns import PATTERNS
from spmdc.highlighting.pygments_lexer import SpmdLexer
from spmdc.highlighting.textmate import grammar

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted((ROOT / "tests" / "programs").glob("*.spmd"))
TEXTMATE = ROOT / "docs" / "editors" / "spmd.tmLanguage.json"
WORDS = {"CONST", "MESH", "SPMD", "PLAN", "DEF", "RETURN", "WHILE", "REPEAT", "LOOP", "COND", "DO", "OF", "CASE", "OR",
         "IF", "ELSE", "CHECKPOINT", "PRECISION", "PRECISION_ITEM", "MANUAL"}  # fmt: skip


def textmate(text: str) -> Iterator[tuple[int, str, str]]:
    """Places, scopes and words, by what TextMate does: in each line the earliest match, of these the first pattern."""
    patterns = [(p["name"], re.compile(p["match"], re.ASCII)) for p in json.loads(grammar())["patterns"]]
    start = 0
    for line in text.split("\n"):
        place = 0
        while found := [(m.start(), i) for i, (_, p) in enumerate(patterns) if (m := p.search(line, place))]:
            _, i = min(found)
            match = patterns[i][1].search(line, place)
            assert match is not None
            assert match.end() > match.start()
            yield start + match.start(), patterns[i][0], match[0]
            place = match.end()
        start += len(line) + 1


def test_keywords_of_all_programs_are_those_that_the_language_reads() -> None:
    for path in PROGRAMS:
        text = path.read_text()
        starts = [0]
        for line in text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        tokens = tokenize(Source(path.name, text)).tokens
        read = {starts[t.line - 1] + t.column - 1 for t in tokens if t.type in WORDS}
        annotations = {starts[t.line - 1] + t.column - 1 for t in tokens if t.text in ("partial", "replicated")}
        coloured = list(SpmdLexer().get_tokens_unprocessed(text))
        assert not [value for _, kind, value in coloured if kind is Error], path.name
        assert {place for place, kind, _ in coloured if kind is Keyword} - annotations == read, path.name
        assert {p for p, scope, _ in textmate(text) if scope == "keyword.control.spmd"} - annotations == read, path.name


def test_each_kind_of_word_has_its_colour() -> None:
    text = 'def f(x: f32[8@(a, b:(2)2), 4]) -> (y: f32[]) {  # why\n  return shard(g(x), "P()") * 1.5e3\n}\n'
    kinds = {value: kind for _, kind, value in SpmdLexer().get_tokens_unprocessed(text)}
    assert {
        "f": Name.Function, "f32": Keyword.Type, "@(a, b:(2)2)": Name.Decorator, "# why": Comment.Single,
        "return": Keyword, "shard": Name.Builtin, "g": Name.Function, "x": Name, '"P()"': String, "1.5e3": Number,
    }.items() <= kinds.items()  # fmt: skip


def test_every_op_and_element_type_is_known() -> None:
    patterns = {kind: re.compile(pattern, re.ASCII) for kind, pattern in PATTERNS}
    assert all(patterns["builtin"].match(f"{name}(") for name in OPS)
    assert all(patterns["type"].fullmatch(name) for name in DTYPES)


def test_the_grammar_for_editors_is_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        TEXTMATE.write_text(grammar())
    assert TEXTMATE.read_text() == grammar(), "python -m spmdc.highlighting.textmate makes it"


def test_pygments_is_told_where_the_lexer_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["pygments.lexers"].items()
    assert EntryPoint(name, value, "pygments.lexers").load() is SpmdLexer
