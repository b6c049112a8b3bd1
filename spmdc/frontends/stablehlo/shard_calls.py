"""Manual regions in HLO's form: custom calls at their entry and exit, with the ops between.

The ops of a block are regrouped: a region consists of the ops that depend on the shards from its entry calls, up to the
exit calls. A region without operands consists of the ops that only its exit call needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy

from ir.manual import inner_type
from ir.mesh import AxisRef
from ir.program import Value
from ir.sharding import Sharding
from spmdc.frontends.stablehlo.attributes import cast, parsed, text_of
from spmdc.frontends.stablehlo.hlo_words import INTO_REGION, OUT_OF_REGION
from spmdc.frontends.stablehlo.meshes import frontend_attributes
from spmdc.frontends.stablehlo.ops.manual import append_manual, manual_axes
from spmdc.frontends.stablehlo.scope import AnyValue, Bound, PoisonedError, Scope


@dataclass
class Group:
    """The ops of one region, and its entry and exit calls.

    `rank` is the length of the longest chain of regions that it depends on.
    """

    rank: int = 0
    into: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    body: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    out: list[mlir.Operation] = field(default_factory=list[mlir.Operation])
    inside: set[AnyValue] = field(default_factory=set["AnyValue"])
    is_left: bool = True
    """Whether all its values that the function returns pass an exit call."""

    def take(self, op: mlir.Operation, behind: int) -> None:
        self.rank = max(self.rank, behind)
        self.inside.update(op.results)

    def merge(self, other: Group) -> None:
        """Merges another group that turns out to be a part of the same region."""
        self.rank = max(self.rank, other.rank)
        self.into += other.into
        self.body += other.body
        self.out += other.out
        self.inside |= other.inside


def regrouped(block: mlir.Block) -> list[mlir.Operation | Group]:
    """The ops of the block, with those of regions grouped. Ops that depend on fewer regions come first."""
    behind: dict[AnyValue, int] = {}
    groups: list[Group] = []
    outside: dict[int, list[mlir.Operation]] = {}
    *steps, last = (view.operation for view in block.operations)
    for op in steps:
        rank = max((behind.get(v, 0) for v in op.operands), default=0)
        target = _target(op)
        mine = _group_of(op, groups)
        if target in OUT_OF_REGION and mine is None:
            mine = _without_operands(op, outside)
            groups.append(mine)
        if target in INTO_REGION:
            group = Group(rank, [op], inside=set(op.results))
            groups.append(group)
        elif mine is None:
            outside.setdefault(rank, []).append(op)
        elif target in OUT_OF_REGION:
            mine.out.append(op)
            rank = mine.rank + 1
        else:
            mine.body.append(op)
            mine.take(op, rank)
        behind.update((r, rank) for r in op.results)
    for group in groups:
        group.is_left = not any(v in group.inside for v in last.operands)
    ordered: list[mlir.Operation | Group] = []
    for n in sorted({*outside, *(g.rank for g in groups)}):
        ordered.extend(outside.get(n, ()))
        ordered.extend(g for g in groups if g.rank == n)
    return [*ordered, last]


def _without_operands(out: mlir.Operation, outside: dict[int, list[mlir.Operation]]) -> Group:
    """A region with an exit call but no entry call: the ops that nothing else needs, which are removed from
    `outside`."""
    group, needing = Group(), {out}
    for rank in sorted(outside, reverse=True):
        for op in reversed(outside[rank]):
            uses = {use.owner for result in op.results for use in result.uses}
            if uses and uses <= needing:
                needing.add(op)
                group.take(op, rank)
        group.body[:0] = [op for op in outside[rank] if op in needing]
        outside[rank] = [op for op in outside[rank] if op not in needing]
    return group


def _group_of(op: mlir.Operation, groups: list[Group]) -> Group | None:
    """The group of an op that uses values of one; if it uses those of several groups, they are merged."""
    found = [g for g in groups if any(v in g.inside for v in op.operands)]
    for other in found[1:]:
        found[0].merge(other)
        groups.remove(other)
    return found[0] if found else None


def _target(op: mlir.Operation) -> str:
    return text_of(op.attributes["call_target_name"]) if op.name.endswith(".custom_call") else ""


def convert_group(group: Group, scope: Scope) -> None:
    """Appends the manual region of a group, and binds its results. Raises SpmdcError, or PoisonedError."""
    first = (group.into or group.out)[0]
    scope.builder.span = scope.module.locations.span(first.location) or scope.fallback
    if not group.is_left:
        message = f"@{_target(first)} leads into a region of which the function returns shards"
        help = "lead out of it first, with SPMDShardToFullShape or xla.sdy.LocalToGlobalShape"
        raise scope.refuse(first, message, code="E709", help=help)
    axes = _axes(first if group.into else _says_manual(group), scope)
    manual = frozenset(axis.name for axis in axes)
    inner = scope.inner()
    inner.manual = scope.manual | manual
    operands: list[Value] = []

    def param(value: Value, sharding: Sharding) -> Value:
        operands.append(value)
        local = inner_type(value.type, sharding, manual)
        return inner.builder.param(value.name, local, sharding, of=value.type)

    for op in group.into:
        _bind(op, _shards(op, scope, param), scope)
    outer = _captured(group, scope)
    for captured, known in outer.items():
        anywhere = Sharding.unknown(scope.module.shardings.meshes[0], known.type.rank)
        scope.values[captured] = inside = param(known, anywhere)
        if known in scope.numbers:
            scope.numbers[inside] = scope.numbers[known]
    for op in group.body:
        scope.module.convert(op, inner)
    scope.values.update(outer)
    returned = [v for op in group.out for v in inner.operands(op)]
    given = [(t, s) for op in group.out for t, s in zip(scope.result_types(op), _given(op, scope), strict=True)]
    results = iter(append_manual(scope, operands, axes, inner.builder.region(*returned), given))
    for op in group.out:
        _bind(op, list(itertools.islice(results, len(scope.result_types(op)))), scope)


def _shards(op: mlir.Operation, scope: Scope, param: Callable[[Value, Sharding], Value]) -> list[Value]:
    """The region's parameters for the operands of an entry call."""
    values = scope.operands(op)
    placed = _placements(op, "xla.sdy.in_shardings", values, scope)
    shards = [param(value, sharding) for value, sharding in zip(values, placed, strict=True)]
    for value, shard, type in zip(values, shards, scope.result_types(op), strict=True):
        if shard.type != type:
            raise scope.refuse(op, f"a shard of {value.type} is {shard.type}, and it returns {type}", code="E409",
                               help="annotate the operand, and divide each dim by its manual axes")  # fmt: skip
    return shards


