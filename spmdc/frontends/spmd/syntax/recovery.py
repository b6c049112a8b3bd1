"""Parses what it can of a text with errors: item by item, and in faulty functions statement by statement."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import lark

from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, SpmdcError
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.engine import by_grammar, standing_for
from spmdc.frontends.spmd.syntax.lexer import CONTEXTUAL, OPENERS, Token, Tokens
from spmdc.frontends.spmd.syntax.shapes import ENDS
from spmdc.frontends.spmd.syntax.syntax_errors import BLOCKS, outside_of_functions, separator, unexpected

_MAX_ROUNDS = 20
_MAX_SYNTAX_ERRORS = 50
_ITEM_WORDS = frozenset({"DEF", "CONST", "MESH", "INCLUDE", "PRECISION_ITEM", "SPMD", "PLAN"})
_BEHIND_TARGETS = frozenset({"EQUAL", "COLON", "COMMA"})


class Recovery:
    """Parses item by item, and in faulty functions statement by statement."""

    def __init__(self, cut: Tokens, found: Diagnostics) -> None:
        self.tokens = cut.tokens
        self.source = cut.source
        self.partner = cut.partner
        self.bracket_errors = cut.bracket_errors
        self.broken_places = sorted(cut.bracket_errors)
        self.faulty_lines = {d.span.line for d in cut.diagnostics if d.span is not None}
        self.cut_short = cut.cut_short
        self.found = found
        self.count = 0

    def report(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Adds errors, unless the lines on which they begin already have a lexical error."""
        for d in diagnostics:
            quiet = d.span is not None and d.span.line in self.faulty_lines
            if not quiet and self.count < _MAX_SYNTAX_ERRORS:
                self.found.add(d)
                self.count += 1

    def broken(self, start: int, end: int) -> tuple[Diagnostic, ...]:
        """The errors of brackets among tokens start to end."""
        first, last = (bisect.bisect_left(self.broken_places, i) for i in (start, end))
        return tuple(self.bracket_errors[i] for i in self.broken_places[first:last])

    def attempt(self, tokens: list[Token], start: str) -> Any:
        """The parse of some tokens. Raises SpmdcError with its first syntax error."""
        try:
            return by_grammar(tokens, start, self.source)
        except lark.UnexpectedToken as e:
            raise SpmdcError(unexpected(e, tokens, self.source, start)) from None

    def items(self) -> list[s.Item]:
        starts = sorted({*self.strays(), *(i for i, t in enumerate(self.tokens) if t.type in _ITEM_WORDS)})
        if self.tokens and (not starts or starts[0] > 0):
            first = self.tokens[0]
            self.report((outside_of_functions(first, self.source),))
        items: list[s.Item] = []
        for start, end in itertools.pairwise([*starts, len(self.tokens)]):
            item = self.item(start, end)
            if item is not None:
                items.append(item)
        return items

    def strays(self) -> Iterator[int]:
        """Where lines outside of brackets begin with `name =`, or with a word before it, as if a const needed no
        keyword."""
        if self.bracket_errors:
            return
        line = i = 0
        while i < len(self.tokens):
            types = [t.type for t in self.tokens[i : i + 3]]
            if self.tokens[i].line > line and (types[:2] == ["NAME", "EQUAL"] or types == ["NAME", "NAME", "EQUAL"]):
                yield i
            i = self.partner.get(i, i)
            line = self.tokens[i].line
            i += 1

    def item(self, start: int, end: int) -> s.Item | None:
        tokens = self.tokens[start:end]
        if tokens[0].type == "NAME":
            name = tokens[tokens[1].type == "NAME"]
            message = f"{name.text!r} is defined outside of functions, where only consts are"
            self.report((Diagnostic("E001", message, tokens[0].span(self.source), help=f"const {name.text} = …"),))
            return (s.Const(name.span(self.source), name.text, None),)
        broken = self.broken(start, end)
        if not self.cut_short:
            self.report(broken)
        if tokens[0].type == "DEF":
            clean = not broken and not any(t.line in self.faulty_lines for t in tokens)
            return (self.whole_function(tokens) if clean else None) or self.function(start, end, whole=not broken)
        if not broken:
            try:
                return cast("s.Item", self.attempt(tokens, "item"))
            except SpmdcError as e:
                self.report(e.diagnostics)
        return _faulty_item(tokens, self.source)

    def whole_function(self, tokens: list[Token]) -> s.Item | None:
        """The function, if it has no errors."""
        try:
            return cast("s.Item", self.attempt(tokens, "item"))
        except SpmdcError:
            return None

    def function(self, start: int, end: int, *, whole: bool) -> s.Item | None:
        brace = self.body_brace(start, end)
        name = self.tokens[start + 1] if start + 1 < end else self.tokens[start]
        faults: list[Diagnostic] = []
        header = self.salvaged(start, brace, faults)
        item = s.FunctionItem(name.span(self.source), name.text, name.span(self.source), header, None)
        try:
            item = cast("s.FunctionItem", self.attempt(self.tokens[start:brace], "header"))
            clean = True
        except SpmdcError as e:
            clean = False
            if whole:
                self.report(tuple(faults) or e.diagnostics)
        if brace == end:
            if clean and whole:
                message = f"function {name.text!r} has no body"
                self.report((Diagnostic("E001", message, name.span(self.source), help="{ … return … }"),))
            return item
        close = self.partner.get(brace, end)
        body = tuple(self.statements(brace + 1, close))
        is_closed = brace in self.partner
        if whole and close + 1 < end:
            self.report((outside_of_functions(self.tokens[close + 1], self.source),))
        return replace(item, body=body if is_closed else None, unclosed=() if is_closed else body)

    def body_brace(self, start: int, end: int) -> int:
        """The brace that opens a function's body: the first outside of other brackets, but for braces without `return`
        that others follow."""
        i = start
        while i < end and self.tokens[i].type != "LBRACE":
            i = self.partner.get(i, i) + 1
        while (behind := self.partner.get(i, end) + 1) < end and self.tokens[behind].type == "LBRACE":
            if any(t.type == "RETURN" for t in self.tokens[i:behind]):
                break
            i = behind
        return min(i, end)

    def salvaged(
        self, start: int, end: int, faults: list[Diagnostic]
    ) -> tuple[tuple[s.Param, ...], tuple[s.Param, ...] | None] | None:
        """The known parts of a signature that does not parse: parameters and results, parsed separately.

        `faults` gets the error of each that does not parse.
        """
        if end - start < 3 or self.tokens[start + 2].type != "LPAR":
            return None
        arrow = next((i for i in range(start, end) if self.tokens[i].type == "ARROW"), end)
        params = self.params(start + 3, self.partner.get(start + 2, arrow), "parameter", faults)
        opened = arrow + 1 < end and self.tokens[arrow + 1].type == "LPAR"
        if arrow + 1 >= end or (opened and arrow + 1 not in self.partner):
            return params, None
        results = (arrow + 2, self.partner[arrow + 1]) if opened else (arrow + 1, end)
        return params, self.params(*results, "result", faults)

    def params(self, start: int, end: int, what: str, faults: list[Diagnostic]) -> tuple[s.Param, ...]:
        """The parameters, or results, among these tokens; the type of each that does not parse is None."""
        commas: list[int] = []
        i = start
        while i < end:
            if self.tokens[i].type == "COMMA":
                commas.append(i)
            i = self.partner.get(i, i) + 1
        bounds = [start - 1, *commas, end]
        return tuple(self.param(a + 1, b, what, faults) for a, b in itertools.pairwise(bounds) if a + 1 < b)

    def param(self, start: int, end: int, what: str, faults: list[Diagnostic]) -> s.Param:
        tokens = self.tokens[start:end]
        try:
            return cast("s.Param", self.attempt(tokens, what))
        except SpmdcError as e:
            faults.extend(e.diagnostics)
            is_named = [t.type for t in tokens[:2]] in (["NAME", "COLON"], ["NAME", "NAME"])
            return s.Param(tokens[0].span(self.source), tokens[0].text if is_named else "", None)

    def statements(self, start: int, end: int) -> list[s.Statement]:
        return [self.statement(a, b) for a, b in self.segments(start, end)]

    def statement(self, start: int, end: int) -> s.Statement:
        """One statement. Inner statements of its blocks that fail are skipped and reported."""
        tokens = list(self.tokens[start:end])
        if self.count >= _MAX_SYNTAX_ERRORS:
            return _faulty(tokens, self.source)
        broken = bool(self.broken(start, end))
        while len(tokens) > 1 and tokens[-1].type == "SEMICOLON" and not broken:
            self.report((separator(tokens.pop(), self.source),))
        for _ in range(_MAX_ROUNDS):
            try:
                if any(t.line in self.faulty_lines for t in tokens) or broken:
                    break
                return cast("s.Statement", self.attempt(tokens, "statement"))
            except SpmdcError as e:
                inner = self.innermost(e.diagnostics[0].span, start, end)
                self.report(self.own_error(tokens, inner) or e.diagnostics)
                if inner is None:
                    break
                tokens = self.without(tokens, *inner)
        return _faulty(self.tokens[start:end], self.source)

    def own_error(self, tokens: list[Token], inner: tuple[int, int] | None) -> tuple[Diagnostic, ...]:
        """The errors of an inner statement by itself, which are more specific than their consequences."""
        if inner is None:
            return ()
        try:
            self.attempt([t for t in tokens if inner[0] <= t.start_pos < inner[1]], "statement")
        except SpmdcError as e:
            return e.diagnostics
        return ()

    def without(self, tokens: list[Token], start: int, end: int) -> list[Token]:
        """The tokens with a single one in place of an inner statement that fails."""
        token = standing_for(_faulty(self.tokens[start:end], self.source), self.tokens[start])
        before = [t for t in tokens if t.start_pos < start]
        return [*before, token, *(t for t in tokens if t.start_pos >= end)]

    def innermost(self, span: Span | None, start: int, end: int) -> tuple[int, int] | None:
        """The tokens of the innermost inner statement that contains an error, or after which the next one begins."""
        if span is None:
            return None
        place = (span.line, span.column)
        found = None
        for brace in range(start, end):
            close = self.partner.get(brace)
            if self.tokens[brace].type != "LBRACE" or close is None:
                continue
            for a, b in self.segments(brace + 1, close):
                if a > brace + 1 and self.place(a) == place:
                    break
                if self.place(a) <= place:
                    found = (a, b) if place <= self.place(b) else found
        return found

    def place(self, i: int) -> tuple[int, int]:
        return self.tokens[i].line, self.tokens[i].column

    def segments(self, start: int, end: int) -> list[tuple[int, int]]:
        """The first and last tokens of the statements of a block."""
        starts: list[int] = []
        i = start
        unclosed = False
        while i < end:
            if i == start or self.begins_statement(i, starts[-1], unclosed):
                starts.append(i)
                unclosed = False
            unclosed = unclosed or i in self.bracket_errors
            i = self.partner.get(i, i) + 1 if i in self.partner else i + 1
        return list(itertools.pairwise([*starts, end]))

    def begins_statement(self, i: int, last: int, unclosed: bool) -> bool:
        """Whether a statement probably begins here, behind one that begins at `last`. After an unclosed bracket, one
        may follow a comma."""
        token, before = self.tokens[i], self.tokens[i - 1]
        if token.type == "RETURN":
            return True
        if token.type != "NAME":
            return False
        following = self.tokens[i + 1].type if i + 1 < len(self.tokens) else ""
        if before.type == "SEMICOLON" or (before.type in ENDS and i - 1 in self.bracket_errors):
            return following in _BEHIND_TARGETS
        if before.type == "RBRACE" and token.text in BLOCKS and following not in _BEHIND_TARGETS:
            return False
        if before.type in ENDS:
            return before.line < token.line or following == "EQUAL" or self.may_follow(i, last)
        continued = before.type == "COMMA" and not unclosed
        return before.line < token.line and not continued and following in ("EQUAL", "COLON")

    def may_follow(self, i: int, last: int) -> bool:
        """Whether a name on the line of another statement, which begins at `last`, may begin one itself: that one is
        no series of words, and what follows the name is no word either."""
        types = [t.type for t in self.tokens[i + 1 : i + 4]]
        if types == ["COLON", "NAME", "LSQB"]:
            return True
        return types[:1] in (["COMMA"], ["LPAR"]) and self.tokens[last + 1].type in (*_BEHIND_TARGETS, "LPAR")


