"""`spmdc compile`: compiles a program with a backend's compiler, for TPUs without having any."""

from __future__ import annotations

from ir.diagnostics import error
from spmdc.api import PartitionedProgram
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Part, Table, Verbatim, finish
from spmdc.commands.shared.programs import is_partitioned, load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch, interruptible
from spmdc.compiled import CompiledProgram, Outcome
from spmdc.files import write_text

_LINES = 12
"""The most lines of the user's program whose cycles are printed."""


def run(options: Options, *, file: str, target: str, emit: str, out: str | None) -> int:
    """Prints memory, cycles and the outcome of each collective, or the optimised module; `out` gets that module."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    if is_partitioned(program):
        raise error("E406", "the program is an SPMD program already", help="compile the program it came from")
    partitioned = partition_program(program, options, watch)
    with watch.step("compile"), interruptible():
        compiled = partitioned.compile(target)
    if out is not None:
        write_text(out, compiled.text)
    shown = [Verbatim(compiled.text)] if emit == "hlo" else _report(partitioned, compiled)
    return finish(options, watch, shown, compiled.to_json(), partitioned.warnings, out)


def _report(partitioned: PartitionedProgram, compiled: CompiledProgram) -> list[Part]:
    memory = compiled.memory
    parts = {"arguments": memory.arguments, "results": memory.results, "temporaries": memory.temporaries,
             "code": memory.code}  # fmt: skip
    in_place = f", {_size(memory.aliased)} of them in the place of arguments" if memory.aliased else ""
    return [
        f"{compiled.target}: {compiled.devices} devices, compiled by {compiled.compiler} in {compiled.seconds:.1f} s",
        f"{_size(memory.total)} on each device: {', '.join(f'{n} {_size(b)}' for n, b in parts.items())}{in_place}",
        "\n",
        *_collectives(compiled),
        *(["\n", *_cycles(compiled)] if compiled.cycles else []),
    ]


def _collectives(compiled: CompiledProgram) -> list[Part]:
    rows = [_row(outcome) for outcome in compiled.outcomes]
    rows += [
        [c.kind, "", "", str(c.count), c.name, "", f"{c.bytes:,}", "added by the compiler"] for c in compiled.added
    ]
    if not rows:
        return ["no collectives: no device needs what another has"]
    headers = ("collective", "of", "line", "count", "compiled as", "sends", "bytes", "")
    return [Table(headers, rows, (2, 3, 6))]


def _row(outcome: Outcome) -> list[str]:
    names = ", ".join(c.name for c in outcome.compiled)
    own = outcome.op.operands[0].dtype.name
    notes = [
        *(["narrowed"] if outcome.is_narrowed else []),
        *(["asynchronous"] if outcome.is_asynchronous else []),
        *([] if outcome.compiled else ["merged into another, or not needed"]),
    ]
    return [
        outcome.kind,
        outcome.op.label,
        str(outcome.op.span.line) if outcome.op.span is not None else "",
        "?" if outcome.count is None else str(outcome.count),
        names,
        f"{', '.join(outcome.elements)} for {own}" if outcome.is_narrowed else ", ".join(outcome.elements),
        f"{sum(c.bytes for c in outcome.compiled):,}",
        ", ".join(notes),
    ]


def _cycles(compiled: CompiledProgram) -> list[Part]:
    lines = compiled.cycles_of_lines()
    whole = max(compiled.cycles, 1)
    rows = [[f"{cycles:,}", f"{cycles / whole:.0%}", line or "the compiler's own"] for line, cycles in lines.items()]
    rest = len(rows) - _LINES
    more = [f"and {rest} more lines (--json has all)"] if rest > 0 else []
    head = f"{compiled.cycles:,} cycles: the compiler's estimate of a run, without the network"
    return [head, Table(("cycles", "share", "line"), rows[:_LINES], (0, 1)), *more]


def _size(nbytes: int) -> str:
    """A size such as 1.5 GiB."""
    size, units = float(nbytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.4g} {unit}"
