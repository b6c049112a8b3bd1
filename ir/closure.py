"""What is reached from some things, step by step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(first: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """These, and what `onward` leads to from them and from what it has led to, each once."""
    found = dict.fromkeys(first)
    pending = list(found)
    yield from found.copy()
    while pending:
        fresh = [each for each in dict.fromkeys(onward(pending.pop())) if each not in found]
        found.update(dict.fromkeys(fresh))
        pending += fresh
        yield from fresh
