"""`spmdc demo`: GShard's mixture-of-experts layer, partitioned, and run on the bytes of a text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import spmdc
from ir.diagnostics import error
from ir.ops.control import is_call
from ir.program import Program, Region, Result, Value, callee_of
from ir.records import as_json
from ir.spelling.printer import print_type
from ir.types import Array
from passes.cost.machine import machine
from passes.propagation.reasons import Propagated, Reason
from spmdc import PartitionedProgram
from spmdc.commands.partition import COLLECTIVE_HEADERS, COLLECTIVE_NUMBERS, collective_row, total_bytes
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Page
from spmdc.commands.shared.terminal import interruptible, print_json
from spmdc.files import read_bytes
from spmdc.reports.why import spell_value
from spmdc.verification.differences import Difference, differences

PROGRAM = "moe_layer.spmd"


@dataclass(frozen=True, slots=True)
class _Placement:
    """A value, its type with its sharding, and the reason in a few words."""

    name: str
    type: str
    is_annotated: bool
    because: str


@dataclass(frozen=True)
class _Run:
    """One execution: its backend, its time, and its difference from the unpartitioned program."""

    backend: str
    seconds: float
    apart: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of tokens to experts. `load` counts the tokens of each expert, `full` the groups in which its
    capacity is used up. `twice`, `once` and `dropped` count the tokens that went to two experts, one, and none.

    `room` is the number of tokens that an expert can take: its `capacity` in a group times the number of groups.
    """

    tokens: int
    groups: int
    capacity: int
    room: int
    load: tuple[int, ...]
    full: tuple[int, ...]
    twice: int
    once: int
    dropped: int


def run(options: Options, *, text: str | None, jax: bool) -> int:
    """Shows every stage of the layer's compilation, and checks its results.

    The exit status is 1 if a backend differs from the unpartitioned program by more than rounding explains.
    """
    devices = options.devices or 8
    name, routed = _read_text(text)
    folder = resources.files("spmdc").joinpath("programs")
    source = folder.joinpath(PROGRAM).read_text("utf-8")
    start = time.perf_counter()
    program = spmdc.parse(source, PROGRAM, {"D": devices}, str(folder))
    seconds = {"parse": time.perf_counter() - start}
    partitioned = spmdc.partition(program, machine=machine(options.machine))
    arrays, used = _inputs(program, routed, options.seed)
    runs, reference = _execute(program, partitioned, arrays, jax)
    routing = routing_of(_gating(program, arrays), used)
    aux = float(next(x for r, x in zip(program.main.results, reference, strict=True) if r.type.rank == 0))
    timings = {**seconds, **partitioned.timings, **{r.backend: r.seconds for r in runs}}
    is_right = all(d.is_rounding for r in runs for d in r.apart)
    if options.json:
        figures = _figures(partitioned, routing, runs, timings, aux, name, used)
        print_json(options.verb, figures, partitioned.warnings)
        return 0 if is_right else 1
    print_diagnostics(partitioned.warnings)
    page = Page()
    page.text(
        f"A mixture-of-experts layer (GShard, Algorithm 2) on {devices} {'device' if devices == 1 else 'devices'}, "
        f"routing {used} bytes of {name}"
    )
    _show_program(page, source, partitioned)
    _show_routing(page, routing, aux)
    _show_runs(page, runs, timings, is_right)
    return 0 if is_right else 1


def _read_text(path: str | None) -> tuple[str, bytes]:
    """The name and bytes of the text to route: by default spmdc's README, from the checkout or the installed
    metadata."""
    if path is not None:
        data = read_bytes(path)
        if not data:
            raise error("E501", f"{path} is empty, and the demo routes the bytes of a text", help="give another file")
        return path, data
    checkout = Path(spmdc.__file__).parent.parent
    readme = checkout / "README.md"
    if readme.is_file() and (checkout / "pyproject.toml").is_file():
        return "README.md", readme.read_bytes()
    about = metadata.metadata("spmdc").json
    description = about.get("description") or about["summary"]
    return "spmdc's README", str(description).encode()


