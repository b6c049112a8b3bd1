"""`spmdc propagate`: the program with the sharding of every value."""

from __future__ import annotations

import spmdc
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch, print_json


def run(options: Options, *, file: str) -> int:
    """Prints the propagated program."""
    watch = Stopwatch()
    propagated = spmdc.propagate(load_program(file, options, watch))
    watch.add({"propagate": propagated.seconds})
    if options.json:
        print_json(
            {
                "text": propagated.text(),
                "steps": propagated.propagated.steps,
                "timings": watch.seconds,
                "diagnostics": [],
            }
        )
        return 0
    print(propagated.text(), end="")
    if options.verbose:
        watch.print()
    return 0
