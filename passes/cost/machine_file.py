"""Machines as TOML files: what must be in one, and where in it something is wrong. docs/machines.md describes them."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, SpmdcError, error
from ir.mesh import MAX_DEVICES
from ir.ops.declaration import COLLECTIVES, OPS
from ir.types import DTYPES
from passes.cost.kernels import Kernels
from passes.cost.measured import Measured
from passes.cost.network import DIM_KINDS, MAX_DIMS, Link, NetworkDim

_MAX_BYTES = 2**22
_TOP = ("name", "about", "sources", "device", "kernels", "link", "network", "measured")
_DEVICE = ("flops", "rates", "memory_bandwidth", "memory", "turn", "asynchronous", "clock")
_KERNELS = ("bandwidth", "launch", "fill", "lone", "vector", "tile", "narrow", "near")
_LINK = ("bandwidth", "latency")
_DIM = ("name", "size", "kind", "bandwidth", "latency")
_MEASURED = ("kind", "group", "bytes", "seconds")
_KEY = re.compile(r"""\s*(?P<key>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_HEADER = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<name>[\w.\- \"']+?)\s*\]")
_AT = re.compile(r"\(at line (\d+), column (\d+)\)")


def read_machine(path: Path) -> dict[str, Any]:
    """The fields of `Machine` that a file gives. Raises SpmdcError (E005, E602) with all that is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as problem:
        raise error("E005", f"cannot read {path}: {problem.strerror or problem}") from None
    if len(data) > _MAX_BYTES:
        raise error("E602", f"{path} has more than {_MAX_BYTES:,} bytes, and no machine needs so many")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise error("E602", f"{path} is not text in UTF-8") from None
    source = Source(str(path), text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise _not_toml(source, str(problem)) from None
    except RecursionError:
        raise error("E602", f"{path} nests deeper than any machine needs") from None
    return _Reader(source, _places(source)).machine(table)


def _not_toml(source: Source, problem: str) -> SpmdcError:
    at = _AT.search(problem)
    line, column = (int(at[1]), int(at[2])) if at else (1, 1)
    span = Span(source, line, column, line, column + 1)
    message = _AT.sub("", problem).strip()
    return error("E602", f"{source.name} is not TOML: {message}", span, help="docs/machines.md has an example")


def _places(source: Source) -> dict[str, Span]:
    """Where each key and each table stands, by its path: `device.flops`, `network.0`."""
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


class _Reader:
    """Checks tables, and collects all that is wrong with them."""

    def __init__(self, source: Source, places: Mapping[str, Span]) -> None:
        self.source = source
        self.places = places
        self.found = Diagnostics()

    def machine(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The fields. Raises SpmdcError with everything that was found."""
        self.known("", table, _TOP)
        device = self.table("device", table.get("device"), _DEVICE)
        dims = [self.dim(*pair) for pair in self.tables("network", table.get("network", []), _DIM)]
        measured = [self.measured(*pair) for pair in self.tables("measured", table.get("measured", []), _MEASURED)]
        fields: dict[str, Any] = {
            "name": self.text("name", table, "the machine's name"),
            "flops": self.positive("device.flops", device),
            "memory_bandwidth": self.positive("device.memory_bandwidth", device),
            "turn": self.positive("device.turn", device, zero=True),
            "memory": self.whole("device.memory", device),
            "asynchronous": self.truth("device.asynchronous", device),
            "rates": self.rates(device),
            "clock": self.positive("device.clock", device) if "clock" in device else 0.0,
            "network": tuple(dims),
            "measured": tuple(measured),
        }
        if "kernels" in table:
            fields["kernels"] = self.kernels(self.table("kernels", table["kernels"], _KERNELS))
        for name in ("about", "sources"):
            if not isinstance(table.get(name, ""), str | list):
                self.wrong(name, f"{name} is text")
        if "link" in table:
            link = self.table("link", table["link"], _LINK)
            latency = self.positive("link.latency", link, zero=True)
            fields["usual_link"] = Link(self.positive("link.bandwidth", link), latency)
        elif not dims and not self.found.items:
            help_text = "add [link], or [[network]] for each dim of the network"
            self.wrong("", "nothing says what joins the devices", help_text)
        names = [dim.name for dim in dims]
        for i, name in enumerate(names):
            if name in names[:i]:
                self.wrong(f"network.{i}.name", f"two dims of the network are called {name!r}")
        if len(dims) > MAX_DIMS:
            self.wrong(
                f"network.{MAX_DIMS}", f"the network has {len(dims)} dims, and no more than {MAX_DIMS} are possible"
            )
        if math.prod(dim.size or 1 for dim in dims) > MAX_DEVICES:
            self.wrong("network.0", f"the network has more than {MAX_DEVICES:,} devices")
        self.found.raise_errors()
        if "usual_link" not in fields:
            fields["usual_link"] = Link(dims[0].bandwidth, dims[0].latency)
        return fields

    def dim(self, path: str, table: Mapping[str, Any]) -> NetworkDim:
        kind = self.choice(f"{path}.kind", table, DIM_KINDS)
        size = self.whole(f"{path}.size", table) if "size" in table else 0
        bandwidth = self.positive(f"{path}.bandwidth", table)
        latency = self.positive(f"{path}.latency", table, zero=True)
        name = self.text(f"{path}.name", table, "the dim's name")
        known = next((known for known in DIM_KINDS if known == kind), DIM_KINDS[0])
        return NetworkDim(name, size, known, bandwidth, latency)

    def measured(self, path: str, table: Mapping[str, Any]) -> Measured:
        kinds = tuple(sorted(name for name in COLLECTIVES if OPS[name].communication is not None))
        kind = self.choice(f"{path}.kind", table, kinds)
        group = self.whole(f"{path}.group", table)
        nbytes, seconds = (self.numbers(f"{path}.{key}", table) for key in ("bytes", "seconds"))
        if len(nbytes) != len(seconds):
            self.wrong(f"{path}.seconds", f"{len(seconds)} times were measured for {len(nbytes)} numbers of bytes")
        if list(nbytes) != sorted(set(nbytes)):
            self.wrong(f"{path}.bytes", "the numbers of bytes ascend")
        return Measured(kind, group, nbytes, seconds)

    def kernels(self, table: Mapping[str, Any]) -> Kernels:
        tile = self.numbers("kernels.tile", table)
        if tile and (len(tile) != 2 or any(size != int(size) for size in tile)):
            self.wrong("kernels.tile", "tile is two whole numbers, of rows and of columns")
        bandwidth, vector = (self.positive(f"kernels.{name}", table) for name in ("bandwidth", "vector"))
        launch, fill, lone = (self.positive(f"kernels.{n}", table, zero=True) for n in ("launch", "fill", "lone"))
        height, width = map(int, tile) if len(tile) == 2 else (1, 1)
        narrow, near = self.truth("kernels.narrow", table), int(self.positive("kernels.near", table, zero=True))
        return Kernels(bandwidth, launch, fill, lone, vector, (height, width), narrow, near)

    def rates(self, device: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
        if "rates" not in device:
            return ()
        known = tuple(DTYPES)
        table = self.table("device.rates", device["rates"], known)
        return tuple((name, self.positive(f"device.rates.{name}", table)) for name in table if name in known)

    # Kinds of fields.

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
                close = difflib.get_close_matches(name, known, 1)
                help_text = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
                self.wrong(f"{path}.{name}" if path else name, f"there is no field {name!r} here", help_text)

    def positive(self, path: str, table: Mapping[str, Any], *, zero: bool = False) -> float:
        value = self.present(path, table)
        if value is None:
            return 1.0
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e30
        if not is_number or not (value > 0 or (zero and value == 0)):
            self.wrong(path, f"{_last(path)} is a number {'from 0 on' if zero else 'above 0'}, and not {_shown(value)}")
            return 1.0
        return float(value)

    def whole(self, path: str, table: Mapping[str, Any]) -> int:
        value = self.present(path, table)
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
            self.wrong(path, f"{_last(path)} is a whole number above 0, and not {_shown(value)}")
            return 1
        return value

    def numbers(self, path: str, table: Mapping[str, Any]) -> tuple[float, ...]:
        value = self.present(path, table)
        if value is None:
            return ()
        numbers = [x for x in value if isinstance(x, int | float) and 0 < x <= 1e30] if isinstance(value, list) else []
        if not numbers or numbers != value:
            self.wrong(path, f"{_last(path)} is a list of numbers above 0")
            return ()
        return tuple(map(float, numbers))

    def truth(self, path: str, table: Mapping[str, Any]) -> bool:
        value = self.present(path, table)
        if value is not None and not isinstance(value, bool):
            self.wrong(path, f"{_last(path)} is true or false, and not {_shown(value)}")
        return value is True

    def text(self, path: str, table: Mapping[str, Any], what: str) -> str:
        value = self.present(path, table)
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,64}", value)):
            self.wrong(path, f"{what} is of letters, digits and `.+-_`, 64 at most, and not {_shown(value)}")
        return str(value)

    def choice(self, path: str, table: Mapping[str, Any], choices: Sequence[str]) -> str:
        value = self.present(path, table)
        if value is not None and value not in choices:
            close = difflib.get_close_matches(str(value), choices, 1)
            help_text = f"did you mean {close[0]}?" if close else ""
            self.wrong(path, f"{_last(path)} is one of {', '.join(choices)}, and not {_shown(value)}", help_text)
        return value if isinstance(value, str) and value in choices else ""

    def present(self, path: str, table: Mapping[str, Any]) -> Any:
        """The value; None, and that is reported, if it is missing."""
        name = _last(path)
        if name in table:
            return table[name]
        where = path.rpartition(".")[0]
        if table or where in self.places:
            self.wrong(where, f"{name} is missing{f' in {where}' if where else ''}")
        return None

    def wrong(self, path: str, message: str, help: str = "") -> None:
        """Reports what is wrong at a path, or at the nearest table around it."""
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        span = self.places.get(path, _span(self.source, 1, 0, 0))
        self.found.add(Diagnostic("E602", message, span, help=help))


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
