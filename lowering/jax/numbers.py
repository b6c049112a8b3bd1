"""Constants that need no array: where all elements are one number, most ops by element take the number itself.

JAX traces and lowers an op of an array and a number in half the time of one that makes an array of the number and one
of both arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir.dataflow import uses_of
from ir.ops.creation import constant_value
from ir.program import Attr, Op, Program, Value
from ir.registry import Registry

_TAKES_NUMBERS: Registry[Callable[[Op], Sequence[Value]]] = Registry()

takes_numbers = _TAKES_NUMBERS.of
"""Registers, for ops that are one function of jax.lax, which takes numbers beside an array, the operands of which one
must be an array."""


def numbers_of(program: Program) -> Mapping[Value, Attr]:
    """The arrays that all users take as a number, and those numbers."""
    uses = uses_of(program)
    constants = ((v, op, constant_value(op)) for v, op in uses.makers.items())
    found = {v: n for v, op, n in constants if n is not None and v not in uses.given and _is_filled(op)}
    return {v: n for v, n in found.items() if all(_takes_numbers(op, found) for op in uses.users.get(v, ()))}


def _is_filled(constant: Op) -> bool:
    """Whether it is an array of one number, of a type that numpy itself has: JAX takes others for arrays."""
    result = constant.result
    return bool(result.shape) and not isinstance(constant.attrs["value"], tuple) and result.dtype.numpy.isbuiltin == 1


def _takes_numbers(op: Op, numbers: Mapping[Value, Attr]) -> bool:
    arrays = _TAKES_NUMBERS.get(op.name)
    return arrays is not None and any(v not in numbers for v in arrays(op))
