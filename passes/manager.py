"""Pipelines: a tuple of passes run in order, with hooks called after each that changes the program.

A pass is a frozen dataclass with a `name` and `apply`. Printing, timing, verifying and dumping are hooks, not options.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ir.diagnostics import Diagnostic, InternalError, error, render, require
from ir.garbage import uncollected
from ir.program import Program, Stage
from ir.verify.program import verify
from passes.optimize.calls_by_use import separate_calls
from passes.optimize.cse import eliminate_common_subexpressions
from passes.optimize.dce import eliminate_dead_code
from passes.optimize.fold.simplify import simplify, use_known_indices
from passes.optimize.gathers_in_a_row import gather_at_once
from passes.optimize.joining import join_collectives
from passes.optimize.loop_invariants import hoist_collectives
from passes.optimize.selected_pieces import select_pieces
from passes.partition import Decide, Plan, make_plan, read_plan, write_plan
from passes.partition.even_results import with_even_results
from passes.partition.options import PartitionOptions
from passes.partition.plan.joined_slices import join_what_is_cut
from passes.partition.write.cost import bytes_received, plan_cost
from passes.propagation.propagate import propagate
from passes.propagation.reasons import Propagated
from passes.propagation.specialize import specialize
from passes.reductions import write_reductions


@dataclass(frozen=True, eq=False)
class Compilation:
    """A program on its way through a pipeline, and what the passes have found out."""

    program: Program
    propagated: Propagated | None = None
    plan: Plan | None = None
    warnings: tuple[Diagnostic, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict[str, float])


class Pass(Protocol):
    """One step of a pipeline."""

    @property
    def name(self) -> str:
        """The name of the pass in reports."""
        ...

    def apply(self, state: Compilation) -> Compilation:
        """The compilation after the pass. Raises SpmdcError for errors in the user's program."""
        ...


Hook = Callable[[Pass, Compilation], None]


@uncollected()
def run(state: Compilation, passes: Sequence[Pass], hooks: Sequence[Hook] = ()) -> Compilation:
    """Applies the passes in order. `timings` gets the seconds of each, and the hooks are called after each pass that
    changed the program."""
    for step in passes:
        start = time.perf_counter()
        before, after = state.program, step.apply(state)
        require(isinstance(after, Compilation), f"the pass {step.name!r} returns a Compilation", after)
        state = replace(after, timings={**state.timings, step.name: time.perf_counter() - start})
        for hook in hooks if state.program is not before else ():
            hook(step, state)
    return state


@dataclass(frozen=True)
class Rewrite:
    """Rewrites a program by `of` alone. If it `prepares` propagation, it does nothing to a program that has been
    propagated or planned."""

    name: str
    of: Callable[[Program], Program]
    prepares: bool = False

    def apply(self, state: Compilation) -> Compilation:
        if self.prepares and _is_propagated(state):
            return state
        return replace(state, program=self.of(state.program))


def _is_propagated(state: Compilation) -> bool:
    return state.propagated is not None or state.program.stage == "plan"


@dataclass(frozen=True)
class Propagate:
    """Gives every value a sharding. Does nothing to a program that has been propagated or planned."""

    name: str = "propagate"

    def apply(self, state: Compilation) -> Compilation:
        if _is_propagated(state):
            return state
        propagated = propagate(state.program)
        return replace(state, program=propagated.program, propagated=propagated)


@dataclass(frozen=True)
class MakePlan:
    """Decides how each op whose results are used is split, and what is resharded. Needs `Propagate` before it. A
    program that is a plan already is checked."""

    options: PartitionOptions
    decide: Decide | None = None
    name: str = "plan"

    def apply(self, state: Compilation) -> Compilation:
        if state.plan is not None and state.plan.program is state.program:
            return state
        propagated = state.propagated
        if state.program.stage == "plan":
            plan = read_plan(state.program, self.options)
        elif propagated is None:
            raise InternalError("plan runs after propagate")
        else:
            propagated, plan = self._cheapest(propagated)
        warnings = (*state.warnings, *plan.warnings)
        return replace(state, program=plan.program, propagated=propagated, plan=plan, warnings=warnings)

    def _cheapest(self, propagated: Propagated) -> tuple[Propagated, Plan]:
        """The plan, and the propagated program that it is made of: one of the ways to propagate it, with or without
        splits of which propagation can only estimate what they save. On a network, whose message latencies are known,
        times decide, and bytes otherwise; of equal ones, the last is used."""
        ways = [(propagated, self._planned(propagated))]
        while (otherwise := ways[-1][0].otherwise) is not None:
            other = otherwise()
            ways.append((other, self._planned(other)))
        if len(ways) == 1:
            return ways[0]
        found, plan = min(reversed(ways), key=lambda way: self._weight(way[1]))
        return replace(found, otherwise=None), plan

    def _weight(self, plan: Plan) -> float:
        machine = self.options.machine
        return plan_cost(plan, machine).seconds if machine.network else bytes_received(plan)

    def _planned(self, propagated: Propagated) -> Plan:
        joined = join_what_is_cut(propagated.program, self.options)
        return make_plan(replace(propagated, program=eliminate_dead_code(joined)), self.options, self.decide)


