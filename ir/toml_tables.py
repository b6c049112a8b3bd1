"""Files in TOML that people write: which fields a file may have, and where in it errors are."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, SpmdcError, error
from ir.names import did_you_mean

_MAX_BYTES = 2**22
_RANGE = 1e-30, 1e30
"""Of numbers other than 0. Figures that are computed from those beyond it would become 0, infinite or nan."""
_KEY = re.compile(r"""\s*(?P<key>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_HEADER = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<name>[\w.\- \"']+?)\s*\]")
_AT = re.compile(r"\(at line (\d+), column (\d+)\)")
_MOST_DIGITS = 4300
"""Of an integer that Python reads or writes in decimal. For one with more, tomllib has no error of its own."""
_LONG = re.compile(rf"[=\[,]\s*(?P<number>[+-]?\d[\d_]{{{_MOST_DIGITS},}}+(?![.eE])|0[xob][\da-fA-F_]{{3500,}}+)")


@dataclass(frozen=True)
class TomlKind:
    """What a file describes, the code of its diagnostics, and the docs page with an example."""

    what: str
    code: str
    page: str


def read_toml(path: Path, kind: TomlKind) -> tuple[TomlReader, dict[str, Any]]:
    """The tables of a file, and a reader that checks them. Raises SpmdcError (E005, or the kind's code) if it is not
    TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as problem:
        raise error("E005", f"cannot read {path}: {problem.strerror or problem}",
                    help=f"{kind.page} says what is in a {kind.what} file") from None  # fmt: skip
    if len(data) > _MAX_BYTES:
        raise error(
            kind.code,
            f"{path} has more than {_MAX_BYTES:,} bytes, and no {kind.what} needs so many",
            help=f"{kind.page} says what is in a {kind.what} file",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(kind.code, f"{path} is not text in UTF-8", help="save it as UTF-8") from None
    source = Source(str(path), text)
    try:
        table = tomllib.loads(text)
        if _has_long(table):
            raise ValueError
    except tomllib.TOMLDecodeError as problem:
        raise _not_toml(source, str(problem), kind) from None
    except ValueError:
        raise _not_toml(source, f"an integer has more than {_MOST_DIGITS:,} digits {_at_long(text)}", kind) from None
    except RecursionError:
        raise error(
            kind.code,
            f"{path} nests deeper than any {kind.what} needs",
            help=f"{kind.page} says what is in a {kind.what} file",
        ) from None
    return TomlReader(source, kind), table


def _has_long(value: object) -> bool:
    """Whether there is an integer, written in hexadecimal or such, that messages could not show in decimal."""
    if isinstance(value, dict | list):
        return any(map(_has_long, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value.bit_length() > _MOST_DIGITS * math.log2(10)


def _at_long(text: str) -> str:
    """The place of the first integer that is too long, as tomllib's errors have theirs; empty if it is not found."""
    found = _LONG.search(text)
    if found is None:
        return ""
    start = found.start("number")
    return f"(at line {text.count(chr(10), 0, start) + 1}, column {start - text.rfind(chr(10), 0, start)})"


def _not_toml(source: Source, problem: str, kind: TomlKind) -> SpmdcError:
    at = _AT.search(problem)
    line, column = (int(at[1]), int(at[2])) if at else (1, 1)
    span = Span(source, line, column, line, column + 1)
    message = _AT.sub("", problem).strip()
    return error(kind.code, f"{source.name} is not TOML: {message}", span, help=f"{kind.page} has an example")


def _places(source: Source) -> dict[str, Span]:
    places: dict[str, Span] = {}
    counts: dict[str, int] = {}
    section = ""
    for number, line in enumerate((source.text or "").split("\n"), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            section = _path(header["name"])
            if header["open"] == "[[":
                counts[section] = counts.get(section, -1) + 1
                section = f"{section}.{counts[section]}"
            places.setdefault(section, _span(source, number, header.start("open"), header.end()))
        elif key is not None:
            path = f"{section}.{_path(key['key'])}" if section else _path(key["key"])
            places.setdefault(path, _span(source, number, key.start("key"), len(line.split(" #")[0].rstrip())))
    return places


def _path(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _span(source: Source, line: int, start: int, end: int) -> Span:
    return Span(source, line, start + 1, line, max(end, start + 1) + 1)


class TomlReader:
    """Checks tables, and collects all errors in them."""

    def __init__(self, source: Source, kind: TomlKind) -> None:
        self.source = source
        self.kind = kind
        self.places = _places(source)
        """The position of each key and table, by its path: `device.flops`, `network.0`."""
        self.found = Diagnostics()

    def table(self, path: str, table: object, known: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(table, dict):
            self.wrong(path, f"[{path}] is missing" if table is None else f"{path} is a table, [{path}]")
            return {}
        self.known(path, table, known)
        return table

    def tables(self, path: str, tables: object, known: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
        """The tables of an array, each with its path."""
        if not isinstance(tables, list):
            self.wrong(path, f"each {path} is a table of its own, [[{path}]]")
            return []
        return [(f"{path}.{i}", self.table(f"{path}.{i}", table, known)) for i, table in enumerate(tables)]

    def known(self, path: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in table:
            if name not in known:
                help_text = did_you_mean(name, known, 1) or f"known here: {', '.join(known)}"
                self.wrong(f"{path}.{name}" if path else name, f"there is no field {name!r} here", help_text)

    def positive(self, path: str, table: Mapping[str, Any], *, zero: bool = False, below: float | None = None) -> float:
        value = self.present(path, table)
        if value is None:
            return 1.0
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        end = math.inf if below is None else below
        if not is_number or not (0 <= value < end if zero else 0 < value < end):
            bound = f" and below {below:g}" if below is not None else ""
            self.wrong(path, f"{last(path)} is a number {_least(zero)}{bound}, and not {shown(value)}")
            return 1.0
        return float(value) if self.within(path, "is", value) else 1.0

    def whole(self, path: str, table: Mapping[str, Any], *, zero: bool = False) -> int:
        value = self.present(path, table)
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or not (0 if zero else 1) <= value < 2**63:
            self.wrong(path, f"{last(path)} is a whole number {_least(zero)}, and not {shown(value)}")
            return 1
        return value

    def numbers(self, path: str, table: Mapping[str, Any]) -> tuple[float, ...]:
        value = self.present(path, table)
        if value is None:
            return ()
        numbers = (
            [x for x in value if isinstance(x, int | float) and 0 < x < math.inf] if isinstance(value, list) else []
        )
        if not numbers or numbers != value:
            self.wrong(path, f"{last(path)} is a list of numbers above 0")
            return ()
        return tuple(float(x) if self.within(path, "has", x) else 1.0 for x in numbers)

    def within(self, path: str, has: str, value: float) -> bool:
        """Whether a number is 0 or in the range in which computed figures stay finite; an error if not."""
        least, most = _RANGE
        if value == 0 or least <= value <= most:
            return True
        message = f"{last(path)} {has} {shown(value)}, and a number here is from {least:g} to {most:g}"
        self.wrong(path, message, f"what is computed from others is 0 or infinite; {self.kind.page} has an example")
        return False

    def truth(self, path: str, table: Mapping[str, Any]) -> bool:
        value = self.present(path, table)
        if value is not None and not isinstance(value, bool):
            self.wrong(path, f"{last(path)} is true or false, and not {shown(value)}")
        return value is True

    def text(self, path: str, table: Mapping[str, Any], what: str) -> str:
        value = self.present(path, table)
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,64}", value)):
            self.wrong(path, f"{what} is of letters, digits and `.+-_`, 64 at most, and not {shown(value)}")
        return str(value)

    def choice(self, path: str, table: Mapping[str, Any], choices: Sequence[str]) -> str:
        value = self.present(path, table)
        if value is not None and value not in choices:
            message = f"{last(path)} is one of {', '.join(choices)}, and not {shown(value)}"
            self.wrong(path, message, did_you_mean(str(value), choices, 1))
        return value if isinstance(value, str) and value in choices else ""

    def present(self, path: str, table: Mapping[str, Any]) -> Any:
        """The value; None, with an error, if it is missing."""
        name = last(path)
        if name in table:
            return table[name]
        where = path.rpartition(".")[0]
        if table or not where or where in self.places:
            self.wrong(where, f"{name} is missing{f' in {where}' if where else ''}")
        return None

    def wrong(self, path: str, message: str, help: str = "") -> None:
        """Reports an error at a path, or at the nearest table around it."""
        span = nearest(self.places, path) or _span(self.source, 1, 0, 0)
        self.found.add(Diagnostic(self.kind.code, message, span, help=help))


def nearest(places: Mapping[str, Span], path: str) -> Span | None:
    """The position of a path, or of the nearest table around it."""
    while path and path not in places:
        path = path.rpartition(".")[0]
    return places.get(path)


def _least(zero: bool) -> str:
    return "from 0 on" if zero else "above 0"


def last(path: str) -> str:
    """The field at the end of a path."""
    return path.rpartition(".")[2]


def shown(value: object) -> str:
    """A value as messages show it; truths as TOML writes them."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
