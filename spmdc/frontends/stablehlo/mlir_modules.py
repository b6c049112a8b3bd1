"""MLIR through jaxlib's own bindings: contexts, modules in bytecode, and passes. There is no parser of ours."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager

from jaxlib.mlir import ir as mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import stablehlo

from lowering.jax.versions import REGISTER_DIALECTS
from spmdc.frontends.stablehlo import parser_child

BUFFER = "-"
"""What MLIR calls a file of which it is given the text."""


def new_context() -> mlir.Context:
    """A context that knows the dialects that XLA and JAX emit."""
    return parser_child.new_context(pkgutil.resolve_name(REGISTER_DIALECTS))


@contextmanager
def opened(bytecode: bytes) -> Iterator[mlir.Module]:
    """The module of bytecode that the process for parsing made, with its context entered."""
    with new_context():
        yield mlir.Module.parse(bytecode)


_REGISTERED: list[bool] = []


def run_passes(module: mlir.Module, pipeline: str) -> None:
    """Rewrites the module. Raises mlir.MLIRError if a pass fails."""
    if not _REGISTERED:
        stablehlo.register_stablehlo_passes()
        _REGISTERED.append(True)
    passmanager.PassManager.parse(pipeline).run(module.operation)