@dataclass(frozen=True)
class Write:
    """Turns a plan, with global shapes, into the program of one device. Needs `MakePlan` before it."""

    name: str = "write"

    def apply(self, state: Compilation) -> Compilation:
        if state.plan is None:
            raise InternalError("write runs after plan")
        return replace(state, program=write_plan(state.plan))


def pipeline(options: PartitionOptions) -> tuple[Pass, ...]:
    """The passes from a program to the SPMD program that devices run."""
    return *planning(options), Write(), *_behind(options)


def named_passes(names: Sequence[str], options: PartitionOptions, stage: Stage) -> tuple[Pass, ...]:
    """The passes with these names, in this order, for a program of that stage.

    Raises SpmdcError (E601) if there is no such pass, or one is not applicable to the program at its position.
    """
    known = {step.name: step for step in (*IMPORTED, *pipeline(options))}
    reached: str = stage
    for name in names:
        if name not in known:
            raise error("E601", f"there is no pass {name!r}", help=f"the passes: {', '.join(known)}")
        needed, after = _LEADS.get(name, (("spmd",), "spmd"))
        if reached not in needed:
            help_text = f"by default: {', '.join(step.name for step in pipeline(options))}"
            raise error("E601", f"the pass {name!r} is applied to a program that is {reached}", help=help_text)
        reached = after or reached
    return tuple(known[name] for name in names)


_LEADS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "simplify": (("global",), ""),
    "indices": (("global", "propagated", "plan"), ""),
    "specialize": (("global", "propagated", "plan"), ""),
    "propagate": (("global", "propagated", "plan"), "propagated"),
    "plan": (("propagated", "plan"), "planned"),
    "write": (("planned",), "spmd"),
}
"""The stages that a pass is applied to, and the one that it leads to. All other passes rewrite SPMD programs."""

PROPAGATING: tuple[Pass, ...] = (
    Rewrite("indices", use_known_indices, prepares=True),
    Rewrite("specialize", specialize, prepares=True),
    Propagate(),
)
"""The passes that give every value of a program a sharding."""


def planning(options: PartitionOptions, decide: Decide | None = None) -> tuple[Pass, ...]:
    """The passes that take a program to its plan. `decide` may override the cost model for some ops."""
    return *PROPAGATING, MakePlan(options, decide)


def _behind(options: PartitionOptions) -> tuple[Pass, ...]:
    machine, limit = options.machine, options.memory_limit
    return (
        Rewrite("reductions", lambda program: write_reductions(program, machine.laid_out(program.meshes))),
        Rewrite("loop-invariants", hoist_collectives),
        Rewrite("pieces", select_pieces),
        Rewrite("cse", eliminate_common_subexpressions),
        Rewrite("dce", lambda program: eliminate_dead_code(separate_calls(program))),
        Rewrite("gathers", lambda program: gather_at_once(program, machine.laid_out(program.meshes))),
        Rewrite("join", lambda program: join_collectives(program, machine.laid_out(program.meshes), limit)),
    )


IMPORTED: tuple[Pass, ...] = (Rewrite("simplify", simplify),)
"""The passes that are applied first to a program that was imported."""


def handed_on(program: Program, options: PartitionOptions) -> Program:
    """The SPMD program for results that become arrays with even shards only: results with other shardings are resharded
    at its end."""
    even = with_even_results(program, options.machine.laid_out(program.meshes))
    if even is program:
        return program
    return run(Compilation(even), _behind(options), (verify_after_each,)).program


def verify_after_each(step: Pass, state: Compilation) -> None:
    """A hook that verifies: a pass that makes an invalid program has a bug. Raises InternalError."""
    require_valid(state.program, step.name)


def require_valid(program: Program, step: str) -> None:
    """Raises InternalError if the program, which `step` has made, is invalid."""
    problems = verify(program)
    if problems:
        raise InternalError(f"after {step} the program is invalid:\n{render(problems)}")
