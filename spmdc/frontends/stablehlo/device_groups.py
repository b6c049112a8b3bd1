"""The groups of devices in which a collective communicates, and the collectives in the program for it.

StableHLO lists device ids; spmdc's collectives are along mesh axes. A group's axes are found from the positions of its
devices. If groups are not along axes, the data of all devices is gathered along the fewest axes that contain the
groups, and each device takes that of its own group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh, axes_size, merge_axes, positions_along
from ir.ops.layout import slice_along
from ir.ops.reduction import identity_of
from ir.program import Value
from ir.sharding import ReductionKind
from ir.spelling.device_assignment import Ids, fibers, tile_axes
from ir.types import TensorType, pred, s32
from spmdc.frontends.stablehlo.attributes import cast, ints
from spmdc.frontends.stablehlo.by_hand import flat_groups
from spmdc.frontends.stablehlo.device_numbers import looked_up, refining_parts
from spmdc.frontends.stablehlo.scope import Scope

HELP = "import the program as it is outside of shard_map, or communicate along axes of the mesh"


@dataclass(frozen=True)
class GroupsAlongAxes:
    """Groups along mesh axes. `order` has the positions along the axes of a group's devices, in the group's order."""

    axes: tuple[AxisRef, ...]
    order: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of devices in each group."""
        return len(self.order)

    @property
    def _places(self) -> tuple[int, ...]:
        """For each position along the axes, the number in its group of the device there."""
        return tuple(map(int, np.argsort(self.order)))

    def gathered(self, scope: Scope, value: Value, dim: int) -> Value:
        """The values of a group's devices, concatenated in the group's order."""
        return _in_order(scope, scope.emit("all_gather", value, axes=self.axes, dim=dim), dim, self.order)

    def each_to_all(self, scope: Scope, value: Value, split: int, concat: int) -> Value:
        """The parts for this device of the values of a group's devices, in the group's order, in which the parts are
        split too."""
        sent = _in_order(scope, value, split, self._places)
        got = scope.emit("all_to_all", sent, axes=self.axes, split=split, concat=concat)
        return _in_order(scope, got, concat, self.order)

    def all_reduced(self, scope: Scope, value: Value, kind: ReductionKind) -> Value:
        """The reduction of the values of a group's devices."""
        return scope.emit("all_reduce", value, axes=self.axes, kind=kind)

    def reduce_scattered(self, scope: Scope, value: Value, dim: int, kind: ReductionKind) -> Value:
        """The part of that reduction, along a dim, for this device."""
        ordered = _in_order(scope, value, dim, self._places)
        return scope.emit("reduce_scatter", ordered, axes=self.axes, dim=dim, kind=kind)

    def of_the_first(self, scope: Scope, value: Value) -> Value:
        """The value of the first device of the group."""
        index = scope.emit("axis_index", axes=self.axes)
        is_first = scope.emit("compare", index, scope.full(self.order[0], index.type), direction="EQ")
        kept = scope.emit("select", is_first, value, scope.zeros(value.type))
        return scope.emit("all_reduce", kept, axes=self.axes, kind="or" if value.dtype == pred else "sum")


@dataclass(frozen=True)
class ListedGroups:
    """Groups that are not along axes, with the methods of `GroupsAlongAxes`: for each position along the axes, the
    positions of its group's devices, and the number in the group of the device itself. Groups with fewer devices than
    others are filled with None, and count as large as these."""

    axes: tuple[AxisRef, ...]
    members: tuple[tuple[int | None, ...], ...]
    own: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.members[0])

    @property
    def is_even(self) -> bool:
        """Whether all groups have equal numbers of devices."""
        return all(place is not None for group in self.members for place in group)

    def gathered(self, scope: Scope, value: Value, dim: int) -> Value:
        return scope.emit("concatenate", *self._of_each(scope, value), dim=dim)

    def each_to_all(self, scope: Scope, value: Value, split: int, concat: int) -> Value:
        parts = [self._own_part(scope, part, split) for part in self._of_each(scope, value)]
        return scope.emit("concatenate", *parts, dim=concat)

    def all_reduced(self, scope: Scope, value: Value, kind: ReductionKind) -> Value:
        neutral = scope.full(identity_of(kind, value.dtype), value.type)
        rows: list[Value] = []
        for i, part in enumerate(self._of_each(scope, value)):
            there = tuple(group[i] is not None for group in self.members)
            kept = part if all(there) else scope.emit("select", looked_up(scope, self.axes, there), part, neutral)
            rows.append(as_row(scope, kept))
        return scope.emit("reduce", scope.emit("concatenate", *rows, dim=0), dims=(0,), kind=kind)

    def reduce_scattered(self, scope: Scope, value: Value, dim: int, kind: ReductionKind) -> Value:
        return self._own_part(scope, self.all_reduced(scope, value, kind), dim)

    def of_the_first(self, scope: Scope, value: Value) -> Value:
        """Zeros for a device without a group."""
        found = self._of_each(scope, value)[0]
        there = tuple(group[0] is not None for group in self.members)
        if all(there):
            return found
        return scope.emit("select", looked_up(scope, self.axes, there), found, scope.zeros(value.type))

    def _of_each(self, scope: Scope, value: Value) -> list[Value]:
        """The value of each of the group's devices, in the group's order; arbitrary if there is none."""
        everyones = scope.emit("all_gather", as_row(scope, value), axes=self.axes, dim=0)
        places = (tuple(group[i] or 0 for group in self.members) for i in range(self.size))
        rows = (_slice(scope, everyones, 0, looked_up(scope, self.axes, table), 1) for table in places)
        return [scope.emit("reshape", row, shape=value.shape) for row in rows]

    def _own_part(self, scope: Scope, value: Value, dim: int) -> Value:
        """The part along a dim for this device, out of as many parts as its group has devices."""
        length = value.shape[dim] // self.size
        start = looked_up(scope, self.axes, tuple(length * position for position in self.own))
        return _slice(scope, value, dim, start, length)


