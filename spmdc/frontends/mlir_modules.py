"""MLIR through jaxlib's own bindings: contexts, parsing, and passes. There is no parser of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from jaxlib.mlir import ir as mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError

BUFFER = "-"
"""What MLIR calls a file of which it is given the text."""


def new_context() -> mlir.Context:
    """A context that knows the dialects that XLA and JAX emit."""
    context = mlir.Context()
    registry = mlir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


@contextmanager
def parsed(data: str | bytes, source: Source) -> Iterator[mlir.Module]:
    """The module of a text or of MLIR bytecode, with its context entered. Raises SpmdcError (E701)."""
    with new_context():
        try:
            module = mlir.Module.parse(data)
        except mlir.MLIRError as problem:
            raise SpmdcError(_syntax_errors(problem, source)) from None
        yield module


def _syntax_errors(problem: mlir.MLIRError, source: Source) -> list[Diagnostic]:
    found = [
        Diagnostic("E701", f"this is not valid MLIR: {d.message}", _place(d.location, source))
        for d in problem.error_diagnostics
    ]
    return found or [Diagnostic("E701", f"{source.name} is not valid MLIR")]


def _place(location: mlir.Location, source: Source) -> Span | None:
    if not isinstance(location, mlir.FileLineColLoc) or location.filename != BUFFER:
        return None
    line, column = location.start_line, location.start_col
    return Span(source, line, column, line, column + 1)


_REGISTERED: list[bool] = []


def run_passes(module: mlir.Module, pipeline: str) -> None:
    """Rewrites the module. Raises mlir.MLIRError if a pass fails."""
    if not _REGISTERED:
        stablehlo.register_stablehlo_passes()
        _REGISTERED.append(True)
    passmanager.PassManager.parse(pipeline).run(module.operation)


def make_static(module: mlir.Module) -> None:
    """Rewrites ops that take shapes as operands, where these are constants. What is left is refused at its place."""
    with contextlib.suppress(mlir.MLIRError):
        run_passes(module, "builtin.module(func.func(stablehlo-canonicalize-dynamism))")
