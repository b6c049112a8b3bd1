"""A cursor over a short text, such as the spelling of a sharding, that says what it expected and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ir.diagnostics import Span, SpmdcError, error

_TOKEN = re.compile(r"\s*(?:(?P<string>\"[^\"]*\"|'[^']*')|(?P<word>[A-Za-z_][\w.]*)|(?P<int>\d+)|(?P<mark><=|->|\S))")
_MAX_SHOWN = 60
_MAX_DIGITS = 18
_INTEGERS = re.compile(rf"\s*\d{{1,{_MAX_DIGITS}}}(?:\s*,\s*\d{{1,{_MAX_DIGITS}}})*(?!\d)")
"""A whole list of integers, of which there may be a million, is matched at once."""


@dataclass
class Cursor:
    """`position` is where the next token begins. Methods raise SpmdcError (E309) if they find other text."""

    text: str
    what: str
    span: Span | None = None
    position: int = 0
    help: str = ""
    """The expected spelling, for the error's help."""

    def fault(self, expected: str) -> SpmdcError:
        """The error that something else was expected at the position."""
        rest = self.text[self.position :].strip()
        shown = rest[:_MAX_SHOWN] + ("…" if len(rest) > _MAX_SHOWN else "")
        found = f"found {shown!r}" if rest else "the text ends"
        notes = [self.text[:200]] if rest != shown or shown != self.text.strip() else []
        return error("E309", f"{self.what}: expected {expected}, and {found}", self.span, notes=notes, help=self.help)

    def accept(self, token: str) -> bool:
        """Takes the next token if it is this one. Returns whether it was."""
        match = _TOKEN.match(self.text, self.position)
        if match is None or match[0].strip() != token:
            return False
        self.position = match.end()
        return True

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.accept(token):
                raise self.fault(f"{token!r}")

    def _take(self, group: str) -> str | None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match[group] is None:
            return None
        self.position = match.end()
        return match[group]

    def string(self) -> str | None:
        """The content of a quoted string, if one is next."""
        quoted = self._take("string")
        return quoted[1:-1] if quoted is not None else None

    def word(self) -> str | None:
        """A bare word, if one is next."""
        return self._take("word")

    def integer(self) -> int:
        digits = self._take("int")
        if digits is None or len(digits) > _MAX_DIGITS:
            raise self.fault("an integer")
        return int(digits)

    def integers(self) -> list[int]:
        """One or more integers, separated by commas."""
        values: list[int] = []
        run = _INTEGERS.match(self.text, self.position)
        if run is not None:
            values.extend(map(int, run[0].split(",")))
            self.position = run.end()
        while not values or self.accept(","):
            values.append(self.integer())
        return values

    def until(self, close: str) -> Iterator[None]:
        """Iterates over a list: the body reads one item each time. Then takes the closing mark."""
        while not self.accept(close):
            yield
            if not self.accept(","):
                self.expect(close)
                return

    def part(self) -> tuple[int, int]:
        """A part of an axis: `(2)4`, the product of the parts before it and its own size."""
        self.expect("(")
        pre = self.integer()
        self.expect(")")
        return pre, self.integer()

    def skip(self) -> bool:
        """Takes any token. Returns False at the end of the text."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            return False
        self.position = match.end()
        return True

    def end(self) -> None:
        if self.text[self.position :].strip():
            raise self.fault("the end")
