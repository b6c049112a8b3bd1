"""The programs that a configuration names, with their consts, on its mesh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ir.program import Program
from spmdc.api import with_mesh
from spmdc.files import read_bytes
from spmdc.reading import read
from spmdc.training.config import PATHS, Config


def trained_program(config: Config) -> Program:
    """The program that is trained. Raises SpmdcError, at the configuration's line if the program has none: E005 if its
    file cannot be read, E104 for consts that it does not have, E301 if the mesh lacks its axes, and errors in the
    program."""
    return _loaded(config, "program", config.program, "consts", config.consts)


def translating_program(config: Config) -> Program | None:
    """The program that translates, if the configuration names one. Raises as `trained_program`."""
    own = config.translate
    return _loaded(config, "translate.program", own.program, "translate.consts", own.consts) if own.program else None


def _loaded(config: Config, field: str, path: Path, of_consts: str, consts: Mapping[str, float]) -> Program:
    with config.at(field):
        data = read_bytes(path, PATHS)
    with config.at(of_consts):
        program = read(data, str(path), consts)
    with config.at("mesh", "this mesh is asked for"):
        return with_mesh(program, config.mesh) if config.mesh else program
