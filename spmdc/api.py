"""The public API: load, propagate, partition, run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy.typing as npt

from ir.diagnostics import Diagnostic, error, require
from ir.graph import Graph, dataflow
from ir.mesh import Mesh
from ir.names import did_you_mean
from ir.notebooks import Lines
from ir.program import Program, Stage
from ir.spelling.printer import print_program
from ir.types import Array
from lowering.jax import compile, hlo_text, jax_source, stablehlo_text
from passes.cost.buffers import beyond_memory
from passes.cost.machine import TPU_V3, Machine
from passes.cost.memory import peak_bytes
from passes.manager import PROPAGATING, Compilation, Hook, MakePlan, Pass, handed_on, planning, run, verify_after_each
from passes.manager import pipeline as default_pipeline
from passes.partition import Decide
from passes.partition.options import PartitionOptions, Recompute, WindowedEinsum
from passes.partition.plan.plan import without_plan
from passes.propagation.reasons import Propagated
from spmdc.arguments import names_of, program_of, require_memory_limit, require_seed
from spmdc.inputs import random_inputs as draw_inputs
from spmdc.pictures import pages
from spmdc.pictures.picture import Picture, picture_of
from spmdc.plans import Plan
from spmdc.replace_mesh import replace_mesh
from spmdc.reports.collectives import Collective, collectives_of, received_bytes
from spmdc.reports.cost import Cost, cost_of
from spmdc.reports.groups import BY, By
from spmdc.reports.trace import trace_of
from spmdc.reports.why import explain_value, values_named

if TYPE_CHECKING:
    import jax

    from spmdc.compiled import CompiledProgram


@dataclass(frozen=True, eq=False)
class PropagatedProgram:
    """A program with a sharding for every value, and the reasons."""

    propagated: Propagated
    seconds: float = 0.0

    def __repr__(self) -> str:
        return f"<PropagatedProgram {self.program.summary}>"

    def _repr_html_(self) -> str:
        return pages.program(f"{self.program.summary}, propagated", self.text())

    @property
    def program(self) -> Program:
        return self.propagated.program

    def text(self, *, locations: bool = False) -> str:
        """The program in the .spmd language, every type with its sharding."""
        return print_program(self.program, locations=locations)

    def why(self, name: str) -> str:
        """The origin of each axis on the value of that name, step by step back to an annotation."""
        return Lines(explain_value(self.propagated, name))

    def picture(self, name: str) -> Picture:
        """The part of the value of that name that each device has. Raises SpmdcError (E101) if there is none."""
        return picture_of(self.program, values_named(self.program, name)[0][1])


@dataclass(frozen=True, eq=False)
class PartitionedProgram:
    """One program for all devices, and what is known about how it was made.

    `options` are those that it was partitioned with. `warnings` are about operands that are gathered for lack of a
    better way, and `timings` has the seconds of each pass.
    """

    program: Program
    propagated: Propagated
    source: Program
    options: PartitionOptions
    warnings: tuple[Diagnostic, ...]
    timings: Mapping[str, float]

    def __repr__(self) -> str:
        return f"<PartitionedProgram {self.program.summary}>"

    def _repr_html_(self) -> str:
        title = f"{self.program.summary}, partitioned: {self.received_bytes():,} bytes received"
        return pages.program(title, self.text(locations=False), pages.sent(self.collectives()))

    def text(self, *, locations: bool = True) -> str:
        """The SPMD program: per-device shapes and explicit collectives."""
        return print_program(self.program, locations=locations)

    def why(self, name: str) -> str:
        """The origin of each axis on the value of that name, step by step back to an annotation."""
        return Lines(explain_value(self.propagated, name))

    def picture(self, name: str) -> Picture:
        """The part of the value of that name that each device has, in the program that was partitioned. Raises
        SpmdcError (E101) if there is none."""
        return picture_of(self.propagated.program, values_named(self.propagated.program, name)[0][1])

    def collectives(self) -> list[Collective]:
        """Every collective, in program order; `bytes` are those the worst device receives in one execution."""
        return collectives_of(self.program)

    def graph(self) -> Graph:
        """The dataflow graph of a device: a networkx graph of the ops of the entry (`ir.graph`)."""
        return dataflow(self.program.main.body.ops)

    def received_bytes(self) -> int:
        """Bytes that the worst device receives in one run; loops of unknown trip count count once."""
        return received_bytes(self.program)

    def peak_bytes(self) -> int:
        """The most bytes of its values that a device has at one time if no ops are fused (`passes.cost.memory`), as
        plans assume. `cost().peak` is the memory that compiled kernels take on a machine, which store less."""
        return peak_bytes(self.program)

    def cost(self, by: By = "line", machine: Machine | str | None = None) -> Cost:
        """The cost of the program on a machine, by default the one that it was partitioned for: seconds of arithmetic,
        memory and network, `by` line, op, kind of op, mesh axis, value that is sent, loop or function, and in total.
        Raises SpmdcError (E601, E604)."""
        if by not in BY:
            raise error("E601", f"costs are by {', '.join(BY)}, and not by {by!r}", help=f"by={BY[0]!r}")
        on = Machine.of(self.options.machine if machine is None else machine)
        return cost_of(self.program, on, by, self.source)

    def trace(
        self, machine: Machine | str | None = None, *, inputs: Sequence[npt.ArrayLike] | None = None
    ) -> dict[str, object]:
        """The timeline of a device on a machine, by default the one that the program was partitioned for, in Chrome's
        trace event format; with `inputs`, also what each of JAX's devices did in a run. Raises SpmdcError (E601, E604;
        E501, E502, E503 if it cannot be run)."""
        trace = trace_of(self.program, Machine.of(self.options.machine if machine is None else machine))
        if inputs is None:
            return trace
        require(isinstance(inputs, Iterable), "inputs are a sequence of arrays", inputs)
        # Imported late, as jax is.
        from spmdc.reports.measured import with_measured

        return with_measured(trace, self.with_even_results().program, inputs)

    def device_order(self) -> tuple[int, ...] | None:
        """The number of the device at each position of the mesh that costs were estimated for, in row-major order of
        the dims of the machine's network. None for a machine with equal links, for which any order is as good."""
        placement = self.options.machine.laid_out(self.program.meshes).placement
        return None if placement is None else placement.device_order(self.program.mesh)

    def simulate(self, *arrays: npt.ArrayLike, poison: bool = True, seed: int = 0) -> tuple[Array, ...]:
        """Runs the program on all of its logical devices in numpy. Takes and returns whole arrays.

        With `poison`, padding of uneven dims is filled with NaN (the extremes of integer types), or with numbers drawn
        with a `seed` other than 0. Raises SpmdcError (E501) if the arrays do not match, and E601 for another seed.
        """
        require_seed(seed)
        # Imported late, as in `evaluate`: most who partition a program do not run it here.
        from lowering.reference import simulate

        return simulate(self.program, *arrays, poison=poison, seed=seed)

    def with_even_results(self) -> PartitionedProgram:
        """The program that `to_jax` runs and `jax_source` prints.

        JAX's arrays have even shards on a single mesh only. So results with other shardings (a dim that its axes do not
        divide, a pending reduction) are resharded at the end: uneven dims are unsplit then.
        """
        return replace(self, program=handed_on(self.program, self.options))

    def jax_source(self) -> str:
        """A self-contained Python module that runs the program under jax.shard_map."""
        return jax_source(self.with_even_results().program)

    def stablehlo_text(self) -> str:
        """The program of one device as a StableHLO module; partition p is position p of the mesh."""
        return stablehlo_text(self.program)

    def hlo_text(self) -> str:
        """The program of one device as an HLO module, before any optimisation."""
        return hlo_text(self.program)

    def compile(self, target: str, *, donate: str | Sequence[str] = ()) -> CompiledProgram:
        """The program as compiled for a target such as "tpu-v3:4x4": memory, cycles, collectives. Results reuse the
        memory of the arguments that `donate` names, as in `to_jax`. If the program was planned for the machine of the
        target, its mesh is laid out in `device_order` where its collectives take less time so, and else as by JAX.

        This needs libtpu, but no TPU. Raises SpmdcError: E517 without libtpu, E516 if there is no such target, or it
        has fewer devices than the mesh, E518 if it does not compile the program, E101 for a name that is no argument.
        """
        # Imported late, as jax is.
        from spmdc.compiled import compile_for, placed_on

        program = self.with_even_results().program
        placed = placed_on(target, program, self.options.machine)
        return compile_for(program, target, _positions(program, donate), placed)

    def to_jax(
        self, devices: Sequence[jax.Device] | None = None, *, donate: str | Sequence[str] = ()
    ) -> Callable[..., tuple[Any, ...]]:
        """A callable on whole arrays that runs the program on JAX devices, by default on as many as the mesh has.

        Results reuse the memory of the arguments that `donate` names, as with `donate_argnames` of `jax.jit`. A call
        deletes donated JAX arrays that are sharded as the program takes them; others are copied first. An argument that
        matches the type and sharding of no result causes a UserWarning, and keeps its memory.

        Raises SpmdcError: E601 for something else than devices, E502, E503 if there are fewer devices, E101 for a name
        that is no argument. The callable raises E501 if arrays do not match, E514 if a donated one is passed twice, and
        RuntimeError if one has been donated before.
        """
        program = self.with_even_results().program
        return compile(program, devices, donate=_positions(program, donate))


