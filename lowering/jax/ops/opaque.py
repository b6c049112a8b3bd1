"""opaque: calls of `jax.ffi.ffi_call`, with the options that the program has for them as numpy's numbers; or of JAX
functions, which a module has in FUNCTIONS."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
from jax.extend.mlir import ir as mlir

from ir.diagnostics import Span, SpmdcError, error
from ir.host import HostFunction
from ir.ops.opaque import aliases_attr, is_typed, layouts_attr
from ir.program import Op, Value
from lowering.jax.names import tuple_text
from lowering.jax.runtime_text import helpers
from lowering.jax.writer import FunctionWriter, dtype_text, emits

TABLE = '''FUNCTIONS = {}
"""The JAX functions that the program calls, by name: each takes arrays, and the types of those that it returns."""'''

_LAPACK = "lapack_"
_ROUTINE = re.compile(r"lapack_([sdcz])(\w+)_ffi")
_OF_REAL = {"ungqr": "orgqr", "heevd": "syevd", "hetrd": "sytrd"}
"""Routines of complex matrices, and what they are called for real ones."""
_HELP = 'numbers, texts, lists and dictionaries of them, as in config="{mode = 86 : ui8}"'
_NUMBERS = {
    **{f"{sign}i{bits}": f"{'u' * (sign == 'u')}int{bits}" for sign in ("", "s", "u") for bits in (8, 16, 32, 64)},
    "f16": "float16", "f32": "float32", "f64": "float64",
}  # fmt: skip


@emits("opaque")
def _opaque(w: FunctionWriter, op: Op) -> str:
    """All operands vary as one, which is what `ffi_call` asks for; it takes the results for the same on all devices."""
    axes = set[str]().union(*map(w.varying, op.operands))
    if op.attrs["effect"]:
        return _in_order(w, op, axes)
    return _call(w, op, [w.vary(v, axes) for v in op.operands], op.results, axes)


def _in_order(w: FunctionWriter, op: Op, axes: set[str]) -> str:
    """A call after the one that its token comes from, and before all that its own goes to. Nothing can wait for a call
    without results, but for a choice that it is in."""
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
        return _call_of(w, op, function, operands)
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


def _call_of(w: FunctionWriter, op: Op, function: HostFunction, operands: Sequence[str]) -> str:
    types = tuple_text(f"({tuple_text(v.shape)}, {dtype_text(v.dtype)})" for v in op.results)
    call = f'FUNCTIONS["{function.name}"]({tuple_text(operands)}, {types})'
    return call if len(op.results) != 1 else f"{call}[0]"


def _elsewhere(target: str) -> str | None:
    """The helper that computes what a routine of LAPACK does where there is none, if jax has what it takes."""
    routine = _ROUTINE.fullmatch(target)
    if routine is None:
        return None
    letter, name = routine[1], _OF_REAL.get(routine[2], routine[2])
    name = "complex_geev" if name == "geev" and letter in "cz" else name
    return f"lapack_{name}" if f"lapack_{name}" in helpers() else None


def _tensors(op: Op, values: Sequence[Value]) -> Sequence[Value]:
    """Of the operands or results, those that are not the token."""
    return values[: len(values) - bool(op.attrs["effect"])]


def _memory(op: Op) -> list[str]:
    """The memory layout of operands and results, where not row by row, and which share it."""
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
    """The text of a dictionary. Raises SpmdcError (E201)."""
    with mlir.Context() as context:
        context.allow_unregistered_dialects = True
        try:
            parsed = mlir.Attribute.parse(config)
        except (mlir.MLIRError, ValueError):
            raise error("E201", f"opaque: its config {config[:60]!r} is no MLIR attribute", span, help=_HELP) from None
        if not isinstance(parsed, mlir.DictAttr):
            raise error("E201", f"opaque: its config {config[:60]!r} is no dictionary", span, help=_HELP)
        return _spelt(parsed, span)


def _spelt(attribute: mlir.Attribute, span: Span | None) -> str:
    match attribute:
        case mlir.DictAttr():
            named = [attribute[i] for i in range(len(attribute))]
            return f"{{{', '.join(f'{n.name!r}: {_spelt(n.attr, span)}' for n in named)}}}"
        case mlir.ArrayAttr():
            return tuple_text(_spelt(a, span) for a in attribute)
        case mlir.BoolAttr():
            return str(bool(attribute.value))
        case mlir.StringAttr():
            return repr(str(attribute.value))
        case mlir.IntegerAttr() | mlir.FloatAttr() if str(attribute.type) in _NUMBERS:
            return f"np.{_NUMBERS[str(attribute.type)]}({attribute.value!r})"
        case mlir.DenseElementsAttr():
            return _array(np.asarray(attribute))
        case mlir.DenseBoolArrayAttr():
            return _array(np.array(list(attribute), np.bool_))
        case mlir.DenseI8ArrayAttr() | mlir.DenseI16ArrayAttr() | mlir.DenseI32ArrayAttr() | mlir.DenseI64ArrayAttr():
            bits = type(attribute).__name__.removeprefix("DenseI").removesuffix("ArrayAttr")
            return _array(np.array(list(attribute), f"int{bits}"))
        case mlir.DenseF32ArrayAttr() | mlir.DenseF64ArrayAttr():
            bits = type(attribute).__name__.removeprefix("DenseF").removesuffix("ArrayAttr")
            return _array(np.array(list(attribute), f"float{bits}"))
        case _:
            raise _unwritable(attribute, span)


def _array(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    return f"np.array({array.tolist()}, np.{array.dtype.name})"


def _unwritable(attribute: mlir.Attribute, span: Span | None) -> SpmdcError:
    return error("E201", f"opaque: the option {str(attribute)[:60]} cannot be written in Python", span, help=_HELP)
