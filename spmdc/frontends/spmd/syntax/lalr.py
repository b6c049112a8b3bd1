"""Parses by the tables that lark makes of a grammar.

lark's own loop asks for each token by what rule it was reduced, and hashes that rule. This one has the tables in the
form in which it asks them, and passes rules by that only hand something on. It is refused the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import lark

from spmdc.frontends.spmd.syntax.lexer import Token

_END = "$END"

_Make: TypeAlias = "Callable[[list[Any]], Any] | None"
_Reduction: TypeAlias = "tuple[int, _Make, dict[int, int]]"
"""How many values are taken, what is made of them (None: the only one stays), and the state behind, by that before."""


class Tables:
    """Those of a grammar that `parser` has analysed; `unchanged` is the name of the callback that returns its first
    child."""

    def __init__(self, parser: lark.Lark, starts: Iterable[str], unchanged: str) -> None:
        confs = {start: parser.parse_interactive(start=start).parser_state.parse_conf for start in starts}
        self._starts = {start: conf.start_state for start, conf in confs.items()}
        conf = next(iter(confs.values()))
        self._moves: dict[int, dict[str, int | _Reduction]] = {}
        """In each state, for each kind of token: the state behind it, or what is reduced in front of it."""
        behind: dict[str, dict[int, int]] = {}
        for state, moves in conf.states.items():
            for symbol, (_, to) in moves.items():
                if isinstance(to, int):
                    behind.setdefault(symbol, {})[state] = to
        reductions: dict[int, _Reduction] = {}
        for state, moves in conf.states.items():
            found = self._moves[state] = {}
            for symbol, (_, to) in moves.items():
                if isinstance(to, int):
                    found[symbol] = to
                    continue
                known = reductions.get(id(to))
                if known is None:
                    size, is_kept = len(to.expansion), to.alias == unchanged
                    make = None if is_kept and size == 1 else conf.callbacks[to]
                    known = reductions[id(to)] = size, make, behind.get(to.origin.name, {})
                found[symbol] = known
        for parsed in confs.values():
            self._moves[parsed.end_state] = {_END: parsed.end_state}

    def parse(self, tokens: list[Token], start: str) -> Any:
        """What the callbacks make of the tokens. Raises lark.UnexpectedToken, and what callbacks raise."""
        state = self._starts[start]
        last = tokens[-1] if tokens else None
        end = Token(_END, "", len(tokens), last.line if last else 1, last.column if last else 1)
        moves = self._moves
        before: list[int] = []
        values: list[Any] = []
        for token in (*tokens, end):
            kind = token.type
            while True:
                move = moves[state].get(kind)
                if isinstance(move, int):
                    before.append(state)
                    values.append(token)
                    state = move
                    break
                if move is None:
                    expected = {symbol for symbol in moves[state] if symbol.isupper()}
                    raise lark.UnexpectedToken(token, expected)  # type: ignore[no-untyped-call]
                size, make, behind = move
                if size == 1:
                    if make is not None:
                        values[-1] = make([values[-1]])
                elif size and make is not None:
                    children = values[-size:]
                    del values[-size:], before[1 - size :]
                    values.append(make(children))
                elif make is not None:
                    before.append(state)
                    values.append(make([]))
                state = behind[before[-1]]
        return values[0]
