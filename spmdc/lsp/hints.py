"""Inlay hints and code lenses: propagated shardings, and the collectives of each line."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from ir.diagnostics import Span
from spmdc.frontends.spmd.names import Definition
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.lsp.documents import Analysis
from spmdc.reports.collectives import Collective, lock_step_bytes


def inlay_hints(analysis: Analysis, shown: types.Range) -> list[types.InlayHint]:
    """The hints in a part of the text."""
    first, last = shown.start.line + 1, shown.end.line + 1
    found = [d for d in analysis.names.definitions if first <= d.span.line <= last]
    of_values = [hint for d in found if (hint := _sharding(analysis, d)) is not None]
    lines = sorted({c.line for c in _here(analysis) if c.line is not None and first <= c.line <= last})
    return [*of_values, *(_collectives(analysis, line) for line in lines)]


def _sharding(analysis: Analysis, definition: Definition) -> types.InlayHint | None:
    """The inferred type after a name without one; after a type without a sharding, its sharding."""
    found = analysis.value(definition)
    written = definition.node.type if isinstance(definition.node, s.Target | s.Param) else None
    if found is None or (written is not None and written.annotated):
        return None
    text = analysis.type_text(*found)
    if written is None:
        return types.InlayHint(_behind(analysis, definition.span), f": {text}", types.InlayHintKind.Type)
    if "@" not in text and "{" not in text:
        return None
    behind = _behind(analysis, written.span)
    return types.InlayHint(behind, text[text.index("[") :], types.InlayHintKind.Type, padding_left=True)


def _behind(analysis: Analysis, span: Span) -> types.Position:
    return analysis.lines.position((span.end_line, span.end_column))


def _here(analysis: Analysis) -> Iterator[Collective]:
    """The collectives whose lines are in this text, and not in another file that its comments name."""
    name = analysis.reading.source.name
    return (c for c in analysis.facts.collectives if c.source == f"{name}:{c.line}")


def sent_at(analysis: Analysis, line: int) -> list[tuple[str, str]]:
    """The communication that a line causes: `all_gather x 2,048 B`, and why."""
    groups: dict[tuple[str, str], list[Collective]] = {}
    for c in _here(analysis):
        if c.line == line:
            groups.setdefault((c.kind, c.axes), []).append(c)
    return [(_text(group), "; ".join(dict.fromkeys(c.reason for c in group))) for group in groups.values()]


def _text(group: list[Collective]) -> str:
    """Collectives of one kind along the same axes: how many, and their bytes in a run."""
    first = group[0]
    number = f"{len(group)} " if len(group) > 1 else ""
    often = " in each turn" if any(c.count is None for c in group) else ""
    nbytes = lock_step_bytes(group)
    return f"{number}{first.kind} {first.axes} {nbytes:,} B{often}"


def _collectives(analysis: Analysis, line: int) -> types.InlayHint:
    sent = sent_at(analysis, line)
    return types.InlayHint(
        analysis.lines.end(line),
        ", ".join(text for text, _ in sent),
        tooltip="\n".join(f"{text}: {reason}" for text, reason in sent),
        padding_left=True,
    )
