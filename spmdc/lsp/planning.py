"""Shardings, costs and collectives of a program, found in a separate process, so that typing does not wait for them.

The process is a fork of one that has imported the planner. It sends results as soon as they are known, then answers why
values are sharded as they are. It ends when the client is gone, or when it is killed.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext

from ir.diagnostics import Diagnostic, InternalError, SpmdcError
from ir.program import Program, values_within
from ir.spelling.printer import print_type
from passes.propagation.reasons import ValueId
from spmdc.api import PropagatedProgram, partition, plan, propagate
from spmdc.reading import parse
from spmdc.reports.collectives import Collective
from spmdc.reports.cost_text import sum_text

_MOST_LINES = 40
"""The most lines of the reasons for a sharding: at the end of a longer chain there is an annotation far away."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The results for a program, at first without a plan. `shardings` has types with shardings, by the names of
    function and value, `costs` has the seconds and received bytes of each line's ops, and `total` those of all."""

    shardings: Mapping[ValueId, str]
    costs: Mapping[int, tuple[float, int]]
    collectives: tuple[Collective, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    total: str = ""


NOTHING = Facts({}, {})


@dataclass(frozen=True, slots=True)
class _Fault:
    """The message of an exception in the process that is a bug of spmdc."""

    trace: str


class Planning:
    """A process that plans a text. Its methods block, and are for threads, except `end`."""

    def __init__(self, text: str, name: str, folder: str | None = None) -> None:
        context = _context()
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_begin, args=(theirs, text, name, folder), daemon=True)
        self._turn = threading.Lock()
        self._process.start()
        theirs.close()

    def facts(self) -> Iterator[Facts]:
        """The results, more complete each time. Raises InternalError for a bug in planning."""
        with self._turn:
            yield from facts_of(self._ours)

    def why(self, value: ValueId) -> str:
        """The origin of a value's sharding; empty if it has none, or the process has ended."""
        with self._turn, contextlib.suppress(EOFError, OSError):
            self._ours.send(value)
            return str(self._ours.recv())
        return ""

    def end(self) -> None:
        """Ends the process, whatever it is at."""
        self._process.kill()
        self._process.join()


def facts_of(connection: Connection) -> Iterator[Facts]:
    """The results that `serve` sends, until they are complete, or the process is killed. Raises InternalError for a
    bug."""
    with contextlib.suppress(EOFError, OSError):
        while (found := connection.recv()) is not None:
            if isinstance(found, _Fault):
                raise InternalError(found.trace)
            yield found


@functools.cache
def _context() -> ForkServerContext | SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # With threads of OpenBLAS, it could not be forked.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _begin(connection: Connection, text: str, name: str, folder: str | None) -> None:
    """The body of the process. Its standard output is the editor's, and must not be written to."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        serve(connection, text, name, folder)
    except OSError:
        return  # The client is gone.


def serve(connection: Connection, text: str, name: str, folder: str | None = None) -> None:
    """Sends facts, more complete each time, and then nothing or a bug of spmdc; then answers questions about values
    until the client is gone."""
    propagated: PropagatedProgram | None = None
    facts = NOTHING
    try:
        program = parse(text, name, folder=folder)
        if program.stage == "global" and program.meshes[0].axes:
            propagated = propagate(program)
            facts = _shardings(propagated.program)
            connection.send(facts)
        facts = _planned(facts, program, name)
    except SpmdcError as problem:
        facts = replace(facts, diagnostics=problem.diagnostics)
    except Exception:
        connection.send(_Fault(traceback.format_exc()))
        return
    connection.send(facts)
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_why(propagated, connection.recv()))


def _why(propagated: PropagatedProgram | None, value: ValueId) -> str:
    try:
        lines = propagated.why(".".join(value)).splitlines() if propagated is not None else []
    except SpmdcError:
        return ""
    left_out = [f"  … and {len(lines) - _MOST_LINES:,} lines more"] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[:_MOST_LINES], *left_out])


def _shardings(program: Program) -> Facts:
    shardings: dict[ValueId, str] = {}
    for function in program.functions.values():
        for value in values_within(function.body):
            text = print_type(value.of or value.type, value.sharding)
            shardings.setdefault((function.name, value.name), text)
            original = re.sub(r"\.\d+$", "", function.name)  # if the function was specialised
            shardings.setdefault((original, value.name), text)
    return Facts(shardings, {})


def _planned(facts: Facts, program: Program, source: str) -> Facts:
    """The facts with those of the plan. A program for one device, or an SPMD program, has none."""
    if program.stage == "spmd" or not program.meshes[0].axes:
        return facts
    planned = plan(program)
    cost = planned.cost()
    costs: dict[int, tuple[float, int]] = {}
    for op, taken in cost.ops.items():
        if op.span is not None and op.span.source.name == source:
            seconds, received = costs.get(op.span.line, (0.0, 0))
            costs[op.span.line] = seconds + taken.seconds, received + taken.received
    collectives = tuple(partition(planned).collectives())
    return replace(facts, costs=costs, collectives=collectives, diagnostics=planned.warnings, total=sum_text(cost))
