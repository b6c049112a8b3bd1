"""Which values must be reduced, however late their reductions are done.

If one op takes a sum in parts and another needs it reduced, it is reduced for the second in any case. It is then best
for the first op to take it reduced as well. And a value that is added to parts of a sum, so that the result can be
reduced at once, may as well be added to the reduced sum: the earlier it is reduced, the more ops can use it, and the
fewer wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from ir.dataflow import Uses, uses_of
from ir.mesh import AxisRef
from ir.ops import OPS, FactorKind
from ir.ops.control import control_of, is_call, links, takes_operands_in
from ir.ops.layout import is_annotation
from ir.ops.reduction import identity_of
from ir.program import Op, Program, Region, Value, all_ops, all_regions
from passes.factors import factor_rule, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding, bytes_of
from passes.signatures import signature_of


def reduced_anyway(
    program: Program,
    sums: Mapping[Value, frozenset[AxisRef]],
    reduced: Collection[Value],
    sharding_of: Callable[[Value], ClosedSharding],
) -> frozenset[Value]:
    """The values with several uses, one of which needs them reduced, directly or through ops on equally many elements;
    or of which several uses need parts that are together as large. `sums` are the values that are partial sums if they
    are computed with operands in their wanted shardings, by `sharding_of`; those that are `reduced` never are."""
    found: set[Value] = set()
    uses = uses_of(program)
    taken_reduced = _taken_reduced(program, sums, sharding_of)
    used_often = {v: users for v, users in uses.users.items() if len(users) > 1 and v not in reduced}

    def is_needed_in_parts(value: Value, whole: Collection[Value]) -> bool:
        users = used_often.get(value)
        if users is None:
            return False
        parts = (bytes_of(v, sharding_of(v)) for op in users for v in op.results if v in whole)
        return sum(parts) >= bytes_of(value, sharding_of(value))

    def needed_by(op: Op, whole: Collection[Value]) -> Iterable[int]:
        most = max((v.type.size for v in op.results if v in whole), default=-1)
        commuting = _commuting(op, reduced)
        return [i for i, v in enumerate(op.operands) if i not in commuting or most >= v.type.size]

    for function in program.functions.values():
        whole = taken_reduced.union(function.body.results if function.name == program.entry else ())
        _look_back(function.body, whole, reduced, needed_by, is_needed_in_parts)
        found.update(v for v in whole if uses.count(v) > 1)
    return frozenset(found)


def _taken_reduced(
    program: Program, sums: Mapping[Value, frozenset[AxisRef]], sharding_of: Callable[[Value], ClosedSharding]
) -> set[Value]:
    """The values that some op takes reduced if its result is sharded as wanted: along axes over which they are sums, it
    is split in a dim that they do not have."""
    found: set[Value] = set()
    summed: dict[Value, frozenset[AxisRef]] = {}
    for op in all_ops(program):
        given = [(i, summed[v]) for i, v in enumerate(op.operands) if v in summed]
        if len(op.results) != 1 or (not given and op.result not in sums):
            continue
        rule = factor_rule(op) if not op.regions and not is_call(op) else None
        if rule is None:
            continue
        over = sums.get(op.result, frozenset())
        of_result = factors_of_dims(rule, rule.results[0], sharding_of(op.result).axes) if given else {}
        for i, axes in given:
            split = [f for f, mine in of_result.items() if not axes.isdisjoint(mine)]
            if split and not {f for dim in rule.operands[i] for f in dim}.issuperset(split):
                found.add(op.operands[i])
            elif signature_of(op).linearity:
                over |= axes
        if over:
            summed[op.result] = over
    return found


def never_pending(program: Program, sums: Collection[Value]) -> frozenset[Value]:
    """The values that can never have a pending reduction: they are no partial sums, and no ops make them only of such.
    A carried value is one of them if all of its sources are."""
    uses, known = uses_of(program), _known(program)
    becomes: dict[Value, list[Value]] = {}
    for op in all_ops(program):
        for link in links(program, op):
            for source, target in zip(link.sources, link.targets, strict=True):
                becomes.setdefault(source, []).append(target)
    params = [v for v in program.main.params if v.sharding is None or not v.sharding.partial]
    pending = [*params, *(v for op in all_ops(program) if _begins_reduced(op) for v in op.results)]
    found: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in found or value in sums or value in known:
            continue
        found.add(value)
        pending += becomes.get(value, ())
        for op in uses.users.get(value, ()):
            is_known = not op.results or op.results[0] in found
            if not is_known and not op.regions and not is_call(op) and not _may_be_pending(op, found, known):
                pending += op.results
    return frozenset(found)


def _begins_reduced(op: Op) -> bool:
    """Whether the results have no pending reductions whatever the operands have."""
    if is_annotation(op):
        return op.result.sharding is not None and not op.result.sharding.partial
    return not op.regions and not is_call(op) and not signature_of(op).linearity


def _may_be_pending(op: Op, reduced: Collection[Value], known: Collection[Value]) -> bool:
    """Whether the op can pass a pending reduction on: for some group of operands that it is jointly linear in, every
    operand may have the reduction pending or is a number that is added."""
    groups = ([op.operands[i] for i in linear.group] for linear in signature_of(op).linearity)
    return any(all(v not in reduced for v in g) and any(v not in known for v in g) for g in groups)


def wanted_whole(program: Program, reduced: frozenset[Value]) -> frozenset[Value]:
    """The values that some op needs reduced, directly or through ops on them alone, and the results of the program.
    Functions decide themselves when to reduce their arguments. Those that are `reduced` never are partial sums."""
    found: set[Value] = set(program.main.body.results)
    known = _known(program)
    reduced |= known

    def needed_by(op: Op, found: Collection[Value]) -> Iterable[int]:
        wanted = _passed_on(op, known, reduced, found)
        return wanted if is_call(op) else wanted.union(set(range(len(op.operands))).difference(_commuting(op)))

    for function in program.functions.values():
        _look_back(function.body, found, reduced, needed_by)
    return frozenset(found)


def _look_back(
    region: Region,
    found: set[Value],
    given: Collection[Value],
    needed_by: Callable[[Op, Collection[Value]], Iterable[int]],
    is_needed: Callable[[Value, Collection[Value]], bool] | None = None,
) -> None:
    """Adds the operands that each op needs reduced, from the last op to the first, and the results that all of their
    users together make `is_needed`. What is `needed_by` an op, as the positions of operands, depends on which operands
    are `given` and which results are found, and is the same for ops that are alike."""
    alike: dict[object, Iterable[int]] = {}
    for op in reversed(region.ops):
        if is_needed is not None:
            found.update([v for v in op.results if v not in found and is_needed(v, found)])
        for inner in op.regions:
            _look_back(inner, found, given, needed_by, is_needed)
        operands = op.operands
        if _takes_all_whole(op):
            found.update(operands)
        elif found.issuperset(operands):
            continue
        elif control_of(op) is not None or not signature_of(op).is_shared or len(set(operands)) < len(operands):
            found.update([operands[i] for i in needed_by(op, found)])
        else:
            key = signature_of(op), *[v in given for v in operands], *[v in found for v in op.results]
            positions = alike.get(key)
            if positions is None:
                positions = alike[key] = tuple(needed_by(op, found))
            found.update([operands[i] for i in positions])


def _known(program: Program) -> frozenset[Value]:
    """The values that depend on constants only: they are no sums over devices."""
    found: set[Value] = set()
    for op in all_ops(program):
        if not op.regions and not is_call(op) and all(v in found for v in op.operands):
            found.update(op.results)
    return frozenset(found)


def _passed_on(op: Op, known: frozenset[Value], reduced: frozenset[Value], found: Collection[Value]) -> set[int]:
    """The operands that the op needs reduced. One is a single operand that it modifies, such as by adding a number, if
    its result has as many bytes and is needed reduced. If the result has more bytes than all operands with reductions
    that the op adds or joins, every such operand is: reducing it first sends fewer bytes."""
    wanted: set[int] = set()
    linearity = signature_of(op).linearity
    if not linearity or takes_operands_in(op) or len(op.results) != 1:
        return wanted
    made, is_wanted = op.result.type.nbytes, op.result in found
    for linear in linearity:
        sums = {op.operands[i] for i in linear.group} - known
        taken_of_sums = sum(v.type.nbytes for v in sums - reduced)
        for position in linear.group:
            value = op.operands[position]
            count, taken = len(sums), taken_of_sums
            if value in known:
                count, taken = count + 1, taken + value.type.nbytes
            if made > taken or (count == 1 and made == taken and is_wanted):
                wanted.add(position)
    return wanted


def sums_over_devices(
    program: Program, sharding_of: Callable[[Value], ClosedSharding]
) -> Mapping[Value, frozenset[AxisRef]]:
    """The values that are partial sums if they are computed with operands in their wanted shardings, by `sharding_of`,
    and the axes over which they are."""
    found = ((op.result, _summed_axes(op, sharding_of)) for op in all_ops(program) if len(op.results) == 1)
    return {value: axes for value, axes in found if axes}


def summands(program: Program, sums: Collection[Value]) -> Mapping[Value, int]:
    """For each value that is a sum over devices, or one that was scaled, transposed and the like, the number of such
    sums that are added up with it: they are reduced once, together, and anything else that is added in between is added
    to one part. `sums` are the sums over devices."""
    found: dict[Value, int] = {}
    for function in program.functions.values():
        _find_summands(function.body, uses_of(program), sums, found)
    return {value: count for value, count in found.items() if count > 1}


def added_to(program: Program, counted: Collection[Value]) -> Mapping[Value, Value]:
    """For each part of a sum that one reduction serves, another part, to which it is added, perhaps scaled first. All
    parts of sums are `counted`."""
    found: dict[Value, Value] = {}
    for region in all_regions(program):
        for op in reversed(region.ops):
            if op.regions or len(op.results) != 1 or op.result not in counted:
                continue
            own = {v for v in op.operands if v in counted}
            for linear in signature_of(op).linearity:
                parts = own.intersection(op.operands[i] for i in linear.group)
                if len(parts) == 2:
                    one, other = parts
                    found |= {one: other, other: one}
                elif parts == own and op.result in found and OPS[op.name].family == "elementwise":
                    found.update(dict.fromkeys(parts, found[op.result]))
    return found


def _find_summands(region: Region, uses: Uses, sums: Collection[Value], found: dict[Value, int]) -> None:
    """Counts the sums that each value consists of."""
    parts: dict[Value, set[Value]] = {}
    for op in region.ops:
        for inner in op.regions:
            _find_summands(inner, uses, sums, found)
        if op.regions or len(op.results) != 1:
            continue
        added = next(_added(op, uses, found), None) if not found.keys().isdisjoint(op.operands) else None
        if added is not None:
            parts[op.result] = added
            found[op.result] = sum(found[v] for v in added)
        elif op.result in sums:
            found[op.result] = 1
    for op in reversed(region.ops):
        for value in op.results:
            found.update(dict.fromkeys(parts.get(value, ()), found.get(value, 0)))


def _added(op: Op, uses: Uses, sums: Collection[Value]) -> Iterator[set[Value]]:
    """The sums that only this op uses, and that it adds up or modifies separately. Joining them must not increase the
    number of elements to reduce."""
    for linear in signature_of(op).linearity:
        group = {op.operands[i] for i in linear.group}
        found = {v for v in group if v in sums}
        is_one_sum = len(group) == 1 or all(v.type.size >= op.result.type.size for v in group)
        if "sum" in linear.kinds and found and is_one_sum and all(uses.count(v) == 1 for v in found):
            yield found


def _summed_axes(op: Op, sharding_of: Callable[[Value], ClosedSharding]) -> frozenset[AxisRef]:
    """The axes that split sums if the op is computed with operands in their wanted shardings."""
    rule = None if op.regions or not signature_of(op).leaves_a_sum else factor_rule(op)
    if rule is None:
        return frozenset()
    found = (factors_of_dims(rule, t, sharding_of(v).axes) for v, t in zip(op.operands, rule.operands, strict=True))
    split = (axes for factors in found for f, axes in factors.items() if rule.factors[f].reduction == "sum")
    return frozenset(axis for axes in split for axis in axes)


def _takes_all_whole(op: Op) -> bool:
    """Whether the op commutes with no reduction of an operand, and runs no regions or functions that might."""
    return control_of(op) is None and not signature_of(op).commuting


def _commuting(op: Op, reduced: Collection[Value] = ()) -> Collection[int]:
    """The operands whose reductions can be done after the op. What they are added to must not be `reduced`."""
    if takes_operands_in(op):
        return range(len(op.operands))
    found: set[int] = set()
    for linear in signature_of(op).linearity:
        group = frozenset(linear.group)
        outside = {v for i, v in enumerate(op.operands) if i not in group}
        in_the_way = {op.operands[i] for i in group}.intersection(reduced)
        if len(in_the_way) < 2:
            values = in_the_way or {op.operands[i] for i in group}
            found.update(i for i in group if op.operands[i] in values and op.operands[i] not in outside)
    return found


def of_nothing(op: Op) -> Op | None:
    """A reduction over no elements, as an op that makes its constant result without communication; None for other
    ops."""
    if not op.operands or len(op.results) != 1 or 0 not in op.operands[0].type.shape:
        return None
    if not all(0 in v.shape for v in op.operands) or 0 in op.result.shape:
        return None
    rule = factor_rule(op)
    kinds = {(f.kind, f.reduction) for f in rule.factors if not f.size} if rule is not None else set()
    if len(kinds) != 1:
        return None
    ((factor_kind, kind),) = kinds
    if factor_kind is not FactorKind.REDUCTION or kind is None:
        return None
    value = identity_of(kind, op.result.dtype)
    return replace(op, name="constant", operands=(), attrs={"value": value, "type": op.result.type})
