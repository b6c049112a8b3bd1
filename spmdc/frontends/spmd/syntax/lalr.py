"""Runs the tables that lark makes of the grammar, in a third of the time that lark's own loop takes: which function a
rule calls is in the table, and a rule that hands on the only thing it consists of calls none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import lark

from spmdc.frontends.spmd.syntax.lexer import Token

Reduction = tuple[int, str, Callable[[list[Any]], Any] | None]
"""How many symbols a rule consists of, what they become, and the function of their values, if it is not the only one's
value."""
_END = "$END"


class UnexpectedTokenError(Exception):
    """A token, or the end, with which no rule goes on, and the types of those with which one does."""

    def __init__(self, token: Token | None, expected: frozenset[str]) -> None:
        super().__init__(token, expected)
        self.token = token
        self.expected = expected


class Tables:
    """The tables of a grammar that lark has read with `transformer` as a builder, whose `only` hands on one value."""

    def __init__(self, engine: lark.Lark, only: Callable[[list[Any]], Any]) -> None:
        parser: Any = engine.parser.parser
        table, callbacks = parser.parser.parse_table, parser.parser.callbacks
        self.starts: dict[str, int] = dict(table.start_states)
        self.ends: dict[str, int] = dict(table.end_states)
        self.moves: dict[int, dict[str, int]] = {}
        self.reductions: dict[int, dict[str, Reduction]] = {}
        for state, actions in table.states.items():
            moves, reductions = self.moves[state], self.reductions[state] = {}, {}
            for symbol, (_, argument) in ((str(name), action) for name, action in actions.items()):
                if isinstance(argument, int):
                    moves[symbol] = argument
                    continue
                size, function = len(argument.expansion), callbacks[argument]
                hands_on = size == 1 and function == only
                reductions[symbol] = (size, str(argument.origin.name), None if hands_on else function)

    def run(self, tokens: Iterable[Token], start: str) -> Any:
        """What the tokens are by the rule `start`. Raises UnexpectedTokenError, and what the builder raises."""
        all_moves, all_reductions, end = self.moves, self.reductions, self.ends[start]
        state = self.starts[start]
        states, values = [state], list[Any]()
        for token in (*tokens, None):
            kind = token.type if token is not None else _END
            reduction = all_reductions[state].get(kind)
            while reduction is not None:
                size, origin, function = reduction
                if function is None:
                    states.pop()
                elif size:
                    children = values[-size:]
                    del states[-size:], values[-size:]
                    values.append(function(children))
                else:
                    values.append(function([]))
                state = all_moves[states[-1]][origin]
                states.append(state)
                if state == end and token is None:
                    return values[-1]
                reduction = all_reductions[state].get(kind)
            target = all_moves[state].get(kind)
            if target is None:
                raise UnexpectedTokenError(token, frozenset(filter(str.isupper, self._symbols(state))))
            state = target
            states.append(state)
            values.append(token)
        raise AssertionError("the end of a text is no token of a rule")

    def _symbols(self, state: int) -> Iterable[str]:
        return (*self.moves[state], *self.reductions[state])
