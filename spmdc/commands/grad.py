"""`spmdc grad`: the gradient of a program as a program."""

from __future__ import annotations

import spmdc
from ir.diagnostics import Diagnostic
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Code, finish
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.files import write_text
from spmdc.frontends.spmd import print_program


def run(options: Options, *, file: str, wrt: list[str], of: str | None, value: bool, out: str | None) -> int:
    """Prints or writes the gradient of a program as a program."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    warnings: tuple[Diagnostic, ...] = ()
    with watch.step("differentiate"):
        if options.memory_limit is None:
            gradient = spmdc.gradient(program, wrt, of, with_value=value)
        else:
            found = spmdc.checkpointed(
                program, options.memory_limit, wrt, of, machine=options.machine, with_value=value
            )
            gradient, warnings = found.after.gradient, found.warnings(options.memory_limit)
    text = print_program(gradient)
    if out is not None:
        write_text(out, text)
    return finish(options, watch, Code(text) if out is None else "", {"text": text}, warnings, out)
