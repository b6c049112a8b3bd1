"""Manual partitioning: Shardy's manual regions, and the collectives in them.

The device groups of a collective are found in `spmdc.frontends.stablehlo.device_groups`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy

from ir.diagnostics import error
from ir.manual import inner_type
from ir.mesh import AxisRef, Mesh
from ir.ops.host import TOKEN
from ir.ops.layout import slice_along
from ir.program import DeviceOrder, Region, Value
from ir.sharding import Sharding
from ir.spelling.device_assignment import Ids
from ir.types import TensorType, u32
from spmdc.frontends.stablehlo.attributes import int_of, ints
from spmdc.frontends.stablehlo.by_hand import flat_groups
from spmdc.frontends.stablehlo.device_groups import HELP, Groups, as_row, groups_of, require_by_hand
from spmdc.frontends.stablehlo.device_numbers import axes_by_hand, looked_up
from spmdc.frontends.stablehlo.ops.control import inlined
from spmdc.frontends.stablehlo.ops.reduction import body_function, component_kinds, tree_reduce
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("sdy.manual_computation")
def _manual_computation(op: mlir.Operation, scope: Scope) -> list[Bound]:
    given, operands = op.attributes, scope.operands(op)
    taken = scope.module.shardings.per_value(given["in_shardings"], [v.type.rank for v in operands], scope.builder.span)
    types = scope.result_types(op)
    returned = scope.module.shardings.per_value(given["out_shardings"], [t.rank for t in types], scope.builder.span)
    axes = manual_axes(scope, sdy.ManualAxesAttr(given["manual_axes"]))
    if not scope.module.shardings.meshes:
        return list(inlined(op.regions[0].blocks[0], scope, operands))
    return manual_region(op, scope, op.regions[0].blocks[0], operands, axes, (taken, returned), types)


def manual_axes(scope: Scope, attribute: sdy.ManualAxesAttr) -> tuple[AxisRef, ...]:
    """The manual axes of the default mesh, under their names in the program."""
    mesh = scope.module.shardings.meshes[0] if scope.module.shardings.meshes else Mesh(())
    originals = next((d.original for d in scope.module.shardings.declared.values() if d.mesh == mesh), mesh)
    names = {str(attribute[i]) for i in range(len(attribute))}
    foreign = sorted(names - set(originals.names))
    if foreign:
        message = f"the region is by hand along {foreign[0]}, which is no axis of the mesh ({originals})"
        help = "declare the mesh of the region first: regions are on the default mesh"
        raise error("E709", message, scope.builder.span, help=help)
    return tuple(mesh.axis(own) for (own, _), (name, _) in zip(mesh.axes, originals.axes, strict=True) if name in names)


def manual_region(
    op: mlir.Operation,
    scope: Scope,
    block: mlir.Block,
    operands: Sequence[Value],
    axes: tuple[AxisRef, ...],
    shardings: tuple[Sequence[Sharding | None], Sequence[Sharding | None]],
    types: Sequence[TensorType],
) -> list[Bound]:
    """A manual region whose body is a block. `shardings` are those of the operands and of the results."""
    mesh = scope.module.shardings.meshes[0]
    manual = frozenset(axis.name for axis in axes)
    inner = scope.inner()
    inner.manual = scope.manual | manual
    for argument, operand, sharding in zip(block.arguments, operands, shardings[0], strict=True):
        placed = sharding or Sharding.unknown(mesh, operand.type.rank)
        local = inner_type(operand.type, placed, manual)
        if local != scope.type(argument):
            raise scope.refuse(op, f"a shard of {operand.type} is {local}, and it takes {scope.type(argument)}",
                               code="E409", help="divide each dim by the sizes of its manual axes")  # fmt: skip
        scope.values[argument] = inner.builder.param(operand.name, local, placed, of=operand.type)
    has_effects = scope.module.effects.inside(op.regions)
    if has_effects:
        operands = [*operands, *scope.tokens()]
        inner.token = inner.builder.param("token", TOKEN, Sharding.replicate(mesh, 0), of=TOKEN)
    returned = scope.module.block(block, inner)
    if has_effects:
        types = [*types, TOKEN]
        returned.append(inner.emit("all_reduce", *inner.tokens(), axes=axes, kind="max"))
    result_shardings = (*shardings[1], *([Sharding.replicate(mesh, 0)] if has_effects else []))
    placed_results = [s or Sharding.unknown(mesh, t.rank) for s, t in zip(result_shardings, types, strict=True)]
    region = inner.builder.region(*returned)
    results = list(append_manual(scope, operands, axes, region, list(zip(types, placed_results, strict=True))))
    if has_effects:
        scope.token = results.pop()
    return list(results)


def append_manual(
    scope: Scope,
    operands: Sequence[Value],
    axes: tuple[AxisRef, ...],
    region: Region,
    placed: Sequence[tuple[TensorType, Sharding]],
) -> tuple[Value, ...]:
    """Appends a manual region. `placed` are the types of its results, and their shardings."""
    types, shardings = [t for t, _ in placed], [s for _, s in placed]
    return scope.builder.append("manual", operands, {"axes": axes}, shardings=shardings, types=types, regions=(region,))


@converts("all_reduce")
def _all_reduce(op: mlir.Operation, scope: Scope) -> list[Bound]:
    operands, groups = scope.operands(op), groups_of(op, scope, ordered=False)
    if groups is None:
        return list(operands)
    return [_all_reduced(op, scope, v, groups) for v in operands]


def _all_reduced(op: mlir.Operation, scope: Scope, value: Value, groups: Groups) -> Value:
    """The reduction over the devices of a group. If the body is no supported reduction, all values are gathered and
    reduced."""
    kinds = component_kinds(op.regions[0], [value.type])
    if kinds is not None:
        return groups.all_reduced(scope, value, kinds[0])
    function = body_function(op, scope, op.regions[0], "reducer", [value.dtype] * 2)
    row = as_row(scope, value)
    return tree_reduce(scope, function, [groups.gathered(scope, row, 0)], [], (0,))[0]


@converts("reduce_scatter")
def _reduce_scatter(op: mlir.Operation, scope: Scope) -> Value:
    """If the body is no supported reduction, each device gets its part of all other devices' values, and reduces
    these."""
    (operand,), groups = scope.operands(op), groups_of(op, scope)
    if groups is None:
        return operand
    dim, kinds = int_of(op.attributes["scatter_dimension"]), component_kinds(op.regions[0], [operand.type])
    if kinds is not None:
        return groups.reduce_scattered(scope, operand, dim, kinds[0])
    function = body_function(op, scope, op.regions[0], "reducer", [operand.dtype] * 2)
    (type,) = scope.result_types(op)
    parts = scope.emit("reshape", operand, shape=(*type.shape[:dim], groups.size, *type.shape[dim:]))
    return tree_reduce(scope, function, [groups.each_to_all(scope, parts, dim, dim)], [], (dim,))[0]


@converts("all_gather")
def _all_gather(op: mlir.Operation, scope: Scope) -> list[Bound]:
    groups, dim, operands = groups_of(op, scope), int_of(op.attributes["all_gather_dim"]), scope.operands(op)
    if groups is None:
        return list(operands)
    return [groups.gathered(scope, v, dim) for v in operands]


@converts("all_to_all")
def _all_to_all(op: mlir.Operation, scope: Scope) -> list[Bound]:
    groups, operands = groups_of(op, scope), scope.operands(op)
    if groups is None:
        return list(operands)
    if "split_dimension" not in op.attributes:
        return _exchanged(scope, operands, groups)
    split, concat = int_of(op.attributes["split_dimension"]), int_of(op.attributes["concat_dimension"])
    return [groups.each_to_all(scope, v, split, concat) for v in operands]


def _exchanged(scope: Scope, operands: Sequence[Value], groups: Groups) -> list[Bound]:
    """The operands that the group's devices have for this device: each operand is for one device."""
    rows = [as_row(scope, v) for v in operands]
    got = groups.each_to_all(scope, scope.emit("concatenate", *rows, dim=0), 0, 0)
    parts = (scope.emit("slice", got, **slice_along(got.shape, 0, i, i + 1)) for i in range(len(operands)))
    return [scope.emit("reshape", part, shape=operands[0].shape) for part in parts]


