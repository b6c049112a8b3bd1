"""`spmdc why`: where a sharding comes from."""

from __future__ import annotations

import spmdc
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch, print_json


def run(options: Options, *, file: str, name: str) -> int:
    """Prints the chain from each axis of the value back to an annotation."""
    watch = Stopwatch()
    propagated = spmdc.propagate(load_program(file, options, watch))
    watch.add({"propagate": propagated.seconds})
    text = propagated.why(name)
    if options.json:
        print_json({"name": name, "text": text, "timings": watch.seconds, "diagnostics": []})
        return 0
    print(text)
    if options.verbose:
        watch.print()
    return 0
