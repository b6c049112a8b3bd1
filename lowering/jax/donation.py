"""Donated arguments, whose memory a call's results may reuse: which ones can be used, and which arrays must not be
passed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import jax

from ir.diagnostics import error
from ir.program import Program, Result, Value
from ir.spelling.printer import print_type
from lowering.jax.module import Entry


def usable(program: Program, entry: Entry, donate: Sequence[int], stacklevel: int) -> tuple[int, ...]:
    """The positions, among `donate`, whose memory a result can use: the devices take the argument as it is passed, and
    each has a result of the same type and sharding. The others cause a UserWarning, as in JAX."""
    free = Counter(_kind(r) for r, divided in zip(program.main.results, entry.undivided, strict=True) if not divided)
    found: list[int] = []
    lost: list[str] = []
    for i in dict.fromkeys(donate):
        param = program.main.params[i]
        if entry.divided[i]:
            lost.append(f"{_shown(param)} is cut into shards of its own in each call")
        elif not free[_kind(param)]:
            lost.append(f"{_shown(param)} has the type and sharding of no result, or of none that is left")
        else:
            free[_kind(param)] -= 1
            found.append(i)
    if lost:
        warnings.warn(f"Some donated arguments are not usable: {'; '.join(lost)}", stacklevel=stacklevel + 1)
    return tuple(found)


def check_given(program: Program, donate: Sequence[int], arrays: Sequence[object]) -> None:
    """Raises RuntimeError for an array that has been donated before, and SpmdcError (E514) if a donated one is also
    another argument. JAX 0.10 aborts the process in either case."""
    for param, array in zip(program.main.params, arrays, strict=True):
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and array.is_deleted():
            raise RuntimeError(f"argument {param.name} has been deleted or donated: {array.dtype}{list(array.shape)}")
    for i in donate:
        twice = [j for j, array in enumerate(arrays) if j != i and array is arrays[i]]
        if twice and isinstance(arrays[i], jax.Array):
            names = [program.main.params[j].name for j in (i, twice[0])]
            raise error("E514", f"{names[0]} is donated, and the same array is given as {names[1]}",
                        help="give a copy in one of the two places (jnp.copy), or do not donate it")  # fmt: skip


def _kind(end: Value | Result) -> object:
    return end.of or end.type, end.sharding


def _shown(param: Value) -> str:
    return f"{param.name}: {print_type(param.of or param.type, param.sharding)}"
