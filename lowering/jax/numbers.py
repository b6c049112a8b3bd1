"""Constants that need no array: if all elements are one number, most elementwise ops take the number itself.

JAX traces and lowers an op on an array and a number in half the time of one that makes an array of the number and an op
on both arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir.dataflow import uses_of
from ir.ops.creation import constant_value
from ir.program import Attr, Op, Program, Value
from ir.registry import Registry

_TAKES_NUMBERS: Registry[Callable[[Op], Sequence[Value]]] = Registry()

takes_numbers = _TAKES_NUMBERS.of
"""Registers ops that are a single function of jax.lax, which accepts numbers beside an array, with the operands of
which one must be an array."""


def numbers_of(program: Program) -> Mapping[Value, Attr]:
    """The arrays that all users accept as a number, with these numbers."""
    uses = uses_of(program)
    constants = ((v, op, constant_value(op)) for v, op in uses.makers.items())
    found = {v: n for v, op, n in constants if n is not None and v not in uses.given and _is_filled(op)}
    return {v: n for v, n in found.items() if all(_takes_numbers(op, found) for op in uses.users.get(v, ()))}


def _is_filled(constant: Op) -> bool:
    """Whether it is an array of one number, of a type that numpy itself has: JAX treats numbers of other types as
    arrays."""
    result = constant.result
    return bool(result.shape) and not isinstance(constant.attrs["value"], tuple) and result.dtype.numpy.isbuiltin == 1


def _takes_numbers(op: Op, numbers: Mapping[Value, Attr]) -> bool:
    arrays = _TAKES_NUMBERS.get(op.name)
    return arrays is not None and any(v not in numbers for v in arrays(op))
