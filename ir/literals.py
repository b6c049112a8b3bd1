"""Nested lists of up to millions of numbers, processed level by level instead of one by one."""

from __future__ import annotations

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
