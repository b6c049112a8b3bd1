"""The reasons for a value's sharding: the chain from each of its axes back to an annotation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from ir.diagnostics import error
from ir.names import did_you_mean
from ir.program import Op, Program, Value, values_within, walk
from ir.spelling.printer import print_type
from passes.propagation.reasons import Propagated, Reason, ValueId, name_outside
from spmdc.reports.collectives import Collective, line_of

_FAR = 1000
"""The most values that are searched for the terms of a sum."""


def explain_value(propagated: Propagated, name: str) -> str:
    """The sharding of the value called `name` (or `function.name` if several functions have one), and its reasons.

    Raises SpmdcError (E101) if there is no such value.
    """
    found = values_named(propagated.program, name)
    return "\n".join(dict.fromkeys("\n".join(explanation(propagated, *named)) for named in found))


def values_named(program: Program, name: str) -> list[tuple[ValueId, Value]]:
    """The values called `name`, or `function.name` if several functions have one.

    Raises SpmdcError (E101) if there are none.
    """
    values = list(_values(program))
    found = [(id, value) for id, value in values if name in (id[1], f"{id[0]}.{id[1]}")]
    if not found:
        help = did_you_mean(str(name), [id[1] for id, _ in values]) or "`spmdc propagate` prints every value"
        raise error("E101", f"the program has no value {name!r}", help=help)
    return found


def collectives_for(collectives: Sequence[Collective], what: str) -> Sequence[Collective]:
    """The collectives of a kind, or those that a line of the program caused.

    Raises SpmdcError (E101) if there are none.
    """
    line = int(what) if what.isdecimal() else None
    found = [c for c in collectives if c.kind == what or (line is not None and c.line == line)]
    if not found:
        lines: dict[str, set[int]] = {}
        for c in collectives:
            lines.setdefault(c.kind, set()).update([c.line] if c.line is not None else [])
        kinds = "; ".join(f"{kind} of line {', '.join(map(str, sorted(lines[kind])))}" for kind in sorted(lines))
        raise error("E101", f"no collective comes from line {what}" if what.isdecimal() else f"there is no {what}",
                    help=f"the program's collectives: {kinds or 'none'}")  # fmt: skip
    return found


def explain_collectives(collectives: Sequence[Collective], propagated: Propagated) -> str:
    """What collectives send, and why: some lines for those of one kind with the same cause and line. The last of these
    have the origins of the axes along which the value was split."""
    groups: dict[object, list[Collective]] = {}
    for c in collectives:
        groups.setdefault((c.kind, c.axes, c.count, c.source, c.cause), []).append(c)
    known = _Known.of(propagated.program)
    return "\n".join(
        part for group in groups.values() for part in (*_group_lines(group), *_origins(propagated, known, group[0]))
    )


@dataclass(frozen=True)
class _Known:
    """The values with each name, the op that makes each, and the functions that each line is in."""

    values: Mapping[str, Sequence[tuple[ValueId, Value]]]
    makers: Mapping[Value, Op]
    functions: Mapping[str, Set[str]]

    @staticmethod
    def of(program: Program) -> _Known:
        values: dict[str, list[tuple[ValueId, Value]]] = {}
        for id, value in _values(program):
            values.setdefault(value.name, []).append((id, value))
        makers: dict[Value, Op] = {}
        functions: dict[str, set[str]] = {}
        for function in program.functions.values():
            for op in walk(function.body):
                makers.update(dict.fromkeys(op.results, op))
                functions.setdefault(line_of(op), set()).add(function.name)
        return _Known(values, makers, functions)

    def value_at(self, line: str, name: str) -> tuple[ValueId, Value] | None:
        """The value with that name in the function that a line is in, if it is the only one. Only the user's own names
        refer to the same values before and after inlining."""
        if "." in name:
            return None
        functions = self.functions.get(line, ())
        found = [each for each in self.values.get(name, ()) if each[0][0] in functions]
        return found[0] if len(found) == 1 else None


def _group_lines(group: Sequence[Collective]) -> Iterator[str]:
    first, nbytes = group[0], sum(c.bytes for c in group)
    often = {1: "", None: ", in a loop of unknown length"}.get(first.count, f", {first.count} times")
    number = f"{len(group)} messages of " if len(group) > 1 else ""
    yield f"{number}{first.kind} over {first.axes}: {nbytes:,} bytes{often}  at {first.source}"
    moved = f"{' and '.join(first.cause.values)}: " if first.cause.source else ""
    yield f"  {moved}{first.cause}"


def _origins(propagated: Propagated, known: _Known, c: Collective) -> Iterator[str]:
    """For each axis of the collective that splits a value which it moves, the original reason for that."""
    for name in dict.fromkeys(chain(c.cause.values, *(part.values for part in c.cause.parts))):
        found = known.value_at(c.source, name)
        if found is None:
            continue
        for axis in c.axes.split(", "):
            is_sum = axis in c.cause.reduced
            for value, dim, reason in _split_by(propagated, known, found, axis, is_sum=is_sum):
                *_, first = _links(propagated, reason)
                place = f"  at {first.span}" if first.span is not None else ""
                yield f"  {axis} in dim {dim} of {value.name}: {spell_value(first.value)} is {first.how}{place}"


def _split_by(
    propagated: Propagated, known: _Known, named: tuple[ValueId, Value], axis: str, *, is_sum: bool
) -> list[tuple[Value, int, Reason]]:
    """Where an axis splits a value, and why; for a sum whose terms are on several devices, the nearest values that it
    is computed from."""
    (function, _), value = named
    level, seen = [value], {value}
    while level and len(seen) < _FAR:
        found = [
            (each, dim, reason)
            for each in level
            for dim, reason in _reasons(propagated, (function, each.name), each)
            if propagated.program.mesh.spell(reason.axis) == axis
        ]
        if found or not is_sum:
            return found
        operands = [v for each in level if each in known.makers for v in known.makers[each].operands]
        level = [v for v in dict.fromkeys(operands) if v not in seen]
        seen.update(level)
    return []


def spell_value(id: ValueId) -> str:
    """A value's name as in messages; propagation marks results of functions with an arrow."""
    _, name = id
    return f"result {name.removeprefix('-> ')}" if name.startswith("-> ") else name