Groups = GroupsAlongAxes | ListedGroups
"""Groups of devices. Each group lists its devices in some order."""


def as_row(scope: Scope, value: Value) -> Value:
    return scope.emit("reshape", value, shape=(1, *value.shape))


def _slice(scope: Scope, value: Value, dim: int, start: Value, length: int) -> Value:
    """`length` elements along a dim, from `start` on."""
    zero = scope.full(0, TensorType((), s32))
    starts = [start if d == dim else zero for d in range(value.type.rank)]
    sizes = tuple(length if d == dim else n for d, n in enumerate(value.shape))
    return scope.emit("dynamic_slice", value, *starts, sizes=sizes)


def _in_order(scope: Scope, value: Value, dim: int, order: tuple[int, ...]) -> Value:
    """The dim cut into as many blocks as the order has entries, permuted by it."""
    if order == tuple(range(len(order))):
        return value
    size = value.shape[dim] // len(order)
    cuts = (slice_along(value.shape, dim, block * size, (block + 1) * size) for block in order)
    blocks = [scope.emit("slice", value, **cut) for cut in cuts]
    return scope.emit("concatenate", *blocks, dim=dim)


def require_by_hand(op: mlir.Operation, scope: Scope) -> None:
    """Raises SpmdcError (E709) for an op outside of manual regions."""
    if not scope.manual:
        raise scope.refuse(op, "the program is partitioned by hand here", code="E709", help=HELP)


def groups_of(op: mlir.Operation, scope: Scope, *, ordered: bool = True) -> Groups | None:
    """The groups of a collective; None if each device is a group by itself. Unless they are `ordered`, the order within
    a group does not matter.

    Raises SpmdcError (E709) if they are not along axes, or along one that is not manual here.
    """
    given = op.attributes
    has_channel = "channel_handle" in given
    return listed_groups(op, scope, given["replica_groups"], has_channel=has_channel, ordered=ordered)


def listed_groups(
    op: mlir.Operation, scope: Scope, said: mlir.Attribute | None, *, has_channel: bool, ordered: bool = True
) -> Groups | None:
    """The groups in an attribute, as in `groups_of`; one of all devices, if it is None."""
    require_by_hand(op, scope)
    mesh = scope.module.shardings.meshes[0]
    groups = _groups(op, scope, said, has_channel) if said is not None else np.zeros((0, 0), dtype=np.int64)
    if not groups.size:
        groups = np.array([mesh.device_ids], dtype=np.int64)
    if groups.shape[1] == 1:
        return None
    along = _along_axes(mesh, groups, ordered=ordered)
    if along is not None and all(axis.name in scope.manual for axis in along.axes):
        return along
    found = _as_listed(op, scope, mesh, groups) if along is None else None
    if found is None:
        listed = ", ".join(sorted(scope.manual))
        message = f"its groups of devices are not along the manual axes ({listed}) of the mesh ({mesh})"
        raise scope.refuse(op, message, code="E709", help=HELP)
    return found


