"""Functions that written modules bring along as text: choices and loops that are differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def branch_index(index: jax.Array, branches: int) -> jax.Array:
    """The number of the branch that a case takes: the last one for every index out of range."""
    return jnp.where((index >= 0) & (index < branches), index, branches - 1)


def chosen_result(index: jax.Array, results: Sequence[Any]) -> Any:
    """Of the results of all branches of a case, those of the branch that it takes."""
    chosen = results[-1]
    for i, result in enumerate(results[:-1]):
        chosen = jax.tree.map(lambda mine, other, taken=index == i: jnp.where(taken, mine, other), result, chosen)
    return chosen


def loop_of_any_length(
    goes_on: Any, step: Any, zero: Any, carry: tuple[Any, ...], moving: tuple[Any, ...], fixed: tuple[Any, ...]
) -> Any:
    """lax.while_loop, with a derivative. What `goes_on` and `step` see besides `carry` is `moving`, floats that may
    depend on what is differentiated by, and `fixed`. On the way back, the state before each iteration is computed again
    from the first: for n iterations, n**2 / 2 of them. `zero` varies between devices as the number of iterations
    does."""

    def turns_of(goes_on: Any, zero: Any, carry: Any, *around: Any) -> Any:
        def turn(state: Any) -> Any:
            return state[0] + 1, step(state[1], *around)

        return lax.while_loop(lambda state: goes_on(state[0], state[1], *around), turn, (zero, carry))

    @jax.custom_vjp
    def run(zero: Any, carry: Any, *around: Any) -> Any:
        return lax.while_loop(lambda c: goes_on(c, *around), lambda c: step(c, *around), carry)

    def forward(zero: Any, carry: Any, *around: Any) -> Any:
        turns, last = turns_of(lambda _, c, *around: goes_on(c, *around), zero, carry, *around)
        return last, (turns, zero, carry, around)

    def backward(kept: Any, cotangents: Any) -> Any:
        turns, zero, carry, (moving, fixed) = kept
        floats = [i for i, x in enumerate(carry) if jnp.issubdtype(x.dtype, jnp.inexact)]

        def turn_back(state: Any) -> Any:
            turns, back, pending = state
            _, before = turns_of(lambda turn, *_: turn + 1 < turns, zero, carry, moving, fixed)

            def stepped(some: Any, moving: Any) -> Any:
                given = dict(zip(floats, some, strict=True))
                following = step(tuple(given.get(i, x) for i, x in enumerate(before)), moving, fixed)
                return tuple(following[i] for i in floats)

            back, more = jax.vjp(stepped, tuple(before[i] for i in floats), moving)[1](back)
            return turns - 1, back, jax.tree.map(jnp.add, pending, more)

        first = turns, tuple(cotangents[i] for i in floats), jax.tree.map(jnp.zeros_like, moving)
        _, back, pending = lax.while_loop(lambda state: state[0] > 0, turn_back, first)
        found = dict(zip(floats, back, strict=True))
        return None, tuple(found.get(i) for i in range(len(carry))), pending, None

    run.defvjp(forward, backward)
    return run(zero, carry, moving, fixed)
