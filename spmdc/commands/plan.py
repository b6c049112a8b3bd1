"""`spmdc plan`: what the partitioner decides, what that costs, and what else could be."""

from __future__ import annotations

import spmdc
from passes.cost.machine import MACHINES
from spmdc.api import Plan
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch, print_json
from spmdc.plans import sum_text


def run(options: Options, *, file: str, explain: str | None, diff: str | None) -> int:
    """Prints the plan with its costs; with `explain`, what the op could do that makes that value; with `diff`, what
    differs from the plan of another file."""
    watch = Stopwatch()
    plan = _plan(file, options, watch)
    diagnostics = [d.to_json() for d in plan.warnings]
    if explain is not None:
        choices = plan.explain(explain)
        if options.json:
            print_json({**choices.to_json(), "timings": watch.seconds, "diagnostics": diagnostics})
        else:
            print(choices)
        return 0
    if diff is not None:
        text = plan.diff(_plan(diff, options, watch))
        if options.json:
            print_json({"text": text, "timings": watch.seconds, "diagnostics": diagnostics})
        else:
            print(text)
        return 0
    cost = plan.cost()
    if options.json:
        sums = {"seconds": cost.seconds, "critical_seconds": cost.critical_seconds}
        sums |= {"received_bytes": cost.received, "peak_bytes": cost.peak}
        path = [v.name for op in cost.critical_path for v in op.results]
        print_json(
            {"text": plan.text(), **sums, "critical_path": path, "timings": watch.seconds, "diagnostics": diagnostics}
        )
        return 0
    print_diagnostics(plan.warnings)
    print(plan.text(costs=True), end="")
    print(f"\n# {sum_text(cost)}")
    if options.verbose:
        watch.print()
    return 0


def _plan(file: str, options: Options, watch: Stopwatch) -> Plan:
    program = load_program(file, options, watch)
    plan = spmdc.plan(
        program,
        machine=MACHINES[options.machine],
        memory_limit=options.memory_limit,
        windowed_einsum=options.windowed_einsum,
    )
    watch.add(plan.timings)
    return plan
