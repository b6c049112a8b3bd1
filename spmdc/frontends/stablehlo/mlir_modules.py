"""MLIR through jaxlib's own bindings: contexts, parsing, and passes. There is no parser of ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from jaxlib.mlir import ir as mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError, error
from lowering.jax.versions import register_dialects

BUFFER = "-"
"""What MLIR calls a file of which it is given the text."""

HELP = MappingProxyType(
    {
        "HLO": "the text is read by XLA's parser: give a whole module, as XLA prints it",
        "MLIR": "the text is read by MLIR's parser: give a whole module, as jax.jit(f).lower(x).as_text() prints it",
    }
)
_RESULT = re.compile(r"%[\w$.\-]+[#:]\d{7,}(?!\w)")
"""A result of a number that no op has, or so many results."""
_NO_LINES: Mapping[str, int] = MappingProxyType({})


def new_context() -> mlir.Context:
    """A context that knows the dialects that XLA and JAX emit."""
    context = mlir.Context()
    registry = mlir.DialectRegistry()
    register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


@contextmanager
def parsed(
    data: str | bytes, source: Source, language: str = "MLIR", lines: Mapping[str, int] = _NO_LINES
) -> Iterator[mlir.Module]:
    """The module of a text or of MLIR bytecode, with its context entered. Raises SpmdcError (E701).

    `language` is that of `source`, in which `lines` has where the ops of some names are.
    """
    if isinstance(data, str) and (found := _RESULT.search(data)) is not None:
        # The parser makes a list of as many values.
        line = data.count("\n", 0, found.start()) + 1
        column = found.start() - (data.rfind("\n", 0, found.start()) + 1) + 1
        place = Span(source, line, column, line, column + len(found[0]))
        raise error("E701", f"no op of {language} has as many results as {found[0]} says", place, help=HELP[language])
    with new_context():
        try:
            module = mlir.Module.parse(data)
        except mlir.MLIRError as problem:
            raise SpmdcError(_syntax_errors(problem, source, language, lines)) from None
        yield module


def _syntax_errors(
    problem: mlir.MLIRError, source: Source, language: str, lines: Mapping[str, int]
) -> list[Diagnostic]:
    found = [
        Diagnostic("E701", f"this is not valid {language}: {d.message}", _place(d.location, source, lines),
                   help=HELP[language])
        for d in problem.error_diagnostics
    ]  # fmt: skip
    return found or [Diagnostic("E701", f"{source.name} is not valid {language}", help=HELP[language])]


def _place(untyped: mlir.Location, source: Source, lines: Mapping[str, int]) -> Span | None:
    """The place in the text. Diagnostics carry locations without saying of what kind they are; attributes say it."""
    location = mlir.Location.from_attr(untyped.attr)
    if isinstance(location, mlir.NameLoc) and location.name_str in lines:
        line = lines[location.name_str]
        return Span(source, line, 1, line, 2)
    if not isinstance(location, mlir.FileLineColLoc) or location.filename != BUFFER:
        return None
    line, column = max(location.start_line, 1), max(location.start_col, 1)
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