def _positions(program: Program, donated: str | Sequence[str]) -> list[int]:
    """The positions of donated arguments. Raises SpmdcError (E601; E101 for a name that is no argument)."""
    names = [p.name for p in program.main.params]
    found = names_of(donated, "arguments are donated")
    for name in found:
        if name not in names:
            help = did_you_mean(name, names) or f"there are {', '.join(names) or 'none'}"
            raise error("E101", f"the program has no argument {name!r} to donate", program.main.span, help=help)
    return [names.index(name) for name in found]


def propagate(program: Program, *, weigh: bool = True) -> PropagatedProgram:
    """Gives every value a sharding (GShard, section 3.2). Raises SpmdcError (E306) without a mesh.

    Some splits may or may not save bytes, which only a plan shows. The program is then planned for TPU v3 with and
    without them, and they are kept if they save bytes; without `weigh`, they are kept until the result is planned.
    """
    program = program_of(program)
    _check_can_partition(program)
    if program.stage == "plan":
        raise error("E406", "the program is a plan already: its values have shardings", help="partition it")
    start = time.perf_counter()
    state = run(Compilation(program), PROPAGATING)
    found = state.propagated
    if weigh and found is not None and found.otherwise is not None:
        found = MakePlan(PartitionOptions.on(TPU_V3)).apply(state).propagated
    assert found is not None
    return PropagatedProgram(found, time.perf_counter() - start)


