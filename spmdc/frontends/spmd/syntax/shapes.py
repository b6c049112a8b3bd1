"""Builds statements like earlier ones: the grammar's result for a statement depends only on the types of its tokens.

In a long program most statements have the same token types in the same order as an earlier one: the same shape. A shape
is parsed once, and recorded as steps, each of which builds something from tokens and from the results of earlier steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from ir.diagnostics import Source
from spmdc.frontends.spmd.syntax.lexer import Token, Tokens
from spmdc.frontends.spmd.syntax.tree_builder import Builder, Children

Build: TypeAlias = "Callable[[Builder, Children], Any]"
Step: TypeAlias = "tuple[Build, tuple[int, ...]]"
"""A function that builds a value, and the numbers of its arguments: a statement's tokens are numbered first, then the
results of its steps."""

ENDS = frozenset({"NAME", "INT", "FLOAT", "STRING", "LITERAL", "RPAR", "RSQB", "RBRACE"})
"""The tokens with which an operand may end."""
_OPENS = frozenset({"LPAR", "LSQB", "ANNOTATION"})


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
