"""What may become of a text: it is refused with diagnostics, or every stage of it prints, reads back and is right."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from other_inputs import judged_machine

import spmdc
from ir.diagnostics import SpmdcError
from ir.ops import OPS
from ir.ops.control import is_loop, is_manual
from ir.program import Op, Program, all_ops
from ir.verify.program import verify
from lowering.jax import jax_source
from lowering.reference import simulate
from passes.cost.machine import machine
from passes.manager import handed_on
from passes.partition.options import PartitionOptions
from spmdc.frontends.spmd import print_program
from spmdc.reading import read
from spmdc.reports.cost import cost_of
from spmdc.verification import equivalence

MOST_SECONDS = 10.0
"""Of processor time, that reading or partitioning a damaged text may take. They are all short."""

_MOST_ELEMENTS, _MOST_FLOPS, _MOST_DEVICES, _MOST_OPS = 5_000, 200_000, 16, 200
_RUNS_FOR = 2.0

T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """How far a text came: `refused` and the code, `partitioned`, or `equal`; or what is wrong, and where."""

    outcome: str
    fault: str = ""
    details: str = ""


class _LateError(BaseException):
    """Processor time is over. No code that is judged expects it."""


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _LateError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class _FaultyError(Exception):
    """What no text may lead to."""


def judge(text: str, language: str, *, run: bool = True) -> Verdict:
    """Reads, propagates, plans and partitions a text, and reads back what each stage prints. If it is small, and `run`,
    what the program computes is compared, too."""
    try:
        with _bounded(MOST_SECONDS):
            try:
                if language == "toml":
                    return Verdict(judged_machine(text))
                program = read(encoded(text, language), f"damaged.{language}")
            except SpmdcError as refused:
                str(refused)
                return Verdict(f"refused {refused.diagnostics[0].code}")
            outcome = _stages(program)
    except _FaultyError as fault:
        return Verdict("faulty", str(fault).splitlines()[0], str(fault))
    except _LateError as late:
        return Verdict("faulty", f"late in {_where(late)}", traceback.format_exc())
    except (Exception, RecursionError) as problem:
        return Verdict("faulty", f"{type(problem).__name__} in {_where(problem)}", traceback.format_exc())
    if not run or not is_small(program):
        return Verdict(outcome)
    return _computed(program) if outcome == "partitioned" else _run(program) if outcome == "SPMD" else Verdict(outcome)


def encoded(text: str, language: str) -> bytes:
    """The text as a file has it; bytecode is a text of a character for each byte."""
    return text.encode("latin-1") if language == "bytecode" else text.encode("utf-8", "surrogatepass")


def _stages(program: Program) -> str:
    _reads_back(program, "the program")
    if program.stage == "spmd":
        return _of_one_device(program)
    if not program.meshes:
        return "no mesh"
    try:
        if program.stage == "global":
            propagated = spmdc.propagate(program)
            _reads_back(propagated.program, "the propagated program")
        plan = spmdc.plan(program)
        planned = _reads_back(plan.program, "the plan")
        plan.cost()
        partitioned = spmdc.partition(plan)
    except SpmdcError as refused:
        if program.stage == "plan":
            return "contradictory plan"
        code = refused.diagnostics[0].code
        if code in _PARTITIONING:
            return f"unpartitionable {code}"
        raise _FaultyError(f"a program that verifies is refused with {code}\n{refused}") from refused
    _reads_back(partitioned.program, "the SPMD program")
    if spmdc.partition(planned).text(locations=False) != partitioned.text(locations=False):
        raise _FaultyError("the plan that was read back is written otherwise")
    partitioned.collectives()
    partitioned.peak_bytes()
    _lowers(partitioned)
    return "partitioned"


def _of_one_device(program: Program) -> str:
    """An SPMD program has a cost, and is written for JAX."""
    used = machine("tpu-v3")
    try:
        cost_of(program, used)
        compile(jax_source(handed_on(program, PartitionOptions.on(used))), "<damaged>", "exec")
    except SpmdcError as refused:
        return f"SPMD, refused {refused.diagnostics[0].code}"
    return "SPMD"


def _lowers(partitioned: spmdc.PartitionedProgram) -> None:
    """A program that is partitioned is written for JAX, but for options of calls that no one can read."""
    try:
        compile(partitioned.jax_source(), "<damaged>", "exec")
    except SpmdcError as refused:
        if not all(d.message.startswith("opaque: its config") for d in refused.diagnostics):
            raise _FaultyError(f"an SPMD program is not written for JAX\n{refused}") from refused


_PARTITIONING = frozenset({"E307"})
"""Codes with which a valid program may be refused later than it is read."""


def _reads_back(program: Program, what: str) -> Program:
    problems = verify(program)
    if problems:
        raise _FaultyError(f"{what} does not verify: {problems[0].code} {problems[0].message}")
    again = program
    diagnostic = any(op.span is not None for op in all_ops(program))
    for locations in (diagnostic, False):
        text = print_program(program, locations=locations)
        try:
            again = spmdc.parse(text)
        except SpmdcError as refused:
            raise _FaultyError(f"{what} does not read back: {refused.diagnostics[0].code}\n{refused}") from refused
        if print_program(again, locations=locations) != text:
            raise _FaultyError(f"{what} reads back as another one")
    return again


def is_small(program: Program) -> bool:
    """Whether running the program takes no time to speak of, loops of unknown length aside."""
    ops = list(all_ops(program))
    values = [*program.main.params, *(v for op in ops for v in op.results)]
    flops = sum(rule(op) for op in ops if (rule := OPS[op.name].flops) is not None)
    trips = [trip for op in ops if is_loop(op) and isinstance(trip := op.attrs.get("trip_count"), int)]
    return (
        program.stage in ("global", "spmd")
        and program.mesh.size <= _MOST_DEVICES
        and len(ops) <= _MOST_OPS
        and sum(v.type.size for v in values) <= _MOST_ELEMENTS
        and flops <= _MOST_FLOPS
        and all(trip <= 16 for trip in trips)
        and not any(op.name in ("opaque", "callback") or _takes_parts(op) for op in ops)
    )


def _takes_parts(op: Op) -> bool:
    """Whether a manual region takes the parts of a sum, of which no program says what they are."""
    return is_manual(op) and any(v.sharding is not None and v.sharding.partial for v in op.regions[0].params)


def _computed(program: Program) -> Verdict:
    """Whether partitioning changes what the program computes."""
    found = _in_time(lambda: equivalence.verify(program, 1))
    if isinstance(found, Verdict):
        return found
    if found.counterexample is None:
        return Verdict("equal")
    wrong = found.counterexample
    return Verdict("faulty", "another result", f"{wrong.reason}\nseed {wrong.seed}\n{wrong.text()}")


def _run(program: Program) -> Verdict:
    """Whether the devices of an SPMD program agree on what each of them has."""
    found = _in_time(lambda: simulate(program, *spmdc.random_inputs(program, 1)))
    return found if isinstance(found, Verdict) else Verdict("run")


def _in_time(compute: Callable[[], T]) -> T | Verdict:
    try:
        with _bounded(_RUNS_FOR):
            return compute()
    except _LateError:
        return Verdict("partitioned, runs long")
    except SpmdcError as refused:
        return Verdict(f"not run {refused.diagnostics[0].code}")
    except MemoryError:
        return Verdict("not run, of lack of memory")
    except (Exception, RecursionError) as problem:
        return Verdict("faulty", f"{type(problem).__name__} when run in {_where(problem)}", traceback.format_exc())


def _where(problem: BaseException) -> str:
    """The last two functions of ours on the stack."""
    frames = [
        f"{frame.filename.split('/')[-1]}:{frame.name}"
        for frame in traceback.extract_tb(problem.__traceback__)
        if not any(folder in frame.filename for folder in ("site-packages", "/tests/", "lib/python"))
    ]
    return " < ".join(reversed(frames[-2:])) or "?"


Judge = Callable[[str, str], Verdict]
