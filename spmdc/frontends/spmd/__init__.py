"""The .spmd language: parsed into programs, printed from programs, formatted as text. docs/language.md describes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ir.diagnostics import Diagnostic, Diagnostics, EnoughError, InternalError, Source, SpmdcError, require
from ir.garbage import uncollected
from ir.program import Program
from ir.spelling.printer import print_program
from spmdc.frontends.spmd.expand.program import expand
from spmdc.frontends.spmd.includes import with_included
from spmdc.frontends.spmd.items import Bound
from spmdc.frontends.spmd.syntax.formatter import format_source
from spmdc.frontends.spmd.syntax.nodes import Module
from spmdc.frontends.spmd.syntax.parser import parse_text

__all__ = ["Reading", "format_source", "parse", "print_program", "read"]

_MOST_ERRORS = 200
"""The most errors of a text that are reported."""
_FIRST = ("", 0, 0)


def parse(
    text: str, name: str = "<string>", defines: Mapping[str, float] | None = None, folder: str | None = None
) -> Program:
    """The program that a text of the .spmd language defines. `name` is the file's, `defines` overrides consts, and
    `folder` is where included files are, by default the file's own.

    Raises SpmdcError with all independent errors of the text, or the first 200, in the order of their positions.
    """
    require(isinstance(text, str), "a program is parsed of a text", text, "spmdc.load(path) reads a file")
    defines = {} if defines is None else defines
    require(isinstance(defines, Mapping), "consts are given by name", defines, 'defines={"n": 8}')
    reading = _read(Source(name, text), defines, None, folder)
    if any(d.severity == "error" for d in reading.diagnostics):
        raise SpmdcError(reading.diagnostics)
    if reading.program is None:
        raise InternalError("a program without errors was not expanded")
    return reading.program


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The result of reading a text, with errors or without: its tree, the tree with included files, the bindings of its
    names, and the errors.

    There is a program if there are no errors.
    """

    source: Source
    module: Module
    whole: Module
    bound: Bound
    diagnostics: tuple[Diagnostic, ...]
    program: Program | None


def read(text: str, name: str = "<string>", folder: str | None = None) -> Reading:
    """Everything that can be read of a text. The result contains the errors that `parse` would raise."""
    return _read(Source(name, text), {}, {}, folder)


def _read(source: Source, defines: Mapping[str, float], bound: Bound | None, folder: str | None) -> Reading:
    found = Diagnostics(most=_MOST_ERRORS)
    module, whole, program = Module((), {}), Module((), {}), None
    around = Path(source.name).parent if folder is None else Path(folder)
    with uncollected(), contextlib.suppress(EnoughError):
        try:
            module = parse_text(source, found)
            whole = with_included(module, source, found, around)
            program = expand(whole, source, defines, found, bound)
        except RecursionError:
            help = "name the inner parts"
            found.add(Diagnostic("E003", "blocks and expressions nest too deep in one another", help=help))
    diagnostics = tuple(sorted(dict.fromkeys(found.items), key=lambda d: _place(d, source)))
    if defines and program is None:
        diagnostics = tuple(_with_overrides(diagnostics, defines))
    return Reading(source, module, whole, bound or {}, diagnostics, program)


def _with_overrides(diagnostics: Sequence[Diagnostic], defines: Mapping[str, float]) -> Iterator[Diagnostic]:
    """The diagnostics; the first of types and sizes has a note of the consts that are overridden, on which they may
    depend."""
    note = f"consts are overridden: {', '.join(f'{name} = {value}' for name, value in defines.items())}"
    first = next((d for d in diagnostics if d.code[:2] == "E2" or d.code == "E304"), None)
    for d in diagnostics:
        yield replace(d, notes=(*d.notes, note)) if d is first else d


def _place(diagnostic: Diagnostic, own: Source) -> tuple[str, int, int]:
    """The order of diagnostics: by files, that of the text itself first."""
    span = diagnostic.span
    return (span.source.name if span.source is not own else "", span.line, span.column) if span is not None else _FIRST
