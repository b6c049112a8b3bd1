"""The grammar, run by lark on tokens that exist already."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from importlib import resources
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Literal, cast

import lark
from lark.lexer import Lexer

from ir.diagnostics import Source
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.lexer import Token
from spmdc.frontends.spmd.syntax.shapes import Recorder, Step

_ENGINE_IN_USE = threading.Lock()


class _Replay(Lexer):
    """Passes the tokens, which exist already, to lark."""

    __future_interface__ = 2

    def __init__(self, lexer_conf: object) -> None:
        del lexer_conf

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[lark.Token]:
        return iter(cast("list[lark.Token]", lexer_state.text))


@functools.cache
def _engine() -> tuple[lark.Lark, Recorder]:
    recorder = Recorder()
    grammar = resources.files("spmdc.frontends.spmd.syntax").joinpath("grammar.lark").read_text("utf-8")
    parser = lark.Lark(
        grammar,
        parser="lalr",
        lexer=_Replay,
        start=["program", "item", "header", "parameter", "result", "statement"],
        keep_all_tokens=True,
        maybe_placeholders=False,
        transformer=cast("Any", recorder.callbacks()),
        cache=_tables_file(),
    )
    return parser, recorder


def _tables_file() -> str | Literal[False]:
    """Where lark caches the tables of the grammar, whose computation takes longer than most programs: beside compiled
    modules, if Python may write these. They are recomputed for another grammar, or if they cannot be read."""
    if sys.dont_write_bytecode:
        return False
    return str(Path(cache_from_source(str(Path(__file__).with_name("grammar.lark")))).with_suffix(".tables"))


def by_grammar(tokens: list[Token], start: str, source: Source) -> Any:
    """The result of the grammar for these tokens. Raises lark.UnexpectedToken, or SpmdcError from a callback."""
    parser, recorder = _engine()
    with _ENGINE_IN_USE:
        recorder.builder.source = source
        return parser.parse(cast("Any", tokens), start=start)


def steps_of(statement: list[Token]) -> list[Step]:
    """The steps in which a statement is built. Raises lark.UnexpectedToken."""
    parser, recorder = _engine()
    with _ENGINE_IN_USE:
        recorder.begin(statement)
        try:
            parser.parse(cast("Any", statement), start="statement")
        finally:
            steps = recorder.end()
        return steps


def standing_for(statement: s.Statement, first: Token) -> Token:
    """A token that stands for a statement with the first token `first`."""
    token = Token("STATEMENT", "", first.start_pos, first.line, first.column)
    token.literal = (statement,)
    return token
