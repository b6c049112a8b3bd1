"""The modelled step of a device as a trace that Perfetto and chrome://tracing open.

The format is Chrome's "Trace Event Format": complete events `X`, counters `C`, names `M`; times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ir.ops.collective import COLLECTIVES
from ir.program import Program
from passes.cost.machine import Machine
from passes.cost.memory import MemoryEstimate
from passes.cost.model import collective_bytes
from passes.cost.timeline import MOST, Execution, timeline
from spmdc.reports.collectives import axes_text
from spmdc.reports.groups import kind_of

Event = dict[str, object]
_PROCESS, _COMPUTE = 1, 1
_MICROSECONDS = 1e6


def trace_of(program: Program, machine: Machine) -> dict[str, object]:
    """A thread for computation, one for each set of axes of collectives, and a counter of the memory of values, op by
    op of the entry. Ops that take no time are left out: they are fused into another op's kernel."""
    executions = timeline(program, machine)
    threads: dict[str, int] = {"compute": _COMPUTE}
    events = [_event(program, execution, threads) for execution in executions if execution.seconds]
    names = [named("process_name", _PROCESS, 0, f"{program.summary} on {machine.name}, by model")]
    names += [named("thread_name", _PROCESS, number, thread) for thread, number in threads.items()]
    counters = list(_memory(program, executions))
    other = {"machine": machine.name, "program": program.summary, "is_complete": len(executions) < MOST}
    return {"traceEvents": [*names, *events, *counters], "displayTimeUnit": "ns", "otherData": other}


def _event(program: Program, execution: Execution, threads: dict[str, int]) -> Event:
    op = execution.op
    name = f"network ({axes_text(program, op)})" if op.name in COLLECTIVES else "compute"
    thread = threads.setdefault(name, len(threads) + 1)
    begin, duration = execution.begin * _MICROSECONDS, execution.seconds * _MICROSECONDS
    return complete(op.label, kind_of(op), begin, duration, _PROCESS, thread, _about(execution))


def _about(execution: Execution) -> Event:
    op = execution.op
    about: Event = {"op": op.name, "results": ", ".join(map(str, (value.type for value in op.results)))}
    if op.span is not None:
        about["line"] = str(op.span)
    if op.name in COLLECTIVES:
        about["received bytes"] = collective_bytes(op)
    if op.cause is not None:
        about["for"] = str(op.cause)
    if execution.turns > 1:
        about["turns"] = f"{execution.turns:,}, of which the first is drawn"
    if execution.is_critical:
        about["critical path"] = "yes"
    return about


def _memory(program: Program, executions: Iterable[Execution]) -> Iterator[Event]:
    """The memory that is alive while each op of the entry runs."""
    estimate = MemoryEstimate(program)
    estimate.peak()
    for execution in executions:
        if not execution.depth and execution.seconds:
            yield {
                "name": "memory",
                "ph": "C",
                "ts": execution.begin * _MICROSECONDS,
                "pid": _PROCESS,
                "args": {"bytes": estimate.alive[execution.op]},
            }


def complete(name: str, category: str, begin: float, duration: float, process: int, thread: int, about: Event) -> Event:
    """Something that a thread does for some microseconds."""
    place: Event = {"ts": begin, "dur": duration, "pid": process, "tid": thread}
    return {"name": name, "cat": category, "ph": "X", **place, "args": about}


def named(kind: str, process: int, thread: int, name: str) -> Event:
    """The name of a process or a thread."""
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
