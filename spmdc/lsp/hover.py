"""The text shown for the name under the cursor: its type, the reasons for its sharding, and its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from lsprotocol import types

from spmdc.frontends.spmd.names import Definition, Place, Word
from spmdc.lsp.documents import Analysis
from spmdc.lsp.hints import sent_at
from spmdc.lsp.problems import described
from spmdc.lsp.words import about
from spmdc.reports.cost_text import seconds_text


async def hover(analysis: Analysis, place: Place) -> types.Hover | None:
    """The information about the name at a position; None if there is none."""
    found = analysis.names.at(place)
    if found is None:
        return None
    text = about(found.target) if isinstance(found.target, Word) else await _of_definition(analysis, found.target)
    markdown = types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.Hover(markdown, analysis.lines.range(found.span))


async def _of_definition(analysis: Analysis, definition: Definition) -> str:
    parts = [f"```spmd\n{_title(analysis, definition)}\n```", *_costs(analysis, definition)]
    found = analysis.value(definition)
    if found is not None and analysis.planning is not None and analysis.facts.shardings:
        id, _ = found
        why = await asyncio.to_thread(analysis.planning.why, id)
        parts.append(f"```text\n{why}\n```" if why else "")
    return "\n\n".join(filter(None, parts))


def _title(analysis: Analysis, definition: Definition) -> str:
    """The line of the definition as it is written, or, of a value, its type."""
    if definition.kind in ("function", "result", "mesh", "axis"):
        return analysis.lines.lines[definition.span.line - 1].strip().removesuffix("{").rstrip()
    return described(analysis, definition)


def _costs(analysis: Analysis, definition: Definition) -> Iterator[str]:
    found = analysis.value(definition)
    if found is None:
        yield analysis.facts.total if definition.name == "main" and definition.kind == "function" else ""
        return
    lines = range(definition.made.line, definition.made.end_line + 1)
    costs = [analysis.facts.costs[line] for line in lines if line in analysis.facts.costs]
    if costs:
        seconds, received = (sum(each) for each in zip(*costs, strict=True))
        yield f"{seconds_text(seconds)}" + (f", {received:,} bytes received" if received else "")
    yield "\n".join(f"- {text}: {reason}" for line in lines for text, reason in sent_at(analysis, line))
