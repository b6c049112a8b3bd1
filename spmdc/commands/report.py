"""`spmdc report`: a partitioned program as an HTML page: its costs and communication, with causes, and the
alternatives."""

from __future__ import annotations

from importlib.util import find_spec

import spmdc
from ir.diagnostics import error
from passes.partition.plan.plan import without_plan
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import finish
from spmdc.commands.shared.programs import choices_of, is_partitioned, load_program
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.files import write_text


def run(options: Options, *, file: str, out: str, xla: bool, diff: str | None) -> int:
    """Writes the page. Raises SpmdcError (E605) without jinja2."""
    if find_spec("jinja2") is None:
        raise error("E605", "pages need the package jinja2", help="pip install 'spmdc[report]'")
    # Imported late, as the package is there only with the extra.
    from spmdc.page.facts import Facts
    from spmdc.page.page import page_of

    watch = Stopwatch()
    program = load_program(file, options, watch)
    if is_partitioned(program):
        raise error("E406", "the program is an SPMD program already", help="report on the program that it came from")
    facts = Facts(program, choices_of(options))
    with watch.step("plan"):
        warnings = facts.partitioned.warnings
    comparison = other = None
    if xla:
        with watch.step("compile with XLA"):
            comparison = spmdc.compare(without_plan(program) if program.stage == "plan" else program)
    if diff is not None:
        other = diff, spmdc.plan(load_program(diff, options, watch), **choices_of(options))
    with watch.step("report"):
        page = page_of(facts, comparison, other)
    write_text(out, page)
    figures = {"file": out, "bytes": len(page.encode()), "seconds": facts.cost.seconds}
    return finish(options, watch, "", figures, warnings, out)