def _inputs(program: Program, text: bytes, seed: int) -> tuple[tuple[Array, ...], int]:
    """The program's inputs, with the text's bytes embedded by a random table, and the number of bytes used."""
    drawn = spmdc.random_inputs(program, seed)
    position = next(i for i, p in enumerate(program.main.params) if p.name == "inputs")
    groups, size, model = program.main.params[position].shape
    tokens = np.zeros(groups * size, np.uint8)
    used = min(len(text), tokens.size)
    tokens[:used] = np.frombuffer(text[:used], np.uint8)
    table = np.random.default_rng(seed).standard_normal((256, model)).astype(drawn[position].dtype)
    embedded = table[tokens].reshape(groups, size, model)
    return (*drawn[:position], embedded, *drawn[position + 1 :]), used


def _execute(
    program: Program, partitioned: PartitionedProgram, arrays: Sequence[Array], jax: bool
) -> tuple[list[_Run], tuple[Array, ...]]:
    start = time.perf_counter()
    expected = spmdc.evaluate(program, *arrays)
    runs = [_Run("unpartitioned", time.perf_counter() - start, ())]
    backends = {"simulator": partitioned.simulate}
    if jax:
        backends["jax"] = lambda *a: partitioned.to_jax()(*a)
    for name, execute in backends.items():
        start = time.perf_counter()
        with interruptible():
            got = [np.asarray(x) for x in execute(*arrays)]
        seconds = time.perf_counter() - start
        runs.append(_Run(name, seconds, tuple(differences(program, got, expected))))
    return runs, expected


def _gating(program: Program, arrays: Sequence[Array]) -> Array:
    """The combine weights, f32[groups, tokens, experts, capacity], of the program's own gating."""
    body = program.main.body
    call = next(op for op in body.ops if is_call(op) and callee_of(op) == "top2_gating")
    combine = call.results[0]
    return spmdc.evaluate(_returning(program, combine), *arrays)[0]


def routing_of(combine: npt.NDArray[Any], tokens: int) -> Routing:
    """Reads combine weights of shape [groups, tokens, experts, capacity] (GShard, section 3.1).

    The first `tokens` tokens count, the others being padding; padding uses up capacity too.
    """
    groups, size, experts, capacity = combine.shape
    taken = (combine != 0).any(axis=3)
    sent = taken.reshape(groups * size, experts)
    choices = sent[:tokens].sum(axis=1)
    load = sent[:tokens].sum(axis=0)
    room = groups * capacity
    return Routing(
        tokens,
        groups,
        capacity,
        room,
        tuple(int(n) for n in load),
        tuple(int(n) for n in (taken.sum(axis=1) >= capacity).sum(axis=0)),
        int(np.count_nonzero(choices == 2)),
        int(np.count_nonzero(choices == 1)),
        int(np.count_nonzero(choices == 0)),
    )


def _returning(program: Program, value: Value) -> Program:
    """The program with that value of its entry as its only result."""
    main = program.main
    body = Region(main.body.params, main.body.ops, (value,))
    function = replace(main, body=body, results=(Result(value.name, value.type),))
    return replace(program, functions={**program.functions, program.entry: function})


def _show_program(page: Page, source: str, partitioned: PartitionedProgram) -> None:
    page.heading(f"The program, {PROGRAM}: one huge device, and annotations (@)")
    page.code(source)
    found = _placements(partitioned.source, partitioned.propagated)
    annotated = sum(p.is_annotated for p in found)
    page.heading(f"How each value is sharded: {annotated} annotated, {len(found) - annotated} inferred")
    page.table(("value", "type and placement", "because"), [[p.name, p.type, p.because] for p in found])
    page.heading("What each device runs")
    page.code(partitioned.text())
    collectives = partitioned.collectives()
    page.heading(f"What the devices send each other: {total_bytes(partitioned)}")
    page.table(COLLECTIVE_HEADERS, [collective_row(c) for c in collectives], COLLECTIVE_NUMBERS)


