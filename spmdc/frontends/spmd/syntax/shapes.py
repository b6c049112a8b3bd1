"""Builds statements like earlier ones: the grammar's result for a statement depends only on the types of its tokens.

In a long program most statements have the same token types in the same order as an earlier one: the same shape. A shape
is parsed once, and recorded as steps, each of which builds something from tokens and from the results of earlier steps.
Of statements that differ only in the names of their target and arguments, such as those of layers that are alike, only
the first is built; the others are when their nodes are needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from ir.diagnostics import Source, Span
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.lexer import OPENERS, Token, Tokens
from spmdc.frontends.spmd.syntax.tree_builder import Builder, Children

Build: TypeAlias = "Callable[[Builder, Children], Any]"
Step: TypeAlias = "tuple[Build, tuple[int, ...]]"
"""A function that builds a value, and the numbers of its arguments: a statement's tokens are numbered first, then the
results of its steps."""

ENDS = frozenset({"NAME", "INT", "FLOAT", "STRING", "LITERAL", "RPAR", "RSQB", "RBRACE"})
"""The tokens with which an operand may end."""
_OPENS = OPENERS - {"LBRACE"}
_CLOSES = frozenset({"RPAR", "RSQB", "RBRACE"})
_BEFORE = frozenset({"LPAR", "COMMA"})
_BEHIND = frozenset({"COMMA", "RPAR"})
"""The tokens around an argument of one name."""


class Recorder:
    """The callbacks for lark, which build nodes, or record the steps of a statement between `begin` and `end`."""

    def __init__(self) -> None:
        self.builder = Builder()
        self._steps: list[Step] | None = None
        self._first = self._count = 0

    def callbacks(self) -> SimpleNamespace:
        """The callback of each rule of the grammar."""
        methods: dict[str, Build] = {name: of for name, of in vars(Builder).items() if not name.startswith("_")}
        return SimpleNamespace(**{name: functools.partial(self._call, build) for name, build in methods.items()})

    def begin(self, statement: Sequence[Token]) -> None:
        """Begins to record the steps of a statement."""
        self._steps, self._first, self._count = [], statement[0].start_pos, len(statement)

    def end(self) -> list[Step]:
        """Ends the recording. Returns the steps, the last of which builds the statement."""
        steps, self._steps = self._steps or [], None
        return steps

    def _call(self, build: Build, children: Children) -> Any:
        if self._steps is None:
            return build(self.builder, children)
        numbers = tuple(c.start_pos - self._first if isinstance(c, Token) else c for c in children)
        if build is Builder.only:
            return numbers[0]
        self._steps.append((build, numbers))
        return self._count + len(self._steps) - 1


class Shape:
    """The statements whose tokens have these types. `steps` build one of them."""

    def __init__(self, types: Sequence[str], steps: Sequence[Step]) -> None:
        self.steps = steps
        self._firsts: dict[tuple[str, ...], s.Assign] = {}
        self._patterns: dict[tuple[str, ...], s.Pattern] = {}
        called = _called(types)
        """The number of the token that says what is called; 0 if the statement is something else than `a = f(…)`."""
        names = [i for i, kind in enumerate(types) if kind == "NAME" and i not in (0, called)]
        self._arguments = [i for i in names if called and types[i - 1] in _BEFORE and types[i + 1] in _BEHIND]
        self._arguments = [i for i in self._arguments if i > called and _depth(types, called, i) == 1]
        self._others = [i for i in names if i not in self._arguments and types[i + 1] != "EQUAL"] if called else []
        self._called = called
        self._fixed = [i for i in range(1, len(types)) if i not in self._arguments]

    def statement(self, tokens: Sequence[Token], source: Source) -> s.Statement:
        """A statement of this shape. Raises SpmdcError as the Builder does."""
        if not self._called:
            made: s.Statement = follow(self.steps, tokens, source)
            return made
        key = tuple([tokens[i].text for i in self._fixed])
        known = self._firsts.get(key)
        if known is None:
            assigned: s.Assign = follow(self.steps, tokens, source)
            self._firsts[key] = assigned
            return assigned
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._patterns[key] = s.Pattern(known, tuple([tokens[i].text for i in self._others]))
        first, call, last = tokens[0], tokens[self._called], tokens[-1]
        return s.Repeated(
            pattern,
            first.text,
            first.span(source),
            tuple([tokens[i].text for i in self._arguments]),
            Span(source, call.line, call.column, last.end_line, last.end_column),
            functools.partial(follow, self.steps, tokens, source),
        )


def _called(types: Sequence[str]) -> int:
    """The number of the token `f` in an assignment `a = f(…)` or `a: type = f(…)`; 0 for other statements."""
    at = next((i for i, kind in enumerate(types) if kind == "EQUAL" and _depth(types, 0, i) == 0), 0)
    begins = at > 0 and list(types[at + 1 : at + 3]) == ["NAME", "LPAR"] and types[1] in ("EQUAL", "COLON")
    return at + 1 if begins and all(_depth(types, at, i) > 0 for i in range(at + 3, len(types))) else 0


def _depth(types: Sequence[str], start: int, end: int) -> int:
    """The brackets that are open before the token `end`, of those from `start` on."""
    between = types[start:end]
    return sum(kind in _OPENS for kind in between) - sum(kind in _CLOSES for kind in between)


def follow(steps: Sequence[Step], statement: Sequence[Token], source: Source) -> Any:
    """Builds a statement by the steps of its shape. Raises SpmdcError as the Builder does."""
    builder = Builder()
    builder.source = source
    values: list[Any] = [*statement]
    for build, numbers in steps:
        values.append(build(builder, [values[n] for n in numbers]))
    return values[-1]


def flat_statements(cut: Tokens) -> Iterator[tuple[int, int]]:
    """Where statements without blocks begin and end, in a text whose brackets match."""
    types = [token.type for token in cut.tokens]
    begun = [-1]
    """For each enclosing block, where its last statement begins; -1 if that contains blocks, or there is none."""
    i = 0
    while i < len(types):
        kind = types[i]
        if kind == "LBRACE":
            begun[-1] = -1
            begun.append(-1)
        elif kind in ("RBRACE", "RETURN") or (kind == "NAME" and (types[i - 1] == "LBRACE" or types[i - 1] in ENDS)):
            if begun[-1] >= 0:
                yield begun[-1], i
            if kind == "RBRACE":
                begun.pop()
            else:
                begun[-1] = i if len(begun) > 1 else -1
        elif kind in _OPENS:
            i = cut.partner[i]
        i += 1