def _values(program: Program) -> Iterator[tuple[ValueId, Value]]:
    for function in program.functions.values():
        for value in values_within(function.body):
            yield (function.name, value.name), value


def explanation(propagated: Propagated, id: ValueId, value: Value) -> Iterator[str]:
    """The lines with a value's sharding and its reasons. A chain of reasons may be long."""
    function, name = id
    where = f"   (in {function})" if function != propagated.program.entry else ""
    shard = f"{value.type} of " if value.of is not None else ""
    yield f"{name}: {shard}{print_type(value.of or value.type, value.sharding)}{where}"
    reasons = [reason for _, reason in _reasons(propagated, id, value)]
    for reason in reasons:
        yield from _chain(propagated, reason)
    if not reasons:
        yield "  no annotation reaches it: every device holds all of it"
    yield from _conflicts(propagated, id)


def _reasons(propagated: Propagated, id: ValueId, value: Value) -> Iterator[tuple[int, Reason]]:
    """The reason for each axis of each dim of a value."""
    asked = id if value.of is None else (id[0], name_outside(id[1]))
    for dim in range(value.type.rank):
        for reason in propagated.reasons.get((asked, dim), ()):
            yield dim, reason


def _chain(propagated: Propagated, reason: Reason) -> Iterator[str]:
    """A reason, the reason of its source, and so on. Step numbers decrease along the chain, so it ends."""
    spell = propagated.program.mesh.spell
    yield f"  dim {reason.dim} is split over {spell(reason.axis)}"
    for now in _links(propagated, reason):
        place = f"  at {now.span}" if now.span is not None else ""
        if now.source is None:
            yield f"    {spell_value(now.value)} dim {now.dim}: {now.how}{place}"
            return
        origin = f"{spell_value(now.source)} dim {now.source_dim}"
        yield f"    {spell_value(now.value)} dim {now.dim} <- {origin}: step {now.step}, {now.how}{place}"


def _links(propagated: Propagated, reason: Reason) -> Iterator[Reason]:
    """A reason, that of its source, and so on."""
    now: Reason | None = reason
    while now is not None:
        yield now
        now = _earlier(propagated, now)


def _earlier(propagated: Propagated, reason: Reason) -> Reason | None:
    """The reason for which the source had the axis earlier."""
    if reason.source is None:
        return None
    for dim in (reason.source_dim, *range(16)):
        for candidate in propagated.reasons.get((reason.source, dim), ()):
            if candidate.axis == reason.axis and candidate.step <= reason.step:
                return candidate
    return None


def _conflicts(propagated: Propagated, id: ValueId) -> Iterator[str]:
    """The ops with the value whose tensors are sharded in conflicting ways, so that one of them is resharded."""
    spell = propagated.program.mesh.spell
    for c in propagated.conflicts:
        if id not in c.tensors:
            continue
        sides = [
            f"{name} dim {dim} is split over {', '.join(map(spell, axes))}"
            for ((_, name), dim), axes in ((c.chosen_from, c.chosen), (c.rejected_from, c.rejected))
        ]
        place = f"  at {c.span}" if c.span is not None else ""
        yield f"  {c.op} cannot have both: {sides[0]}, and {sides[1]}{place}"
        yield f"    the former is kept: {c.rule}"
        yield from (f"    {found}" for found in c.weighed)
