"""The measured timeline of devices, by JAX's profiler: events of the trace format, to be shown beside those of the
model."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy.typing as npt

from ir.diagnostics import InternalError
from ir.program import Op, Program
from lowering.jax.running import Executable, compile_program
from spmdc.reports.groups import kind_of
from spmdc.reports.optimised_module import read_module
from spmdc.reports.origins import Origins
from spmdc.reports.trace import Event, complete, named

_PROCESS = 2
_ready: Any = jax.block_until_ready
_RUNS = 3
_MOST_DEVICES = 16
_DEVICE = re.compile(r"/device:\w+:(\d+)")
_MODULE = re.compile(r"^HloModule ([\w.\-]+)")


@dataclass(frozen=True, slots=True)
class Measured:
    """An instruction of the compiled module that one device executed, from `begin` on, in microseconds."""

    device: int
    thread: tuple[object, object]
    instruction: str
    begin: float
    duration: float


def with_measured(trace: Mapping[str, Any], program: Program, arrays: Sequence[npt.ArrayLike]) -> dict[str, Any]:
    """A modelled trace, with the fastest of a few runs of the SPMD program on JAX's devices added: a process with a
    thread for each device.

    Events have the names of the program's ops if the compiler states which one an instruction comes from, else those of
    instructions. Raises SpmdcError (E501, E502, E503).
    """
    executable = compile_program(program, None)
    _ready(executable(*arrays))
    text = str(executable.ahead().as_text())
    module = _MODULE.match(text)
    if module is None:
        raise InternalError("the compiled module has no name")
    runs = (_profiled(executable, arrays, module[1]) for _ in range(_RUNS))
    measured = _events(min(runs, key=_seconds), _origins(executable, text))
    return {**trace, "traceEvents": [*trace["traceEvents"], *measured]}


def _profiled(executable: Executable, arrays: Sequence[npt.ArrayLike], module: str) -> list[Measured]:
    """The instructions of the module that the devices execute in one run, in order of time."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            _ready(executable(*arrays))
        (path,) = Path(folder).glob("plugins/profile/*/*.trace.json.gz")
        events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    found = [
        Measured(_device_of(e, processes), (e["pid"], e["tid"]), e["args"]["hlo_op"], e["ts"], e.get("dur", 0.0))
        for e in events
        if e.get("ph") == "X" and e.get("args", {}).get("hlo_module") == module and "hlo_op" in e["args"]
    ]
    return sorted(found, key=lambda m: (m.begin, -m.duration))


def _device_of(event: Mapping[str, Any], processes: Mapping[object, str]) -> int:
    """The device of an event: CPUs state it in each event, other platforms have a process for each device."""
    ordinal = event["args"].get("device_ordinal")
    match = _DEVICE.match(processes.get(event["pid"], ""))
    return int(ordinal) if ordinal is not None else int(match[1]) if match is not None else 0


def _seconds(run: Sequence[Measured]) -> float:
    return max((m.begin + m.duration for m in run), default=0.0) - min((m.begin for m in run), default=0.0)


def _origins(executable: Executable, text: str) -> dict[str, Op]:
    """The op that each instruction comes from, by the instruction's name."""
    module = read_module(text)
    origins = Origins(executable, text, module)
    instructions = (i for c in module.computations.values() for i in c.instructions.values())
    return {i.name: op for i in instructions if (op := origins.of(i)) is not None}


def _events(run: Sequence[Measured], origins: Mapping[str, Op]) -> list[Event]:
    first = min((m.begin for m in run), default=0.0)
    lanes: dict[tuple[int, tuple[object, object]], int] = {}
    devices: dict[int, int] = {}
    names = [named("process_name", _PROCESS, 0, f"measured on {jax.devices()[0].device_kind}")]
    events: list[Event] = []
    for m in sorted(run, key=lambda m: m.device):
        if m.device not in devices and len(devices) == _MOST_DEVICES:
            continue
        lane = (m.device, m.thread)
        if lane not in lanes:
            lanes[lane] = len(lanes) + 1
            devices[m.device] = devices.get(m.device, 0) + 1
            more = f", thread {devices[m.device]}" if devices[m.device] > 1 else ""
            names.append(named("thread_name", _PROCESS, lanes[lane], f"device {m.device}{more}"))
        events.append(_event(m, m.begin - first, lanes[lane], origins.get(m.instruction)))
    return [*names, *events]


def _event(m: Measured, begin: float, lane: int, op: Op | None) -> Event:
    about: Event = {"instruction": m.instruction}
    if op is not None and op.span is not None:
        about["line"] = str(op.span)
    name, category = (op.label, kind_of(op)) if op is not None else (m.instruction, "of the compiler")
    return complete(name, category, begin, m.duration, _PROCESS, lane, about)
