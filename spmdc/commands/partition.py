"""`spmdc partition`: the program that each device runs."""

from __future__ import annotations

from spmdc.api import PartitionedProgram
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch, columns, print_json
from spmdc.reports.collectives import Collective

COLLECTIVE_HEADERS = ("collective", "axes", "bytes", "count", "source", "reason")
COLLECTIVE_NUMBERS = (2, 3)


def run(options: Options, *, file: str, stats: bool) -> int:
    """Prints the SPMD program; with `stats`, also what it communicates."""
    watch = Stopwatch()
    partitioned = partition_program(load_program(file, options, watch), options, watch)
    if options.json:
        print_json(
            {
                "text": partitioned.text(),
                "collectives": [c.to_json() for c in partitioned.collectives()],
                "received_bytes": partitioned.received_bytes(),
                "peak_bytes": partitioned.peak_bytes(),
                "timings": watch.seconds,
                "diagnostics": [d.to_json() for d in partitioned.warnings],
            }
        )
        return 0
    print_diagnostics(partitioned.warnings)
    print(partitioned.text(), end="")
    if stats:
        print()
        print("\n".join(_table(partitioned)))
    if options.verbose:
        watch.print()
    return 0


def collective_row(collective: Collective) -> list[str]:
    """The cells of a collective's row."""
    count = "?" if collective.count is None else str(collective.count)
    return [
        collective.kind,
        collective.axes,
        f"{collective.bytes:,}",
        count,
        collective.source,
        collective.reason,
    ]


def total_bytes(partitioned: PartitionedProgram) -> str:
    """What the worst device receives in all, in words."""
    known = all(c.count is not None for c in partitioned.collectives())
    unknown = "" if known else ", once around each loop of unknown length"
    return f"{partitioned.received_bytes():,} bytes received by the worst device{unknown}"


def _table(partitioned: PartitionedProgram) -> list[str]:
    collectives = partitioned.collectives()
    if not collectives:
        return ["no collectives: no device needs what another has"]
    rows = [collective_row(c) for c in collectives]
    return [*columns(COLLECTIVE_HEADERS, rows, COLLECTIVE_NUMBERS), total_bytes(partitioned)]
