"""From text to syntax tree. A text without errors is parsed at once; otherwise each statement that fails is skipped, so
that one run reports all independent errors."""

from __future__ import annotations

import bisect
import functools
import itertools
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Literal, cast

import lark
from lark.lexer import Lexer

from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, SpmdcError
from ir.types import DTYPES
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.lexer import CONTEXTUAL, Token, Tokens, tokenize
from spmdc.frontends.spmd.syntax.shapes import ENDS, Recorder, Shape, Step, flat_statements

_MAX_ROUNDS = 20
_ENGINE_IN_USE = threading.Lock()
_MAX_SYNTAX_ERRORS = 50


class _Replay(Lexer):
    """Passes the tokens, which exist already, to lark."""

    __future_interface__ = 2

    def __init__(self, lexer_conf: object) -> None:
        del lexer_conf

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[lark.Token]:
        return iter(cast("list[lark.Token]", lexer_state.text))


@functools.cache
def _engine() -> tuple[lark.Lark, Recorder]:
    recorder = Recorder()
    grammar = resources.files("spmdc.frontends.spmd.syntax").joinpath("grammar.lark").read_text("utf-8")
    parser = lark.Lark(
        grammar,
        parser="lalr",
        lexer=_Replay,
        start=["program", "item", "header", "parameter", "result", "statement"],
        keep_all_tokens=True,
        maybe_placeholders=False,
        transformer=cast("Any", recorder.callbacks()),
        cache=_tables_file(),
    )
    return parser, recorder


def _tables_file() -> str | Literal[False]:
    """Where lark caches the tables of the grammar, whose computation takes longer than most programs: beside compiled
    modules, if Python may write these. They are recomputed for another grammar, or if they cannot be read."""
    if sys.dont_write_bytecode:
        return False
    return str(Path(cache_from_source(str(Path(__file__).with_name("grammar.lark")))).with_suffix(".tables"))


def by_grammar(tokens: list[Token], start: str, source: Source) -> Any:
    """The result of the grammar for these tokens. Raises lark.UnexpectedToken, or SpmdcError from a callback."""
    parser, recorder = _engine()
    with _ENGINE_IN_USE:
        recorder.builder.source = source
        return parser.parse(cast("Any", tokens), start=start)


def _steps_of(statement: list[Token]) -> list[Step]:
    """The steps in which a statement is built. Raises lark.UnexpectedToken."""
    parser, recorder = _engine()
    with _ENGINE_IN_USE:
        recorder.begin(statement)
        try:
            parser.parse(cast("Any", statement), start="statement")
        finally:
            steps = recorder.end()
        return steps


def _program(cut: Tokens) -> Any:
    """The tree of a text, whose statements are parsed first. Raises lark.UnexpectedToken, or SpmdcError from a
    callback."""
    shapes: dict[tuple[str, ...], Shape] = {}
    rest: list[Token] = []
    end = 0
    for first, behind in flat_statements(cut):
        statement = cut.tokens[first:behind]
        types = tuple([token.type for token in statement])
        shape = shapes.get(types)
        if shape is None:
            shape = shapes[types] = Shape(types, _steps_of(statement))
        rest += cut.tokens[end:first]
        rest.append(_made(shape.statement(statement, cut.source), statement[0]))
        end = behind
    return by_grammar([*rest, *cut.tokens[end:]], "program", cut.source)


def _made(statement: s.Statement, first: Token) -> Token:
    """A token that stands for a statement with the first token `first`."""
    token = Token("STATEMENT", "", first.start_pos, first.line, first.column)
    token.literal = (statement,)
    return token


def parse_text(source: Source, found: Diagnostics) -> s.Module:
    """The tree of a text. Errors are added to `found`; unaffected parts are in the tree."""
    try:
        cut = tokenize(source)
    except SpmdcError as e:
        found.extend(e.diagnostics)
        return s.Module((), {})
    found.extend(cut.diagnostics)
    if not cut.diagnostics and not cut.bracket_errors:
        try:
            return s.Module(tuple(_program(cut)), cut.locations())
        except (lark.UnexpectedToken, SpmdcError):
            pass
    return s.Module(tuple(_Recovery(cut, found).items()), cut.locations())