def _faulty(tokens: list[Token], source: Source) -> s.Faulty:
    """The known parts of a statement that does not parse: the names before its `=`, or those in its blocks."""
    first = tokens[0]
    is_block = first.text in CONTEXTUAL
    names: list[str] = []
    depth = 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ("EQUAL", "LESSTHAN", "OP") and depth == 0 and not is_block:
            names += [before.text] if before is not None and before.type == "NAME" else []
            break
        if token.type in OPENERS:
            depth += 1
        elif token.type in ("RPAR", "RSQB", "RBRACE"):
            depth -= 1
        elif token.type == "NAME" and depth == 0 and (before is None or before.type == "COMMA"):
            names.append(token.text)
    else:
        names += [t.text for t, behind in itertools.pairwise(tokens) if t.type == "NAME" and behind.type == "EQUAL"]
    words = tuple(s.Name(t.span(source), t.text) for t in tokens if t.type == "NAME")
    return s.Faulty(first.span(source), tuple(names), first.type == "RETURN", is_block, words)


def _faulty_item(tokens: list[Token], source: Source) -> s.Item | None:
    """The names that a faulty const item would have defined, or a faulty precision; an empty item stands for a faulty
    mesh."""
    if tokens[0].type == "MESH":
        return ()
    if tokens[0].type == "INCLUDE":
        return None
    if tokens[0].type == "PRECISION_ITEM":
        return s.DefaultPrecision(tokens[0].span(source), None)
    names = [t for t, after in itertools.pairwise(tokens) if t.type == "NAME" and after.type == "EQUAL"]
    return tuple(s.Const(t.span(source), t.text, None) for t in names)
