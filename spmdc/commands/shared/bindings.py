"""What a name is that no value of a program has: in its text, or in what partitioning makes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import spmdc
from ir.diagnostics import Source, SpmdcError
from ir.names import NAME
from ir.ops.collective import COLLECTIVES
from ir.program import Op, Program, Value, all_ops, values_within
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import choices_of
from spmdc.frontends.spmd import read


@contextmanager
def looking_for(name: str, program: Program, options: Options) -> Iterator[None]:
    """A context in which a value of the program is looked for: an error (E101) that there is none says what the
    program's text calls so, if it is something else, or what has the name in the plan or the partitioned program."""
    try:
        yield
    except SpmdcError as problem:
        if problem.diagnostics[0].code != "E101":
            raise
        found = _what_is_called(name, program.source) or _what_partitioning_calls(name, program, options)
        raise SpmdcError([replace(d, help=found or d.help) for d in problem.diagnostics]) from None


def _what_is_called(name: str, source: Source | None) -> str:
    """What a text binds the name to, in words; empty if that has the name itself, or is not known."""
    if source is None or source.text is None:
        return ""
    lines = source.text.split("\n")
    for (line, column), item in read(source.text, source.name).bound.items():
        written = re.compile(NAME, re.ASCII).match(lines[line - 1], column - 1)
        if written is None or written[0] != name:
            continue
        if not isinstance(item, Value):
            return f"{name!r} is known at compile time, and is no tensor"
        return f"{name!r} is another name of {item.name!r}" if item.name != name else ""
    return ""


def _what_partitioning_calls(name: str, program: Program, options: Options) -> str:
    """What has this name in the partitioned program or the plan, and what to ask for instead; empty if nothing has."""
    plan = spmdc.plan(program, **choices_of(options), verify=False)
    known = {v.name for f in plan.propagated.program.functions.values() for v in values_within(f.body)}
    for what, made in (("partitioned program", spmdc.partition(plan, verify=False).program), ("plan", plan.program)):
        makers = {v: op for op in all_ops(made) for v in op.results}
        op = next((op for v, op in makers.items() if v.name == name), None)
        if op is None:
            continue
        source: Op | None = op
        while source is not None and source.operands and source.operands[0].name not in known:
            source = makers.get(source.operands[0])
        of = repr(source.operands[0].name) if source is not None and source.operands else ""
        line = f"`spmdc why FILE {op.span.line}`" if op.name in COLLECTIVES and op.span is not None else ""
        instead = " or ".join(each for each in (of, line) if each)
        makes = f"{op.name} makes it from {of}" if of else f"{op.name} makes it"
        return f"in the {what}, {makes}{f': ask for {instead}' if instead else ''}"
    return ""
