"""The public API: load, propagate, partition, run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError, error
from ir.host import register_callback
from ir.mesh import Mesh
from ir.program import Program
from ir.verify.program import check
from passes.cost.memory import peak_bytes
from passes.manager import Compilation, Propagate, Specialize, pipeline, run, verify_after_each
from passes.partition.options import Policy, WindowedEinsum
from passes.propagation.propagate import Propagated
from spmdc.files import read_bytes
from spmdc.frontends.spmd import parse as parse_text
from spmdc.frontends.spmd import print_program
from spmdc.inputs import random_inputs as draw_inputs
from spmdc.reports.collectives import Collective, collectives_of, received_bytes
from spmdc.reports.why import explain_value

if TYPE_CHECKING:
    import jax

Array = npt.NDArray[Any]
_BYTECODE = b"ML\xefR"
_MLIR_BEGINNINGS = (_BYTECODE, b"module ", b"module{", b"#loc", b"func.func ")

__all__ = [
    "Collective",
    "PartitionedProgram",
    "PropagatedProgram",
    "SpmdcError",
    "evaluate",
    "from_hlo",
    "from_jax",
    "from_mlir",
    "load",
    "parse",
    "partition",
    "propagate",
    "random_inputs",
    "register_callback",
]


def parse(text: str, name: str = "<string>", defines: Mapping[str, int] | None = None) -> Program:
    """The program that .spmd text describes, verified. Raises SpmdcError with every error in it."""
    program = parse_text(text, name, defines)
    check(program)
    return program


def from_jax(function: Callable[..., Any], *args: Any, **options: Any) -> Program:
    """The program of a JAX function for arguments like these. The options, which
    `spmdc.frontends.jax.lowering` explains: `mesh`, `in_shardings`, `out_shardings`, static and keyword arguments.
    Raises SpmdcError if it cannot be imported.
    """
    from spmdc.frontends.jax.lowering import from_jax as import_jax

    return import_jax(function, *args, **options)


def from_mlir(text: str | bytes, name: str = "<mlir>") -> Program:
    """The program of a StableHLO module: its text or bytecode. Raises SpmdcError, E701 if it is no MLIR."""
    from spmdc.frontends.stablehlo.files import from_mlir as import_mlir

    return import_mlir(text, name)


def from_hlo(text: str, name: str = "<hlo>") -> Program:
    """The program of a module of HLO text. Raises SpmdcError, E701 if it is none."""
    from spmdc.frontends.stablehlo.files import from_hlo as import_hlo

    return import_hlo(text, name)


def load(path: str | Path, defines: Mapping[str, int] | None = None) -> Program:
    """The program in a .spmd, .mlir or .hlo file. `defines` override the consts of .spmd. Raises SpmdcError, also for a
    file it cannot read."""
    return read(read_bytes(path), str(path), defines)


def read(data: bytes, name: str, defines: Mapping[str, int] | None = None) -> Program:
    """The program in the bytes of a file, in the language that `language_of` finds."""
    language = language_of(data, name)
    if language == "spmd":
        return parse(decode(data, name), name, defines)
    if defines:
        raise error("E104", f"{name} has no consts to override", help="only .spmd programs have consts")
    if language == "hlo":
        return from_hlo(decode(data, name), name)
    return from_mlir(data if data.startswith(_BYTECODE) else decode(data, name), name)


def language_of(data: bytes, name: str) -> Literal["spmd", "mlir", "hlo"]:
    """The language of a file: by the ending of its name, and where that says nothing, by how it begins."""
    ending = Path(name).suffix.lower()
    if ending == ".spmd":
        return "spmd"
    if ending == ".hlo" or data.startswith(b"HloModule "):
        return "hlo"
    return "mlir" if ending == ".mlir" or data.startswith(_MLIR_BEGINNINGS) else "spmd"


def decode(data: bytes, name: str) -> str:
    """The text of a program's bytes. Raises SpmdcError (E002) if they are not text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(
            "E002",
            f"{name} is not text: byte {problem.start} is {data[problem.start]:#04x}, which is not UTF-8",
            _place_of_byte(data, problem.start, name),
            help="programs are UTF-8 text",
        ) from None


def _place_of_byte(data: bytes, position: int, name: str) -> Span:
    line = data.count(b"\n", 0, position) + 1
    column = len(data[data.rfind(b"\n", 0, position) + 1 : position].decode("utf-8")) + 1
    return Span(Source(name, data.decode("utf-8", "replace")), line, column, line, column + 1)


@dataclass(frozen=True, eq=False)
class PropagatedProgram:
    """A program with a sharding on every value, and why."""

    propagated: Propagated
    seconds: float = 0.0

    @property
    def program(self) -> Program:
        return self.propagated.program

    def text(self, *, locations: bool = False) -> str:
        """The program in the .spmd language, every type with its sharding."""
        return print_program(self.program, locations=locations)

    def why(self, name: str) -> str:
        """Where each axis on the value of that name came from, step by step back to an annotation."""
        return explain_value(self.propagated, name)


