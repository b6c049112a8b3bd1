"""The errors for tokens that the grammar does not expect, with help for those that are usual in other languages."""

from __future__ import annotations

from typing import cast

import lark

from ir.diagnostics import Diagnostic, Source, Span
from ir.types import DTYPES
from spmdc.frontends.spmd.syntax.lexer import CONTEXTUAL, Token

_WORDS = {
    "NAME": "a name", "INT": "a number", "FLOAT": "a number", "STRING": "a string", "LPAR": "'('",
    "RPAR": "')'", "HEAD": "'('", "LSQB": "'['", "RSQB": "']'", "LBRACE": "'{'", "RBRACE": "'}'",
    "COMMA": "','", "COLON": "':'", "EQUAL": "'='", "ARROW": "'->'", "AT": "'@'", "OP": "an operator",
    "MINUS": "an operator", "LESSTHAN": "an operator", "COND": "'cond {'", "DO": "'do {'", "OR": "'or {'",
    "ELSE": "'else {'", "SEMICOLON": "';'", "RETURN": "'return'",
}  # fmt: skip

_STARTS = {
    "program": "text", "item": "item", "header": "signature", "parameter": "parameter", "result": "type",
    "statement": "statement",
}  # fmt: skip
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
BLOCKS = {
    "or": "a block follows: or { return b }",
    **dict.fromkeys(("else", "elif"), "a block follows, as in else { return if (q) { return b } else { return c } }"),
}
"""What follows the words between the blocks of a choice."""


def outside_of_functions(token: Token, source: Source) -> Diagnostic:
    """The error for a token that begins no item."""
    help_text = _FOREIGN.get(token.text, "a program consists of const, mesh, include, precision and def items")
    return Diagnostic("E001", f"unexpected {_shown(token)} outside of functions", token.span(source), help=help_text)


def separator(token: Token, source: Source) -> Diagnostic:
    """The error for a semicolon."""
    help_text = "statements need no separator: leave it out"
    return Diagnostic("E001", f"unexpected {_shown(token)}", token.span(source), help=help_text)


def unexpected(e: lark.UnexpectedToken, tokens: list[Token], source: Source, start: str) -> Diagnostic:
    """The error for the token at which these tokens stop being what the grammar calls `start`."""
    token = cast("Token", e.token)
    less = {"a number"} if "NAME" in e.expected else set[str]()
    expected = sorted({_WORDS[t] for t in e.expected if t in _WORDS} - less)
    if "NAME" in e.expected and "LSQB" in e.expected and "LPAR" in e.expected:
        expected = ["an expression"]
    help_text = f"expected {' or '.join(expected)}" if 0 < len(expected) <= 4 else ""
    if token.type == "$END":
        last = tokens[-1] if tokens else None
        if last is None:
            return Diagnostic(
                "E001",
                "there is nothing here",
                Span(source, 1, 1, 1, 2),
                help="`spmdc new` writes a program to begin with",
            )
        span = Span(source, last.end_line, last.end_column, last.end_line, last.end_column + 1)
        help_text = _FOREIGN.get(tokens[0].text, help_text)
        return Diagnostic("E001", f"the {_STARTS[start]} ends too early behind {_shown(last)}", span, help=help_text)
    if token.type == "SEMICOLON":
        return separator(token, source)
    help_text = _way_out(token, tokens, start) or help_text
    return Diagnostic("E001", f"unexpected {_shown(token)}", token.span(source), help=help_text)


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
    if before.type == "RBRACE" and token.text in BLOCKS:
        return BLOCKS[token.text]
    word = before if before.text == "not" else token
    if word.type == "NAME" and word.text in _OPERATORS:
        return _OPERATORS[word.text]
    line = [t.text for t in tokens[:at] if t.line == token.line]
    return next((_FOREIGN[text] for text in line if text in _FOREIGN), "")


def _shown(token: Token) -> str:
    text = token.text if len(token.text) <= 40 else token.text[:37] + "…"
    return repr(text)
