"""Transitive closure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(first: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """The first ones, and everything that `onward` leads to from them, directly or not, each once."""
    found = dict.fromkeys(first)
    pending = list(found)
    yield from found.copy()
    while pending:
        fresh = [each for each in dict.fromkeys(onward(pending.pop())) if each not in found]
        found.update(dict.fromkeys(fresh))
        pending += fresh
        yield from fresh
