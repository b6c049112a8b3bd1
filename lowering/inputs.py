"""Checks the arrays that a program is given, before anything runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ir.diagnostics import Diagnostic, Diagnostics
from ir.program import Program, Value
from ir.types import Array, TensorType, dtype_of


def check_inputs(program: Program, arrays: tuple[npt.ArrayLike, ...]) -> tuple[Array, ...]:
    """The arrays as numpy arrays. Raises SpmdcError E501 that names every array that does not match its parameter."""
    problems = Diagnostics()
    params = program.main.params
    given = tuple(_as_array(a) for a in arrays)
    for param, array in zip(params, given, strict=False):
        problems.extend(misfits(param, array))
    for param in params[len(given) :]:
        problems.add(
            Diagnostic(
                "E501",
                f"input {param.name!r}, {param.of or param.type}, is missing",
                param.span,
                help=f"give it: the program takes {len(params)}",
            )
        )
    if len(given) > len(params):
        names = ", ".join(p.name for p in params) or "none"
        message = f"{len(given)} inputs are given, and the program takes {len(params)}"
        problems.add(Diagnostic("E501", message, help=f"its inputs: {names}"))
    problems.raise_errors()
    return given


def misfits(param: Value, array: Array) -> list[Diagnostic]:
    """The errors in an array for that parameter (E501)."""
    wanted = param.of or param.type
    if array.dtype == wanted.dtype.numpy and array.shape == wanted.shape:
        return []
    message = f"input {param.name!r} is {_spell(array)}, and the program takes {wanted}"
    help_text = f"convert it: numpy.asarray(x, {str(wanted.dtype.numpy)!r})" if array.shape == wanted.shape else ""
    return [Diagnostic("E501", message, param.span, help=help_text)]


def _as_array(given: npt.ArrayLike) -> Array:
    """Anything that numpy cannot read as a tensor becomes an array of objects, which no program accepts."""
    try:
        return np.asarray(given)
    except ValueError:
        return np.array(None, object)


def _spell(array: Array) -> str:
    try:
        return str(TensorType(array.shape, dtype_of(array.dtype)))
    except KeyError:
        if array.dtype == object:
            return "no array of numbers"
        return f"a numpy array of dtype {array.dtype} and shape {list(array.shape)}"
