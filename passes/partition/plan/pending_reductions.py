"""Which values are needed with their reductions done, however late those are left.

A sum that one op takes in parts and another needs whole is reduced for the second in any case. The first then does best
to take it reduced as well, with nothing pending. And what is added to parts of a sum, for the result to be reduced at
once, is as well added to the sum: the sooner it is reduced, the more can be made of it, and the less waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ir.dataflow import Uses, uses_of
from ir.ops import OPS, Linearity
from ir.ops.control import is_call, takes_operands_in
from ir.program import Op, Program, Region, Value, all_ops
from passes.factors import factor_rule, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding


def reduced_anyway(program: Program) -> frozenset[Value]:
    """The values with several uses, one of which, at once or behind ops on equally many elements, needs them whole."""
    found: set[Value] = set()
    uses = uses_of(program)
    for function in program.functions.values():
        whole: set[Value] = set(function.body.results) if function.name == program.entry else set()
        _look_back(function.body, whole)
        found.update(v for v in whole if uses.count(v) > 1)
    return frozenset(found)


def wanted_whole(program: Program) -> frozenset[Value]:
    """The values that some op needs whole, at once or behind ops that do something to them alone, and results of the
    program. Functions decide themselves when they reduce their arguments."""
    found: set[Value] = set(program.main.body.results)
    known = _known(program)
    for function in program.functions.values():
        _find_whole(function.body, known, found)
    return frozenset(found)


def _known(program: Program) -> frozenset[Value]:
    """The values that are computed of constants alone: no sums over devices are among them."""
    found: set[Value] = set()
    for op in all_ops(program):
        if not op.regions and not is_call(op) and all(v in found for v in op.operands):
            found.update(op.results)
    return frozenset(found)


def _find_whole(region: Region, known: frozenset[Value], found: set[Value]) -> None:
    for op in reversed(region.ops):
        for inner in op.regions:
            _find_whole(inner, known, found)
        for position, value in enumerate(op.operands):
            at_once = not is_call(op) and not _commutes(op, position)
            if at_once or _is_passed_on(op, position, known, found):
                found.add(value)


def _is_passed_on(op: Op, position: int, known: frozenset[Value], found: set[Value]) -> bool:
    """Whether the op does something to this operand alone, such as adding a number, and its result, of no fewer bytes,
    is wanted whole; or is of more bytes, so that nobody waits for it."""
    linearity = OPS[op.name].linearity(op)
    if not linearity or takes_operands_in(op) or len(op.results) != 1:
        return False
    value, result = op.operands[position], op.result
    alone = {i for i, v in enumerate(op.operands) if v is value}
    if not any(alone == {i for i in linear.group if i in alone or op.operands[i] not in known} for linear in linearity):
        return False
    made, taken = result.type.nbytes, value.type.nbytes
    return made > taken or (made == taken and result in found)


def summands(program: Program, sharding_of: Callable[[Value], ClosedSharding]) -> Mapping[Value, int]:
    """How many sums over devices are added up to the sum that each of these values is a part of, or becomes one of when
    it is scaled, transposed and the like: they are reduced once for all. `sharding_of` is how values are wanted."""
    found: dict[Value, int] = {}
    for function in program.functions.values():
        _find_summands(function.body, uses_of(program), sharding_of, found)
    return {value: count for value, count in found.items() if count > 1}


def _find_summands(
    region: Region, uses: Uses, sharding_of: Callable[[Value], ClosedSharding], found: dict[Value, int]
) -> None:
    """Counts the sums that each value consists of, if all that is added to it is one too."""
    parts: dict[Value, set[Value]] = {}
    for op in region.ops:
        for inner in op.regions:
            _find_summands(inner, uses, sharding_of, found)
        if op.regions or len(op.results) != 1:
            continue
        groups = [{op.operands[i] for i in linear.group} for linear in OPS[op.name].linearity(op) if _adds(linear)]
        added = next((g for g in groups if g and all(uses.count(v) == 1 and v in found for v in g)), None)
        if added is not None:
            parts[op.result] = added
            found[op.result] = sum(found[v] for v in added)
        elif _leaves_a_sum(op, sharding_of):
            found[op.result] = 1
    for op in reversed(region.ops):
        for value in op.results:
            found.update(dict.fromkeys(parts.get(value, ()), found.get(value, 0)))


def _adds(linear: Linearity) -> bool:
    return "sum" in linear.kinds


def _leaves_a_sum(op: Op, sharding_of: Callable[[Value], ClosedSharding]) -> bool:
    """Whether devices have parts of a sum if the op is computed where its operands are wanted."""
    rule = factor_rule(op)
    if rule is None or not any(f.reduction == "sum" for f in rule.factors):
        return False
    found = (factors_of_dims(rule, t, sharding_of(v).axes) for v, t in zip(op.operands, rule.operands, strict=True))
    return any(rule.factors[f].reduction == "sum" for factors in found for f in factors)


def _look_back(region: Region, whole: set[Value]) -> None:
    for op in reversed(region.ops):
        for inner in op.regions:
            _look_back(inner, whole)
        elements = [v.type.size for v in op.results if v in whole]
        for position, value in enumerate(op.operands):
            if not _commutes(op, position) or any(size >= value.type.size for size in elements):
                whole.add(value)


def _commutes(op: Op, position: int) -> bool:
    """Whether a reduction of the operand can be left until after the op."""
    linearity = OPS[op.name].linearity(op)
    if linearity:
        value = op.operands[position]
        group = {i for i, v in enumerate(op.operands) if v is value}
        if any(group <= set(linear.group) for linear in linearity):
            return True
    return takes_operands_in(op)
