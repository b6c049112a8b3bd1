"""Statements that are built as others were: what the grammar makes of one depends on the types of its tokens alone.

In a long program most statements have the types of one before, in the same order: its shape. A shape is parsed once,
and noted in steps, each of which builds something of tokens and of what steps before it have built.
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
"""What builds a value, and of which ones: those of a statement are its tokens, and then what its steps build."""

ENDS = frozenset({"NAME", "INT", "FLOAT", "STRING", "LITERAL", "RPAR", "RSQB", "RBRACE"})
"""The tokens with which an operand may end."""
_OPENS = frozenset({"LPAR", "LSQB", "ANNOTATION"})


class Recorder:
    """What builds for lark, or notes what it would build: between `begin` and `end`, the steps of a statement."""

    def __init__(self) -> None:
        self.builder = Builder()
        self._steps: list[Step] | None = None
        self._first = self._count = 0

    def callbacks(self) -> SimpleNamespace:
        """For each rule of the grammar, what lark calls."""
        methods: dict[str, Build] = {name: of for name, of in vars(Builder).items() if not name.startswith("_")}
        return SimpleNamespace(**{name: functools.partial(self._call, build) for name, build in methods.items()})

    def begin(self, statement: Sequence[Token]) -> None:
        """Notes what is built of a statement."""
        self._steps, self._first, self._count = [], statement[0].start_pos, len(statement)

    def end(self) -> list[Step]:
        """Builds again. Returns the steps, of which the last one builds the statement."""
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
    """What the steps of its shape build of a statement. Raises SpmdcError as the Builder does."""
    builder = Builder()
    builder.source = source
    values: list[Any] = [*statement]
    for build, numbers in steps:
        values.append(build(builder, [values[n] for n in numbers]))
    return values[-1]


def flat_statements(cut: Tokens) -> Iterator[tuple[int, int]]:
    """Where statements begin and end in which there are no blocks, in a text whose brackets match."""
    types = [token.type for token in cut.tokens]
    begun = [-1]
    """Of each block around, where its last statement begins; -1 if it holds blocks, or there is none."""
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
