"""The .spmd language: parsed into programs, printed from programs, formatted as text. docs/language.md describes it."""

from __future__ import annotations

from collections.abc import Mapping

from ir.diagnostics import Diagnostic, Diagnostics, EnoughError, InternalError, Source, SpmdcError, error
from ir.garbage import uncollected
from ir.program import Program
from ir.spelling.printer import print_program
from spmdc.frontends.spmd.expand.program import expand
from spmdc.frontends.spmd.syntax.formatter import format_source
from spmdc.frontends.spmd.syntax.parser import parse_text

__all__ = ["format_source", "parse", "print_program"]


_MOST_ERRORS = 200
"""Of a text. Nobody reads more."""


def parse(text: str, name: str = "<string>", defines: Mapping[str, int] | None = None) -> Program:
    """The program that a text of the .spmd language says. `name` is the file's, `defines` overrides consts.

    Raises SpmdcError with all independent errors of the text, or the first 200, in the order of their places.
    """
    source = Source(name, text)
    found = Diagnostics(most=_MOST_ERRORS)
    with uncollected():
        program = _program(source, found, defines or {})
    if found.errors:
        raise SpmdcError(sorted(dict.fromkeys(found.items), key=_place))
    if program is None:
        raise InternalError("a program without errors was not expanded")
    return program


def _program(source: Source, found: Diagnostics, defines: Mapping[str, int]) -> Program | None:
    try:
        return expand(parse_text(source, found), source, defines, found)
    except EnoughError:
        return None
    except RecursionError:
        raise error(
            "E003", "blocks and expressions nest too deep in one another", help="name the inner parts"
        ) from None


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span is not None else (0, 0)
