"""The standard layout of .spmd text, for `spmdc fmt`.

Works on tokens, so that comments, consts and expressions stay as they were written: only the space between tokens
changes. Statements get a line each, blocks are indented by two, and other line breaks stay where their author put them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass

from ir.diagnostics import Diagnostics, InternalError, Source
from ir.text import syntax
from ir.text.parser import parse_text
from ir.text.tokens import Comment, Token, Tokens, tokenize

_INDENT = 2
_CONTINUATION = 4
_OPENERS = frozenset({"LPAR", "LSQB", "LBRACE", "ANNOTATION"})
_CLOSERS = frozenset({"RPAR", "RSQB", "RBRACE"})
_OPERATORS = frozenset({"OP", "MINUS", "LESSTHAN"})
_BEFORE_OPERAND = _OPENERS | _OPERATORS | {"COMMA", "EQUAL", "RETURN", "COLON", "SEMICOLON", "ARROW", "TILDE", ""}
_TIGHT_BEFORE = frozenset({"COMMA", "SEMICOLON", "COLON", "RPAR", "RSQB", "AT", "BANG", "ANNOTATION"})
_TIGHT_AFTER = frozenset({"LPAR", "LSQB", "ANNOTATION", "AT", "BANG", "TILDE"})
_ITEMS = frozenset({"DEF", "CONST", "MESH", "SPMD"})


def format_text(text: str, name: str = "<string>") -> str:
    """The text in the standard layout. Formatting that again changes nothing.

    Raises SpmdcError if it does not parse.
    """
    found = Diagnostics()
    source = Source(name, text)
    module = parse_text(source, found)
    found.raise_errors()
    tokens = tokenize(source)
    lines = _Layout(tokens, set(_statement_starts(module))).lines()
    formatted = "".join(f"{line}\n" for line in lines)
    if _content(tokens) != _content(tokenize(Source(name, formatted))):
        raise InternalError(f"formatting {name} would change more than its layout")
    return formatted


def _content(tokens: Tokens) -> tuple[list[str], list[str]]:
    return [t.text for t in tokens.tokens], [c.text for c in tokens.comments]


def _statement_starts(node: object) -> Iterator[tuple[int, int]]:
    """Line and column of every statement's beginning."""
    if isinstance(node, tuple):
        for item in node:
            yield from _statement_starts(item)
    elif is_dataclass(node):
        if isinstance(node, syntax.Assign | syntax.Return):
            yield node.span.line, node.span.column
        for f in fields(node):
            if f.name not in ("span", "head", "name_span"):
                yield from _statement_starts(getattr(node, f.name))


@dataclass(slots=True)
class _Bracket:
    """An open bracket: what it is, the indentation inside it, and whether a type stands before the next `=`."""

    type: str
    indent: int
    spaced: bool = True
    typed: bool = False


@dataclass(slots=True)
class _Line:
    indent: int
    text: str
    comment: Comment | None = None

    def __str__(self) -> str:
        code = " " * self.indent + self.text
        if self.comment is None:
            return code
        return f"{code:<{self.comment.column - 1}}".ljust(len(code) + 2) + self.comment.text