def _placements(source: Program, propagated: Propagated) -> list[_Placement]:
    """The parameters and results of ops of the entry, in program order. `source` is the program before propagation."""
    before, after = source.main.body, propagated.program.main.body
    values = [*zip(before.params, after.params, strict=True)]
    for op, placed in zip(before.ops, after.ops, strict=True):
        values.extend(zip(op.results, placed.results, strict=True))
    return [_placement(source.entry, value, placed, propagated) for value, placed in values]


def _placement(function: str, value: Value, placed: Value, propagated: Propagated) -> _Placement:
    shown = print_type(placed.type, placed.sharding)
    if value.sharding is not None:
        line = f", line {value.span.line}" if value.span is not None else ""
        return _Placement(value.name, shown, True, f"annotated{line}")
    reasons = [r for dim in range(value.type.rank) for r in propagated.reasons.get(((function, value.name), dim), ())]
    because = "; ".join(dict.fromkeys(_because(r) for r in reasons))
    return _Placement(value.name, shown, False, because or "nothing asks for a split")


def _because(reason: Reason) -> str:
    if reason.source is None:
        return reason.how
    return f"{reason.how} from {spell_value(reason.source)}"


def _show_routing(page: Page, routing: Routing, aux: float) -> None:
    page.heading("Tokens to each expert")
    remarks = (f"full in {n} of {routing.groups} groups" if n else "" for n in routing.full)
    bars = [(f"expert {i}", n, note) for i, (n, note) in enumerate(zip(routing.load, remarks, strict=True))]
    page.bars(bars, routing.room)
    page.text("\n")
    page.text(
        f"of {routing.tokens} tokens, {routing.twice} went to two experts, {routing.once} to one (the second was not "
        f"drawn, or full) and {routing.dropped} to none (both full)"
    )
    page.text(f"an expert has room for {routing.room}: {routing.capacity} in each of {routing.groups} groups")
    page.text(f"auxiliary loss: {aux:.6f}")


def _show_runs(page: Page, runs: Sequence[_Run], timings: dict[str, float], is_right: bool) -> None:
    page.heading("Does it compute the same?")
    names = [d.name for d in runs[-1].apart]
    headers = ("run", "seconds", *(f"{name} off by at most" for name in names))
    rows = [[r.backend, f"{r.seconds:.3f}", *(f"{d.largest:.3g}" for d in r.apart)] for r in runs]
    page.table(headers, [row + [""] * (len(headers) - len(row)) for row in rows], range(1, len(headers)))
    page.text("\n")
    page.text(f"{'yes, up to rounding' if is_right else 'NO: more than rounding explains'}")
    steps = ("parse", "propagate", "plan", "write")
    compile_seconds = ", ".join(f"{n} {timings[n]:.3f} s" for n in steps if n in timings)
    page.text(f"compiling took: {compile_seconds}")


def _figures(
    partitioned: PartitionedProgram,
    routing: Routing,
    runs: Sequence[_Run],
    timings: dict[str, float],
    aux: float,
    text: str,
    used: int,
) -> dict[str, object]:
    return {
        "text": text,
        "bytes": used,
        "devices": partitioned.program.mesh.size,
        "values": [as_json(p) for p in _placements(partitioned.source, partitioned.propagated)],
        "program": partitioned.text(),
        "collectives": [c.to_json() for c in partitioned.collectives()],
        "routing": as_json(routing),
        "auxiliary_loss": aux,
        "runs": [
            {"backend": r.backend, "seconds": r.seconds, "differences": {d.name: d.largest for d in r.apart}}
            for r in runs
        ],
        "timings": timings,
    }
