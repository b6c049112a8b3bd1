"""The notebook display of programs, plans and comparisons: a line, a table of collectives, and the text, collapsed if
it is long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from types import MappingProxyType

from ir.notebooks import Lines, draws
from ir.program import Program, all_ops
from ir.sharding import Sharding
from ir.spelling.printer import print_program
from spmdc.pictures.picture import picture
from spmdc.reports.collectives import Collective
from spmdc.reports.hlo_collectives import XlaCollective

_OPEN, _MOST_LINES, _MOST_ROWS = 100, 1000, 40
"""The most lines of a text that is not collapsed, and the most lines and rows that are shown at all."""

_COLORS = MappingProxyType(
    {
        r"#.*": "opacity:.6",
        r"\b(?:def|return|const|mesh|spmd|plan|while|repeat|cond|do)\b(?![.\d])": "color:#a626a4",
        r"@(?:\([^()]*(?:\(\d+\)[^()]*)*\)|\w+(?::\(\d+\)\d+)?|\?)": "color:#0184bc;font-weight:600",
        r"\b(?:all_\w+|reduce_scatter|collective_permute|reshard)(?=\()": "color:#b76b01;font-weight:600",
    }
)
_WORDS = re.compile("|".join(f"({pattern})" for pattern in _COLORS))


@draws(Sharding)
def _of_sharding(sharding: Sharding) -> str:
    return picture(sharding).svg()


@draws(Program)
def _of_program(source: Program) -> str:
    return program(source.summary, print_program(source, locations=False))


@draws(Program, at_prompts=True)
def _at_a_prompt(source: Program) -> str:
    """A program that is not longer than a page as it is written, such as one on which a property fails."""
    is_short = sum(1 for _ in all_ops(source)) <= _OPEN
    return print_program(source, locations=False).rstrip() if is_short else repr(source)


@draws(Lines)
def lines(text: str) -> str:
    """A text as it is printed."""
    return _text(text)


def program(title: str, text: str, *before: str) -> str:
    """A program's text, with other parts before it."""
    return _page(title, *before, _text(text))


def sent(collectives: Sequence[Collective]) -> str:
    """A table of collectives."""
    if not collectives:
        return "<p>nothing is sent</p>"
    rows = [
        (c.kind, c.axes, f"{c.bytes:,}", "?" if c.count is None else f"{c.count:,}", c.source, c.reason)
        for c in collectives[:_MOST_ROWS]
    ]
    more = len(collectives) - len(rows)
    table = _table(("collective", "over", "bytes", "times", "at", "for"), rows)
    return table + (f"<p>… and {more:,} more: collectives()</p>" if more else "")


_Side = tuple[Sequence[Collective | XlaCollective], int]


def comparison(names: Sequence[str], sides: Sequence[_Side], notes: Iterable[str]) -> str:
    """The number of collectives of each kind on each side, and the bytes received."""
    kinds = sorted({c.kind for side, _ in sides for c in side})
    rows = [(kind, *(f"{sum(c.kind == kind for c in side):,}" for side, _ in sides)) for kind in kinds]
    rows.append(("bytes received", *(f"{received:,}" for _, received in sides)))
    return _page(" beside ".join(names), _table(("", *names), rows), *(f"<p>{escape(note)}</p>" for note in notes))


def _page(title: str, *parts: str) -> str:
    return f"<div><p><strong>{escape(title)}</strong></p>{''.join(parts)}</div>"


def _table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th style='text-align:left'>{escape(header)}</th>" for header in headers)
    body = "".join(
        f"<tr>{''.join(f'<td style={chr(39)}text-align:left{chr(39)}>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - _MOST_LINES
    shown = "\n".join(map(colored, lines[:_MOST_LINES])) + (f"\n… and {more:,} more lines: text()" if more > 0 else "")
    block = f"<pre style='white-space:pre;overflow-x:auto'>{shown}</pre>"
    return f"<details{' open' if len(lines) <= _OPEN else ''}><summary>{len(lines):,} lines</summary>{block}</details>"


def colored(line: str) -> str:
    """The line as HTML."""
    styles = tuple(_COLORS.values())
    parts: list[str] = []
    behind = 0
    for match in _WORDS.finditer(line):
        style = styles[(match.lastindex or 1) - 1]
        parts.append(escape(line[behind : match.start()]))
        parts.append(f'<span style="{style}">{escape(match[0])}</span>')
        behind = match.end()
    return "".join([*parts, escape(line[behind:])])
