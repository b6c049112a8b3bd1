"""`spmdc why`: the origin of a sharding, or of a collective."""

from __future__ import annotations

from ir.ops.collective import COLLECTIVES
from spmdc.commands.shared.bindings import looking_for
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import finish
from spmdc.commands.shared.programs import load_program, partition_program, propagate_program
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.reports.why import collectives_for, explain_collectives


def run(options: Options, *, file: str, name: str) -> int:
    """Prints the chain from each axis of the value back to an annotation; for collectives, selected by their kind or by
    a line, their causes."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    if name in COLLECTIVES or name.isdecimal():
        partitioned = partition_program(program, options, watch)
        collectives = collectives_for(partitioned.collectives(), name)
        text = explain_collectives(collectives, partitioned.propagated)
        figures = {"name": name, "text": text, "collectives": [c.to_json() for c in collectives]}
        return finish(options, watch, text, figures)
    with looking_for(name, program, options):
        text = propagate_program(program, watch).why(name)
    return finish(options, watch, text, {"name": name, "text": text})