@converts("collective_broadcast")
def _collective_broadcast(op: mlir.Operation, scope: Scope) -> Value:
    (operand,), groups = scope.operands(op), groups_of(op, scope)
    return operand if groups is None else groups.of_the_first(scope, operand)


@converts("collective_permute")
def _collective_permute(op: mlir.Operation, scope: Scope) -> Value:
    """One shift around the manual axes for each distance that data travels. Devices that receive nothing get zeros."""
    require_by_hand(op, scope)
    (operand,) = scope.operands(op)
    mesh, replicas = scope.module.shardings.meshes[0], scope.module.replicas
    flat: Ids = np.array(ints(op.attributes["source_target_pairs"]), dtype=np.int64).reshape(-1, 2)
    if replicas > 1 and flat.size:
        channel, count = "channel_handle" in op.attributes, mesh.size // replicas
        flat = flat_groups(flat, replicas, count, channel=channel, both=False)
    unknown = sorted(set(flat.ravel().tolist()) - set(mesh.device_ids))
    if unknown:
        raise scope.refuse(op, f"the mesh ({mesh}) has no device {unknown[0]}", code="E304",
                           help="name devices of the mesh")  # fmt: skip
    axes, source_of = _pattern(mesh, {int(target): int(source) for source, target in flat}, scope.manual)
    if source_of is None:
        raise scope.refuse(op, "its pairs of devices are not along manual axes", code="E709", help=HELP)
    count = len(source_of)
    by_shift: dict[int, list[bool]] = {}
    for target, source in enumerate(source_of):
        if source is not None:
            by_shift.setdefault((source - target) % count, [False] * count)[target] = True
    result = scope.zeros(operand.type)
    order = DeviceOrder(mesh, axes)
    for shift, receives in by_shift.items():
        moved = scope.emit("collective_permute", operand, target=order, source=order, shift=shift) if shift else operand
        if all(receives):
            return moved
        result = scope.emit("select", looked_up(scope, axes, tuple(receives)), moved, result)
    return result


