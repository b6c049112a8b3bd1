"""Errors and warnings as data: a stable code, a place, a reason, a way out.

The message states what is, a note explains, the help proposes. Rendering is `render` (for people) and
`to_json` (for tools). `EXPLANATIONS` holds the longer text behind `spmdc explain CODE`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ir.explanations import EXPLANATIONS
from ir.records import as_json, quickly_made

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


@quickly_made
@dataclass(frozen=True, slots=True)
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
    label: str = ""
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
        return {**as_json(self, "code", "severity", "message", "label", "notes", "help"), "span": place}


class SpmdcError(Exception):
    """What every error that a user can cause is raised as: one or more diagnostics."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | Diagnostic) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        super().__init__(render(self.diagnostics))


class InternalError(Exception):
    """A bug in spmdc: an invariant of its own that does not hold."""


def error(
    code: str, message: str, span: Span | None = None, *, help: str = "", notes: Sequence[str] = ()
) -> SpmdcError:
    """An SpmdcError of one diagnostic."""
    return SpmdcError(Diagnostic(code, message, span, help=help, notes=tuple(notes)))


class EnoughError(Exception):
    """As many diagnostics have been collected as are wanted."""


@dataclass
class Diagnostics:
    """Collects diagnostics, so that all independent errors of a program are reported at once."""

    items: list[Diagnostic] = field(default_factory=list[Diagnostic])
    most: int | None = None
    """When there are as many, EnoughError is raised."""

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
        """Raises SpmdcError with everything collected if any of it is an error."""
        if self.errors:
            raise SpmdcError(self.items)


_MAX_LINE = 160
_COLORS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "help": "\x1b[1;36m", "bold": "\x1b[1m", "reset": "\x1b[0m"}


def render(diagnostics: Iterable[Diagnostic], *, color: bool = False) -> str:
    """Diagnostics as rustc and ruff show them: message, place, source line, caret, notes, help."""
    return "\n\n".join(_render_one(d, color) for d in diagnostics)


def _render_one(d: Diagnostic, color: bool) -> str:
    paint = (lambda kind, text: f"{_COLORS[kind]}{text}{_COLORS['reset']}") if color else (lambda kind, text: text)
    lines = [f"{paint(d.severity, f'{d.severity}[{d.code}]')}: {paint('bold', d.message)}"]
    if d.span is not None:
        lines.append(f"  --> {d.span}")
        lines.extend(_excerpt(d.span, d.label, lambda text: paint(d.severity, text)))
    lines.extend(f"  = note: {note}" for note in d.notes)
    if d.help:
        lines.append(f"  = {paint('help', 'help')}: {d.help}")
    return "\n".join(lines)


def _excerpt(span: Span, label: str, paint: object) -> list[str]:
    text = span.source.line(span.line)
    if text is None:
        return []
    assert callable(paint)
    start = span.column - 1
    end = span.end_column - 1 if span.end_line == span.line else len(text)
    shift = max(0, start - _MAX_LINE // 2)
    shown = "".join(c if c.isprintable() else " " for c in text[shift : shift + _MAX_LINE])
    width = max(1, min(end, shift + _MAX_LINE, len(text)) - start)
    gutter = " " * len(str(span.line))
    caret = " " * (start - shift) + "^" * width + (f" {label}" if label else "")
    return [f" {gutter} |", f" {span.line} | {shown}", f" {gutter} | {paint(caret)}"]
