"""`spmdc propagate`: the program with the sharding of every value."""

from __future__ import annotations

from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Code, finish
from spmdc.commands.shared.programs import load_program, propagate_program
from spmdc.commands.shared.terminal import Stopwatch


def run(options: Options, *, file: str) -> int:
    """Prints the propagated program."""
    watch = Stopwatch()
    propagated = propagate_program(load_program(file, options, watch), watch)
    text = propagated.text()
    return finish(options, watch, Code(text), {"text": text, "steps": propagated.propagated.steps})