def _pattern(
    mesh: Mesh, source_of: dict[int, int], manual: frozenset[str]
) -> tuple[tuple[AxisRef, ...], list[int | None] | None]:
    """The fewest manual axes along which data travels, and for each position on them the position that its data comes
    from.

    None if the pairs are not the same for all positions on the other axes.
    """
    ids = np.array(mesh.device_ids).reshape(mesh.shape or (1,))
    place = {int(device): tuple(int(i) for i in at) for at, device in np.ndenumerate(ids)}
    moving = [
        d for d in range(len(mesh.axes))
        if any(place[t][d] != place[s][d] for t, s in source_of.items())
        or len({place[t][d] for t in source_of}) < mesh.axes[d][1]
    ]  # fmt: skip
    axes = tuple(mesh.axis(mesh.names[d]) for d in moving)
    sizes = [mesh.axes[d][1] for d in moving]
    if any(axis.name not in manual for axis in axes):
        return axes, None
    found: list[int | None] = [None] * int(np.prod(sizes, dtype=int))
    seen: dict[int, set[tuple[int, ...]]] = {}

    def position(device: int) -> int:
        return int(np.ravel_multi_index([place[device][d] for d in moving], sizes)) if moving else 0

    for target, source in source_of.items():
        here, there = position(target), position(source)
        if found[here] not in (None, there):
            return axes, None
        found[here] = there
        seen.setdefault(here, set()).add(place[target])
    rest = mesh.size // max(1, len(found))
    return axes, found if all(len(at) == rest for at in seen.values()) else None


@converts("partition_id")
def _partition_id(op: mlir.Operation, scope: Scope) -> Value:
    """The partition's number, with position 0 along axes that are not manual here."""
    number = _device_number(op, scope)
    if scope.module.replicas == 1:
        return number
    count = scope.module.shardings.meshes[0].size // scope.module.replicas
    return scope.emit("remainder", number, scope.full(count, number.type))


def _device_number(op: mlir.Operation, scope: Scope) -> Value:
    """The device's number, with position 0 along axes that are not manual here."""
    require_by_hand(op, scope)
    mesh = scope.module.shardings.meshes[0]
    axes = axes_by_hand(scope)
    index = tuple(slice(None) if axis in axes else 0 for axis in mesh.whole_axes())
    ids = np.array(mesh.device_ids).reshape(mesh.shape)[index].ravel().tolist()
    if mesh.devices is None and len(axes) == len(mesh.axes):
        index_of_device = scope.emit("axis_index", axes=axes)
    else:
        index_of_device = looked_up(scope, axes, ids)
    number = scope.emit("convert", index_of_device, dtype=u32)
    scope.by_device[number] = tuple(ids)
    if mesh.devices is None:
        scope.positions[number] = 1
    return number


@converts("replica_id")
def _replica_id(op: mlir.Operation, scope: Scope) -> Value:
    """The replica's number. There is only one replica, except in modules that are partitioned manually."""
    if scope.module.replicas == 1:
        return scope.full(0, TensorType((), u32))
    number = _device_number(op, scope)
    count = scope.module.shardings.meshes[0].size // scope.module.replicas
    return scope.emit("divide", number, scope.full(count, number.type))
