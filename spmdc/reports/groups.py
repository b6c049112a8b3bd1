"""How reports group the ops of an SPMD program: by line, by loop, by mesh axis, …"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from ir.ops.collective import COLLECTIVES, communication_of
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, callee_of, walk
from spmdc.reports.collectives import axes_text, line_of

By = Literal["line", "op", "kind", "axis", "value", "loop", "function"]
BY: tuple[By, ...] = get_args(By)


def grouping(program: Program, by: By, source: Program) -> Callable[[Op], str]:
    """A function from an op of the program to its group. `source` is the program that it was partitioned from, which
    still has the functions that were inlined."""
    if by == "loop":
        loops = _loops(program)
        return lambda op: loops.get(op, "(no loop)")
    if by == "function":
        functions = _functions(source)
        return lambda op: functions.get(line_of(op), "(no function)")
    if by == "axis":
        return lambda op: axes_text(program, op) if op.name in COLLECTIVES else "(nothing is sent)"
    return {
        "line": lambda op: line_of(op) or "(no line)",
        "op": lambda op: f"{op.label} = {kind_of(op)}",
        "kind": kind_of,
        "value": _value_sent,
    }[by]


def kind_of(op: Op) -> str:
    """The name of an op's kind in reports."""
    return (communication_of(op.name).kind if op.name in COLLECTIVES else "") or op.name


def _value_sent(op: Op) -> str:
    """The value that a collective moves; for one in the user's program, its operand."""
    if op.name not in COLLECTIVES:
        return "(nothing is sent)"
    values = op.cause.values if op.cause is not None else ()
    return " and ".join(values or (value.name for value in op.operands))


def _loops(program: Program) -> dict[Op, str]:
    """The innermost loop around each op in a loop, functions that it calls included: its first value, and its line. A
    loop belongs to itself."""
    found: dict[Op, str] = {}
    called = {program.entry}
    waiting = [(program.main.body, "")]
    while waiting:
        region, around = waiting.pop()
        for op in region.ops:
            inside = f"{op.label}  {line_of(op)}" if is_loop(op) else around
            if inside:
                found[op] = inside
            waiting.extend((each, inside) for each in op.regions)
            callee = callee_of(op) if is_call(op) else None
            if callee is not None and callee not in called:
                called.add(callee)
                waiting.append((program.functions[callee].body, inside))
    return found


def _functions(source: Program) -> dict[str, str]:
    """The function that each line is in, found by the ops of the line."""
    found: dict[str, str] = {}
    for function in source.functions.values():
        for op in walk(function.body):
            found.setdefault(line_of(op), function.name)
    return found
