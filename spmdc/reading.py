"""Reads programs: from text, files, JAX functions, StableHLO and HLO."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ir.diagnostics import error, require
from ir.garbage import uncollected
from ir.program import Program
from ir.verify.program import check
from spmdc.files import decode, read_bytes
from spmdc.frontends.spmd import parse as parse_text

_BYTECODE = b"ML\xefR"

_MLIR_BEGINNINGS = (_BYTECODE, b"module ", b"module{", b"func.func ")


@uncollected()
def parse(
    text: str, name: str = "<string>", defines: Mapping[str, float] | None = None, folder: str | None = None
) -> Program:
    """The program that .spmd text describes, verified. Included files are in `folder`, by default that of the file
    called `name`. Raises SpmdcError with all errors in it."""
    program = parse_text(text, name, defines, folder)
    check(program)
    return program


def from_jax(function: Callable[..., Any], *args: Any, **options: Any) -> Program:
    """The program of a JAX function for arguments like these. The options, which
    `spmdc.frontends.jax.lowering` explains: `mesh`, `in_shardings`, `out_shardings`, static and keyword arguments.
    Raises SpmdcError if it cannot be imported.
    """
    # Imported late, like all front ends that need jax or jaxlib: programs in text are read without them.
    from spmdc.frontends.jax.lowering import from_jax as import_jax

    return import_jax(function, *args, **options)


def from_mlir(text: str | bytes, name: str = "<mlir>") -> Program:
    """The program of a StableHLO module in text or bytecode. Portable artifacts are bytecode, such as
    `mlir_module_serialized` of what `jax.export` returns. Raises SpmdcError, E701 if it is not MLIR."""
    require(isinstance(text, str | bytes), "a module is text or bytecode", text, "spmdc.load(path) reads a file")
    from spmdc.frontends.stablehlo.parser_process import PARSER_PROCESS

    PARSER_PROCESS.start()  # While it starts, the importer is imported.
    from spmdc.frontends.stablehlo.files import from_mlir as import_mlir

    return import_mlir(text, name)


def from_hlo(text: str, name: str = "<hlo>") -> Program:
    """The program of a module in HLO text. Raises SpmdcError, E701 if it is not HLO."""
    require(isinstance(text, str), "a module in HLO is text", text, "spmdc.load(path) reads a file")
    from spmdc.frontends.stablehlo.parser_process import PARSER_PROCESS

    PARSER_PROCESS.start()
    from spmdc.frontends.stablehlo.files import from_hlo as import_hlo

    return import_hlo(text, name)


def load(path: str | Path, defines: Mapping[str, float] | None = None) -> Program:
    """The program in a .spmd, .mlir or .hlo file. `defines` override the consts of .spmd. Raises SpmdcError, also if
    the file cannot be read."""
    require(isinstance(path, str | os.PathLike), "a program is loaded from a path", path, "spmdc.parse(text)")
    return read(read_bytes(path), str(path), defines)


def read(data: bytes, name: str, defines: Mapping[str, float] | None = None) -> Program:
    """The program in the bytes of a file, in the language that `language_of` returns."""
    language = language_of(data, name)
    if language == "spmd":
        return parse(decode(data, name), name, defines)
    if defines:
        raise error("E104", f"{name} has no consts to override", help="only .spmd programs have consts")
    if language == "hlo":
        return from_hlo(decode(data, name), name)
    return from_mlir(data if data.startswith(_BYTECODE) else decode(data, name), name)


def language_of(data: bytes, name: str) -> Literal["spmd", "mlir", "hlo"]:
    """The language of a file: by its beginning, if no program of another language begins so, or by its suffix."""
    if data.startswith(b"HloModule "):
        return "hlo"
    if data.startswith(_MLIR_BEGINNINGS):
        return "mlir"
    ending = Path(name).suffix.lower()
    if ending == ".hlo":
        return "hlo"
    return "mlir" if ending == ".mlir" or (ending != ".spmd" and data.startswith(b"#loc")) else "spmd"
