"""`spmdc partition`: the program that each device runs."""

from __future__ import annotations

from dataclasses import replace

import spmdc
from ir.diagnostics import error
from ir.spelling.printer import print_program
from passes.manager import Compilation, Pass, named_passes, verify_after_each
from passes.manager import run as run_passes
from spmdc.api import PartitionedProgram, policy
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Code, Page, Part, Table, finish
from spmdc.commands.shared.programs import choices_of, load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.reports.collectives import Collective, lock_step_bytes

COLLECTIVE_HEADERS = ("collective", "axes", "bytes", "count", "source", "reason")
COLLECTIVE_NUMBERS = (2, 3)


def run(
    options: Options, *, file: str, stats: bool, passes: list[str] | None, print_after: list[str], time_passes: bool
) -> int:
    """Prints the SPMD program; with `stats`, also what it communicates.

    `passes` replace the default passes, and the result of the last one is printed; before it, the result of each pass
    in `print_after` is printed.
    """
    watch = Stopwatch()
    options = replace(options, verbose=options.verbose or time_passes)
    program = load_program(file, options, watch)
    _check_named(print_after, passes, options)
    if stats and passes is not None:
        message = "--stats counts the collectives of what all passes make, and -p applies others"
        raise error("E601", message, help="leave one of them out; `spmdc cost --by kind` takes what -p printed")

    def show(step: Pass, state: Compilation) -> None:
        if step.name in print_after:
            Page(wide=options.wide).show(Code(f"# after {step.name}\n{print_program(state.program)}"))

    if passes is not None:
        steps = named_passes(passes, policy(**choices_of(options)), program.stage)
        state = run_passes(Compilation(program), steps, (verify_after_each, show))
        watch.add(state.timings)
        text = print_program(state.program)
        return finish(options, watch, Code(text), {"text": text, "passes": passes}, state.warnings)
    partitioned = partition_program(program, options, watch, () if options.json else (show,))
    shown = [Code(partitioned.text()), *(["\n", *_table(partitioned)] if stats else ())]
    return finish(options, watch, shown, _figures(partitioned) if options.json else {}, partitioned.warnings)


def _figures(partitioned: PartitionedProgram) -> dict[str, object]:
    return {
        "text": partitioned.text(),
        "collectives": [c.to_json() for c in partitioned.collectives()],
        "received_bytes": partitioned.received_bytes(),
        "peak_bytes": partitioned.peak_bytes(),
    }


def _check_named(print_after: list[str], passes: list[str] | None, options: Options) -> None:
    """Raises SpmdcError (E601) if `print_after` names a pass that is not applied."""
    applied = passes if passes is not None else [step.name for step in spmdc.pipeline(**choices_of(options))]
    for name in print_after:
        if name not in applied:
            help = f"those that are: {', '.join(applied)}"
            raise error("E601", f"no pass {name!r} is applied, to print the program after it", help=help)


def collective_row(collective: Collective) -> list[str]:
    """The cells of a collective's row."""
    count = "?" if collective.count is None else str(collective.count)
    return [collective.kind, collective.axes, f"{collective.bytes:,}", count, collective.source, collective.reason]


def total_bytes(partitioned: PartitionedProgram) -> str:
    """The total bytes that the worst device receives, in words."""
    collectives, worst = partitioned.collectives(), partitioned.received_bytes()
    known = all(c.count is not None for c in collectives)
    unknown = "" if known else ", once around each loop of unknown length"
    in_step = lock_step_bytes(collectives)
    waits = f"; {in_step:,} by devices that run in step" if in_step != worst else ""
    return f"{worst:,} bytes received by the worst device{waits}{unknown}"


def _table(partitioned: PartitionedProgram) -> list[Part]:
    collectives = partitioned.collectives()
    if not collectives:
        return ["no collectives: no device needs what another has"]
    rows = [collective_row(c) for c in collectives]
    return [Table(COLLECTIVE_HEADERS, rows, COLLECTIVE_NUMBERS), total_bytes(partitioned)]
