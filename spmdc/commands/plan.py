"""`spmdc plan`: the partitioner's decisions, their costs, and the alternatives."""

from __future__ import annotations

import spmdc
from ir.ops.resharding import is_reshard
from ir.program import Op, all_ops
from ir.spelling.printer import print_sharding
from passes.cost.model import assumed_trips
from spmdc.commands.shared.bindings import looking_for
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Code, finish
from spmdc.commands.shared.programs import choices_of, load_program
from spmdc.commands.shared.progress import progress
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.plans import Plan
from spmdc.reports.cost_text import sum_text


def run(options: Options, *, file: str, explain: str | None, diff: str | None) -> int:
    """Prints the plan with its costs; with `explain`, the possible strategies for the op that makes that value; with
    `diff`, the differences from the plan of another file."""
    watch = Stopwatch()
    plan = _plan(file, options, watch)
    if explain is not None:
        with looking_for(explain, plan.source, options):
            choices = plan.explain(explain)
        return finish(options, watch, str(choices), choices.to_json(), plan.warnings)
    if diff is not None:
        text = plan.diff(_plan(diff, options, watch))
        return finish(options, watch, text, {"text": text, "other": diff}, plan.warnings)
    cost = plan.cost()
    figures = {
        "text": plan.text(),
        "seconds": cost.seconds,
        "critical_seconds": cost.critical_seconds,
        "received_bytes": cost.received,
        "peak_bytes": cost.peak,
        "critical_path": [v.name for op in cost.critical_path for v in op.results],
        "reshards": [_as_json(op) for op in all_ops(plan.program) if is_reshard(op)],
    }
    sums = "".join(f"\n# {line}" for line in (sum_text(cost), assumed_trips(plan.program)) if line)
    return finish(options, watch, Code(plan.text(costs=True) + sums), figures, plan.warnings)


def _as_json(reshard: Op) -> dict[str, object]:
    """The reshard of a value: how, where and why."""
    ends = [print_sharding(v.sharding) if v.sharding is not None else "" for v in (reshard.operands[0], reshard.result)]
    return {
        "value": reshard.operands[0].name,
        "result": reshard.result.name,
        "from": ends[0],
        "to": ends[1],
        "steps": reshard.attrs["steps"],
        "location": str(reshard.span or ""),
        "cause": reshard.cause.to_json() if reshard.cause is not None else None,
    }


def _plan(file: str, options: Options, watch: Stopwatch) -> Plan:
    program = load_program(file, options, watch)
    with progress("plan"):
        plan = spmdc.plan(program, **choices_of(options))
    watch.add(plan.timings)
    return plan
