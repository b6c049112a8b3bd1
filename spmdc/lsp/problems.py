"""Errors and warnings in the form of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lsprotocol import types

from ir.diagnostics import Diagnostic, Span
from spmdc.frontends.spmd.names import Definition
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.lsp.documents import Analysis

_SEVERITIES = {"error": types.DiagnosticSeverity.Error, "warning": types.DiagnosticSeverity.Warning}
_MOST_RELATED = 4


def problems(analysis: Analysis, uri: str) -> list[types.Diagnostic]:
    """The diagnostics of a text. Those without a position in it are at its beginning."""
    return [_problem(analysis, d, uri) for d in analysis.diagnostics]


def _problem(analysis: Analysis, d: Diagnostic, uri: str) -> types.Diagnostic:
    start = types.Position(0, 0)
    if d.span is not None and d.span.source.name != analysis.reading.source.name:
        includes = (item.span for item in analysis.reading.module.items if isinstance(item, s.Include))
        d = replace(d, message=f"{d.span}: {d.message}", span=next(includes, None))
    words = [d.message, *(f"note: {note}" for note in d.notes), f"help: {d.help}" if d.help else ""]
    return types.Diagnostic(
        analysis.lines.range(d.span) if d.span is not None else types.Range(start, start),
        "\n".join(filter(None, words)),
        severity=_SEVERITIES[d.severity],
        code=d.code,
        source="spmdc",
        related_information=list(_related(analysis, d.span, uri)) if d.span is not None else None,
    )


def _related(analysis: Analysis, span: Span, uri: str) -> Iterator[types.DiagnosticRelatedInformation]:
    """The definitions of the names in the faulty span, with descriptions; for a duplicate name, its earlier
    definition."""
    targets = [o.target for o in analysis.names.within(span) if isinstance(o.target, Definition)]
    elsewhere = [first for d in dict.fromkeys(targets) for first in _places(analysis, d, span)]
    for definition in elsewhere[:_MOST_RELATED]:
        if not analysis.is_own(definition):
            continue
        location = types.Location(uri, analysis.lines.range(definition.span))
        yield types.DiagnosticRelatedInformation(location, described(analysis, definition))


def _places(analysis: Analysis, definition: Definition, span: Span) -> Iterator[Definition]:
    """The definition if it is outside the span; for one inside, an earlier one of the name in the same block."""
    if not _is_inside(definition.span, span):
        yield definition
        return
    for other in analysis.names.definitions:
        same = other.name == definition.name and other.function == definition.function and other.kind != "result"
        if same and other.visible[1] == definition.visible[1] and other.visible[0] < definition.visible[0]:
            yield other
            return


def _is_inside(inner: Span, outer: Span) -> bool:
    place = (inner.line, inner.column)
    return (outer.line, outer.column) <= place < (outer.end_line, outer.end_column)


def described(analysis: Analysis, definition: Definition) -> str:
    """`h: f32[64@x, 32]`, or another description of a name."""
    detail = detail_of(analysis, definition)
    return f"{definition.name}{detail}" if detail else f"{definition.kind} {definition.name}"


def detail_of(analysis: Analysis, definition: Definition) -> str:
    """The description to show after a name: `: f32[64@x, 32]`, or its number."""
    found = analysis.value(definition)
    if found is not None:
        return f": {analysis.type_text(*found)}"
    node, item = definition.node, analysis.item(definition)
    if definition.kind == "axis" and isinstance(node, s.Const) and isinstance(node.value, s.Number):
        return f"={node.value.value}"
    return f" = {item}" if item is not None else ""
