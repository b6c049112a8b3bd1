"""The .spmd language: parsed into programs, printed from programs, formatted as text. docs/language.md describes it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from ir.diagnostics import Diagnostic, Diagnostics, EnoughError, InternalError, Source, SpmdcError
from ir.garbage import uncollected
from ir.program import Program
from ir.spelling.printer import print_program
from spmdc.frontends.spmd.expand.program import expand
from spmdc.frontends.spmd.items import Bound
from spmdc.frontends.spmd.syntax.formatter import format_source
from spmdc.frontends.spmd.syntax.nodes import Module
from spmdc.frontends.spmd.syntax.parser import parse_text

__all__ = ["Reading", "format_source", "parse", "print_program", "read"]


_MOST_ERRORS = 200
"""Of a text. Nobody reads more."""


def parse(text: str, name: str = "<string>", defines: Mapping[str, int] | None = None) -> Program:
    """The program that a text of the .spmd language says. `name` is the file's, `defines` overrides consts.

    Raises SpmdcError with all independent errors of the text, or the first 200, in the order of their places.
    """
    reading = _read(Source(name, text), defines or {}, None)
    if any(d.severity == "error" for d in reading.diagnostics):
        raise SpmdcError(reading.diagnostics)
    if reading.program is None:
        raise InternalError("a program without errors was not expanded")
    return reading.program


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What is known of a text, with errors or without: its tree, what the names in it are bound to, and what is wrong.

    There is a program if nothing is.
    """

    source: Source
    module: Module
    bound: Bound
    diagnostics: tuple[Diagnostic, ...]
    program: Program | None


def read(text: str, name: str = "<string>") -> Reading:
    """All that can be read of a text. Errors are in what is returned, as `parse` would raise them."""
    return _read(Source(name, text), {}, {})


def _read(source: Source, defines: Mapping[str, int], bound: Bound | None) -> Reading:
    found = Diagnostics(most=_MOST_ERRORS)
    module, program = Module((), {}), None
    with uncollected(), contextlib.suppress(EnoughError):
        try:
            module = parse_text(source, found)
            program = expand(module, source, defines, found, bound)
        except RecursionError:
            help = "name the inner parts"
            found.add(Diagnostic("E003", "blocks and expressions nest too deep in one another", help=help))
    return Reading(source, module, bound or {}, tuple(sorted(dict.fromkeys(found.items), key=_place)), program)


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span is not None else (0, 0)
