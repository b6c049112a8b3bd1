"""MLIR through jaxlib's own bindings: contexts, modules in bytecode, and passes. spmdc has no parser of its own."""

from __future__ import annotations

import functools
import io
import json
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager

from jaxlib.mlir import ir as mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import stablehlo

from lowering.jax.versions import REFINE_SHAPES, REGISTER_DIALECTS
from spmdc.frontends.stablehlo import parser_child
from spmdc.frontends.stablehlo.attributes import cast, outermost
from spmdc.frontends.stablehlo.parser_process import PARSER_PROCESS
from spmdc.isolation.process import last_words
from spmdc.isolation.server import DONE

BUFFER = "-"
"""MLIR's name for a file when it gets the text directly."""


def new_context() -> mlir.Context:
    """A context with the dialects that XLA and JAX emit."""
    return parser_child.new_context(pkgutil.resolve_name(REGISTER_DIALECTS))


@contextmanager
def opened(bytecode: bytes) -> Iterator[mlir.Module]:
    """The module in bytecode from the parsing process, with its context entered."""
    with new_context():
        yield mlir.Module.parse(bytecode)


_REGISTERED: list[bool] = []


def _register_passes() -> None:
    if not _REGISTERED:
        stablehlo.register_stablehlo_passes()
        _REGISTERED.append(True)


def _is_static(function: mlir.Type) -> bool:
    assert isinstance(function, mlir.FunctionType)
    tensors = (t for t in (*function.inputs, *function.results) if isinstance(t, mlir.RankedTensorType))
    return all(t.has_static_shape for t in tensors)


class NoSimplerFormError(Exception):
    """The reason why CHLO ops have no form in StableHLO."""


def of_known_shapes(module: mlir.Module) -> mlir.Module:
    """The module of a function that JAX has lowered. If it calls functions that were exported with symbolic sizes, it
    is a copy, in which these have the sizes of their arguments."""
    types = [cast(mlir.TypeAttr, op.attributes["function_type"]).value for op in outermost(module, "func.func")]
    if all(map(_is_static, types)):
        return module
    _register_passes()
    return parser_child.of_known_shapes(module, pkgutil.resolve_name(REFINE_SHAPES))


def in_simpler_ops(module: mlir.Module) -> mlir.Module:
    """The module, after its CHLO ops are converted to StableHLO in place. Raises NoSimplerFormError."""
    _register_passes()
    try:
        passmanager.PassManager.parse(parser_child.SIMPLER).run(module.operation)
    except mlir.MLIRError as problem:
        raise NoSimplerFormError(problem.message) from None
    return module


def in_simpler_ops_elsewhere(module: mlir.Module) -> mlir.Module:
    """The same in the parsing process, for a module from a user's text. Returns another module in the same context.
    Raises NoSimplerFormError."""
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return mlir.Module.parse(_simplified(bytecode.getvalue()))


@functools.lru_cache(maxsize=256)
def _simplified(bytecode: bytes) -> bytes:
    outcome, made = PARSER_PROCESS.read(parser_child.CHLO, bytecode)
    if outcome == DONE and made.startswith(parser_child.VALID):
        return made[1:]
    raise NoSimplerFormError(json.loads(made[1:])[0]["message"] if outcome == DONE else last_words(made))
