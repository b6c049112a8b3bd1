"""Pages of headings, tables and bars: with rich on a terminal, as plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spmdc.commands.shared.terminal import columns

_BAR = 50
_GAP, _LEAST = 3, 20
"""Between columns; and of what is left of a terminal's width, what the last column can be folded into."""


_CODE_STYLES = MappingProxyType(
    {
        r"\b(def|return|const|mesh|spmd|while|repeat|cond|do)\b(?![.\d])": "magenta",
        r"@\(?[\w,?]+\)?": "bold cyan",
        r"\b(all_\w+|reduce_scatter|collective_permute)(?=\()": "bold yellow",
        "#.*": "not bold bright_black",
    }
)


class Page:
    """A report on standard output. rich itself heeds NO_COLOR and the terminal's width; `is_ruled` says whether there
    are rules and boxes, by default on terminals."""

    def __init__(self, *, is_ruled: bool | None = None) -> None:
        self._console = Console(highlight=False, emoji=False, markup=False)
        self._is_ruled = self._console.is_terminal if is_ruled is None else is_ruled

    def heading(self, text: str) -> None:
        """Begins a section."""
        if not self._is_ruled:
            self.text(f"\n== {text} ==\n")
            return
        self._console.print()
        if len(text) < self._console.width:
            self._console.rule(text, style="cyan", align="left")
        else:
            self.text(text)

    def text(self, text: str, styles: Mapping[str, str] = MappingProxyType({})) -> None:
        """Writes lines as they are, what matches each pattern in its style."""
        shown = Text(text)
        for pattern, style in styles.items():
            shown.highlight_regex(pattern, style=style)
        self._console.print(shown, soft_wrap=True)

    def code(self, text: str) -> None:
        """Writes a program."""
        self.text(text.rstrip("\n"), _CODE_STYLES)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Writes a table; the columns numbered in `right` hold numbers."""
        before_last = sum(max(map(len, column)) + _GAP for column in list(zip(headers, *rows, strict=True))[:-1])
        if not self._is_ruled or before_last + _LEAST > self._console.width:
            self.text("\n".join(columns(headers, rows, right)))
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, header in enumerate(headers):
            is_last = i == len(headers) - 1
            justify: Literal["left", "right"] = "right" if i in right else "left"
            table.add_column(header, justify=justify, overflow="fold", no_wrap=not is_last)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def bars(self, bars: Sequence[tuple[str, int, str]], full: int) -> None:
        """Writes a bar for each label and number, `full` being the longest there can be, and a remark behind it."""
        self.text("\n".join(_bar_lines(bars, full)), {"[█#]+": "green"})


def _bar_lines(bars: Sequence[tuple[str, int, str]], full: int) -> list[str]:
    width = max((len(label) for label, _, _ in bars), default=0)
    digits = max((len(str(n)) for _, n, _ in bars), default=1)
    return [f"{label:<{width}}  {n:>{digits}} {_bar(n, full):<{_BAR}}  {remark}".rstrip() for label, n, remark in bars]


def _bar(number: int, full: int) -> str:
    cells = min(_BAR, round(_BAR * number / max(1, full)))
    return _cell() * cells


def _cell() -> str:
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#"
    return "█"
