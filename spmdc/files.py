"""Files that are read, and what is said of those that cannot be."""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from pathlib import Path

from ir.diagnostics import Source, Span, SpmdcError, error


def read_bytes(path: str | Path) -> bytes:
    """What a file holds. Raises SpmdcError (E005)."""
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise unreadable(path, problem) from None


def unreadable(path: str | Path, problem: OSError, help: str = "") -> SpmdcError:
    """The error (E005) for a file that cannot be read; if it is not there, files whose names are close take the place
    of `help`."""
    message = f"cannot read {path}: {problem.strerror or problem}"
    close: list[str] = []
    if isinstance(problem, FileNotFoundError):
        folder, name = os.path.split(path)
        with suppress(OSError):
            close = [
                os.path.join(folder, n) for n in difflib.get_close_matches(name, os.listdir(folder or "."), 3, 0.7)
            ]
    return error("E005", message, help=f"did you mean {' or '.join(close)}" if close else help)


def decode(data: bytes, name: str) -> str:
    """The text of a program's bytes. Raises SpmdcError (E002) if they are not text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(
            "E002",
            f"{name} is not text: byte {problem.start} is {data[problem.start]:#04x}, which is not UTF-8",
            _place_of_byte(data, problem.start, name),
            help="programs are UTF-8 text",
        ) from None


def _place_of_byte(data: bytes, position: int, name: str) -> Span:
    line = data.count(b"\n", 0, position) + 1
    column = len(data[data.rfind(b"\n", 0, position) + 1 : position].decode("utf-8")) + 1
    return Span(Source(name, data.decode("utf-8", "replace")), line, column, line, column + 1)
