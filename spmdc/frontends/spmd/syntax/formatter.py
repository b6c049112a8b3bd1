"""Formats .spmd texts: two spaces of indent, one statement a line, spaces around infix operators, long lines wrapped.

The layout is computed from the tokens only, so formatting twice changes nothing, and nothing is lost: annotations are
kept as written, and comments stay in place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ir.diagnostics import Diagnostics, Source
from spmdc.frontends.spmd.syntax.lexer import OPENERS, Tokens, tokenize
from spmdc.frontends.spmd.syntax.parser import parse_text
from spmdc.frontends.spmd.syntax.shapes import ENDS

WIDTH = 120
_COMMENT_COLUMN = 88
_INDENT = "  "
_CONTINUED = "    "
_INFIX = frozenset({"OP", "MINUS", "LESSTHAN"})
_CLOSERS = frozenset({"RPAR", "RSQB", "RBRACE"})
_ITEMS = frozenset({"CONST", "MESH", "INCLUDE", "PRECISION_ITEM", "SPMD", "PLAN", "DEF"})
_STAGES = frozenset({"SPMD", "PLAN"})
"""The first words of printed programs, whose comments are all in one column."""
_COMMA = re.compile(r"\s*,\s*")


def format_source(text: str, name: str = "<string>") -> str:
    """The text in its canonical layout. Raises SpmdcError if it does not follow the grammar."""
    source = Source(name, text)
    found = Diagnostics()
    parse_text(source, found)
    found.raise_errors()
    layout = _Layout(tokenize(source))
    layout.items()
    is_printed = any(token.type in _STAGES for token in layout.tokens[:1])
    return "\n".join(_aligned(layout.lines, _COMMENT_COLUMN if is_printed else None)) + ("\n" if layout.lines else "")


@dataclass
class _Line:
    """A finished line, and the comment after it."""

    text: str
    comment: str = ""


@dataclass
class _Piece:
    """A token in the layout: whether a space is in front and, with a cost, a line break may be."""

    text: str
    space: bool
    break_cost: int | None
    opens: bool = False
    """Whether it is a bracket whose entries are on lines of their own, as they were written."""
    closes: bool = False
    """Whether it closes such a bracket."""
    entry: bool = False
    """Whether it begins an entry in such a bracket."""
    ends_line: bool = False
    """Whether it is a comma between such entries behind which the line ended."""
    trailing: str = ""
    own: list[str] = field(default_factory=list[str])
    """Comments on separate lines after the token."""


class _Layout:
    """Walks the tokens once and lays them out."""

    def __init__(self, cut: Tokens) -> None:
        self.tokens = cut.tokens
        self.partner = cut.partner
        self.enclosing = _enclosing(cut)
        self.listed = {
            i
            for i, close in cut.partner.items()
            if cut.tokens[i].text in ("(", "[") and i + 1 < close and cut.tokens[i + 1].line > cut.tokens[i].line
        }
        """Brackets whose entries are on lines of their own."""
        self.comments = cut.comments
        self.next_comment = 0
        self.lines: list[_Line] = []
        self.last_line = 0
        """The last line of the source that is laid out."""

    # Blocks.

    def items(self) -> None:
        i = 0
        while i < len(self.tokens):
            is_function = self.tokens[i].type == "DEF"
            follows_one = bool(self.lines) and self.lines[-1].text == "}"
            self.lead(self.tokens[i].line, "", separate=is_function or follows_one)
            end = self.end_of_item(i)
            i = self.statement(i, end, "")
        self.lead(None, "", separate=False)

    def end_of_item(self, start: int) -> int:
        i = start + 1
        while i < len(self.tokens) and self.tokens[i].type not in _ITEMS:
            i = self.partner.get(i, i) + 1
        return i

    def block(self, start: int, end: int, indent: str) -> None:
        """The statements between two braces."""
        i = start
        opening = True
        while i < end:
            self.lead(self.tokens[i].line, indent, separate=False, opening=opening)
            opening = False
            i = self.statement(i, self.end_of_statement(i, end), indent)
        self.lead(self.tokens[end].line, indent, separate=False, opening=opening, closing=True)

    def end_of_statement(self, start: int, end: int) -> int:
        i = self.partner.get(start, start) + 1
        while i < end and not self.begins_statement(i):
            i = self.partner.get(i, i) + 1
        return i

    def begins_statement(self, i: int) -> bool:
        kind = self.tokens[i].type
        return kind == "RETURN" or (kind == "NAME" and self.tokens[i - 1].type in ENDS)

    def statement(self, start: int, end: int, indent: str) -> int:
        """One statement or item: lines up to each `{`, the blocks between, and what follows them."""
        first = start
        for i in range(start, end):
            if i < first or self.tokens[i].type != "LBRACE":
                continue
            self.emit(first, i + 1, indent)
            close = self.partner[i]
            self.block(i + 1, close, indent + _INDENT)
            first = close
        self.emit(first, end, indent)
        return end

    # Comments and blank lines between statements.

    def lead(
        self, line: int | None, indent: str, *, separate: bool, opening: bool = False, closing: bool = False
    ) -> None:
        """Comments on lines of their own before a source line (None: the end), and a blank line if there was one."""
        wanted = separate and bool(self.lines)
        while self.next_comment < len(self.comments):
            comment = self.comments[self.next_comment]
            if line is not None and comment.line >= line:
                break
            self.gap(comment.line, wanted, opening)
            wanted = opening = False
            self.lines.append(_Line(indent + comment.text))
            self.last_line = comment.line
            self.next_comment += 1
        if line is not None and not closing:
            self.gap(line, wanted, opening)

    def gap(self, line: int, wanted: bool, opening: bool) -> None:
        if self.lines and not opening and (wanted or line > self.last_line + 1) and self.lines[-1].text:
            self.lines.append(_Line(""))

    # One line.

    def emit(self, start: int, end: int, indent: str) -> None:
        """Lays out tokens that belong on one line, wrapped if it is too long.

        A bracket with a line break behind it keeps its entries on the lines on which they were written.
        """
        pieces = list(self.pieces(start, end))
        current: list[_Piece] = []
        level = prefix = indent
        for piece in pieces:
            if current and (piece.closes or (piece.text == "->" and prefix != indent)):
                self.lines.append(_Line(prefix + _joined(current)))
                current, prefix = [], level + _CONTINUED
            if piece.closes:
                level = prefix = level.removesuffix(_INDENT)
            current.append(piece)
            while _width(current) > WIDTH - len(prefix):
                cut = _best_break(current)
                if cut == 0:
                    break
                self.lines.append(_Line(prefix + _joined(current[:cut])))
                current = current[cut:]
                prefix = level if current[0].entry else level + _CONTINUED
            interrupted = piece.own or (piece.trailing and piece is not pieces[-1])
            if interrupted or piece.opens or piece.ends_line:
                self.lines.append(_Line(prefix + _joined(current), piece.trailing))
                level = level + _INDENT if piece.opens else level
                prefix = level if piece.opens or piece.ends_line else level + _CONTINUED
                self.lines.extend(_Line(prefix + text) for text in piece.own)
                current = []
        if current:
            self.lines.append(_Line(prefix + _joined(current), current[-1].trailing))

    def pieces(self, start: int, end: int) -> Iterator[_Piece]:
        depth = 0
        for i in range(start, end):
            token = self.tokens[i]
            if token.type in _CLOSERS and i > start:
                depth -= 1
            follows_comma = i > start and self.tokens[i - 1].type == "COMMA"
            breakable = follows_comma or token.type == "ARROW" or self.is_infix(i)
            cost = depth if breakable and i > start and token.type not in _CLOSERS else None
            in_one_line = token.type == "LITERAL" and token.end_line == token.line
            text = _COMMA.sub(", ", token.text) if in_one_line else token.text
            piece = _Piece(text, i > start and self.space_before(i), cost)
            opened = self.enclosing[i]
            if opened in self.listed:
                piece.entry = follows_comma
                piece.ends_line = token.type == "COMMA" and self.tokens[i + 1].line > token.line
                piece.closes = self.partner[opened] == i
            piece.opens = i in self.listed
            if token.type in OPENERS:
                depth += 1
            self.last_line = token.end_line
            self.attach(piece, i, end)
            yield piece

    def attach(self, piece: _Piece, i: int, end: int) -> None:
        """Comments after a token: on its line, and before the next token of the same line of layout."""
        following = self.tokens[i + 1] if i + 1 < len(self.tokens) else None
        while self.next_comment < len(self.comments):
            comment = self.comments[self.next_comment]
            if following is not None and (following.line, following.column) <= (comment.line, comment.column):
                return
            if comment.line == self.tokens[i].end_line:
                piece.trailing = comment.text
            elif i + 1 < end:
                piece.own.append(comment.text)
            else:
                return
            self.last_line = comment.line
            self.next_comment += 1

    # Spaces.

    def is_infix(self, i: int) -> bool:
        return self.tokens[i].type in _INFIX and i > 0 and self.tokens[i - 1].type in ENDS

    def is_loop_head(self, opened: int) -> bool:
        close = self.partner[opened]
        following = self.tokens[close + 1].type if close + 1 < len(self.tokens) else ""
        return self.tokens[opened].text == "(" and following in ("COND", "LBRACE") and not self.is_signature(opened)

    def is_signature(self, opened: int) -> bool:
        before = self.tokens[opened - 1].type
        return before == "ARROW" or self.tokens[opened - 2].type == "DEF"

    def spaced_equal(self, i: int) -> bool:
        """Whether `=` binds a name or an initial value, rather than an argument, an axis, or the devices of a mesh."""
        opened = self.enclosing[i]
        if opened is None or self.tokens[opened].type == "LBRACE":
            return self.tokens[i - 1].text != "devices" or self.tokens[i - 2].type != "RPAR"
        if not self.is_loop_head(opened):
            return self.is_signature(opened)
        attribute = "axes" if self.tokens[opened - 1].type == "MANUAL" else "trip_count"
        return self.tokens[i - 1].text != attribute or self.tokens[i - 1].type != "NAME"

    def space_before(self, i: int) -> bool:
        before, token = self.tokens[i - 1], self.tokens[i]
        if token.type == "COLON":
            return before.type == "COMMA"
        if token.type in ("COMMA", "SEMICOLON", "RPAR", "RSQB", "AT", "BANG", "ANNOTATION"):
            return False
        if before.type in ("LPAR", "HEAD", "LSQB", "ANNOTATION", "AT", "BANG", "TILDE"):
            return False
        if token.type == "RBRACE":
            return before.type == "LBRACE"
        if token.type == "EQUAL" or before.type == "EQUAL":
            return self.spaced_equal(i if token.type == "EQUAL" else i - 1)
        if before.type == "COLON":
            return self.spaced_colon(i - 1)
        if before.type in _INFIX:
            return self.is_infix(i - 1)
        if token.type == "LSQB":
            return before.type not in ENDS
        if token.type in ("LPAR", "HEAD"):
            return self.spaced_paren(i)
        return not (token.type == "INT" and before.type == "RPAR")

    def spaced_colon(self, i: int) -> bool:
        opened = self.enclosing[i]
        in_subscript = opened is not None and self.tokens[opened].type == "LSQB"
        return not in_subscript and self.tokens[i + 1].type != "LPAR"

    def spaced_paren(self, i: int) -> bool:
        before = self.tokens[i - 1]
        if before.type in ("WHILE", "CASE", "MANUAL", "CHECKPOINT", "PRECISION"):
            return False
        if before.type not in ENDS:
            return True
        if self.tokens[i - 2].type == "MESH":
            return True
        return self.is_loop_head(i)


def _enclosing(cut: Tokens) -> list[int | None]:
    """For each token, the innermost bracket that it is in."""
    result: list[int | None] = []
    opened: list[int] = []
    for i, token in enumerate(cut.tokens):
        result.append(opened[-1] if opened else None)
        if token.type in _CLOSERS:
            opened.pop()
        elif token.type in OPENERS:
            opened.append(i)
    return result


def _width(pieces: Sequence[_Piece]) -> int:
    return sum(len(p.text) + p.space for p in pieces) - (pieces[0].space if pieces else 0)


def _joined(pieces: Sequence[_Piece]) -> str:
    return "".join((" " if p.space and i else "") + p.text for i, p in enumerate(pieces))


def _best_break(pieces: Sequence[_Piece]) -> int:
    """Where to break a line: the last one of the outermost places; 0 if there is none."""
    best, lowest = 0, 1 << 30
    for i, piece in enumerate(pieces):
        if i and piece.break_cost is not None and piece.break_cost <= lowest:
            best, lowest = i, piece.break_cost
    return best


def _aligned(lines: Sequence[_Line], column: int | None) -> Iterator[str]:
    """The lines with their comments in that column, or with those of neighbouring lines in a common column, unless
    lines become too long."""
    for has_comments, some in itertools.groupby(lines, lambda line: bool(line.comment)):
        run = list(some)
        longest = max((len(line.text) for line in run if len(line.text) <= _COMMENT_COLUMN), default=0)
        at = longest if column is None else column
        yield from (f"{line.text:<{at}}  {line.comment}" if has_comments else line.text for line in run)