def _bind(op: mlir.Operation, values: Sequence[Value], scope: Scope) -> None:
    """Binds the op's results to these values, or to their tuple."""
    is_tuple = len(op.results) == 1 and isinstance(op.results[0].type, mlir.TupleType)
    bound: Sequence[Bound] = [tuple(values)] if is_tuple else values
    scope.values.update(zip(op.results, bound, strict=True))


def _says_manual(group: Group) -> mlir.Operation:
    """The op that specifies the manual axes of a region without operands."""
    (out,) = group.out
    return _annotation(out.operands[0]) or out


def _annotation(value: AnyValue) -> mlir.Operation | None:
    """The custom call @Sharding that makes a value, if any."""
    owner = value.owner
    return owner.operation if isinstance(owner, mlir.OpView) and _target(owner.operation) == "Sharding" else None


def _axes(op: mlir.Operation, scope: Scope) -> tuple[AxisRef, ...]:
    """The axes that are manual in the region and not around it: those that Shardy lists, or those in the manual
    subgroup of an HLO sharding, or all."""
    listed = frontend_attributes(op).get("xla.sdy.manual_axes")
    if listed is not None:
        return manual_axes(scope, cast(sdy.ManualAxesAttr, parsed(listed, "xla.sdy.manual_axes")))
    shardings = scope.module.shardings
    if not shardings.meshes:
        raise scope.refuse(op, "it leads into a region that is partitioned by hand, and there is no mesh", code="E306",
                           help="declare an sdy.mesh, or give shardings over devices")  # fmt: skip
    text = text_of(op.attributes["mhlo.sharding"]) if "mhlo.sharding" in op.attributes else "{manual}"
    around = set(scope.manual)
    if "devices=" in text:
        free = shardings.without_manual(text, scope.result_types(op)[0].rank, scope.builder.span)
        around.update(axis.name for axis in free)
    return tuple(axis for axis in shardings.meshes[0].whole_axes() if axis.name not in around)


def _placements(op: mlir.Operation, name: str, values: Sequence[Value], scope: Scope) -> list[Sharding]:
    """The shardings of the operands of an entry call: Shardy's, or else those of their annotations."""
    mesh = scope.module.shardings.meshes[0]
    ranks = [v.type.rank for v in values]
    written = frontend_attributes(op).get(name)
    if written is None:
        return [_annotated(v, given, scope) for v, given in zip(values, op.operands, strict=True)]
    placed = scope.module.shardings.per_value(parsed(written, name), ranks, scope.builder.span)
    return [s or Sharding.unknown(mesh, rank) for s, rank in zip(placed, ranks, strict=True)]


def _annotated(value: Value, written: AnyValue, scope: Scope) -> Sharding:
    """The sharding of an operand of an entry call: that of its annotation."""
    mesh, rank = scope.module.shardings.meshes[0], value.type.rank
    annotation = _annotation(written)
    if annotation is None:
        return value.sharding or Sharding.replicate(mesh, rank)
    said = scope.module.shardings.constraint(annotation, value.type, scope.builder.span, scope.manual)
    return said or Sharding.unknown(mesh, rank)


def _given(op: mlir.Operation, scope: Scope) -> list[Sharding]:
    """The shardings of the results of an exit call."""
    shardings, types = scope.module.shardings, scope.result_types(op)
    mesh = shardings.meshes[0]
    written = frontend_attributes(op).get("xla.sdy.out_shardings")
    if written is not None:
        placed = shardings.per_value(
            parsed(written, "xla.sdy.out_shardings"), [t.rank for t in types], scope.builder.span
        )
    else:
        placed = [shardings.constraint(op, t, scope.builder.span, scope.manual) for t in types]
    return [s or Sharding.unknown(mesh, t.rank) for s, t in zip(placed, types, strict=True)]


def _captured(group: Group, scope: Scope) -> dict[AnyValue, Value]:
    """The tensors from outside that the region's ops use."""
    found: dict[AnyValue, Value] = {}
    for op in group.body:
        for value in op.operands:
            if value in group.inside or value in found:
                continue
            found[value] = scope.operand(value)
    for op in group.out:
        if any(v not in group.inside for v in op.operands):
            raise PoisonedError
    return found
