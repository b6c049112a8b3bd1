"""`spmdc lower`: the program in another language."""

from __future__ import annotations

from ir.diagnostics import Diagnostic
from lowering.jax import hlo_text, jax_source, stablehlo_text
from passes.partition.plan.plan import without_plan
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Verbatim, finish
from spmdc.commands.shared.programs import handing_on, is_partitioned, load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.files import write_text

_WRITERS = {"jax": jax_source, "stablehlo": stablehlo_text, "hlo": hlo_text}


def run(options: Options, *, file: str, emit: str, out: str | None, unpartitioned: bool) -> int:
    """Prints or writes the partitioned program, or the unpartitioned one, in the language that `emit` names."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    warnings: tuple[Diagnostic, ...] = ()
    if not unpartitioned and not is_partitioned(program):
        partitioned = partition_program(program, options, watch)
        program, warnings = partitioned.program, partitioned.warnings
    if program.stage == "plan":
        program = without_plan(program)
    with watch.step("lower"):
        source = _WRITERS[emit](handing_on(program, options) if emit == "jax" else program)
    if out is not None:
        write_text(out, source)
    shown = Verbatim(source) if out is None else ""
    return finish(options, watch, shown, {"emit": emit, "text": source}, warnings, out)
