"""From text to syntax tree. A text without errors is parsed at once; otherwise each statement that fails is skipped, so
that one run reports all independent errors."""

from __future__ import annotations

from typing import Any

import lark

from ir.diagnostics import Diagnostics, Source, SpmdcError
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.engine import by_grammar, standing_for, steps_of
from spmdc.frontends.spmd.syntax.lexer import Token, Tokens, tokenize
from spmdc.frontends.spmd.syntax.recovery import Recovery
from spmdc.frontends.spmd.syntax.shapes import Shape, flat_statements


def parse_text(source: Source, found: Diagnostics) -> s.Module:
    """The tree of a text. Errors are added to `found`; unaffected parts are in the tree."""
    try:
        cut = tokenize(source)
    except SpmdcError as e:
        found.extend(e.diagnostics)
        return s.Module((), {})
    found.extend(cut.diagnostics)
    if not cut.diagnostics and not cut.bracket_errors:
        try:
            return s.Module(tuple(_program(cut)), cut.locations())
        except (lark.UnexpectedToken, SpmdcError):
            pass
    return s.Module(tuple(Recovery(cut, found).items()), cut.locations())


def _program(cut: Tokens) -> Any:
    """The tree of a text, whose statements are parsed first. Raises lark.UnexpectedToken, or SpmdcError from a
    callback."""
    shapes: dict[tuple[str, ...], Shape] = {}
    rest: list[Token] = []
    end = 0
    for first, behind in flat_statements(cut):
        statement = cut.tokens[first:behind]
        types = tuple([token.type for token in statement])
        shape = shapes.get(types)
        if shape is None:
            shape = shapes[types] = Shape(types, steps_of(statement))
        rest += cut.tokens[end:first]
        rest.append(standing_for(shape.statement(statement, cut.source), statement[0]))
        end = behind
    return by_grammar([*rest, *cut.tokens[end:]], "program", cut.source)