def plan(
    program: Program | PropagatedProgram,
    mesh: Mesh | Mapping[str, int] | None = None,
    *,
    verify: bool = True,
    machine: Machine | str = TPU_V3,
    memory_limit: int | None = None,
    windowed_einsum: WindowedEinsum = "auto",
    recompute: Recompute = "auto",
    decide: Decide | None = None,
) -> Plan:
    """The decisions of `partition`, as a program that can be read, priced and edited. The arguments are those of
    `partition`. A program that is a plan already is checked (E309, E413), and may be for another machine, but refuses
    the other options (E406).

    `decide` may override the cost model for some ops (`passes.partition.Decide`).
    """
    state, source = _begun(program, mesh)
    options = policy(machine, memory_limit, windowed_einsum, recompute)
    require(decide is None or callable(decide), "decide is a function", decide)
    require_open(state.program.stage, options, also=("decide",) if decide is not None else ())
    state = run(state, planning(options, decide), (verify_after_each,) if verify else ())
    assert state.plan is not None
    propagated = _reasons(state, source)
    return Plan(state.program, propagated, source, options, state.warnings, state.timings, made=state.plan)


def partition(
    program: Program | PropagatedProgram | Plan,
    mesh: Mesh | Mapping[str, int] | None = None,
    *,
    verify: bool = True,
    machine: Machine | str = TPU_V3,
    memory_limit: int | None = None,
    windowed_einsum: WindowedEinsum = "auto",
    recompute: Recompute = "auto",
    passes: Sequence[Pass] | None = None,
    hooks: Sequence[Hook] = (),
) -> PartitionedProgram:
    """The SPMD program (GShard, section 3.3). The program is propagated and planned first if that was not done; a plan
    is written as it is. Raises SpmdcError (E406) for a mesh or options that it was not made with.

    `mesh` has other sizes for the program's axes: a Mesh, or sizes by name. Raises SpmdcError if the shardings do not
    fit it. With `verify`, the result of each pass is verified.

    `machine` is what costs are estimated for: what a device can do, and the links along each axis; or its name, as for
    `spmdc.machine`. `memory_limit` is the bytes on a device that an op may take, by default all of the machine's: for
    operands, results, sources of gathers, and buffers. Strategies that take more are chosen only if there are no
    others, with a warning (W002); a program that takes more than the machine's memory has one too (W003).
    `windowed_einsum` says whether einsums with operands in conflicting shardings are computed in a loop over parts that
    rotate around the devices: "auto" where that is faster or a gathered operand exceeds the limit, "always" where it is
    possible, or "never". `recompute` says whether the result of an op is recomputed where it is needed in another
    sharding: "auto" where that is faster than sending it, or "never".

    `passes` replace `pipeline()`: each has a `name` and `apply`, from a `passes.manager.Compilation` to another. Each
    of the `hooks` is called with every pass that changed the program, and its result.
    """
    require(passes is None or isinstance(passes, Sequence), "passes are a sequence", passes, _USUAL_PASSES)
    for step in passes or ():
        fits = isinstance(getattr(step, "name", None), str) and callable(getattr(step, "apply", None))
        require(fits and not isinstance(step, type), "passes are objects with a name and apply", step, _USUAL_PASSES)
    for hook in hooks:
        require(callable(hook), "hooks are functions of a pass and a Compilation", hook)
    hooks = (*((verify_after_each,) if verify else ()), *hooks)
    if isinstance(program, Plan):
        state, source, options = Compilation(program.program, plan=program.made), program.source, program.options
        state = replace(state, propagated=program.propagated, warnings=program.warnings)
        _require_own_mesh("plan", mesh)
        require_open("plan", policy(machine, memory_limit, windowed_einsum, recompute), made=options)
    else:
        state, source = _begun(program, mesh)
        options = policy(machine, memory_limit, windowed_einsum, recompute)
        require_open(state.program.stage, options)
    state = run(state, default_pipeline(options) if passes is None else passes, hooks)
    if state.program.stage != "spmd":
        raise error("E601", f"the passes end in a {state.program.stage} program", help="`write` makes an SPMD program")
    warnings = (*state.warnings, *beyond_memory(state.program, options.machine))
    return PartitionedProgram(state.program, _reasons(state, source), source, options, warnings, state.timings)


