"""`spmdc trace`: the timeline of a device, by model and as measured, for Perfetto."""

from __future__ import annotations

import json

from ir.diagnostics import Diagnostic
from passes.cost.machine import machine
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Verbatim, finish
from spmdc.commands.shared.programs import handing_on, is_partitioned, load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch, interruptible
from spmdc.files import write_text
from spmdc.inputs import random_inputs
from spmdc.reports.measured import with_measured
from spmdc.reports.trace import trace_of


def run(options: Options, *, file: str, out: str | None, measure: bool) -> int:
    """Prints or writes the trace."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    warnings: tuple[Diagnostic, ...] = ()
    if not is_partitioned(program):
        partitioned = partition_program(program, options, watch)
        program, warnings = partitioned.program, partitioned.warnings
    with watch.step("trace"):
        trace = trace_of(program, machine(options.machine))
    if measure:
        inputs = random_inputs(program, options.seed)
        with watch.step("measure"), interruptible():
            trace = with_measured(trace, handing_on(program, options), inputs)
    text = json.dumps(trace)
    if out is not None:
        write_text(out, text + "\n")
    return finish(options, watch, Verbatim(text) if out is None else "", {"trace": trace}, warnings, out)
