"""Positions in a text: spmdc's count characters from 1, those of editors count from 0 in units of UTF-16."""

from __future__ import annotations

from lsprotocol import types

from ir.diagnostics import Span
from spmdc.frontends.spmd.names import Place


class Lines:
    """A text by lines, with conversion of positions."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")

    def _line(self, number: int) -> str:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def position(self, place: Place) -> types.Position:
        line, column = place
        return types.Position(max(0, line - 1), _units(self._line(line)[: max(0, column - 1)]))

    def place(self, position: types.Position) -> Place:
        """The place after a position."""
        line = self._line(position.line + 1)
        if line.isascii():
            return position.line + 1, min(position.character, len(line)) + 1
        column = units = 0
        while column < len(line) and units < position.character:
            units += _units(line[column])
            column += 1
        return position.line + 1, column + 1

    def range(self, span: Span) -> types.Range:
        """The range of a span, which is at least one character if there is one."""
        start, end = (span.line, span.column), (span.end_line, span.end_column)
        return types.Range(self.position(start), self.position(max(end, start)))

    def whole(self) -> types.Range:
        return types.Range(types.Position(0, 0), self.position((len(self.lines), len(self.lines[-1]) + 1)))

    def before(self, place: Place) -> str:
        """The text up to a place."""
        line, column = place
        return "\n".join([*self.lines[: line - 1], self._line(line)[: column - 1]])

    def end(self, line: int) -> types.Position:
        """The end of a line, a comment included."""
        return self.position((line, len(self._line(line).rstrip()) + 1))


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
