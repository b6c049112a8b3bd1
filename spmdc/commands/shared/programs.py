"""Loads programs for verbs: from a file or standard input, with overridden consts and mesh sizes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import spmdc
from ir.diagnostics import error
from ir.program import Program
from passes.cost.machine import machine
from passes.manager import Hook, handed_on
from passes.partition.options import PartitionOptions
from spmdc.api import PartitionedProgram, PropagatedProgram, policy, require_open, with_mesh
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.progress import progress
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.files import read_all
from spmdc.reading import read


def load_program(file: str, options: Options, watch: Stopwatch, *, stdin: bytes | None = None) -> Program:
    """The program, over the mesh that the options specify; `stdin` is the content of standard input if it was read
    already. Raises SpmdcError, E601 if the options do not fit the program, E406 if they come too late for it."""
    with watch.step("parse"):
        program = _load(file, dict(options.defines), stdin)
    if program.stage != "global":
        require_open(program.stage, policy(**choices_of(options)))
    if options.mesh is not None:
        return with_mesh(program, options.mesh)
    if options.devices is not None:
        return with_mesh(program, {_only_axis(program, options.devices): options.devices})
    return program


def choices_of(options: Options) -> dict[str, Any]:
    """The partitioner's options, as arguments for the functions of `spmdc.api`."""
    names = ("machine", "memory_limit", "windowed_einsum", "recompute")
    return {name: getattr(options, name) for name in names}


def partition_program(
    program: Program, options: Options, watch: Stopwatch, hooks: Sequence[Hook] = (), *, verify: bool = True
) -> PartitionedProgram:
    """The program, partitioned with the options."""
    with progress("partition", len(spmdc.pipeline(**choices_of(options)))) as advance:
        counted = (*hooks, lambda step, state: advance())
        partitioned = spmdc.partition(program, **choices_of(options), verify=verify, hooks=counted)
    watch.add(partitioned.timings)
    return partitioned


def propagate_program(program: Program, watch: Stopwatch) -> PropagatedProgram:
    """The program with the sharding of every value."""
    with progress("propagate"):
        propagated = spmdc.propagate(program)
    watch.add({"propagate": propagated.seconds})
    return propagated


def handing_on(program: Program, options: Options) -> Program:
    """The program; if it is an SPMD program, with results that JAX's arrays can hold."""
    if not is_partitioned(program):
        return program
    return handed_on(program, PartitionOptions.on(machine(options.machine)))


def is_partitioned(program: Program) -> bool:
    """Whether this is an SPMD program, a result of partitioning."""
    return program.stage == "spmd"


def _load(file: str, defines: dict[str, float], stdin: bytes | None) -> Program:
    if file != "-":
        return spmdc.load(file, defines)
    return read(read_stdin() if stdin is None else stdin, "<stdin>", defines)


_INSTEAD = "redirect a program to it, or name a file"


def read_stdin() -> bytes:
    """All of standard input. Raises SpmdcError: E005 if there is none, E004 if it is too long."""
    if sys.stdin is None:
        raise error("E005", "cannot read standard input: it is closed", help=_INSTEAD)
    try:
        return read_all(sys.stdin.buffer, "standard input")
    except OSError as problem:
        raise error("E005", f"cannot read standard input: {problem.strerror or problem}", help=_INSTEAD) from None


def _only_axis(program: Program, devices: int) -> str:
    names = (program.mesh.names if program.meshes else ()) or ("d",)
    if len(names) == 1:
        return names[0]
    sizes = ",".join(f"{name}=…" for name in names)
    message = f"--devices {devices} does not say how to divide them over the axes of the mesh ({program.mesh})"
    raise error("E601", message, help=f"give the size of each axis: --mesh {sizes}")
