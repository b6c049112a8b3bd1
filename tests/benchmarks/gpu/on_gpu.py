"""Times of XLA's kernels on a GPU and memory, beside those of our model.

`make bench-gpu` prints a row for each op and program of `chip_cases.py` on one GPU; with CASES="softmax" those that
have `softmax` in their name. With WRITE=1 the rows get into the GPU's table of docs/gpu.md, with the date and the
versions; rows of other releases are dropped there. `--json FILE` keeps all that was measured, and `--read FILE` makes
the rows of that, with no GPU.

Time is the sum of the durations of a run's kernels in a trace of JAX's profiler, the median of some runs. Memory is
that of arguments, results and temporaries.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("benchmarks/tpu", ".."))

import jax
import numpy as np
from chip_cases import EXPERTS, PROGRAMS, SINGLE, of_one_op, shipped
from table import Row, Table, line, versions

import spmdc
from ir.program import Program
from lowering.jax.running import Executable, compile_program
from passes.cost.machine import Machine, machine, machine_called
from passes.cost.roofline import roofline
from spmdc.replace_mesh import replace_mesh

PAGE = Path("docs/gpu.md")
PACKAGES = ("jax", "jaxlib")
HEAD = ("case", "time, µs", "by model", "ratio", "kernels", "by model", "memory ratio", "date")
NAMES = (*SINGLE, *PROGRAMS)
NEAR, CLOSE = 0.25, 0.1
"""How far ratios of times, and of memory, may be from 1 to count as near."""
RUNS, WARM = 5, 2
"""How often each case runs in the trace, and before."""
REST = 2e-3
"""Seconds between two cases."""
SLACK = 500.0
"""Microseconds by which the clocks of the host and of the GPU may differ in a trace."""
PERIOD = 1_000_003
MODULE, _CASE = "jit_device_main", "case "
"""What an SPMD program's module is called in a trace, and what precedes the names of cases."""

_jax: Any = jax


@dataclass(frozen=True)
class Figures:
    """Microseconds of each kernel of each run, by its name, and bytes of memory besides the code."""

    runs: tuple[tuple[tuple[str, float], ...], ...]
    memory: int

    @property
    def microseconds(self) -> float:
        return statistics.median(sum(taken for _, taken in run) for run in self.runs)

    @property
    def kernels(self) -> int:
        return len(self.runs[-1])


@dataclass(frozen=True)
class Measured:
    """What was measured on a card, with which versions and when, by case."""

    card: str
    versions: str
    date: str
    cases: dict[str, Figures]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @staticmethod
    def read(path: Path) -> Measured:
        kept = json.loads(path.read_text())
        cases = {
            name: Figures(tuple(tuple((n, t) for n, t in run) for run in case["runs"]), case["memory"])
            for name, case in kept.pop("cases").items()
        }
        return Measured(cases=cases, **kept)


def program_of(name: str) -> Program:
    """A case on one device."""
    if name in SINGLE:
        return of_one_op(name)
    if name == "moe_gather":
        return shipped(name, **{**EXPERTS, "D": 1})
    whole = PROGRAMS[name]()
    return replace_mesh(whole, {axis: 1 for axis, _ in whole.mesh.axes})


def partitioned(name: str, own: Machine) -> spmdc.PartitionedProgram:
    return spmdc.partition(program_of(name), machine=own)


