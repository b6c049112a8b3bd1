"""Nested lists of up to millions of numbers, processed level by level instead of one by one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Flat(NamedTuple):
    """The elements of nested tuples in row-major order, and their Python types. Anything else is a single element.

    The shape is None if rows differ in length, or in depth.
    """

    shape: tuple[int, ...] | None
    numbers: Sequence[Any]
    kinds: set[type]


def flattened(value: object) -> Flat:
    """Nested tuples of numbers, flattened."""
    shape: tuple[int, ...] | None = ()
    level: Sequence[Any] = (value,)
    while tuple in (kinds := set(map(type, level))):
        rows: Iterable[tuple[Any, ...]] = level
        if len(kinds) > 1:
            rows = [row if isinstance(row, tuple) else (row,) for row in level]
            shape = None
        sizes = set(map(len, level)) if shape is not None else set[int]()
        shape = (*shape, *sizes) if shape is not None and len(sizes) == 1 else None
        level = list(itertools.chain.from_iterable(rows)) if len(level) > 1 else level[0]
    return Flat(shape, level, kinds)


def written(value: object) -> str:
    """A number or nested tuples of numbers as they are written. That of the last tuples is known: passes ask for the
    same ones again and again."""
    return _written(_Same(value)) if isinstance(value, tuple) else repr(value)


class _Same:
    """Tuples that are one object. Their numbers are not compared."""

    __slots__ = ("value",)

    def __init__(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


@functools.lru_cache(maxsize=32)
def _written(same: _Same) -> str:
    return repr(same.value)
