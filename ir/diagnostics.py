"""Errors and warnings as data: a stable code, a place, a reason, a way out.

The message states the problem, a note explains it, the help proposes a fix. Rendering is `render` (for people) and
`to_json` (for tools). `EXPLANATIONS` has the longer texts of `spmdc explain CODE`.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Literal

from ir.explanations import EXPLANATIONS
from ir.records import as_json, record

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A file's name and text. `text` is None where only the name is known."""

    name: str
    text: str | None = None

    def __repr__(self) -> str:
        return f"Source({self.name!r})"

    def line(self, number: int) -> str | None:
        """Line `number`, counted from 1, without its newline."""
        if self.text is None:
            return None
        lines = _lines(self.text)
        return lines[number - 1] if number <= len(lines) else None


@functools.lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    return text.split("\n")


@record
class Span:
    """A stretch of source text. Lines and columns count from 1; the end column is one past the last character."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing to report to the user."""

    code: str
    message: str
    span: Span | None = None
    notes: tuple[str, ...] = ()
    help: str = ""
    severity: Severity = "error"

    def __post_init__(self) -> None:
        assert self.code in EXPLANATIONS, f"{self.code} has no explanation"

    def to_json(self) -> dict[str, object]:
        """The diagnostic as plain data."""
        place, s = None, self.span
        if s is not None:
            place = {"file": s.source.name, **as_json(s, "line", "column", "end_line", "end_column")}
        return {**as_json(self, "code", "severity", "message", "notes", "help"), "span": place}


class SpmdcError(ValueError):
    """The exception for every error that a user can cause: one or more diagnostics. It is a ValueError, as is most of
    what `jax.jit` raises for the same reasons."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | Diagnostic) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        super().__init__(render(self.diagnostics))

    def __reduce__(self) -> tuple[object, ...]:
        """Exceptions are pickled with their `args`, here the text, and this one is made of diagnostics."""
        return type(self), (self.diagnostics,), self.__dict__


class InternalError(Exception):
    """A bug in spmdc: one of its invariants does not hold."""


def error(
    code: str, message: str, span: Span | None = None, *, help: str = "", notes: Sequence[str] = ()
) -> SpmdcError:
    """An SpmdcError of one diagnostic."""
    return SpmdcError(Diagnostic(code, message, span, help=help, notes=tuple(notes)))


_MAX_GIVEN = 80
"""The most characters of an argument that an error shows."""


def unfit(what: str, given: object, help: str) -> SpmdcError:
    """The error (E601) for an argument of a Python function. `what` is a clause that says what it should be."""
    shown = f"the function {given.__name__}" if isinstance(given, FunctionType) else " ".join(repr(given).split())
    message = f"{what}, and not {shown if len(shown) <= _MAX_GIVEN else shown[:_MAX_GIVEN] + '…'}"
    return error("E601", message, help=help)


def require(fits: bool, what: str, given: object, help: str = "") -> None:
    """Raises the error of `unfit` for an argument that does not fit."""
    if not fits:
        raise unfit(what, given, help)


class EnoughError(Exception):
    """The maximal number of diagnostics has been collected."""


@dataclass
class Diagnostics:
    """Collects diagnostics, so that all independent errors of a program are reported at once."""

    items: list[Diagnostic] = field(default_factory=list[Diagnostic])
    most: int | None = None
    """The number of diagnostics at which EnoughError is raised."""

    def add(self, diagnostic: Diagnostic) -> None:
        self.extend((diagnostic,))

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.items.extend(diagnostics)
        if self.most is not None and len(self.items) >= self.most:
            del self.items[self.most :]
            raise EnoughError

    @property
    def errors(self) -> list[Diagnostic]:
        return [d for d in self.items if d.severity == "error"]

    def raise_errors(self) -> None:
        """Raises SpmdcError with all diagnostics if any is an error."""
        if self.errors:
            raise SpmdcError(self.items)


_MAX_LINE = 160
_COLORS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "help": "\x1b[1;36m", "bold": "\x1b[1m", "reset": "\x1b[0m"}


def render(diagnostics: Iterable[Diagnostic], *, color: bool = False, width: int | None = None) -> str:
    """Diagnostics as rustc and ruff show them: message, place, source line, caret, notes, help; folded to a width."""
    return "\n\n".join(_render_one(d, color, width) for d in diagnostics)


def painted(kind: str, text: str, color: bool) -> str:
    """The text of an error, a warning or a help, or in bold, in its colour if `color`."""
    return f"{_COLORS[kind]}{text}{_COLORS['reset']}" if color else text


def _render_one(d: Diagnostic, color: bool, width: int | None) -> str:
    paint = functools.partial(painted, color=color)
    first, *rest = _folded(len(f"{d.severity}[{d.code}]: "), d.message, width)
    lines = [f"{paint(d.severity, f'{d.severity}[{d.code}]')}: {paint('bold', first)}"]
    lines.extend(f"    {paint('bold', more)}" for more in rest)
    if d.span is not None:
        lines.append(f"  --> {d.span}")
        lines.extend(_excerpt(d.span, functools.partial(paint, d.severity), width))
    for kind, text in (*(("note", note) for note in d.notes), *[("help", d.help)] * bool(d.help)):
        first, *rest = _folded(len(f"  = {kind}: "), text, width)
        lines.append(f"  = {paint('help', kind) if kind == 'help' else kind}: {first}")
        lines.extend(f"    {more}" for more in rest)
    return "\n".join(lines)


def _folded(indent: int, text: str, width: int | None) -> list[str]:
    """The text folded to that width. The first line begins after an indent, the others after four spaces."""
    if width is None or indent + len(text) <= width:
        return [text]
    room = max(width - 4, 20)
    blank = "\N{NO-BREAK SPACE}" * (indent - 4)
    first, *rest = textwrap.wrap(f"{blank}{text}", room, break_on_hyphens=False)
    return [first.removeprefix(blank), *rest]


def _excerpt(span: Span, paint: Callable[[str], str], width: int | None) -> list[str]:
    text = span.source.line(span.line)
    if text is None:
        return []
    gutter = " " * len(str(span.line))
    room = _MAX_LINE if width is None else max(20, min(_MAX_LINE, width - len(gutter) - 4))
    start = span.column - 1
    end = span.end_column - 1 if span.end_line == span.line else len(text)
    shift = max(0, start - room // 2) if len(text) > room else 0
    shown = "".join(c if c.isprintable() else " " for c in text[shift : shift + room])
    marked = max(1, min(end, shift + room, len(text)) - start)
    caret = " " * (start - shift) + "^" * marked
    return [f" {gutter} |", f" {span.line} | {shown}", f" {gutter} | {paint(caret)}"]
