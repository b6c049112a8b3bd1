"""Simplifies imported programs before shardings are propagated.

Other compilers leave to later passes what would be in the way of this one: index arithmetic hides that a gather is a
slice, helper functions hide the arithmetic, and a constant with many users ties together unrelated tensors. The result
computes the same to the bit, but for right sides of one triangular solve that are put in another order (`merged_dims`):
libraries may round the columns at the end of a matrix otherwise. Annotations, spans and names are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ir.builder import Names
from ir.ops import OPS
from ir.ops.control import is_map
from ir.ops.creation import is_made_of_nothing
from ir.ops.layout import is_annotation
from ir.program import Function, Op, Program, Region, Value, all_ops, callee_of, callees_first, walk
from passes.optimize.dce import eliminate_dead_code, live_region
from passes.optimize.fold import algebra, windows
from passes.optimize.fold import data_movement as placing
from passes.optimize.fold import static_indices as addresses
from passes.optimize.fold.firsts import keep_firsts
from passes.optimize.fold.rewriter import Rewriter, Rule
from passes.optimize.loop_invariants import hoist_moves

RULES: Mapping[str, Rule] = {**addresses.RULES, **algebra.RULES, **placing.RULES, **windows.RULES}

_SMALL = 32
"""Functions with at most this many ops are inlined, as are functions with one call."""


def simplify(program: Program) -> Program:
    """The program with index arithmetic folded, unused ops removed and small functions inlined."""
    calls = Counter(callee_of(op) for op in all_ops(program))
    mapped = {callee_of(op) for op in all_ops(program) if is_map(op)}
    inlined: dict[str, Function] = {}
    functions: dict[str, Function] = {}
    for function in callees_first(program):
        name = function.name
        may_be_inlined = calls[name] > 0 and name not in mapped and not _is_annotated(function)
        if may_be_inlined and calls[name] == 1 and name != program.entry:
            inlined[name] = function  # It is rewritten where it is called.
            continue
        rewriter = Rewriter(function, RULES, inlined, program.mesh.size if program.meshes else 1)
        done = replace(function, body=rewriter.region(function.body))
        done = replace(done, body=live_region(done.body, annotated=True))
        functions[name] = done
        if may_be_inlined and len(walk(done.body)) <= _SMALL:
            inlined[name] = done
    kept = {name: functions[name] for name in program.functions if name not in inlined or name == program.entry}
    return replace(
        program, functions={name: _split(hoist_moves(keep_firsts(function))) for name, function in kept.items()}
    )


def use_known_indices(program: Program) -> Program:
    """The program with reads and writes at known indices as slices and pads, and with dims that indices enumerate as
    batch dims. Everything else is unchanged."""
    if not any(op.name in addresses.COMPUTED for op in all_ops(program)):
        return program
    rules = {name: addresses.RULES[name] for name in addresses.COMPUTED}
    functions: dict[str, Function] = {}
    for function in program.functions.values():
        rewriter = Rewriter(function, rules, {}, program.mesh.size if program.meshes else 1, folds=False)
        body = rewriter.region(function.body)
        functions[function.name] = replace(function, body=body) if rewriter.rewritten else function
    if all(functions[name] is function for name, function in program.functions.items()):
        return program
    return eliminate_dead_code(replace(program, functions=functions), annotated=True)


def _is_annotated(function: Function) -> bool:
    """Whether the function's signature has shardings, which inlining would lose."""
    signature = [*(v.sharding for v in function.params), *(r.sharding for r in function.results)]
    return any(sharding is not None for sharding in signature)


# Constants.


_MOST_COPIED = 8
"""What takes more ops to compute from constants is not copied."""


def _split(function: Function) -> Function:
    """Copies each constant, and what few ops compute from constants and scalars, for each of its uses, so that the
    sharding of one use does not propagate to the others.

    Shardy's importer does so for the same reason.
    """
    names = Names.beside(function)
    return replace(function, body=_split_in(function.body, names, {}, set()))


def _split_in(region: Region, names: Names, makers: dict[Value, tuple[Op, int]], used: set[Value]) -> Region:
    """`makers` has the ops whose results are copied, each with the number of ops that a copy takes."""
    ops: list[Op] = []

    def own(value: Value) -> Value:
        if value not in makers or value not in used:
            used.add(value)
            return value
        maker, _ = makers[value]
        copy = replace(value, name=names.fresh(value.name))
        ops.append(replace(maker, operands=tuple(map(own, maker.operands)), results=(copy,)))
        return copy

    for op in region.ops:
        operands = tuple([own(v) for v in op.operands])
        regions = tuple(_split_in(r, names, makers, used) for r in op.regions)
        ops.append(op if operands == op.operands and not regions else replace(op, operands=operands, regions=regions))
        if _may_be_copied(op):
            tensors = (v for v in op.operands if v.type.rank)
            count = 1 + sum(makers[v][1] if v in makers else _MOST_COPIED for v in tensors)
            if count <= _MOST_COPIED:
                makers[op.result] = op, count
    results = tuple([own(v) for v in region.results])
    return Region(region.params, tuple(ops), results)


def _may_be_copied(op: Op) -> bool:
    """Whether the op makes a tensor of nothing, or part by part of its operands, and the user says nothing of it."""
    if len(op.results) != 1 or not op.result.type.rank or op.result.sharding is not None or is_annotation(op):
        return False
    return is_made_of_nothing(op) or (bool(op.operands) and OPS[op.name].family in ("elementwise", "layout"))
