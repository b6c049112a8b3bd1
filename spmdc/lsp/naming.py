"""The definitions and uses of names, and renaming."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from ir.diagnostics import error
from ir.names import is_name
from spmdc.frontends.spmd import read
from spmdc.frontends.spmd.names import Definition, Names, Occurrence, Place, Word, names_of
from spmdc.lsp.documents import Analysis


def defined_at(analysis: Analysis, place: Place) -> Definition | None:
    """The definition of the name at a position, if it is in the text."""
    found = analysis.names.at(place)
    return found.target if found is not None and isinstance(found.target, Definition) else None


def rename(analysis: Analysis, definition: Definition, name: str) -> list[types.TextEdit]:
    """The edits that rename a definition. Raises SpmdcError if this would change what names refer to (E102), or the
    name is invalid (E001)."""
    if not is_name(name):
        message = f"{name!r} is no name"
        raise error("E001", message, help="names consist of letters, digits and _, and begin with a letter")
    if not analysis.is_own(definition):
        raise error("E102", f"{definition.name!r} is defined in {definition.span.source.name}", help="rename it there")
    places = analysis.names.of(definition)
    after = read(_replaced(analysis.lines.lines, places, name), analysis.reading.source.name, analysis.folder)
    if _shape(names_of(after.module, after.whole)) != _shape(analysis.names):
        message = f"{name!r} means something else where {definition.name!r} is used"
        raise error("E102", message, help="choose another name")
    return [types.TextEdit(analysis.lines.range(o.span), name) for o in places]


def _replaced(lines: Sequence[str], places: Sequence[Occurrence], name: str) -> str:
    changed = list(lines)
    for o in reversed(places):
        line = changed[o.span.line - 1]
        changed[o.span.line - 1] = line[: o.span.column - 1] + name + line[o.span.end_column - 1 :]
    return "\n".join(changed)


def _shape(names: Names) -> list[int | Word]:
    """Which names are the same: for each, the number of its definition."""
    numbers: dict[Definition, int] = {}
    return [
        o.target if isinstance(o.target, Word) else numbers.setdefault(o.target, len(numbers))
        for o in names.occurrences
    ]
