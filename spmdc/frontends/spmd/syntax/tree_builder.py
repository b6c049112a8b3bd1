"""Makes syntax nodes while the parser runs: a method for each rule of grammar.lark.

Each method takes the children of its rule, tokens included, and returns a node or a list.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ir.diagnostics import Source, Span, error
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.lexer import Token

Children = list[Any]


@dataclass(frozen=True, slots=True)
class _Annotation:
    """The braces after a type, until its node is built."""

    span: Span
    partial: tuple[tuple[s.Axis, str], ...]
    replicated: tuple[s.Axis, ...]


_PRECEDENCE = {
    "|": 1, "^": 2, "&": 3,
    "==": 4, "!=": 4, "<": 4, "<=": 4, ">": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": 8,
}  # fmt: skip
_COMPARISON = 4
_PREFIX = 7
_POWER = 8
_MAX_INT_DIGITS = 100
_STRINGS = json.JSONDecoder(strict=False)
"""Decodes a string, which may contain any characters."""


class Builder:
    """The tree-building callbacks. `source` is the text being parsed; lark has one Builder for all texts."""

    source: Source

    def _span(self, first: Any, last: Any = None) -> Span:
        """From the first token or node to the last, or that of a single token."""
        a = first if isinstance(first, Token) else first.span
        b = a if last is None else last if isinstance(last, Token) else last.span
        return Span(self.source, a.line, a.column, b.end_line, b.end_column)

    # Lists and rules that only pass a child on.

    def empty(self, c: Children) -> Children:
        return []

    def append(self, c: Children) -> Children:
        items: Children = c[0]
        items.append(c[1])
        return items

    def first(self, c: Children) -> Children:
        return c

    def more(self, c: Children) -> Children:
        items: Children = c[0]
        items.append(c[2])
        return items

    def only(self, c: Children) -> Any:
        return c[0]

    def inner(self, c: Children) -> Any:
        return c[1]

    def nothing(self, c: Children) -> None:
        return None

    def program(self, c: Children) -> Any:
        return c[0]

    # Items.

    def const_item(self, c: Children) -> tuple[s.Const, ...]:
        return tuple(c[1])

    def binding(self, c: Children) -> s.Const:
        return s.Const(self._span(c[0]), c[0].text, c[2])

    def mesh(self, c: Children) -> s.MeshItem:
        name = c[1].text if c[1] is not None else ""
        devices = None
        if len(c) > 3:
            if c[3].text != "devices":
                raise error("E001", f"unexpected {c[3].text!r}", self._span(c[3]), help="mesh (x=4) devices=[…]")
            devices = c[5]
        name_span = self._span(c[1]) if c[1] is not None else None
        return s.MeshItem(self._span(c[0]), name, tuple(c[2]), devices, name_span)

    def include(self, c: Children) -> s.Include:
        return s.Include(self._span(c[1]), self.string([c[1]]).value)

    def default_precision(self, c: Children) -> s.DefaultPrecision:
        return s.DefaultPrecision(self._span(c[0], c[3]), c[2])

    def stage_item(self, c: Children) -> s.Stage:
        return s.Stage(self._span(c[0]), "plan" if c[0].text == "plan" else "spmd")

    def function(self, c: Children) -> s.FunctionItem:
        item: s.FunctionItem = c[0]
        return replace(item, body=tuple(c[2]))

    def header(self, c: Children) -> s.FunctionItem:
        name = c[1]
        return s.FunctionItem(self._span(c[0], c[4]), name.text, self._span(name), (tuple(c[3]), tuple(c[6])), None)

    def param(self, c: Children) -> s.Param:
        return s.Param(self._span(c[0]), c[0].text, c[2])

    def weight(self, c: Children) -> s.Param:
        return s.Param(self._span(c[0]), c[0].text, c[2], c[4])

    def unnamed_result(self, c: Children) -> s.Param:
        return s.Param(c[0].span, "", c[0])

    # Types.

    def type_of(self, c: Children) -> s.TypeExpr:
        local: s.TypeExpr = c[0]
        return replace(local, of=c[2], span=self._span(c[0], c[2]))

    def type(self, c: Children) -> s.TypeExpr:
        span = self._span(c[0], c[-1])
        if len(c) == 4:
            return s.TypeExpr(span, c[0].text, tuple(c[2]))
        return s.TypeExpr(span, c[0].text, tuple(c[2]), c[4].partial, c[4].replicated, True)

    def dim(self, c: Children) -> s.DimExpr:
        if len(c) == 1:
            return s.DimExpr(c[0].span, c[0])
        axes = tuple(a for a in c[2] if isinstance(a, s.Axis))
        opened = len(axes) != len(c[2])
        priority = int(c[4].text) if len(c) > 3 else 0
        return s.DimExpr(c[0].span, c[0], axes, opened, priority)

    def whole_axis(self, c: Children) -> s.Axis:
        return s.Axis(self._span(c[0]), c[0].text)

    def sub_axis(self, c: Children) -> s.Axis:
        return s.Axis(self._span(c[0], c[5]), c[0].text, (self._int(c[3]), self._int(c[5])))

    def annotation(self, c: Children) -> _Annotation:
        partial: list[tuple[s.Axis, str]] = []
        replicated: list[s.Axis] = []
        for word, entries in c[1]:
            if word.text == "partial" and entries is not None:
                partial.extend((axis, kind or "sum") for kind, axis in entries)
            elif word.text == "replicated" and all(not kind for kind, _ in entries or ()):
                replicated.extend(axis for _, axis in entries or ())
            else:
                help = "{partial: x, max y; replicated: z} or {replicated}"
                raise error("E001", f"unexpected {word.text!r} in a sharding", self._span(word), help=help)
        return _Annotation(self._span(c[0], c[2]), tuple(partial), tuple(replicated))

    def clause(self, c: Children) -> tuple[Token, Children | None]:
        return c[0], c[2] if len(c) > 1 else None

    def owed(self, c: Children) -> tuple[str, s.Axis]:
        return (c[0].text, c[1]) if len(c) > 1 else ("", c[0])

    # Statements.

    def assign(self, c: Children) -> s.Assign:
        return s.Assign(self._span(c[0][0], c[2]), tuple(c[0]), c[2])

    def give(self, c: Children) -> s.Return:
        values = tuple(c[1]) if len(c) > 1 else ()
        return s.Return(self._span(c[0], values[-1] if values else c[0]), values)

    def bare(self, c: Children) -> s.Assign:
        call = self.call(c)
        return s.Assign(call.span, (), call)

    def made(self, c: Children) -> s.Statement:
        statement: s.Statement = c[0].literal[0]
        return statement

    def target(self, c: Children) -> s.Target:
        return s.Target(self._span(c[0]), c[0].text, c[2] if len(c) > 1 else None)

    # Expressions.

    def resolve(self, c: Children) -> s.Expr:
        return resolve_infix(*c[0])

    def chain_start(self, c: Children) -> tuple[Children, list[Token]]:
        return [c[0], c[2]], [c[1]]

    def chain_more(self, c: Children) -> tuple[Children, list[Token]]:
        operands, operators = c[0]
        operators.append(c[1])
        operands.append(c[2])
        return operands, operators

    def prefix(self, c: Children) -> s.Unary:
        return s.Unary(self._span(c[0], c[1]), c[0].text, c[1])

    def name(self, c: Children) -> s.Name:
        return s.Name(self._span(c[0]), c[0].text)

    def _int(self, token: Token) -> int:
        if len(token.text) > _MAX_INT_DIGITS:
            raise error(
                "E001",
                f"the number has {len(token.text)} digits",
                self._span(token),
                help=f"write a number of at most {_MAX_INT_DIGITS}, or a float: 1e30",
            )
        return int(token.text, 0) if token.text[:2] in ("0x", "0X") else int(token.text)

    def integer(self, c: Children) -> s.Number:
        return s.Number(self._span(c[0]), self._int(c[0]))

    def floating(self, c: Children) -> s.Number:
        return s.Number(self._span(c[0]), float(c[0].text))

    def string(self, c: Children) -> s.Text:
        text = c[0].text
        if text[0] == "'":
            body = text[1:-1].replace("\\'", "'").replace('"', '\\"')
            text = f'"{body}"'
        try:
            return s.Text(self._span(c[0]), _STRINGS.decode(text))
        except ValueError:
            raise error(
                "E001",
                "the string has an escape that does not exist",
                self._span(c[0]),
                help="write \\\\ for a backslash",
            ) from None

    def literal(self, c: Children) -> s.Literal:
        return s.Literal(self._span(c[0]), c[0].literal)

    def call(self, c: Children) -> s.Call:
        args: list[s.Expr] = []
        keywords: list[s.Keyword] = []
        for argument in c[2]:
            if isinstance(argument, s.Keyword):
                keywords.append(argument)
            elif keywords:
                raise error(
                    "E001",
                    "an argument without a name follows one with a name",
                    argument.span,
                    help="write it before those",
                )
            else:
                args.append(argument)
        return s.Call(self._span(c[0], c[3]), c[0].text, self._span(c[0]), tuple(args), tuple(keywords))

    def keyword(self, c: Children) -> s.Keyword:
        return s.Keyword(self._span(c[0], c[2]), c[0].text, c[2])

    def no_tuple(self, c: Children) -> s.Tuple:
        return s.Tuple(self._span(c[0], c[1]), ())

    def paren(self, c: Children) -> s.Expr:
        if len(c) == 3 and len(c[1]) == 1 and not isinstance(c[1][0], s.Axis):
            inner: s.Expr = c[1][0]
            return replace(inner, grouped=True) if isinstance(inner, s.Unary) else inner
        return s.Tuple(self._span(c[0], c[-1]), tuple(c[1]))

    def array(self, c: Children) -> s.Array:
        return s.Array(self._span(c[0], c[-1]), tuple(c[1]))

    def index(self, c: Children) -> s.Index:
        return s.Index(self._span(c[0], c[3]), c[0], tuple(c[2]))

    def slice(self, c: Children) -> s.Slice:
        first = next(t for t in c if t is not None)
        last = next(t for t in reversed(c) if t is not None)
        return s.Slice(self._span(first, last), c[0], c[2], c[4] if len(c) > 3 else None)

    # Blocks.

    def while_loop(self, c: Children) -> s.While:
        return s.While(self._span(c[0], c[4]), tuple(c[2]), tuple(c[5]), tuple(c[7]))

    def repeat_loop(self, c: Children) -> s.Repeat:
        name, span = c[1].text, self._span(c[1])
        return s.Repeat(self._span(c[0], c[6]), name, span, c[3], tuple(c[5]), tuple(c[7]))

    def counted_loop(self, c: Children) -> s.Repeat:
        return replace(self.repeat_loop(c), unrolled=False)

    def case(self, c: Children) -> s.Case:
        return s.Case(self._span(c[0], c[3]), c[2], tuple(tuple(branch) for branch in c[4]))

    def if_else(self, c: Children) -> s.Case:
        return s.Case(self._span(c[0], c[3]), c[2], (tuple(c[6]), tuple(c[4])), by_truth=True)

    def checkpoint(self, c: Children) -> s.Checkpoint:
        return s.Checkpoint(self._span(c[0], c[-2]), c[2] if len(c) > 2 else None, tuple(c[-1]))

    def precision(self, c: Children) -> s.Precision:
        return s.Precision(self._span(c[0], c[3]), c[2], tuple(c[4]))

    def manual(self, c: Children) -> s.Manual:
        return s.Manual(self._span(c[0], c[3]), tuple(c[2]), tuple(c[4]))

    def passed_whole(self, c: Children) -> s.Passed:
        return s.Passed(self._span(c[0]), c[0].text, None, None, c[2])

    def passed_shard(self, c: Children) -> s.Passed:
        type: s.TypeExpr = c[2]
        name, span = c[0].text, self._span(c[0])
        if c[1].type == "OF":
            return s.Passed(span, name, None, type, c[4])
        return s.Passed(span, name, replace(type, of=None), type.of, c[4])

    def carried_entry(self, c: Children) -> s.Carried:
        return s.Carried(c[0].span, c[0], c[2])


@dataclass(frozen=True, slots=True)
class _Pending:
    """An operator that waits for its right operand."""

    op: str
    precedence: int
    span: Span


def resolve_infix(operands: list[s.Expr], operators: list[Token]) -> s.Expr:
    """The tree of a flat chain (operator precedence parsing with two stacks, so that long chains need no recursion)."""
    done: list[s.Expr] = []
    waiting: list[_Pending] = []

    def reduce() -> None:
        pending = waiting.pop()
        right = done.pop()
        if pending.precedence == _PREFIX:
            done.append(s.Unary(_join(pending.span, right.span), pending.op, right))
            return
        left = done.pop()
        done.append(s.Binary(_join(left.span, right.span), pending.op, left, right))

    for operand, operator in zip(operands, operators, strict=False):
        precedence = _PRECEDENCE[operator.text]
        while precedence == _POWER and isinstance(operand, s.Unary) and not operand.grouped:
            waiting.append(_Pending(operand.op, _PREFIX, operand.span))
            operand = operand.operand
        done.append(operand)
        while waiting and (waiting[-1].precedence > precedence or waiting[-1].precedence == precedence != _POWER):
            if waiting[-1].precedence == precedence == _COMPARISON:
                message = "comparisons do not chain"
                raise error("E001", message, operand.span, help="write (a < b) & (b < c) with parentheses")
            reduce()
        waiting.append(_Pending(operator.text, precedence, operand.span))
    done.append(operands[-1])
    while waiting:
        reduce()
    return done[0]


def _join(first: Span, last: Span) -> Span:
    return Span(first.source, first.line, first.column, last.end_line, last.end_column)
