"""The source locations of MLIR ops: the line of a Python program, or of the .mlir or .hlo file itself.

JAX records a stack of the user's frames for each op; the innermost one is used. Spans in files whose text is available
show the source line in diagnostics.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jaxlib.mlir import ir as mlir

from ir.diagnostics import Source, Span
from spmdc.frontends.stablehlo.mlir_modules import BUFFER

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ", re.MULTILINE)


@dataclass
class Locations:
    """The spans of a module's ops. `source` is the text that the module was read from.

    `lines` has those of HLO instructions by name. `reads_files` says that the Python files that JAX names are those of
    this process. `written` maps lines of modules that spmdc generated, by name and number, to the lines that they were
    generated from; other locations are then ignored.
    """

    source: Source
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    reads_files: bool = False
    written: Mapping[str, Mapping[int, Span]] = field(default_factory=dict[str, "Mapping[int, Span]"])
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    spans: dict[tuple[str, int, int, int, int], Span] = field(
        default_factory=dict[tuple[str, int, int, int, int], Span]
    )

    last: tuple[mlir.Location | None, Span | None] = (None, None)
    """The last location, and its span: consecutive ops often have the same."""

    def span(self, location: mlir.Location) -> Span | None:
        """The innermost position in a file, if the location has any; for modules that spmdc generated, the innermost
        line of a program."""
        known, span = self.last
        if known is not None and location == known:
            return span
        span = self._found(location)
        self.last = location, span
        return span

    def _found(self, location: mlir.Location) -> Span | None:
        if self.written:
            origins = (self.written.get(place.filename, {}).get(place.start_line) for place in _files(location))
            return next((span for span in origins if span is not None), None)
        place = next(_files(location), None)
        if place is not None:
            return self._span((place.filename, place.start_line, place.start_col, place.end_line, place.end_col))
        name = name_of(location)
        line = self.lines.get(name)
        return self._span((BUFFER, line, 1, line, 1)) if line is not None else None

    def innermost(self, frames: Iterable[tuple[str, int, int, int, int]]) -> Span | None:
        """The first of the frames, innermost first: file, line and column of both ends."""
        return next(map(self._span, frames), None)

    def _span(self, key: tuple[str, int, int, int, int]) -> Span:
        """JAX counts columns from 0, MLIR from 1; a column of 0 stands for the line."""
        span = self.spans.get(key)
        if span is None:
            name, line, column, end_line, end = key
            if name == BUFFER:
                column = max(column, 1)
                span = Span(self.source, line, column, line, max(end, column + 1))
            else:
                column, end = column + 1, end + 1
                span = Span(self._source(name), max(line, 1), column, max(end_line, line, 1), max(end, column + 1))
            self.spans[key] = span
        return span

    def _source(self, name: str) -> Source:
        source = self.sources.get(name)
        if source is None:
            lines = linecache.getlines(name) if self.reads_files else []
            source = self.sources[name] = Source(name, "".join(lines) or None)
        return source


def instruction_lines(text: str) -> dict[str, int]:
    """The line of each instruction of an HLO text, by name."""
    lines: dict[str, int] = {}
    position, line = 0, 1
    for match in _INSTRUCTION.finditer(text):
        line += text.count("\n", position, match.start(1))
        position = match.start(1)
        lines[match[1]] = line
    return lines


def _files(location: mlir.Location) -> Iterator[mlir.FileLineColLoc]:
    """The positions in files that a location has: for a call, the callee before the caller; for a name, those of its
    child; for a fused location, those of all parts."""
    at: mlir.Location | None = location
    callers: list[mlir.CallSiteLoc] = []
    while at is not None or callers:
        if at is None:
            at = callers.pop().caller
        if isinstance(at, mlir.CallSiteLoc):
            callers.append(at)
            at = at.callee
        elif isinstance(at, mlir.NameLoc):
            at = at.child_loc
        else:
            yield from (at,) if isinstance(at, mlir.FileLineColLoc) else ()
            for part in _parts(at) if isinstance(at, mlir.FusedLoc) else ():
                yield from _files(part)
            at = None


def _parts(location: mlir.FusedLoc) -> list[mlir.Location]:
    return [part for part in location.locations if isinstance(part, mlir.Location)]


def name_of(location: mlir.Location) -> str:
    """The name in a location: an argument's path, a JAX primitive with its scopes, an HLO instruction."""
    if isinstance(location, mlir.FusedLoc):
        return next((n for n in map(name_of, _parts(location)) if n), "")
    if isinstance(location, mlir.CallSiteLoc):
        return name_of(location.callee)
    return str(location.name_str) if isinstance(location, mlir.NameLoc) else ""
