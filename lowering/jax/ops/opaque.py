"""opaque: calls of `jax.ffi.ffi_call`, with the program's options as numpy numbers; or of JAX functions, which a module
has in FUNCTIONS."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.diagnostics import Span, error
from ir.host import HostFunction
from ir.ops.opaque import aliases_attr, is_typed, layouts_attr
from ir.program import Op, Value
from ir.spelling.mlir_options import Option, OptionsError, parse_options
from lowering.jax.names import tuple_text
from lowering.jax.runtime_text import helpers
from lowering.jax.writer import FunctionWriter, dtype_text, emits

TABLE = '''FUNCTIONS = {}
"""The JAX functions that the program calls, by name: each takes arrays, and the types of those that it returns."""'''

_LAPACK = "lapack_"
_ROUTINE = re.compile(r"lapack_([sdcz])(\w+)_ffi")
_OF_REAL = {"ungqr": "orgqr", "unmqr": "ormqr", "heevd": "syevd", "hetrd": "sytrd"}
"""Routines for complex matrices, with their names for real ones."""
_HELP = 'numbers, texts, lists and dictionaries of them, as in config="{mode = 86 : ui8}"'


@emits("opaque")
def _opaque(w: FunctionWriter, op: Op) -> str:
    """All operands are made to vary over the same axes, as `ffi_call` requires; it assumes that the results are equal
    on all devices."""
    axes = set[str]().union(*map(w.varying, op.operands))
    if op.attrs["effect"]:
        return _in_order(w, op, axes)
    return _call(w, op, [w.vary(v, axes) for v in op.operands], op.results, axes)


def _in_order(w: FunctionWriter, op: Op, axes: set[str]) -> str:
    """A call after the one that its token comes from, and before all that take its own token. Nothing can wait for a
    call without results, except a choice that contains it."""
    operands, token = w.fresh("operands"), w.fresh("token")
    given = tuple_text(w.vary(v, axes) for v in op.operands)
    w.line(f"*{operands}, {token} = lax.optimization_barrier({given})")
    names = [f"{operands}[{i}]" for i in range(len(op.operands) - 1)]
    call = _call(w, op, names, _tensors(op, op.results), axes)
    if len(op.results) == 1:
        called = f"lambda t: ({call}, lax.optimization_barrier(t))[1]"
        return f"lax.cond({token} == 0, {called}, lambda t: t, {token})"
    given = w.fresh("given")
    w.line(f"{given} = {call}")
    own = f"*{given}" if len(op.results) > 2 else given
    return f"lax.optimization_barrier(({own}, {token}))"


def _call(w: FunctionWriter, op: Op, operands: Sequence[str], results: Sequence[Value], axes: set[str]) -> str:
    function = op.attrs["function"]
    if isinstance(function, HostFunction):
        return _call_of(op, function, operands)
    types = [f"jax.ShapeDtypeStruct({tuple_text(v.shape)}, {dtype_text(v.dtype)})" for v in results]
    target, config = str(op.attrs["target"]), str(op.attrs["config"])
    options = [json.dumps(target), types[0] if len(types) == 1 else tuple_text(types), *_memory(op)]
    options += ["has_side_effect=True"] if op.attrs["effect"] else []
    given: list[str] = []
    if not is_typed(op.attrs):
        options += [f"custom_call_api_version={op.attrs['api_version']}", f"legacy_backend_config={config!r}"]
    elif config not in ("", "{}"):
        given.append(f"**{_options(config, op.span)}")
    call = f"jax.ffi.ffi_call({', '.join(options)})"
    elsewhere = _elsewhere(target)
    if target.startswith(_LAPACK):
        w.line(f"{w.module.helper('load_lapack')}()")
    if elsewhere is None:
        return w.cast(f"{call}({', '.join([*operands, *given])})", axes)
    on_cpu = w.cast(f"{call}({', '.join(['*a', *given])})", axes)
    other = w.module.helper(elsewhere)
    other = f"lambda *a: {other}({', '.join(['*a', *given])})" if given else other
    return f"lax.platform_dependent({', '.join(operands)}, cpu=lambda *a: {on_cpu}, default={other})"


def _call_of(op: Op, function: HostFunction, operands: Sequence[str]) -> str:
    types = tuple_text(f"({tuple_text(v.shape)}, {dtype_text(v.dtype)})" for v in op.results)
    call = f'FUNCTIONS["{function.name}"]({tuple_text(operands)}, {types})'
    return call if len(op.results) != 1 else f"{call}[0]"


def _elsewhere(target: str) -> str | None:
    """The helper that computes what a LAPACK routine does on other platforms, if jax has the functions for it."""
    routine = _ROUTINE.fullmatch(target)
    if routine is None:
        return None
    letter, name = routine[1], _OF_REAL.get(routine[2], routine[2])
    name = "complex_geev" if name == "geev" and letter in "cz" else name
    return f"lapack_{name}" if f"lapack_{name}" in helpers() else None


def _tensors(op: Op, values: Sequence[Value]) -> Sequence[Value]:
    """The operands or results without the token."""
    return values[: len(values) - bool(op.attrs["effect"])]


def _memory(op: Op) -> list[str]:
    """The memory layouts of operands and results that are not row-major, and the aliases of operands and results."""
    options: list[str] = []
    if op.attrs["operand_layouts"]:
        layouts = layouts_attr(op.attrs, "operand_layouts", [v.type for v in _tensors(op, op.operands)])
        options.append(f"input_layouts={tuple_text(map(tuple_text, layouts))}")
    if op.attrs["result_layouts"]:
        layouts = layouts_attr(op.attrs, "result_layouts", [v.type for v in _tensors(op, op.results)])
        texts = [tuple_text(layout) for layout in layouts]
        options.append(f"output_layouts={texts[0] if len(texts) == 1 else tuple_text(texts)}")
    aliases = aliases_attr(op.attrs)
    return [*options, f"input_output_aliases={aliases}"] if aliases else options


def _options(config: str, span: Span | None) -> str:
    """The text of a dictionary of options. Raises SpmdcError (E201)."""
    try:
        return _spelt(parse_options(config))
    except OptionsError as problem:
        message = f"opaque: its config {config[:60]!r} is no dictionary of options: {problem}"
        raise error("E201", message, span, help=_HELP) from None


def _spelt(option: Option) -> str:
    match option:
        case dict():
            return f"{{{', '.join(f'{name!r}: {_spelt(given)}' for name, given in option.items())}}}"
        case tuple():
            return tuple_text(map(_spelt, option))
        case np.ndarray():
            return f"np.array({_readable(option).tolist()}, np.{option.dtype.name})"
        case np.generic():
            return f"np.{option.dtype.name}({_readable(np.asarray(option)).item()!r})"
        case _:
            return repr(option)


def _readable(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    """Numbers that Python can read as they are printed: infinities become strings."""
    is_plain = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return array if is_plain else array.astype(np.str_)
