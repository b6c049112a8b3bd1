"""What the public functions take. An argument of another kind is refused, with a way out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Real
from typing import SupportsIndex

from ir.diagnostics import require, unfit
from ir.program import Program


def program_of(given: object) -> Program:
    """The program itself, or that of something made of one, such as a Plan. Raises SpmdcError (E601)."""
    program = getattr(given, "program", given)
    if isinstance(program, Program):
        return program
    help = "spmdc.load, spmdc.parse and spmdc.from_jax read programs"
    if isinstance(given, str | os.PathLike):
        help = "spmdc.load(path) reads the program in a file, spmdc.parse(text) that in a text"
    elif callable(given):
        help = "spmdc.from_jax(f, *args) is the program of a function for such arguments"
    raise unfit("a program is expected", given, help)


def names_of(given: str | Iterable[str], what: str) -> tuple[str, ...]:
    """One name, or several, as a tuple. Raises SpmdcError (E601)."""
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    require(all(isinstance(name, str) for name in names), f"{what} by name", given)
    return names


def require_seed(given: object) -> None:
    """Raises SpmdcError (E601) unless numpy's generators begin with it."""
    fits = isinstance(given, SupportsIndex) and given.__index__() >= 0
    require(fits, "a seed is an integer that is not negative", given)


def require_memory_limit(given: object) -> None:
    """Raises SpmdcError (E601) unless it is a number of bytes."""
    fits = isinstance(given, Real) and float(given) >= 0
    require(fits, "the memory limit is a number of bytes", given, "8 GiB are 8 * 2**30")
