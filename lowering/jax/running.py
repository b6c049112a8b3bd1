"""Runs generated modules: finds or makes the devices, executes the text, checks what it is called with."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ir.diagnostics import Diagnostic, Diagnostics, error
from ir.program import Program, Value
from lowering.jax.module import write_module

_FEWEST = 8
"""CPU devices to ask for at least, so that a later program with a larger mesh still finds enough."""

_serial = itertools.count()


@dataclass(frozen=True)
class Executable:
    """A program that jax runs. Called with global arrays, it returns a tuple of global arrays.

    `source` is the generated module's text, `module` its names.
    """

    program: Program
    source: str
    module: dict[str, Any]
    mesh: Mesh | None

    def __call__(self, *arrays: Any) -> tuple[jax.Array, ...]:
        arguments = checked_arguments(self.program.main.params, arrays)
        main: Callable[..., tuple[jax.Array, ...]] = self.module["main"]
        return main(*arguments) if self.mesh is None else main(*arguments, mesh=self.mesh)


def compile_program(program: Program, devices: Sequence[jax.Device] | None) -> Executable:
    """The program as a callable; see `lowering.jax.compile`."""
    source = write_module(program)
    module = load(source)
    if program.stage == "global":
        return Executable(program, source, module, None)
    size = program.mesh.size
    chosen = ensure_devices(size) if devices is None else list(devices)
    if len(chosen) < size:
        raise error("E502", f"the mesh ({program.mesh}) has {size} devices, and {len(chosen)} are given")
    return Executable(program, source, module, module["make_mesh"](chosen))


def load(source: str) -> dict[str, Any]:
    """Executes a module's text. Tracebacks show its lines."""
    name = f"<spmdc program {next(_serial)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), names)
    return names


def ensure_devices(count: int) -> list[jax.Device]:
    """`count` devices; see `lowering.jax.ensure_devices`."""
    already_up = not _ask_for_cpu_devices(max(count, _FEWEST))
    for devices in (jax.devices(), jax.devices("cpu")):
        if len(devices) >= count:
            return list(devices[:count])
    found = max(len(jax.devices()), len(jax.devices("cpu")))
    if already_up:
        raise error(
            "E503",
            f"the program needs {count} devices, and jax is already running with {found}",
            help=f'before the first use of jax: jax.config.update("jax_num_cpu_devices", {count})',
        )
    raise error("E502", f"the program needs {count} devices, and there are {found}", help="choose a smaller mesh")


def _ask_for_cpu_devices(count: int) -> bool:
    """Whether jax, not yet in use, could be asked for that many; one that was asked for more keeps them."""
    config: Any = jax.config
    if config.jax_num_cpu_devices >= count:
        return True
    try:
        config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return False
    return True


def checked_arguments(params: Sequence[Value], arrays: Sequence[Any]) -> list[Any]:
    """The arrays, numbers and lists turned into arrays. Raises SpmdcError (E501) for each one that does not fit."""
    if len(arrays) != len(params):
        raise error("E501", f"the program takes {len(params)} inputs, and is given {len(arrays)}")
    problems = Diagnostics()
    arguments: list[Any] = []
    for param, array in zip(params, arrays, strict=True):
        expected = param.of or param.type
        argument = array if hasattr(array, "dtype") else np.asarray(array, expected.dtype.numpy)
        if argument.shape != expected.shape or argument.dtype != expected.dtype.numpy:
            given = f"{argument.dtype}{list(argument.shape)}"
            problems.add(Diagnostic("E501", f"input {param.name!r} must be {expected}, and is {given}", param.span))
        arguments.append(argument)
    problems.raise_errors()
    return arguments
