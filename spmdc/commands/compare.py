"""`spmdc compare`: what spmdc and XLA's own partitioner communicate for the same program."""

from __future__ import annotations

from collections.abc import Iterable

from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Part, Table, finish
from spmdc.commands.shared.programs import load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch, interruptible
from spmdc.comparison.compare import Comparison, compare, pinned
from spmdc.comparison.on_target import TargetComparison, compare_on
from spmdc.reports.collectives import Collective
from spmdc.reports.hlo_collectives import XlaCollective


def run(options: Options, *, file: str, pin: bool, target: str | None) -> int:
    """Prints a row for each kind of collective, and the total bytes; for a target, also the compiler's time and
    memory."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    partitioned = partition_program(pinned(program) if pin else program, options, watch)
    if target is not None:
        with watch.step("compile both"), interruptible():
            on_target = compare_on(partitioned, target)
        return finish(options, watch, _on_target(on_target), on_target.to_json(), partitioned.warnings)
    with watch.step("compile with XLA"):
        comparison = compare(partitioned)
    shown = [*_table(comparison), *(f"note: {note}" for note in comparison.notes)]
    return finish(options, watch, shown, comparison.to_json(), partitioned.warnings)


def _table(comparison: Comparison) -> list[Part]:
    ours, theirs = _by_kind(comparison.collectives), _by_kind(comparison.xla_collectives)
    rows = [
        [kind, *(f"{n:,}" for n in (*ours.get(kind, (0, 0)), *theirs.get(kind, (0, 0))))]
        for kind in sorted({*ours, *theirs})
    ]
    rows.append(["received", "", f"{comparison.bytes:,}", "", f"{comparison.xla_bytes:,}"])
    if (comparison.lock_step_bytes, comparison.xla_lock_step_bytes) != (comparison.bytes, comparison.xla_bytes):
        rows.append(["in step", "", f"{comparison.lock_step_bytes:,}", "", f"{comparison.xla_lock_step_bytes:,}"])
    headers = ("collective", "spmdc", "bytes", "XLA", "bytes")
    return [Table(headers, rows, (1, 2, 3, 4)), f"spmdc / XLA: {comparison.ratio:.3f}"]


def _on_target(comparison: TargetComparison) -> list[Part]:
    ours, xla = comparison.ours, comparison.xla
    kinds = _by_kind(ours.collectives), _by_kind(xla.collectives)
    figures: list[tuple[str, float, float]] = [
        *(("cycles", ours.cycles, xla.cycles),) * bool(ours.cycles),
        *(("network, ns by model", round(ours.network * 1e9), round(xla.network * 1e9)),) * bool(ours.cycles),
        *(("both, ns", round(ours.time * 1e9), round(xla.time * 1e9)),) * bool(ours.cycles),
        ("temporaries, bytes", ours.memory.temporaries, xla.memory.temporaries),
        ("memory, bytes", ours.memory.total, xla.memory.total),
        ("received, bytes", ours.received_bytes, xla.received_bytes),
    ]
    rows = [[name, f"{a:,}", f"{b:,}", f"{a / b:.3f}" if b else ""] for name, a, b in figures]
    for kind in sorted({*kinds[0], *kinds[1]}):
        rows.append([kind, *(f"{of.get(kind, (0, 0))[0]:,}" for of in kinds), ""])
    rows.append(["compiled in, s", f"{ours.seconds:.1f}", f"{xla.seconds:.1f}", ""])
    head = (comparison.target, "spmdc", "XLA", "spmdc / XLA")
    return [Table(head, rows, (1, 2, 3)), *(f"note: {note}" for note in comparison.notes)]


def _by_kind(collectives: Iterable[Collective | XlaCollective]) -> dict[str, tuple[int, int]]:
    """How often each kind runs, and its total bytes; loops of unknown trip count count once."""
    found: dict[str, tuple[int, int]] = {}
    for c in collectives:
        times = c.at_least if isinstance(c, Collective) else c.count
        count, nbytes = found.get(c.kind, (0, 0))
        found[c.kind] = (count + times, nbytes + times * c.bytes)
    return found
