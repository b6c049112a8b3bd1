"""Python names for the names of programs."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

_OF_LOOPS = ("carry", "seen", "moving", "fixed")
"""The parameters of functions for loop iterations, which must not hide values around them."""

RESERVED = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_OF_LOOPS})
"""Names that no name of a program may hide."""

_OTHER = re.compile(r"\W", re.ASCII)


def _spelt(hint: str) -> str:
    """The hint without characters that identifiers may not have."""
    stem = hint.replace(".", "_")
    if stem.isidentifier() and stem.isascii():
        return stem
    stem = _OTHER.sub("_", stem) or "value"
    return f"_{stem}" if stem[0].isdigit() else stem


class Identifiers:
    """Hands out identifiers that are unique in one namespace: `h.1` becomes `h_1`, or `h_1_1` if that is taken."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._used = set(RESERVED) | set(taken)
        self._counters: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """The identifier nearest to `hint` that is free."""
        stem = name = _spelt(hint)
        while name in self._used:
            self._counters[stem] = self._counters.get(stem, 0) + 1
            name = f"{stem}_{self._counters[stem]}"
        self._used.add(name)
        return name


def quoted(names: Iterable[str]) -> str:
    """One name as a string literal, several as a tuple of them."""
    literals = [f'"{name}"' for name in names]
    return literals[0] if len(literals) == 1 else tuple_text(literals)


def tuple_text(items: Iterable[object]) -> str:
    """The text of a tuple of these items."""
    texts = [str(item) for item in items]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
