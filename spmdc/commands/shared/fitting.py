"""Fits programs, tables and sentences into the width of a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

_GAP = 2
"""The space between the columns of a table."""
_LEAST_NAME, _LEAST_TEXT = 18, 20
"""The least width to which names are shortened, and the least width in which a last column of text is folded."""
_DEEPER = {"(": 1, "[": 2, "{": 2, ")": -1, "]": -2, "}": -2}
"""The depth that brackets add. Lines are broken between arguments rather than between the dims of a type."""
_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|#.*|[()\[\]{}]|, | -> ')


def lines_of(text: str) -> list[str]:
    """The lines of a text, whether or not a line feed ends the last one."""
    return text.removesuffix("\n").split("\n") if text else []


def fold_program(text: str, width: int) -> Iterator[str]:
    """The lines of a program folded to a width: long lines are continued below, comments move under their ops, and
    pieces that cannot be broken are shortened in the middle."""
    for line in lines_of(text):
        yield from [line] if len(line) <= width else _fold_line(line, width)


def _fold_line(line: str, width: int) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    breaks, comment = _breaks(line)
    code = line[:comment].rstrip()
    below = f"{indent}    " if code else indent
    start, prefix = len(indent), indent
    while start < len(code):
        room = max(width - len(prefix), 1)
        end = len(code)
        if end - start > room:
            fitting = [(depth, -at) for at, depth in breaks if start < at <= start + room]
            end = -min(fitting)[1] if fitting else min((at for at, _ in breaks if at > start), default=end)
        yield shorten(prefix + code[start:end].strip(), width)
        start, prefix = end, f"{indent}    "
    if comment < len(line):
        words = line[comment:].lstrip("# ")
        yield from textwrap.wrap(words, max(width, 20), initial_indent=f"{below}# ", subsequent_indent=f"{below}# ",
                                 break_on_hyphens=False)  # fmt: skip


def _breaks(line: str) -> tuple[list[tuple[int, int]], int]:
    """The places where a line may be broken, each with its depth in brackets, and where its comment begins."""
    found: list[tuple[int, int]] = []
    depth = 0
    for match in _PARTS.finditer(line):
        part = match[0]
        if part[0] == "#":
            return found, match.start()
        depth += _DEEPER.get(part, 0)
        if part == ", ":
            found.append((match.end(), max(depth, 1)))
        elif part == " -> ":
            found.append((match.start() + 1, 0))
    return found, len(line)


def shorten(text: str, width: int) -> str:
    """The text with its middle left out, where it is too long."""
    if len(text) <= width:
        return text
    end = max(width - 1, 0) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def fold_text(text: str, width: int) -> Iterator[str]:
    """The lines of a text folded to a width, the rest of each long one indented below it."""
    for line in lines_of(text):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from textwrap.wrap(line, max(width, 20), subsequent_indent=indent[: width // 2], break_on_hyphens=False,
                                 drop_whitespace=True) if len(line) > width else [line]  # fmt: skip


def table_lines(table: Sequence[Sequence[str]], right: Sequence[int]) -> Iterator[str]:
    """The lines of a table in its full width; the columns numbered in `right` are numbers and are flush right."""
    template = _template(_widths(table), right)
    for row in table:
        yield template.format(*row).rstrip()


def fold_table(table: Sequence[Sequence[str]], right: Sequence[int], width: int) -> Iterator[str]:
    """The lines of a table folded to a width: names are shortened in the middle, text in the last column is folded, and
    columns that do not fit follow below, after the first column again."""
    if not table:
        return
    natural = _widths(table)
    widths = _narrowed(natural, right, width)
    blocks = _blocks(widths, width)
    spare = min(width - sum(widths[i] for i in block) - _GAP * (len(block) - 1) for block in blocks)
    widths[0] = max(widths[0], min(natural[0], widths[0] + spare))
    for number, block in enumerate(blocks):
        yield from [""] * (number > 0)
        own = [widths[i] for i in block]
        template = _template(own, [at for at, i in enumerate(block) if i in right])
        is_folded = block[-1] == len(widths) - 1 and block[-1] not in right
        for row in table:
            cells = [row[i] for i in block]
            first, *more = (textwrap.wrap(cells.pop(), own[-1]) or [""]) if is_folded else [cells.pop()]
            yield template.format(*map(shorten, cells, own), first).rstrip()
            for rest in more:
                yield template.format(*[""] * len(cells), rest).rstrip()


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def _template(widths: Sequence[int], right: Sequence[int]) -> str:
    """The format string of a row, for cells of these widths."""
    return (" " * _GAP).join(f"{{:{'>' if i in right else '<'}{w}}}" for i, w in enumerate(widths))


def _narrowed(widths: Sequence[int], right: Sequence[int], width: int) -> list[int]:
    """The widths of columns after text columns are narrowed, the widest first."""
    found = list(widths)
    least = [w if i in right else min(w, _LEAST_NAME) for i, w in enumerate(widths)]
    if len(widths) - 1 not in right:
        least[-1] = min(widths[-1], _LEAST_TEXT)
    excess = sum(found) + _GAP * (len(found) - 1) - width
    while excess > 0 and (wide := [i for i, w in enumerate(found) if w > least[i]]):
        widest = max(wide, key=lambda i: found[i])
        found[widest] -= 1
        excess -= 1
    return found


def _blocks(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns that are printed side by side in each block. The first column is in all of them."""
    blocks, room = [[0]], width - widths[0]
    for i, each in enumerate(widths[1:], 1):
        if each + _GAP > room and len(blocks[-1]) > 1:
            blocks.append([0])
            room = width - widths[0]
        blocks[-1].append(i)
        room -= each + _GAP
    return blocks
