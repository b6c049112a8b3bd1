"""`spmdc why`: where a sharding, or a collective, comes from."""

from __future__ import annotations

import spmdc
from ir.ops.collective import COLLECTIVES
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch, print_json
from spmdc.reports.why import collectives_for, explain_collectives


def run(options: Options, *, file: str, name: str) -> int:
    """Prints the chain from each axis of the value back to an annotation; of collectives, named by their kind or by a
    line, what caused them."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    if name in COLLECTIVES or name.isdecimal():
        collectives = collectives_for(partition_program(program, options, watch).collectives(), name)
        text = explain_collectives(collectives)
        if options.json:
            found = [c.to_json() for c in collectives]
            figures = {"name": name, "text": text, "collectives": found, "timings": watch.seconds, "diagnostics": []}
            print_json(figures)
            return 0
        print(text)
        if options.verbose:
            watch.print()
        return 0
    propagated = spmdc.propagate(program)
    watch.add({"propagate": propagated.seconds})
    text = propagated.why(name)
    if options.json:
        print_json({"name": name, "text": text, "timings": watch.seconds, "diagnostics": []})
        return 0
    print(text)
    if options.verbose:
        watch.print()
    return 0
