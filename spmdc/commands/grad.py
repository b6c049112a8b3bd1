"""`spmdc grad`: the program that computes gradients."""

from __future__ import annotations

import spmdc
from spmdc.commands.shared.arrays import write_whole
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch, print_json
from spmdc.frontends.spmd import print_program


def run(options: Options, *, file: str, wrt: list[str], of: str | None, value: bool, out: str | None) -> int:
    """Prints or writes the gradient of a program as a program."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    with watch.step("differentiate"):
        gradient = spmdc.gradient(program, wrt, of, with_value=value)
    text = print_program(gradient)
    if out is not None:
        write_whole(out, lambda stream: stream.write(text.encode()))
    if options.json:
        print_json({"text": text, "timings": watch.seconds, "diagnostics": []})
        return 0
    if out is None:
        print(text, end="")
    if options.verbose:
        watch.print()
    return 0