_USUAL_PASSES = "spmdc.pipeline() has the usual ones"


def pipeline(
    *,
    machine: Machine | str = TPU_V3,
    memory_limit: int | None = None,
    windowed_einsum: WindowedEinsum = "auto",
    recompute: Recompute = "auto",
) -> tuple[Pass, ...]:
    """The passes of `partition`, in order."""
    return default_pipeline(policy(machine, memory_limit, windowed_einsum, recompute))


def _begun(program: Program | PropagatedProgram, mesh: Mesh | Mapping[str, int] | None) -> tuple[Compilation, Program]:
    """The state in which a pipeline begins, and the original program."""
    if isinstance(program, PropagatedProgram):
        _require_own_mesh("propagated program", mesh)
        seconds = {"propagate": program.seconds}
        return Compilation(program.program, program.propagated, timings=seconds), program.program
    program = program_of(program)
    source = program if mesh is None else with_mesh(program, mesh)
    _check_can_partition(source)
    return Compilation(source), without_plan(source) if source.stage == "plan" else source


def _reasons(state: Compilation, source: Program) -> Propagated:
    """The results of propagation; empty if the program came as a plan."""
    return state.propagated if state.propagated is not None else Propagated(source)


def policy(
    machine: Machine | str, memory_limit: int | None, windowed_einsum: WindowedEinsum, recompute: Recompute
) -> PartitionOptions:
    """The partitioner's options from the arguments of `partition`. Raises SpmdcError (E601, and as `Machine.of`
    does)."""
    choices = ("windowed_einsum", windowed_einsum, WindowedEinsum), ("recompute", recompute, Recompute)
    for name, given, kind in choices:
        if given not in get_args(kind):
            raise error(
                "E601",
                f"{name} is one of {', '.join(get_args(kind))}, and not {given!r}",
                help=f"{name}={get_args(kind)[0]!r} is the default",
            )
    if memory_limit is not None:
        require_memory_limit(memory_limit)
    found = Machine.of(machine)
    limit = found.memory if memory_limit is None else memory_limit
    return PartitionOptions(found, limit, windowed_einsum, recompute)


