"""Copies functions for calls that do not use all that the function communicates for other calls.

XLA inlines functions where they are called, and then drops what is not used. So that a program is reported to send
exactly what it sends, such a function is copied: once for each set of its collectives that some call needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ir.builder import Names
from ir.ops.collective import COLLECTIVES
from ir.program import Function, Op, Program, callee_of, callees_first, walk
from passes.optimize.communicating import Communicating, communicating_functions
from passes.optimize.dce import giving, live_region, used_results
from passes.rewrite import copy_function, rename_callees

Used = frozenset[int]
"""The results of a function that are used, by number."""
Call = tuple[str, Op]
"""The name of the function that a call is in, and the call."""


def separate_calls(program: Program) -> Program:
    """The SPMD program in which no call sends anything for results that it does not use.

    The first calls keep the function's name; copies are called `name.1`, `name.2`, … and follow it.
    """
    sending = communicating_functions(program)
    if len(sending) < 2:
        return program
    order = callees_first(program)
    names = Names(set(program.functions))
    calls: dict[str, dict[Used, list[Call]]] = {name: {} for name in program.functions}
    targets: dict[str, dict[Op, str]] = {}
    copies: dict[str, list[Function]] = {}
    for function in reversed(order):
        copies[function.name] = []
        for used, those in _apart(function, calls[function.name], sending):
            copy = function if not copies[function.name] else copy_function(function, names.fresh(function.name))
            copies[function.name].append(copy)
            targets[copy.name] = {}
            if copy is not function:
                for caller, op in those:
                    targets[caller][op] = copy.name
            for op, some in used_results(live_region(giving(copy, sorted(used)).body)).items():
                calls[str(callee_of(op))].setdefault(some, []).append((copy.name, op))
    made = [rename_callees(copy, targets[copy.name]) for name in program.functions for copy in copies[name]]
    return replace(program, functions={function.name: function for function in made})


def _apart(
    function: Function, calls: Mapping[Used, list[Call]], sending: Communicating
) -> Iterator[tuple[Used, list[Call]]]:
    """The calls grouped by the collectives that they need, with the results that each group uses."""
    if not calls:
        yield frozenset(range(len(function.results))), []
        return
    is_sending = function.name in sending and len(calls) > 1
    alike: dict[frozenset[object], list[Used]] = {}
    for used in calls:
        alike.setdefault(_sent(function, used, sending) if is_sending else frozenset(), []).append(used)
    for some in alike.values():
        yield frozenset[int]().union(*some), [call for used in some for call in calls[used]]


def _sent(function: Function, used: Used, sending: Communicating) -> frozenset[object]:
    """The collectives that these results depend on, and what they depend on in communicating callees."""
    live = live_region(giving(function, sorted(used)).body)
    needed = {(op, some) for op, some in used_results(live).items() if callee_of(op) in sending}
    return frozenset([*needed, *(op for op in walk(live) if op.name in COLLECTIVES)])