@dataclass(frozen=True, eq=False)
class PartitionedProgram:
    """One program for all devices, and what is known about how it came to be.

    `warnings` tell of data gathered for lack of a better way, `timings` the seconds each pass took.
    """

    program: Program
    propagated: Propagated
    source: Program
    warnings: tuple[Diagnostic, ...]
    timings: Mapping[str, float]

    def text(self, *, locations: bool = True) -> str:
        """The SPMD program: per-device shapes and explicit collectives."""
        return print_program(self.program, locations=locations)

    def why(self, name: str) -> str:
        """Where each axis on the value of that name came from, step by step back to an annotation."""
        return explain_value(self.propagated, name)

    def collectives(self) -> list[Collective]:
        """Every collective, in program order; `bytes` are those the worst device receives in one execution."""
        return collectives_of(self.program)

    def received_bytes(self) -> int:
        """Bytes that the worst device receives in one run; loops whose trips are not known count once."""
        return received_bytes(self.program)

    def peak_bytes(self) -> int:
        """The most bytes of its memory that a device needs at one time, as an estimate (`passes.cost.memory`)."""
        return peak_bytes(self.program)

    def simulate(self, *arrays: npt.ArrayLike, poison: bool = True, seed: int = 0) -> tuple[Array, ...]:
        """Runs the program on all of its logical devices in numpy. Takes and gives whole arrays.

        With `poison`, padding of uneven dims is filled with NaN (the extremes of integer types), or with numbers that a
        `seed` other than 0 draws. Raises SpmdcError (E501) if the arrays do not fit.
        """
        from lowering.reference import simulate

        return simulate(self.program, *map(np.asarray, arrays), poison=poison, seed=seed)

    def jax_source(self) -> str:
        """A self-contained Python module that runs the program under jax.shard_map."""
        from lowering.jax import jax_source

        return jax_source(self.program)

    def stablehlo_text(self) -> str:
        """The program of one device as a StableHLO module; partition p stands for position p of the mesh."""
        from lowering.jax import stablehlo_text

        return stablehlo_text(self.program)

    def hlo_text(self) -> str:
        """The program of one device as an HLO module, before any optimisation."""
        from lowering.jax import hlo_text

        return hlo_text(self.program)

    def to_jax(self, devices: Sequence[jax.Device] | None = None) -> Callable[..., tuple[Any, ...]]:
        """A callable on whole arrays that runs the program on JAX devices, by default on as many as the mesh has.

        Raises SpmdcError (E502, E503) if there are fewer.
        """
        from lowering.jax import compile

        return compile(self.program, devices)


def propagate(program: Program) -> PropagatedProgram:
    """Gives every value a sharding (GShard, section 3.2). Raises SpmdcError (E306) without a mesh."""
    _check_can_partition(program)
    start = time.perf_counter()
    state = run(Compilation(program), (Specialize(), Propagate()))
    assert state.propagated is not None
    return PropagatedProgram(state.propagated, time.perf_counter() - start)


def partition(
    program: Program | PropagatedProgram,
    mesh: Mesh | Mapping[str, int] | None = None,
    *,
    verify: bool = True,
    memory_limit: int | None = None,
    windowed_einsum: WindowedEinsum = "auto",
) -> PartitionedProgram:
    """The SPMD program (GShard, section 3.3). Propagates first if that was not done.

    `mesh` gives the program's axes other sizes: a Mesh, or sizes by name. Raises SpmdcError if the shardings do not
    fit it. With `verify`, the result of each pass is verified.

    `memory_limit` is how many bytes on a device an op may take, by default the memory of a TPU v3 core: for operands,
    results, what operands are gathered from, and buffers. What takes more is chosen for lack of anything else, with a
    warning (W002). `windowed_einsum` says whether einsums whose operands clash are computed in a loop over parts that
    travel around the devices: "auto" where that is faster or a gathered operand goes beyond the limit, "always" where
    it is possible, or "never".
    """
    if isinstance(program, PropagatedProgram):
        state = Compilation(program.program, program.propagated, timings={"propagate": program.seconds})
        source = program.program
    else:
        source = program if mesh is None else with_mesh(program, mesh)
        state = Compilation(source)
    _check_can_partition(source)
    passes = pipeline(_policy(memory_limit, windowed_einsum))
    state = run(state, passes, (verify_after_each,) if verify else ())
    assert state.propagated is not None
    return PartitionedProgram(state.program, state.propagated, source, state.warnings, state.timings)


def _policy(memory_limit: int | None, windowed_einsum: WindowedEinsum) -> Policy:
    if windowed_einsum not in get_args(WindowedEinsum):
        words = ", ".join(get_args(WindowedEinsum))
        raise error("E601", f"windowed_einsum is one of {words}, and not {windowed_einsum!r}")
    if memory_limit is None:
        return Policy(windowed_einsum=windowed_einsum)
    if memory_limit < 0:
        raise error("E601", f"the memory limit is a number of bytes, and not {memory_limit}")
    return Policy(memory_limit, windowed_einsum)


def _check_can_partition(program: Program) -> None:
    if program.stage == "spmd":
        raise error("E406", "the program is an SPMD program already", help="partition the program it came from")
    if not program.meshes:
        raise error("E306", "the program declares no mesh to partition it over", help="declare one: mesh (x=8)")


def with_mesh(program: Program, mesh: Mesh | Mapping[str, int]) -> Program:
    """The program over a mesh of other sizes. Its shardings must name axes that the mesh has, whole."""
    from spmdc.replace_mesh import replace_mesh

    return replace_mesh(program, mesh)


def evaluate(program: Program, *arrays: npt.ArrayLike) -> tuple[Array, ...]:
    """Runs the unpartitioned program in numpy: the oracle. Raises SpmdcError (E501) if the arrays do not fit."""
    from lowering.reference import evaluate as run_reference

    return run_reference(program, *map(np.asarray, arrays))


def random_inputs(program: Program, seed: int = 0, integers: bool = False) -> tuple[Array, ...]:
    """Inputs for the program's parameters: normal floats, or small integers so that sums are exact."""
    return draw_inputs(program, seed, integers)