def require_open(
    stage: Stage, asked: PartitionOptions, made: PartitionOptions | None = None, also: Sequence[str] = ()
) -> None:
    """Raises SpmdcError (E406) for options that come too late for a plan or an SPMD program, which was made with its
    own. Those in `made` may be repeated; `also` names others that are given."""
    if stage == "global":
        return
    usual = PartitionOptions.on(asked.machine)
    late = [
        name
        for name in ("memory_limit", "windowed_einsum", "recompute")
        if getattr(asked, name) not in (getattr(usual, name), getattr(made, name, None))
    ]
    if made is not None and asked.machine not in (TPU_V3, made.machine):
        late.insert(0, "machine")
    late.extend(also)
    if late:
        what = {"plan": "a plan is written", "spmd": "an SPMD program is taken"}[stage]
        message = f"{what} as it was made, and {' and '.join(late)} would have to be known before"
        raise error("E406", message, help="give these options where the program that it came from is planned")


def _check_can_partition(program: Program) -> None:
    if program.stage == "spmd":
        raise error("E406", "the program is an SPMD program already", help="partition the program it came from")
    if not program.meshes:
        raise error("E306", "the program declares no mesh to partition it over", help="declare one: mesh (x=8)")


def with_mesh(program: Program, mesh: Mesh | Mapping[str, int]) -> Program:
    """The program over a mesh of other sizes. Its shardings must use whole axes of the mesh. Raises SpmdcError (E406)
    for a plan or an SPMD program."""
    if program.stage != "global":
        _require_own_mesh({"plan": "plan", "spmd": "SPMD program"}[program.stage], mesh)
    return replace_mesh(program, mesh)


def _require_own_mesh(what: str, mesh: Mesh | Mapping[str, int] | None) -> None:
    """Raises SpmdcError (E406) if a mesh is given for something that was made for one."""
    if mesh is not None:
        message = f"{'an' if what.startswith('SPMD') else 'a'} {what} is for the mesh that it was made for"
        raise error("E406", message, help="partition the program it came from")


def evaluate(program: Program, *arrays: npt.ArrayLike) -> tuple[Array, ...]:
    """Runs the unpartitioned program in numpy: the oracle. Raises SpmdcError: E501 if the arrays do not match, E406 for
    an SPMD program."""
    from lowering.reference import evaluate as run_reference

    program = program_of(program)
    if program.stage == "spmd":
        raise error("E406", "the program is an SPMD program", help="simulate it, or evaluate the program it came from")
    return run_reference(program, *arrays)


def random_inputs(program: Program, seed: int = 0, integers: bool = False) -> tuple[Array, ...]:
    """Inputs for the program's parameters: normal floats, or small integers so that sums are exact."""
    return draw_inputs(program, seed, integers)
