"""The output of verbs: sentences, programs and tables. On a terminal they are coloured and folded to its width."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ir.diagnostics import Diagnostic
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.fitting import fold_program, fold_table, fold_text, lines_of, table_lines
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.terminal import Stopwatch, print_json, use_color, width_of, write_error

_BAR = 50


@dataclass(frozen=True)
class Code:
    """A program in the .spmd language, or a plan."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells, below headers if there are any; the columns numbered in `right` are numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()


@dataclass(frozen=True)
class Verbatim:
    """Lines that must not be folded, or are for other programs to read."""

    text: str


Part = str | Code | Table | Verbatim


class Page:
    """Standard output. On a terminal, long lines are folded (unless `wide`), and text is coloured by kind, unless
    NO_COLOR is set; elsewhere everything is written as it is."""

    def __init__(self, *, wide: bool = False) -> None:
        self._width = width_of(sys.stdout)
        self._fitted = None if wide else self._width
        self._color = use_color(sys.stdout)

    def show(self, *parts: Part) -> None:
        """Writes the parts below each other."""
        for part in parts:
            if isinstance(part, Code):
                self.code(part.text)
            elif isinstance(part, Table):
                self.table(part.headers, part.rows, part.right)
            elif isinstance(part, Verbatim):
                self._write(lines_of(part.text))
            else:
                self.text(part)

    def heading(self, text: str) -> None:
        """Begins a section."""
        if self._width is None:
            self.text(f"\n== {text} ==\n")
        else:
            self._write(["", f"{text} {'─' * max(0, self._width - len(text) - 1)}"], lambda line: _styled(line, "cyan"))

    def text(self, text: str) -> None:
        """Writes sentences."""
        self._write(lines_of(text) if self._fitted is None else fold_text(text, self._fitted))

    def code(self, text: str) -> None:
        """Writes a program."""
        lines = lines_of(text) if self._fitted is None else fold_program(text, self._fitted)
        self._write(lines, _colored_code)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Writes a table; the columns numbered in `right` are numbers."""
        table = [headers, *rows] if headers else rows
        if self._fitted is None:
            self._write(table_lines(table, right), _under_head(bool(headers)))
        else:
            self._write(fold_table(table, right, self._fitted), _under_head(bool(headers)))

    def bars(self, bars: Sequence[tuple[str, int, str]], full: int) -> None:
        """Writes a bar for each label and number, followed by a remark; `full` is the largest possible number."""
        room = _BAR if self._fitted is None else max(5, min(_BAR, self._fitted - 45))
        self._write(_bar_lines(bars, full, room), lambda line: _BARS.sub(lambda bar: _styled(bar[0], "green"), line))

    def _write(self, lines: Iterable[str], colored: Callable[[str], str] = str) -> None:
        whole = [*map(colored, lines)] if self._color else [*lines]
        if whole:
            print("\n".join(whole))


def finish(
    options: Options,
    watch: Stopwatch,
    shown: Part | Iterable[Part],
    figures: Mapping[str, object],
    diagnostics: Sequence[Diagnostic] = (),
    wrote: str | None = None,
) -> int:
    """Prints the result of a verb, and warnings: the parts in `shown`, and with --verbose the times; with --json,
    `figures`. On stderr it names the file that the verb `wrote`, if it did. Returns the exit status, 0."""
    if options.json:
        print_json(options.verb, {**figures, "timings": watch.seconds}, diagnostics)
        return 0
    print_diagnostics(diagnostics)
    parts = (shown,) if isinstance(shown, str | Code | Table | Verbatim) else shown
    Page(wide=options.wide).show(*parts)
    if wrote is not None:
        sys.stdout.flush()
        write_error(f"wrote {wrote}")
    if options.verbose:
        watch.print()
    return 0


_BARS = re.compile("[█#]{2,}")


def _colored_code(line: str) -> str:
    # Imported late, as only terminals have colours.
    from spmdc.commands.shared.colors import colored_code

    return colored_code(line)


def _under_head(has_head: bool) -> Callable[[str], str]:
    """Colours the first line of a table, and the first line after each empty one."""
    is_head = has_head

    def colored(line: str) -> str:
        nonlocal is_head
        shown = _styled(line, "bold") if is_head and line else line
        is_head = has_head and not line
        return shown

    return colored


def _styled(text: str, style: str) -> str:
    # Imported late, as above.
    from spmdc.commands.shared.colors import styled

    return styled(text, style)


def _bar_lines(bars: Sequence[tuple[str, int, str]], full: int, room: int) -> list[str]:
    width = max((len(label) for label, _, _ in bars), default=0)
    digits = max((len(str(n)) for _, n, _ in bars), default=1)
    return [
        f"{label:<{width}}  {n:>{digits}} {_bar(n, full, room):<{room}}  {remark}".rstrip() for label, n, remark in bars
    ]


def _bar(number: int, full: int, room: int) -> str:
    cells = min(room, round(room * number / max(1, full)))
    return _cell() * cells


def _cell() -> str:
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#"
    return "█"
