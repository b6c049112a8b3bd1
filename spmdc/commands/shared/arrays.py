"""Reads inputs from files, and writes results to files."""

from __future__ import annotations

import difflib
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from tokenize import TokenError
from typing import Any

import numpy as np

from ir.diagnostics import Diagnostic, Diagnostics, SpmdcError, error
from ir.program import Value
from ir.types import Array
from lowering.inputs import misfits
from spmdc.files import unreadable, write_whole


def read_inputs(params: Sequence[Value], given: Sequence[str], otherwise: Mapping[str, Array]) -> tuple[Array, ...]:
    """The arrays for these parameters, from `inputs.npz` and `name=file.npy`; those that are missing there from
    `otherwise`.

    Raises SpmdcError (E501) for every input that is unknown, missing, given twice, unreadable, or of another type.
    """
    problems = Diagnostics()
    found: dict[str, Array] = {}
    for argument in given:
        for name, array in _read(argument, problems).items():
            if name in found:
                problems.add(Diagnostic("E501", f"input {name!r} is given twice", help="leave one of them out"))
            found[name] = array
    problems.raise_errors()
    names = [p.name for p in params]
    for name in found.keys() - set(names):
        close = difflib.get_close_matches(name, names, 3) or names
        help = f"its inputs: {', '.join(close)}" if close else "it takes none"
        problems.add(Diagnostic("E501", f"the program has no input {name!r}", help=help))
    found = {**otherwise, **found}
    for param in params:
        problems.extend(_misfits(param, found))
    problems.raise_errors()
    return tuple(_as_declared(found[p.name], p) for p in params)


def write_results(path: str, arrays: Mapping[str, Array]) -> None:
    """Writes an .npz file completely or not at all. Raises SpmdcError (E005) if it cannot be written."""
    named: dict[str, Any] = {name: _savable(array) for name, array in arrays.items()}
    write_whole(path, lambda file: np.savez(file, **named))


def _savable(array: Array) -> Array:
    """Elements of a type that numpy lacks as untyped bytes: numpy would write f8e5m2 in a form that it cannot read."""
    return (
        array if array.dtype.isbuiltin == 1 else np.ascontiguousarray(array).view(np.dtype(f"V{array.dtype.itemsize}"))
    )


_DAMAGED = (ValueError, EOFError, NotImplementedError, RuntimeError, TokenError, zipfile.BadZipFile, zlib.error)
"""The exceptions of numpy, and of the modules that it reads files with, for files that are no arrays, truncated or
encrypted."""


def _read(argument: str, problems: Diagnostics) -> dict[str, Array]:
    name, equals, path = argument.partition("=")
    is_named = bool(equals) and not os.path.exists(argument)
    path = path if is_named else argument
    try:
        loaded = _load(path)
    except SpmdcError as problem:
        problems.extend(problem.diagnostics)
        return {}
    if isinstance(loaded, dict) and not is_named:
        return loaded
    if not isinstance(loaded, dict) and is_named:
        return {name: loaded}
    wrong = f"{path} holds several arrays" if is_named else f"{path} holds an array without a name"
    help = "give an .npz file by itself: inputs.npz" if is_named else f"say which input it is: name={path}"
    problems.add(Diagnostic("E501", wrong, help=help))
    return {}


def _load(path: str) -> Array | dict[str, Array]:
    """The array in an .npy file, or those in an .npz file by name. Raises SpmdcError (E005, E501)."""
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        arrays = loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except OSError as problem:
        help = "an input is inputs.npz or name=file.npy; without any, random ones are drawn"
        raise unreadable(path, problem, help) from None
    except _DAMAGED as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        if "pickle" in str(problem):
            reason = "it holds no plain array"
        help = "write it with numpy.save or numpy.savez, without objects"
        raise error("E501", f"{path} is no .npy or .npz file that can be read: {reason}", help=help) from None
    members = {} if isinstance(arrays, np.ndarray) else arrays
    for name, member in members.items():
        if not isinstance(member, np.ndarray):
            raise error("E501", f"{path} holds {name!r}, which is no array", help="write it with numpy.savez")
    return arrays


def _misfits(param: Value, found: Mapping[str, Array]) -> list[Diagnostic]:
    wanted = param.of or param.type
    if param.name not in found:
        help = f"{param.name}=file.npy, or {param.name} in an .npz file"
        return [Diagnostic("E501", f"input {param.name!r}, {wanted}, is missing", param.span, help=help)]
    return misfits(param, _as_declared(found[param.name], param))


def _as_declared(array: Array, param: Value) -> Array:
    """numpy saves elements of types that it lacks, such as bf16, as untyped bytes. They are read back with the type in
    the program."""
    wanted = (param.of or param.type).dtype.numpy
    return array.view(wanted) if array.dtype != wanted and array.dtype == np.dtype(f"V{wanted.itemsize}") else array