class _Recovery:
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
            raise SpmdcError(_unexpected(e, tokens, self.source, start)) from None

    def items(self) -> list[s.Item]:
        starts = sorted({*self.strays(), *(i for i, t in enumerate(self.tokens) if t.type in _ITEM_WORDS)})
        if self.tokens and (not starts or starts[0] > 0):
            first = self.tokens[0]
            self.report((_junk(first, self.source),))
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
            self.report((_junk(self.tokens[close + 1], self.source),))
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
            self.report((_separator(tokens.pop(), self.source),))
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
        token = _made(_faulty(self.tokens[start:end], self.source), self.tokens[start])
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
        if before.type == "RBRACE" and token.text in _BLOCKS and following not in _BEHIND_TARGETS:
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


_ITEM_WORDS = frozenset({"DEF", "CONST", "MESH", "INCLUDE", "PRECISION_ITEM", "SPMD", "PLAN"})
_BEHIND_TARGETS = frozenset({"EQUAL", "COLON", "COMMA"})


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
        if token.type in ("LPAR", "LSQB", "LBRACE", "ANNOTATION"):
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


def _junk(token: Token, source: Source) -> Diagnostic:
    help_text = _FOREIGN.get(token.text, "a program consists of const, mesh, include, precision and def items")
    return Diagnostic("E001", f"unexpected {_shown(token)} outside of functions", token.span(source), help=help_text)


def _separator(token: Token, source: Source) -> Diagnostic:
    help_text = "statements need no separator: leave it out"
    return Diagnostic("E001", f"unexpected {_shown(token)}", token.span(source), help=help_text)


_WORDS = {
    "NAME": "a name", "INT": "a number", "FLOAT": "a number", "STRING": "a string", "LPAR": "'('", "RPAR": "')'",
    "LSQB": "'['", "RSQB": "']'", "LBRACE": "'{'", "RBRACE": "'}'", "COMMA": "','", "COLON": "':'", "EQUAL": "'='",
    "ARROW": "'->'", "AT": "'@'", "OP": "an operator", "MINUS": "an operator", "LESSTHAN": "an operator",
    "COND": "'cond {'", "DO": "'do {'", "OR": "'or {'", "ELSE": "'else {'", "SEMICOLON": "';'", "RETURN": "'return'",
}  # fmt: skip

_STARTS = {
    "program": "text",
    "item": "item",
    "header": "signature",
    "parameter": "parameter",
    "result": "type",
    "statement": "statement",
}


def _unexpected(e: lark.UnexpectedToken, tokens: list[Token], source: Source, start: str) -> Diagnostic:
    token = cast("Token", e.token)
    expected = sorted(
        {_WORDS[t] for t in e.expected if t in _WORDS} - ({"a number"} if "NAME" in e.expected else set())
    )
    if "NAME" in e.expected and "LSQB" in e.expected and "LPAR" in e.expected:
        expected = ["an expression"]
    help_text = f"expected {' or '.join(expected)}" if 0 < len(expected) <= 4 else ""
    if token.type == "$END":
        last = tokens[-1] if tokens else None
        if last is None:
            return Diagnostic("E001", "there is nothing here", Span(source, 1, 1, 1, 2))
        span = Span(source, last.end_line, last.end_column, last.end_line, last.end_column + 1)
        help_text = _FOREIGN.get(tokens[0].text, help_text)
        return Diagnostic("E001", f"the {_STARTS[start]} ends too early behind {_shown(last)}", span, help=help_text)
    if token.type == "SEMICOLON":
        return _separator(token, source)
    help_text = _way_out(token, tokens, start) or help_text
    return Diagnostic("E001", f"unexpected {_shown(token)}", token.span(source), help=help_text)


