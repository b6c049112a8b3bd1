"""Programs partitioned by hand: Shardy's manual regions, and the collectives in them.

Collectives of StableHLO list device ids; ours name mesh axes. A group's axes are found from where its devices are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy, stablehlo

from ir.diagnostics import SpmdcError, error
from ir.manual import inner_type
from ir.mesh import AxisRef, Mesh, axes_size, merge_axes
from ir.ops.host import TOKEN
from ir.program import DeviceOrder, Region, Value
from ir.sharding import Sharding
from ir.spelling.device_assignment import Ids, fibers, tile_axes
from ir.types import TensorType, pred, u32
from spmdc.frontends.stablehlo.attributes import cast, int_of, ints
from spmdc.frontends.stablehlo.by_hand import flat_groups
from spmdc.frontends.stablehlo.device_numbers import axes_by_hand, looked_up
from spmdc.frontends.stablehlo.ops.control import inlined
from spmdc.frontends.stablehlo.ops.reduction import body_function, component_kinds, tree_reduce
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_HELP = "import the program as it is outside of shard_map, or communicate along axes of the mesh"


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
    """The axes of the default mesh that are manual, under the names that they have here."""
    mesh = scope.module.shardings.meshes[0] if scope.module.shardings.meshes else Mesh(())
    originals = next((d.original for d in scope.module.shardings.declared.values() if d.mesh == mesh), mesh)
    names = {str(attribute[i]) for i in range(len(attribute))}
    foreign = sorted(names - set(originals.names))
    if foreign:
        raise error(
            "E709",
            f"the region is by hand along {foreign[0]}, which is no axis of the mesh ({originals})",
            scope.builder.span,
            help="declare the mesh of the region first: regions are on the default mesh",
        )
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


@dataclass(frozen=True)
class Groups:
    """The mesh axes along which the groups of a collective are. `order` has the places along the axes of the devices of
    a group, in the order in which they are listed."""

    axes: tuple[AxisRef, ...]
    order: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """For each place along the axes, which of its group the device there is."""
        return tuple(map(int, np.argsort(self.order)))


def groups_of(op: mlir.Operation, scope: Scope, *, ordered: bool = True) -> Groups | None:
    """The groups of a collective; None if each device is a group of its own. Unless they are `ordered`, it does not
    matter in which order a group lists its devices.

    Raises SpmdcError (E709) if they are along no axes, or along one that is not manual here.
    """
    given = op.attributes
    has_channel = "channel_handle" in given
    return listed_groups(op, scope, given["replica_groups"], has_channel=has_channel, ordered=ordered)


def listed_groups(
    op: mlir.Operation, scope: Scope, said: mlir.Attribute | None, *, has_channel: bool, ordered: bool = True
) -> Groups | None:
    """What `groups_of` is, of the groups that an attribute says; of all devices, if it is None."""
    if not scope.manual:
        raise scope.refuse(op, "the program is partitioned by hand here", code="E709", help=_HELP)
    mesh = scope.module.shardings.meshes[0]
    groups = _groups(op, scope, said, has_channel) if said is not None else np.zeros((0, 0), dtype=np.int64)
    if not groups.size:
        groups = np.array([mesh.device_ids], dtype=np.int64)
    if groups.shape[1] == 1:
        return None
    found = _along_axes(mesh, groups, ordered=ordered)
    if found is None or any(axis.name not in scope.manual for axis in found.axes):
        listed = ", ".join(sorted(scope.manual))
        raise scope.refuse(
            op,
            f"its groups of devices are not along the manual axes ({listed}) of the mesh ({mesh})",
            code="E709",
            help=_HELP,
        )
    return found


def _along_axes(mesh: Mesh, groups: Ids, *, ordered: bool) -> Groups | None:
    """The groups as along axes of the mesh, in the order of these or in the same other one each."""
    axes = _axes_of(mesh, groups)
    if axes is not None:
        return Groups(axes, tuple(range(axes_size(axes))))
    place_of = {device: place for place, device in enumerate(mesh.device_ids)}
    if not set(groups.ravel().tolist()) <= set(place_of):
        return None
    places = np.vectorize(place_of.__getitem__)(groups)
    order = places.argsort(1).argsort(1)
    rows = np.sort(places, 1)
    axes = _axes_of(mesh, np.array(mesh.device_ids)[rows[rows[:, 0].argsort()]])
    if axes is None or (ordered and (order != order[0]).any()):
        return None
    return Groups(axes, tuple(map(int, order[0])))


def _groups(op: mlir.Operation, scope: Scope, attribute: mlir.Attribute, has_channel: bool) -> Ids:
    """The ids of devices that communicate with one another, a row for each group.

    They are listed, or said by axes of a mesh, as JAX does from 0.11 on. Raises SpmdcError (E301, E709).
    """
    if not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(attribute):
        return _of_devices(op, scope, np.asarray(attribute, dtype=np.int64), has_channel)
    by_axes = stablehlo.ReplicaGroupMeshAxesAttr(attribute)
    mesh = _mesh_of_groups(op, scope, by_axes.mesh)
    return fibers(
        mesh, [_axis(op, scope, mesh, stablehlo.AxisRefAttr(axis)) for axis in cast(mlir.ArrayAttr, by_axes.axes)]
    )


def _of_devices(op: mlir.Operation, scope: Scope, groups: Ids, channel: bool) -> Ids:
    """Listed groups as groups of devices. Raises SpmdcError (E709) if they are of replicas, and there is one."""
    if "use_global_device_ids" in op.attributes:
        return groups
    replicas = scope.module.replicas
    if not channel and replicas == 1 and groups.shape[1] > 1:
        raise scope.refuse(op, "its groups are of replicas, and a program here is one replica", code="E709", help=_HELP)
    partitions = scope.module.shardings.meshes[0].size // replicas
    both = op.name.endswith(("all_reduce", "all_gather", "reduce_scatter"))
    return flat_groups(groups, replicas, partitions, channel=channel, both=both)


def _mesh_of_groups(op: mlir.Operation, scope: Scope, attribute: mlir.Attribute) -> Mesh:
    """The mesh that groups are on: named, or written in the op."""
    if stablehlo.MeshAttr.isinstance(attribute):
        written = stablehlo.MeshAttr(attribute)
        axes = tuple((axis.name, axis.size) for axis in map(stablehlo.MeshAxisAttr, cast(mlir.ArrayAttr, written.axes)))
        ids = written.device_ids
        return Mesh(axes, ints(ids) if isinstance(ids, mlir.Attribute) else None)
    declared = scope.module.shardings.declared.get(mlir.FlatSymbolRefAttr(attribute).value)
    if declared is None:
        raise scope.refuse(op, f"its groups are on mesh {attribute}, which is not declared", code="E301",
                           help="declare an sdy.mesh")  # fmt: skip
    return declared.original


def _axis(op: mlir.Operation, scope: Scope, mesh: Mesh, said: stablehlo.AxisRefAttr) -> AxisRef:
    """The axis of the mesh, or the part of one, that a group is along."""
    if said.name not in mesh.names:
        raise scope.refuse(op, f"its groups are along {said.name}, which is no axis of the mesh ({mesh})", code="E301",
                           help=f"name some of {', '.join(mesh.names)}")  # fmt: skip
    info = said.sub_axis_info
    if not isinstance(info, mlir.Attribute):
        return mesh.axis(said.name)
    part = stablehlo.SubAxisInfoAttr(info)
    return AxisRef(said.name, part.pre_size, part.size)


def _axes_of(mesh: Mesh, groups: Ids) -> tuple[AxisRef, ...] | None:
    """The axes, major first, along which the devices of each group follow one another."""
    try:
        own, (axes,) = tile_axes(mesh, groups.T, prefix="group")
    except SpmdcError:
        return None
    if own != mesh:
        return None
    wanted = {tuple(row) for row in fibers(mesh, axes).tolist()}
    return merge_axes(axes) if {tuple(row) for row in groups.tolist()} == wanted else None


def in_order(scope: Scope, value: Value, dim: int, order: tuple[int, ...]) -> Value:
    """The dim in as many blocks as the order has places, each the block whose number stands there."""
    if order == tuple(range(len(order))):
        return value
    blocks = list[Value]()
    size = value.shape[dim] // len(order)
    for block in order:
        start, limit = [0] * value.type.rank, list(value.shape)
        start[dim], limit[dim] = block * size, (block + 1) * size
        blocks.append(scope.emit("slice", value, start=tuple(start), limit=tuple(limit)))
    return scope.emit("concatenate", *blocks, dim=dim)


@converts("all_reduce")
def _all_reduce(op: mlir.Operation, scope: Scope) -> list[Bound]:
    operands, groups = scope.operands(op), groups_of(op, scope, ordered=False)
    if groups is None:
        return list(operands)
    return [_all_reduced(op, scope, v, groups.axes) for v in operands]


def _all_reduced(op: mlir.Operation, scope: Scope, value: Value, axes: tuple[AxisRef, ...]) -> Value:
    """The reduction over the devices along the axes; by a body of no kind that we have, of what all of them send."""
    kinds = component_kinds(op.regions[0], [value.type])
    if kinds is not None:
        return scope.emit("all_reduce", value, axes=axes, kind=kinds[0])
    function = body_function(op, scope, op.regions[0], "reducer", [value.dtype] * 2)
    row = scope.emit("reshape", value, shape=(1, *value.shape))
    return tree_reduce(scope, function, [scope.emit("all_gather", row, axes=axes, dim=0)], [], (0,))[0]


@converts("reduce_scatter")
def _reduce_scatter(op: mlir.Operation, scope: Scope) -> Value:
    """By a body of no kind that we have: each device gets its part of what all others have, and reduces that."""
    (operand,), groups = scope.operands(op), groups_of(op, scope)
    if groups is None:
        return operand
    axes, dim = groups.axes, int_of(op.attributes["scatter_dimension"])
    operand, kinds = in_order(scope, operand, dim, groups.places), component_kinds(op.regions[0], [operand.type])
    if kinds is not None:
        return scope.emit("reduce_scatter", operand, axes=axes, dim=dim, kind=kinds[0])
    function = body_function(op, scope, op.regions[0], "reducer", [operand.dtype] * 2)
    (type,), count = scope.result_types(op), axes_size(axes)
    parts = scope.emit("reshape", operand, shape=(*type.shape[:dim], count, *type.shape[dim:]))
    got = scope.emit("all_to_all", parts, axes=axes, split=dim, concat=dim)
    return tree_reduce(scope, function, [got], [], (dim,))[0]


@converts("all_gather")
def _all_gather(op: mlir.Operation, scope: Scope) -> list[Bound]:
    groups, dim, operands = groups_of(op, scope), int_of(op.attributes["all_gather_dim"]), scope.operands(op)
    if groups is None:
        return list(operands)
    return [gathered(scope, v, groups, dim) for v in operands]


@converts("all_to_all")
def _all_to_all(op: mlir.Operation, scope: Scope) -> list[Bound]:
    groups, operands = groups_of(op, scope), scope.operands(op)
    if groups is None:
        return list(operands)
    if "split_dimension" not in op.attributes:
        return _exchanged(scope, operands, groups)
    split, concat = int_of(op.attributes["split_dimension"]), int_of(op.attributes["concat_dimension"])
    return [each_to_all(scope, v, groups, split, concat) for v in operands]


def gathered(scope: Scope, value: Value, groups: Groups, dim: int) -> Value:
    """What the devices of a group have, one after the other as the group lists them."""
    return in_order(scope, scope.emit("all_gather", value, axes=groups.axes, dim=dim), dim, groups.order)


def each_to_all(scope: Scope, value: Value, groups: Groups, split: int, concat: int) -> Value:
    """What the devices of a group have for this one, as the group lists them; what is split is for them so, too."""
    sent = in_order(scope, value, split, groups.places)
    got = scope.emit("all_to_all", sent, axes=groups.axes, split=split, concat=concat)
    return in_order(scope, got, concat, groups.order)


def _exchanged(scope: Scope, operands: Sequence[Value], groups: Groups) -> list[Bound]:
    """What each device of a group has for this one, of which each operand is for one of them."""
    rows = [scope.emit("reshape", v, shape=(1, *v.shape)) for v in operands]
    got = each_to_all(scope, scope.emit("concatenate", *rows, dim=0), groups, 0, 0)
    start, rest = (0,) * operands[0].type.rank, operands[0].shape
    parts = (scope.emit("slice", got, start=(i, *start), limit=(i + 1, *rest)) for i in range(len(operands)))
    return [scope.emit("reshape", part, shape=rest) for part in parts]


@converts("collective_broadcast")
def _collective_broadcast(op: mlir.Operation, scope: Scope) -> Value:
    (operand,), groups = scope.operands(op), groups_of(op, scope)
    if groups is None:
        return operand
    index = scope.emit("axis_index", axes=groups.axes)
    is_first = scope.emit("compare", index, scope.full(groups.order[0], index.type), direction="EQ")
    zeros = scope.full(operand.dtype.kind == "pred" and False, operand.type)
    kept = scope.emit("select", is_first, operand, zeros)
    return scope.emit("all_reduce", kept, axes=groups.axes, kind="or" if operand.dtype == pred else "sum")


@converts("collective_permute")
def _collective_permute(op: mlir.Operation, scope: Scope) -> Value:
    """One shift around the manual axes for each distance that data travels. Who receives nothing has zeros."""
    if not scope.manual:
        raise scope.refuse(op, "the program is partitioned by hand here", code="E709", help=_HELP)
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
        raise scope.refuse(op, "its pairs of devices are not along manual axes", code="E709", help=_HELP)
    count = len(source_of)
    by_shift: dict[int, list[bool]] = {}
    for target, source in enumerate(source_of):
        if source is not None:
            by_shift.setdefault((source - target) % count, [False] * count)[target] = True
    result = scope.full(False if operand.dtype == pred else 0, operand.type)
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
    """The fewest manual axes along which data travels, and for each position on them where its data comes from.

    None if the pairs are not the same wherever on the other axes.
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
    """The partition's number, as if it stood first along axes that are not manual here."""
    number = _device_number(op, scope)
    if scope.module.replicas == 1:
        return number
    count = scope.module.shardings.meshes[0].size // scope.module.replicas
    return scope.emit("remainder", number, scope.full(count, number.type))


def _device_number(op: mlir.Operation, scope: Scope) -> Value:
    """The number of the device; of axes that are not manual here, as if it stood first."""
    if not scope.manual:
        raise scope.refuse(op, "the program is partitioned by hand here", code="E709", help=_HELP)
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
    """The replica's number. There is one replica, but of modules that are partitioned by hand."""
    if scope.module.replicas == 1:
        return scope.full(0, TensorType((), u32))
    number = _device_number(op, scope)
    count = scope.module.shardings.meshes[0].size // scope.module.replicas
    return scope.emit("divide", number, scope.full(count, number.type))
