"""`spmdc cost`: the cost of a program on a machine, and a table of costs for several sizes, meshes and machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ir.diagnostics import Diagnostic, error
from ir.garbage import uncollected
from passes.cost.buffers import beyond_memory
from passes.cost.machine import machine
from passes.cost.model import assumed_trips
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Part, Table, finish
from spmdc.commands.shared.programs import is_partitioned, load_program, partition_program, read_stdin
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.reports.cost import Cost, CostRow, cost_of
from spmdc.reports.cost_text import seconds_text
from spmdc.reports.groups import By

_MOST_POINTS = 1000
_HEADERS = (
    "count", "time", "compute", "memory", "network", "overhead", "bound", "flops", "of peak", "accessed", "received",
)  # fmt: skip
_SWEEP_HEADERS = (
    "time", "critical", "compute", "memory", "network", "overhead", "bound", "flops", "of peak", "received",
    "memory peak",
)  # fmt: skip


@uncollected()
def run(
    options: Options,
    *,
    file: str,
    by: By | None,
    top: int | None,
    alive: bool,
    machines: Sequence[str],
    meshes: Sequence[Mapping[str, int]],
    sweeps: Sequence[tuple[str, Sequence[float]]],
) -> int:
    """Prints a row for each line, op, …, and with `alive` the values at the peak of memory; for several machines,
    meshes or values of consts, a row for each combination, and below what was asked for of each."""
    watch = Stopwatch()
    points = _points(options, machines, meshes, sweeps)
    stdin = read_stdin() if file == "-" else None
    is_asked = by is not None or top is not None or alive
    by = by or "line"
    found = [_cost(file, point, by, watch, stdin) for point in points]
    warnings = found[0][1] if len(found) == 1 else ()
    costs = [cost for cost, _, _ in found]
    note = next((assumed for _, _, assumed in found if assumed), "")
    if len(points) == 1:
        figures = costs[0].to_json() if options.json else {}
        return finish(options, watch, _shown(costs[0], by, top, note, alive=alive), figures, warnings)
    names = [_names(point, machines, meshes, sweeps) for point in points]
    rows = [[*name.values(), *_sweep_cells(cost)] for name, cost in zip(names, costs, strict=True)]
    headers = [*names[0], *_SWEEP_HEADERS]
    right = [i for i, header in enumerate(headers) if header not in ("machine", "mesh", "bound")]
    each = zip(names, costs, strict=True)
    figures = {"points": [{"point": name, "cost": cost.to_json()} for name, cost in each]} if options.json else {}
    shown: list[Part] = [Table(headers, rows, right), *(["\n", note] if note else [])]
    for name, cost in zip(names, costs, strict=True) if is_asked else ():
        shown += [
            "\n",
            ", ".join(f"{what} {value}" for what, value in name.items()),
            *_shown(cost, by, top, alive=alive),
        ]
    return finish(options, watch, shown, figures, warnings)


def _points(
    options: Options,
    machines: Sequence[str],
    meshes: Sequence[Mapping[str, int]],
    sweeps: Sequence[tuple[str, Sequence[float]]],
) -> list[Options]:
    """The options of each combination. Raises SpmdcError (E601) if there are too many."""
    names, values = [name for name, _ in sweeps], [values for _, values in sweeps]
    chosen_meshes: list[Mapping[str, int] | None] = [*meshes] or [options.mesh]
    where = list(itertools.product(machines or [options.machine], chosen_meshes))
    count = len(where) * math.prod(map(len, values))
    if count > _MOST_POINTS:
        raise error(
            "E601",
            f"that makes {count:,} costs, and no more than {_MOST_POINTS:,} are computed at a time",
            help="give fewer values, and run it several times",
        )
    return [
        replace(options, machine=name, mesh=mesh, defines=list(zip(names, chosen, strict=True)))
        for name, mesh in where
        for chosen in itertools.product(*values)
    ]


def _cost(
    file: str, options: Options, by: By, watch: Stopwatch, stdin: bytes | None
) -> tuple[Cost, tuple[Diagnostic, ...], str]:
    """The cost, with warnings, and what is assumed of loops."""
    program = load_program(file, options, watch, stdin=stdin)
    if is_partitioned(program):
        own = machine(options.machine)
        return cost_of(program, own, by), beyond_memory(program, own), assumed_trips(program)
    partitioned = partition_program(program, options, watch, verify=False)
    with watch.step("cost"):
        cost = cost_of(partitioned.program, machine(options.machine), by, partitioned.source)
    return cost, partitioned.warnings, assumed_trips(partitioned.program)


def _names(
    point: Options,
    machines: Sequence[str],
    meshes: Sequence[Mapping[str, int]],
    sweeps: Sequence[tuple[str, Sequence[float]]],
) -> dict[str, str]:
    """The options that differ between combinations, with their values in this one."""
    found = {"machine": point.machine} if len(machines) > 1 else {}
    if len(meshes) > 1 and point.mesh is not None:
        found["mesh"] = ",".join(f"{name}={size}" for name, size in point.mesh.items())
    several = {name for name, values in sweeps if len(values) > 1}
    return found | {name: str(value) for name, value in point.defines if name in several}


def _shown(cost: Cost, by: By, top: int | None, note: str = "", *, alive: bool) -> Iterator[Part]:
    yield _table(cost, by, top)
    yield from _sums(cost)
    if note:
        yield note
    if alive:
        yield from _alive(cost, top)


def _table(cost: Cost, by: By, top: int | None) -> Table:
    rows = [[row.what, f"{row.count:,}", *_cells(row)] for row in (*cost.rows[:top], cost.total)]
    return Table((by, *_HEADERS), rows, (1, 2, 3, 4, 5, 6, 8, 9, 10, 11))


def _cells(row: CostRow) -> list[str]:
    times = [seconds_text(s) if s else "" for s in (row.seconds, row.compute, row.memory, row.network, row.overhead)]
    share = f"{row.share:.1%}" if row.flops else ""
    return [*times, row.bound, _number(row.flops), share, _number(row.touched), _number(row.received)]


def _sweep_cells(cost: Cost) -> list[str]:
    total = cost.total
    times = (cost.seconds, cost.critical_seconds, total.compute, total.memory, total.network, total.overhead)
    share = total.share * total.seconds / cost.seconds if cost.seconds else 0.0
    figures = f"{total.flops:,}", f"{share:.1%}", f"{total.received:,}", f"{cost.peak:,}"
    return [*map(seconds_text, times), total.bound, *figures]


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def _sums(cost: Cost) -> list[str]:
    path = " -> ".join(_ends(cost.critical_path))
    beside = ", ".join(_ends([value for value, _ in cost.beside]))
    waiting = seconds_text(sum(seconds for _, seconds in cost.beside))
    layout = "; ".join(f"{axis} on {dims}" for axis, dims in cost.layout)
    return [
        "\n",
        *([f"mesh axes: {layout}"] if layout else []),
        f"on {cost.machine}: {seconds_text(cost.seconds)}, {cost.peak:,} bytes of memory at the peak",
        f"critical path {seconds_text(cost.critical_seconds)}: {path}",
        *([f"beside it {waiting} of collectives, while which devices could compute: {beside}"] if beside else []),
    ]


def _ends(names: Sequence[str]) -> Sequence[str]:
    return names if len(names) <= 8 else (*names[:4], "…", *names[-3:])


def _alive(cost: Cost, top: int | None) -> Iterator[Part]:
    """The values that are alive at the peak."""
    rows = [[each.value, each.type, f"{each.bytes:,}"] for each in cost.alive[:top]]
    rest = sum(each.bytes for each in cost.alive[top:]) if top is not None else 0
    yield "\n"
    yield Table(("alive at the peak", "type", "bytes"), [*rows, *([["others", "", f"{rest:,}"]] if rest else [])], (2,))