@dataclass(eq=False)
class _Layout:
    """One pass over the tokens, line by line."""

    source: Tokens
    starts: set[tuple[int, int]]
    stack: list[_Bracket] = field(default_factory=list[_Bracket])
    done: list[_Line | None] = field(default_factory=list["_Line | None"])
    current: _Line | None = None
    in_repeat: bool = False
    is_unary: bool = False

    def lines(self) -> list[str]:
        """The formatted lines; None among `done` is a blank one."""
        comments = {c.line: c for c in self.source.comments}
        tokens = self.source.tokens
        last_of_line = {t.line: i for i, t in enumerate(tokens)}
        whole_lines = [c for c in self.source.comments if not c.trailing]
        previous_line = 0
        for i, token in enumerate(tokens):
            while whole_lines and whole_lines[0].line < token.line:
                comment = whole_lines.pop(0)
                self._end_line(comment.line - previous_line > 1)
                self.done.append(_Line(self._inner(), comment.text))
                previous_line = comment.line
            self._token(i, token, token.line - previous_line)
            previous_line = token.line
            if last_of_line[token.line] == i and token.line in comments and self.current is not None:
                self.current.comment = comments[token.line]
        for comment in whole_lines:
            self._end_line(comment.line - previous_line > 1)
            self.done.append(_Line(0, comment.text))
            previous_line = comment.line
        self._end_line(False)
        return ["" if line is None else str(line) for line in self._spaced_functions()]

    def _token(self, i: int, token: Token, lines_below: int) -> None:
        before = self._at(i - 1)
        closed = self.stack.pop() if token.type in _CLOSERS and self.stack else None
        is_start = (token.line, token.column) in self.starts or (token.type in _ITEMS and not self.stack)
        closes_block = closed is not None and closed.type == "LBRACE"
        breaks = lines_below > 0 and not (token.type in ("LBRACE", "COND", "DO") and self._can_join())
        if self.current is None or is_start or closes_block or breaks or self._follows_block_open(before):
            self._end_line(lines_below > 1 and not closes_block)
            self.current = _Line(self._indent(before, is_start, closed), token.text)
        else:
            assert before is not None
            self.current.text += (" " if self._has_space(i, before, token, closed) else "") + token.text
        self._after(i, token)

    def _can_join(self) -> bool:
        return self.current is not None and self.current.comment is None

    def _follows_block_open(self, before: Token | None) -> bool:
        return before is not None and before.type == "LBRACE" and before.text == "{"

    def _end_line(self, blank: bool) -> None:
        """Ends the current line; `blank` asks for an empty one, which never stands at the start of a block."""
        if self.current is not None:
            self.done.append(self.current)
            self.current = None
        if blank and self.done and self.done[-1] is not None and not self.done[-1].text.endswith("{"):
            self.done.append(None)

    def _inner(self) -> int:
        return self.stack[-1].indent if self.stack else 0

    def _indent(self, before: Token | None, is_start: bool, closed: _Bracket | None) -> int:
        if closed is not None:
            return closed.indent - _INDENT
        in_block = not self.stack or self.stack[-1].type == "LBRACE"
        return self._inner() + (_CONTINUATION if in_block and not is_start and before is not None else 0)

    def _after(self, i: int, token: Token) -> None:
        """Takes note of what the token opens or begins."""
        if token.type == "REPEAT":
            self.in_repeat = True
        if token.type == "COLON" and self.stack:
            self.stack[-1].typed = True
        if token.type == "COMMA" and self.stack:
            self.stack[-1].typed = False
        if token.type in _OPENERS:
            assert self.current is not None
            spaced = self._type(i - 1) != "AT"
            self.stack.append(_Bracket(token.type, self.current.indent + _INDENT, spaced))
        self.is_unary = token.type == "MINUS" and self._type(i - 1) in _BEFORE_OPERAND

    def _has_space(self, i: int, before: Token, token: Token, closed: _Bracket | None) -> bool:
        inside = self.stack[-1] if self.stack else None
        if closed is not None:
            return closed.type == "LBRACE"
        if token.type == "EQUAL" or before.type == "EQUAL":
            at = i if token.type == "EQUAL" else i - 1
            return self._is_assignment(at, inside)
        if token.type in _TIGHT_BEFORE or before.type in _TIGHT_AFTER or self.is_unary:
            return False
        if before.type == "COLON":
            return token.type != "LPAR" and inside is not None and inside.type != "LSQB"
        if before.type == "COMMA":
            return inside is None or inside.spaced
        if token.type == "LPAR":
            return self._opens_apart(i, before)
        if token.type == "LSQB":
            return before.type not in ("NAME", "RPAR", "RSQB", "STRING", "RBRACE")
        return not (before.type == "RPAR" and token.type == "INT")

    def _is_assignment(self, i: int, inside: _Bracket | None) -> bool:
        """Whether the `=` at `i` stands apart: in statements and behind types, but not in `name=value`."""
        if inside is not None and inside.type != "LBRACE":
            return inside.typed
        return not (inside is None and self._type(i - 2) == "RPAR")

    def _opens_apart(self, i: int, before: Token) -> bool:
        """Whether a space stands before the `(` at `i`, which opens no call."""
        if self.in_repeat and before.type in ("NAME", "INT", "RPAR"):
            self.in_repeat = False
            return True
        if before.type == "NAME":
            return self._type(i - 2) == "MESH"
        return before.type != "WHILE"

    def _spaced_functions(self) -> Iterator[_Line | None]:
        """The lines with a blank one before each function and the comments right above it."""
        out: list[_Line | None] = []
        for line in self.done:
            if line is not None and line.indent == 0 and line.text.startswith("def "):
                at = len(out)
                while at and out[at - 1] is not None and str(out[at - 1]).startswith("#"):
                    at -= 1
                if at and out[at - 1] is not None:
                    out.insert(at, None)
            out.append(line)
        while out and out[-1] is None:
            out.pop()
        return iter(out)

    def _at(self, i: int) -> Token | None:
        return self.source.tokens[i] if i >= 0 else None

    def _type(self, i: int) -> str:
        return self.source.tokens[i].type if i >= 0 else ""