def measure(names: Sequence[str], own: Machine) -> Measured:
    """Runs the cases on the first of JAX's devices. Cases that do not compile or run are printed and left out."""
    begun = time.perf_counter()
    device = _jax.devices()[0]
    made = {n: compile_program(partitioned(n, own).with_even_results().program, [device]) for n in names}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ready = dict(zip(made, pool.map(_compiled, made.values()), strict=True))
    print(f"compiled after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    memory: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, compiled in ready.items():
            if isinstance(compiled, Exception) or not _runs(name, compiled, made[name], WARM):
                print(f"{name}: {compiled}", file=sys.stderr, flush=True)
            else:
                needed = compiled.memory_analysis()
                taken = needed.argument_size_in_bytes + needed.output_size_in_bytes + needed.temp_size_in_bytes
                memory[name] = taken - needed.alias_size_in_bytes
        options = _jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with _jax.profiler.trace(folder, profiler_options=options):
            for name in memory:
                _runs(name, ready[name], made[name], RUNS)
        runs = dict(_traced(Path(folder), memory))
    print(f"measured after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    cases = {name: Figures(runs[name], memory[name]) for name in memory if name in runs}
    return Measured(device.device_kind, versions(*PACKAGES), datetime.date.today().isoformat(), cases)


def _compiled(executable: Executable) -> Any:
    """The compiled program, or the reason why there is none."""
    try:
        return executable.ahead()
    except Exception as problem:
        return problem


def _runs(name: str, compiled: Any, executable: Executable, times: int) -> bool:
    """Runs a case that often, under its name in the trace, unless it fails."""
    given = _arguments(executable.program)
    _jax.block_until_ready(given)
    time.sleep(REST)
    try:
        with _jax.profiler.TraceAnnotation(_CASE + name):
            for _ in range(times):
                _jax.block_until_ready(compiled(*given))
    except Exception as problem:
        print(f"{name}: {problem}", file=sys.stderr, flush=True)
        return False
    time.sleep(REST)
    return True


def _arguments(program: Program) -> list[Any]:
    """Random arguments of an SPMD program for one device, which repeat after `PERIOD` elements: more take longer to
    make than to use. Integers are below 8."""
    random = np.random.default_rng(0)
    found: list[Any] = []
    for param in program.main.params:
        shape, dtype = (param.of or param.type).shape, np.dtype(param.dtype.numpy)
        most = {"b": 2, "i": 8, "u": 8}.get(dtype.kind)
        some = random.normal(size=PERIOD) if most is None else random.integers(0, most, PERIOD)
        found.append(_jax.device_put(np.resize(some.astype(dtype), shape)))
    return found


def _traced(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, tuple[tuple[tuple[str, float], ...], ...]]]:
    """The kernels of each case's runs, which have as many each."""
    events: list[dict[str, Any]] = []
    for path in folder.glob("plugins/profile/*/*.trace.json.gz"):
        events += json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    whole = [event for event in events if event.get("ph") == "X"]
    kernels = sorted(
        (event["ts"], event["name"], event.get("dur", 0.0))
        for event in whole
        if event.get("args", {}).get("hlo_module") == MODULE
    )
    spans = {event["name"]: (event["ts"], event["ts"] + event.get("dur", 0.0)) for event in whole}
    for name in names:
        begin, end = spans.get(_CASE + name, (0.0, 0.0))
        own = [(kernel, taken) for when, kernel, taken in kernels if begin - SLACK <= when <= end + SLACK]
        each, rest = divmod(len(own), RUNS)
        if each and not rest:
            yield name, tuple(tuple(own[i * each : (i + 1) * each]) for i in range(RUNS))
        else:
            print(f"{name}: {len(own)} kernels in {RUNS} runs", file=sys.stderr, flush=True)


def row(name: str, figures: Figures, own: Machine, date: str) -> Row:
    """The cells of a case."""
    found = roofline(partitioned(name, own).program, own)
    ours = sum(each.times * each.time.seconds for each in found.executed) * 1e6
    kernels = sum(each.times for each in found.executed if each.time.seconds)
    measured = figures.microseconds
    return (
        name, f"{measured:,.1f}", f"{ours:,.1f}", f"{ours / measured:.2f}", f"{figures.kernels}", f"{kernels}",
        f"{found.peak.nbytes / figures.memory:.2f}", date,
    )  # fmt: skip


def summary(rows: Iterable[Sequence[str]]) -> str:
    """How many cases are near what was measured."""
    kinds: dict[str, list[Sequence[str]]] = {"ops": [], "programs": []}
    for cells in rows:
        kinds["programs" if cells[0] in PROGRAMS else "ops"].append(cells)
    times, memory = (
        " and ".join(
            f"{sum(abs(float(cells[i]) - 1) <= limit for cells in own)} of {len(own)} {kind}"
            for kind, own in kinds.items()
        )
        for i, limit in ((3, NEAR), (6, CLOSE))
    )
    return f"Within a quarter of the measured times are {times}; within a tenth of the memory {memory}."


def table_of(name: str, measured: Measured) -> Table:
    """The table of a machine."""
    begin, end = f"{name}: make bench-gpu WRITE=1", f"end of {name}"
    said = f"{measured.versions[:-1]}, on one {measured.card}."
    return Table(begin, end, HEAD, NAMES, summary, PAGE, said)


def machine_of(card: str) -> Machine:
    """The machine that a kind of devices is. Ends the process if there is none."""
    return machine_called(card) or sys.exit(f"there is no machine for {card!r}: name one with --machine")


def asked() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", help="what the names of cases have to contain")
    options.add_argument("--machine", help="whose model it is; by default the one that the device is called")
    options.add_argument("--write", action="store_true", help=f"put the rows into {PAGE}")
    options.add_argument("--json", type=Path, metavar="FILE", help="where to keep what was measured")
    options.add_argument("--read", type=Path, metavar="FILE", help="what was kept before, in place of measuring")
    options.add_argument("--anywhere", action="store_true", help="measure on the device that JAX has, GPU or not")
    return options.parse_args()


def rows_of(measured: Measured, own: Machine, words: Sequence[str]) -> Iterator[Row]:
    for name, figures in measured.cases.items():
        if all(word in name for word in words):
            yield row(name, figures, own, measured.date)


def main() -> None:
    given = asked()
    names = [name for name in NAMES if all(word in name for word in given.words)]
    if given.read is not None:
        measured = Measured.read(given.read)
        own = machine(given.machine) if given.machine else machine_of(measured.card)
    else:
        device: Mapping[str, str] = {"platform": _jax.default_backend(), "kind": _jax.devices()[0].device_kind}
        if device["platform"] != "gpu" and not given.anywhere:
            sys.exit(f"JAX has no GPU here, only {device['kind']!r}: pip install 'jax[cuda13]', or 'jax[cuda12]'")
        own = machine(given.machine) if given.machine else machine_of(device["kind"])
        measured = measure(names, own)
    if given.json is not None:
        measured.write(given.json)
    print(measured.versions, measured.card, line(HEAD), sep="\n")
    rows: list[Row] = []
    for cells in rows_of(measured, own, given.words):
        rows.append(cells)
        print(line(cells), flush=True)
    print(summary(rows))
    if given.write:
        table_of(own.name, measured).put(rows)


if __name__ == "__main__":
    main()
