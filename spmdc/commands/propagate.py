"""`spmdc propagate`: the program with the sharding of every value."""

from __future__ import annotations

import spmdc
from spmdc.commands.shared.failures import finish
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch


def run(options: Options, *, file: str) -> int:
    """Prints the propagated program."""
    watch = Stopwatch()
    propagated = spmdc.propagate(load_program(file, options, watch))
    watch.add({"propagate": propagated.seconds})
    text = propagated.text()
    return finish(options, watch, text, {"text": text, "steps": propagated.propagated.steps})
