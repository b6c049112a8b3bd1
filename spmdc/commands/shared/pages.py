"""Pages of headings, tables and bars: with rich on a terminal, as plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal, Protocol

from spmdc.commands.shared.terminal import columns

_BAR = 50
_GAP, _LEAST = 3, 20
"""Between columns; and of what is left of a terminal's width, what the last column can be folded into."""


class Page(Protocol):
    """Something to write a report on."""

    def heading(self, text: str) -> None:
        """Begins a section."""
        ...

    def text(self, text: str) -> None:
        """Writes lines as they are."""
        ...

    def code(self, text: str) -> None:
        """Writes a program."""
        ...

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Writes a table; the columns numbered in `right` hold numbers."""
        ...

    def bars(self, bars: Sequence[tuple[str, int, str]], full: int) -> None:
        """Writes a bar for each label and number, `full` being the longest there can be, and a remark behind it."""
        ...


def open_page() -> Page:
    """A page on standard output."""
    return RichPage() if sys.stdout.isatty() else PlainPage()


class PlainPage:
    """For files, pipes and tests."""

    def heading(self, text: str) -> None:
        print(f"\n== {text} ==\n")

    def text(self, text: str) -> None:
        print(text)

    def code(self, text: str) -> None:
        print(text.rstrip("\n"))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        print("\n".join(columns(headers, rows, right)))

    def bars(self, bars: Sequence[tuple[str, int, str]], full: int) -> None:
        print("\n".join(_bar_lines(bars, full)))


class RichPage:
    """For terminals. rich itself heeds NO_COLOR and the terminal's width."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, emoji=False, markup=False)

    def heading(self, text: str) -> None:
        self.console.print()
        if len(text) < self.console.width:
            self.console.rule(text, style="cyan", align="left")
        else:
            self.text(text)

    def text(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def code(self, text: str) -> None:
        from rich.text import Text

        for line in text.rstrip("\n").splitlines():
            program, mark, comment = line.partition("#")
            shown = Text(program)
            shown.highlight_regex(r"\b(def|return|const|mesh|spmd|while|repeat|cond|do)\b(?![.\d])", style="magenta")
            shown.highlight_regex(r"@\(?[\w,?]+\)?", style="bold cyan")
            shown.highlight_regex(r"\b(all_\w+|reduce_scatter|collective_permute)(?=\()", style="bold yellow")
            shown.append(mark + comment, style="bright_black")
            self.console.print(shown, soft_wrap=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        from rich import box
        from rich.table import Table

        before_last = sum(max(map(len, column)) + _GAP for column in list(zip(headers, *rows, strict=True))[:-1])
        if before_last + _LEAST > self.console.width:
            for line in columns(headers, rows, right):
                self.text(line)
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, header in enumerate(headers):
            is_last = i == len(headers) - 1
            justify: Literal["left", "right"] = "right" if i in right else "left"
            table.add_column(header, justify=justify, overflow="fold", no_wrap=not is_last)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def bars(self, bars: Sequence[tuple[str, int, str]], full: int) -> None:
        from rich.text import Text

        for line in _bar_lines(bars, full):
            shown = Text(line)
            shown.highlight_regex("[█#]+", style="green")
            self.console.print(shown, soft_wrap=True)


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
