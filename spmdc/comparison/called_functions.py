"""Replaces the JAX functions that a program calls by functions of the program, for compilers without access to
Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ir.builder import Names
from ir.host import HostFunction
from ir.ops.opaque import calls_of_functions, is_opaque
from ir.program import Function, Op, Program, callee_of, walk
from ir.types import TensorType
from lowering.jax.untyped import struct_of
from passes.rewrite import map_program, rename_callees
from spmdc.frontends.jax.lowering import from_jax

_Key = tuple[str, tuple[TensorType, ...]]


def with_functions(program: Program) -> Program:
    """The program, with calls of its own functions in place of those of JAX functions. Raises SpmdcError as
    `spmdc.from_jax` does."""
    if not calls_of_functions(program):
        return program
    names = Names(set(program.functions))
    entries: dict[_Key, str] = {}
    added: dict[str, Function] = {}

    def called(op: Op) -> Iterable[Op]:
        function = op.attrs.get("function")
        if not is_opaque(op) or not isinstance(function, HostFunction):
            return (op,)
        key = function.name, tuple(v.type for v in op.operands)
        if key not in entries:
            own = _imported(program, function, key[1], names)
            entries[key] = next(iter(own))
            added.update(own)
        return (replace(op, name="call", attrs={"function": entries[key]}),)

    calling = map_program(program, called)
    return replace(program, functions={**calling.functions, **added})


def _imported(
    program: Program, function: HostFunction, types: Iterable[TensorType], names: Names
) -> dict[str, Function]:
    """A JAX function, imported for tensors of these types: its entry first, and then its callees."""
    arrays = [struct_of(type.shape, type.dtype.numpy) for type in types]
    imported = from_jax(lambda *given: list(function(*given)), *arrays, mesh=program.mesh)
    own = {imported.entry: names.fresh(function.name)}
    own |= {name: names.fresh(name) for name in imported.functions if name != imported.entry}
    return {own[name]: _renamed(imported.functions[name], own[name], own) for name in own}


def _renamed(function: Function, name: str, names: Mapping[str, str]) -> Function:
    """The function and its callees under other names."""
    calls = {op: names[callee] for op in walk(function.body) if (callee := callee_of(op)) is not None}
    return replace(rename_callees(function, calls), name=name)