def _as_listed(op: mlir.Operation, scope: Scope, mesh: Mesh, groups: Ids) -> ListedGroups | None:
    """The groups as listed, if the axes that contain them are manual here; -1 stands for a missing device. None for
    groups that the op cannot have: only reductions support different sizes, and only broadcasts leave out devices."""
    ids = mesh.device_ids
    devices = [int(device) for device in groups.ravel() if device >= 0]
    lacks_some = len(devices) < mesh.size and not op.name.endswith("collective_broadcast")
    if lacks_some or len(set(devices)) < len(devices) or not set(devices) <= set(ids):
        return None
    place_of = {device: place for place, device in enumerate(ids)}
    members = np.full((mesh.size, groups.shape[1]), -1)
    own = np.zeros(mesh.size, np.int64)
    for row in groups.tolist():
        group = [place_of.get(device, -1) for device in row]
        for position, place in enumerate(group):
            if place >= 0:
                members[place], own[place] = group, position
    axes = _containing(mesh, members, own)
    if any(axis.name not in scope.manual for axis in axes):
        return None
    positions = positions_along(mesh, axes)
    _, one_each = np.unique(positions, return_index=True)
    rows = [tuple(int(positions[p]) if p >= 0 else None for p in row) for row in members[one_each]]
    found = ListedGroups(axes, tuple(rows), tuple(map(int, own[one_each])))
    return found if found.is_even or op.name.endswith(("all_reduce", "collective_broadcast")) else None


def _containing(mesh: Mesh, members: Ids, own: Ids) -> tuple[AxisRef, ...]:
    """The fewest axes, or parts of axes, that contain the groups: the devices of a group agree along all others, and
    the groups at all positions along the others are the same.

    `members` has, for each place of the mesh, the places of its group's devices, and `own` its number in the group.
    """
    parts = [part for axis in mesh.whole_axes() for part in refining_parts(axis)]
    kept: list[AxisRef] = []
    for part in parts:
        along = positions_along(mesh, [part])
        others = positions_along(mesh, [other for other in parts if other != part])
        agree = (members < 0) | (along[members] == along[:, None])
        groups = np.column_stack([np.where(members < 0, -1, others[members]), own])
        alike = groups[others.argsort(kind="stable")].reshape(-1, part.size, groups.shape[1])
        if not (agree.all() and (alike == alike[:, :1]).all()):
            kept.append(part)
    return merge_axes(kept)


def _along_axes(mesh: Mesh, groups: Ids, *, ordered: bool) -> GroupsAlongAxes | None:
    """The groups as groups along axes of the mesh, in the order of these or all in one other order."""
    axes = _axes_of(mesh, groups)
    if axes is not None:
        return GroupsAlongAxes(axes, tuple(range(axes_size(axes))))
    place_of = {device: place for place, device in enumerate(mesh.device_ids)}
    if not set(groups.ravel().tolist()) <= set(place_of):
        return None
    places = np.vectorize(place_of.__getitem__)(groups)
    order = places.argsort(1).argsort(1)
    rows = np.sort(places, 1)
    axes = _axes_of(mesh, np.array(mesh.device_ids)[rows[rows[:, 0].argsort()]])
    if axes is None or (ordered and (order != order[0]).any()):
        return None
    return GroupsAlongAxes(axes, tuple(map(int, order[0])))


def _groups(op: mlir.Operation, scope: Scope, attribute: mlir.Attribute, has_channel: bool) -> Ids:
    """The ids of devices that communicate with one another, a row for each group.

    They are listed, or expressed in mesh axes, as in JAX from 0.11 on. Raises SpmdcError (E301, E709).
    """
    if not stablehlo.ReplicaGroupMeshAxesAttr.isinstance(attribute):
        return _of_devices(op, scope, np.asarray(attribute, dtype=np.int64), has_channel)
    by_axes = stablehlo.ReplicaGroupMeshAxesAttr(attribute)
    mesh = _mesh_of_groups(op, scope, by_axes.mesh)
    return fibers(
        mesh, [_axis(op, scope, mesh, stablehlo.AxisRefAttr(axis)) for axis in cast(mlir.ArrayAttr, by_axes.axes)]
    )


def _of_devices(op: mlir.Operation, scope: Scope, groups: Ids, channel: bool) -> Ids:
    """Listed groups as groups of devices. Raises SpmdcError (E709) if they are of replicas, and there is only one."""
    if "use_global_device_ids" in op.attributes:
        return groups
    replicas = scope.module.replicas
    if not channel and replicas == 1 and groups.shape[1] > 1:
        raise scope.refuse(op, "its groups are of replicas, and a program here is one replica", code="E709", help=HELP)
    partitions = scope.module.shardings.meshes[0].size // replicas
    both = op.name.endswith(("all_reduce", "all_gather", "reduce_scatter"))
    return flat_groups(groups, replicas, partitions, channel=channel, both=both)


def _mesh_of_groups(op: mlir.Operation, scope: Scope, attribute: mlir.Attribute) -> Mesh:
    """The mesh that groups are on: by name, or in the op itself."""
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
    """The axes, major first, along which the devices of each group are consecutive."""
    try:
        own, (axes,) = tile_axes(mesh, groups.T, prefix="group")
    except SpmdcError:
        return None
    if own != mesh:
        return None
    wanted = {tuple(row) for row in fibers(mesh, axes).tolist()}
    return merge_axes(axes) if {tuple(row) for row in groups.tolist()} == wanted else None
