"""The HTML page: a single file, which needs nothing else and no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import spmdc
from ir.garbage import uncollected
from passes.cost.machine import Machine
from spmdc.page import charts, flow
from spmdc.page.facts import Facts
from spmdc.pictures.pages import colored
from spmdc.plans import Plan
from spmdc.reports.cost import CostRow
from spmdc.reports.cost_text import seconds_text

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_OPS = 3_000
"""The most ops of a plan that is on the page as a text."""


@uncollected()
def page_of(facts: Facts, comparison: object, other: tuple[str, Plan] | None) -> str:
    """The page about a program: with a `comparison`, from `spmdc.compare`, beside XLA's result; with an `other` plan
    and its name, beside that plan. Raises SpmdcError if the program cannot be partitioned."""
    cost, machine = facts.cost, Machine.of(facts.plan.options.machine)
    events: list[dict[str, Any]] = facts.trace["traceEvents"]
    lines = [(source.name, list(facts.lines(source))) for source in facts.sources]
    difference = (other[0], facts.plan.diff(other[1])) if other is not None else None
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=facts.program.source.name if facts.program.source is not None else facts.program.entry,
            version=spmdc.__version__,
            program=facts.program.summary,
            machine=machine.name,
            cost=cost,
            collectives=facts.collectives,
            received=facts.partitioned.received_bytes(),
            warnings=facts.partitioned.warnings,
            files=lines,
            longest=max((line.seconds for _, each in lines for line in each), default=0.0) or 1.0,
            most_received=max((line.received for _, each in lines for line in each), default=0) or 1,
            most_alive=max((line.alive for _, each in lines for line in each), default=0) or 1,
            moves=facts.moves(),
            halos=facts.halos(),
            timeline=Markup(charts.timeline(events)),
            memory=Markup(charts.memory(events)),
            roofline=Markup(charts.roofline(cost.rows, machine)),
            by_kind=Markup(charts.bars(_seconds(facts.costs["kind"].rows))),
            by_line=Markup(charts.bars(_received(cost.rows))),
            by_axis=Markup(charts.bars(_received(facts.costs["axis"].rows))),
            functions=Markup(flow.by_function(facts.plan.program, facts.plan_cost.ops, facts.plan.source)),
            flow=Markup(flow.by_line(facts.plan.program, facts.plan_cost.ops)),
            plan=facts.plan.text(costs=True) if len(facts.plan.program.main.body.ops) <= _MOST_OPS else "",
            comparison=comparison,
            difference=difference,
        )
    )


def _seconds(rows: Sequence[CostRow]) -> list[tuple[str, float, str]]:
    return [(row.what, row.seconds, seconds_text(row.seconds)) for row in rows]


def _received(rows: Sequence[CostRow]) -> list[tuple[str, float, str]]:
    return [(row.what, float(row.received), f"{row.received:,} bytes") for row in rows]


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["seconds"] = lambda seconds: seconds_text(seconds) if seconds else ""
    made.filters["number"] = lambda number: f"{number:,}" if number else ""
    made.filters["code"] = lambda line: Markup(colored(line))
    made.filters["share"] = lambda part, whole: f"{100 * part / whole:.1f}%"
    made.filters["svg"] = Markup
    return made