_CHOICES = "y = if (p) { return a } else { return b } computes one of two, and select(p, a, b) chooses elements"
_LOOPS = (
    "y = loop k < 3 (x = a) { … return x } loops, repeat k < 3 (x = a) { … } is unrolled, "
    "and while(x = a) cond { … } do { … } has a condition"
)
_SHARDINGS = "f32[8@x, 4] is split, f32[8, 4]{partial: x} a sum of parts, and f32[8, 4]{replicated} whole"
_FOREIGN = {
    **dict.fromkeys(("for", "loop", "repeat", "while"), _LOOPS),
    **dict.fromkeys(("if", "elif"), _CHOICES),
    **dict.fromkeys(("let", "var", "val", "auto"), "a definition has no word before it: b = a + 1"),
    **dict.fromkeys(("fn", "func", "function", "fun"), "functions begin with def"),
    **dict.fromkeys(("import", "from", "use"), 'include "other.spmd" has the functions of another file'),
    "include": 'include "other.spmd"',
    "mesh": "mesh (x=4, y=2)",
    "precision": "precision (bf16) for all functions of a file, or h = precision(bf16) { … } for some statements",
    "manual": "y: f32[8@x] = manual(v of f32[8@x] = a, axes=(x)) { … } is code for one device, returning its shard",
}
"""Keywords of other languages, with their equivalents here."""
_OPERATORS = {"and": "write a & b", "or": "write a | b", "not": "write ~a", "if": _CHOICES}
"""The same, for those that are behind an operand or in front of one."""
_BLOCKS = {
    "or": "a block follows: or { return b }",
    **dict.fromkeys(("else", "elif"), "a block follows, as in else { return if (q) { return b } else { return c } }"),
}
"""What follows the words between the blocks of a choice."""


def _way_out(token: Token, tokens: list[Token], start: str) -> str:
    """Help for an unexpected token that is usual in another language; empty for others."""
    at = tokens.index(token) if token in tokens else 0
    before = tokens[max(at - 1, 0)]
    if token.type == "AT" and at > 1 and tokens[at - 2].type == "AT":
        return "several axes are in brackets: 8@(x,y)"
    if token.type == "AT" and start == "statement":
        return "matmul(a, b) multiplies matrices"
    if token.text == "//":
        return "comments begin with #"
    behind = tokens[at + 1].text if at + 1 < len(tokens) else ""
    if start == "statement" and at == 1 and token.text in "+-*/" and behind == "=":
        name = tokens[0].text
        return f"values are never reassigned: give the new value a name of its own, {name}2 = {name} {token.text} …"
    if token.type == "COMMA" and start == "statement" and tokens[0].type == "NAME":
        return "an expression gives the values of a statement: b = … and c = … are two statements, and [b, c] is a list"
    if token.type == "INT" and before.type == "AT":
        return "axes are named, as in mesh (x=4): 8@x is split over x"
    if token.type == "LBRACE" and before.type == "RSQB":
        return _SHARDINGS
    if token.type == "LPAR" and before.text in DTYPES:
        return f"a type has its sizes in brackets: {before.text}[8, 4]"
    if at == 0 and token.text in CONTEXTUAL:
        block = f"{token.text} … {{ return a }} …"
        return f"a block returns values, which the statement names or returns: y = {block}, or return {block}"
    if before.type == "RBRACE" and token.text in _BLOCKS:
        return _BLOCKS[token.text]
    word = before if before.text == "not" else token
    if word.type == "NAME" and word.text in _OPERATORS:
        return _OPERATORS[word.text]
    line = [t.text for t in tokens[:at] if t.line == token.line]
    return next((_FOREIGN[text] for text in line if text in _FOREIGN), "")


def _shown(token: Token) -> str:
    text = token.text if len(token.text) <= 40 else token.text[:37] + "…"
    return repr(text)
