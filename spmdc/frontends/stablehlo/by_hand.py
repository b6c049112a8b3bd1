"""Modules that are manually partitioned as a whole: `@main` is what one device runs, with collectives.

The program is a manual region, along all axes, that calls the former `@main`. XLA leaves the shardings of arguments in
a module that it has partitioned: then the program takes the global tensors. If a module has no shardings, the program
takes the devices' arguments concatenated along dim 0, in the order of the mesh, and returns their results in the same
way.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy, stablehlo

from ir.builder import RegionBuilder
from ir.manual import inner_type
from ir.mesh import AxisRef, Mesh, axes_size
from ir.program import Function, Result, Value
from ir.sharding import DimSharding, Sharding
from ir.spelling.device_assignment import Ids, tile_axes
from ir.types import TensorType
from spmdc.frontends.stablehlo.attributes import entries, items, operations, outermost, text_of, typed_options
from spmdc.frontends.stablehlo.meshes import mesh_of_tiles, tile_strings
from spmdc.frontends.stablehlo.shardings import is_annotated, says_a_sharding

WORDS = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_", "partition_id", "replica_id",
         "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-", "partition-id", "replica-id",
         "manual", "num_replicas", "replica_count", "is_scheduled")  # fmt: skip
"""A text without any of these words is not of such a module."""

_COLLECTIVES = frozenset({
    "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_broadcast", "collective_permute",
    "partition_id", "replica_id", "ragged_all_to_all",
})  # fmt: skip
_PLACED = re.compile(r"devices=|mesh\[")


@dataclass(frozen=True)
class Devices:
    """The numbers of replicas and partitions that a module runs as, and a mesh of these, partitions minor."""

    mesh: Mesh | None
    replicas: int
    partitions: int


def devices_of(module: mlir.Module, replicas: int, partitions: int, *, is_scheduled: bool) -> Devices | None:
    """The devices of a module that is partitioned manually, or by XLA; None for any other: one in which nothing depends
    on the device, one with manual regions, or one that is still to be partitioned. Modules that XLA has scheduled are
    partitioned."""
    ops = operations(module)
    found = list(filter(_is_collective, ops))
    shardings = list(tile_strings(module))
    is_manual = any("manual" in text for text in shardings)
    if not (found or is_manual or replicas > 1 or is_scheduled) or any(
        op.name == "sdy.manual_computation" for op in ops
    ):
        return None
    is_partitioned = is_scheduled or _is_partitioned(module, found)
    if _has_placed_arguments(module) and (is_manual or replicas > 1 or not is_partitioned):
        return None
    groups = [_listed(op) for op in found]
    if replicas * partitions == 1:
        highest = max((int(ids.max(initial=0)) for ids in groups), default=0)
        count = max([highest + 1, *_mesh_sizes(module)])
        replicas, partitions = (1, count) if any(map(_is_of_partitions, found)) else (highest + 1, 1)
    if replicas * partitions == 1:
        return None
    is_flat = replicas == 1 or partitions == 1
    rows = [ids for ids in groups if is_flat and ids.ndim == 2 and ids.shape[1] > 1]
    mesh = mesh_of_tiles([*shardings, *map(_as_tiles, rows)], replicas * partitions)
    odd = next((ids for ids in rows if mesh is not None and not shardings and _is_of_another_order(mesh, ids)), None)
    if odd is not None:
        mesh = Mesh((("x", odd.shape[0]), ("y", odd.shape[1])), tuple(odd.ravel().tolist()))
    return Devices(mesh, replicas, partitions)


def _is_collective(op: mlir.Operation) -> bool:
    name = op.name.partition(".")[2]
    return (text_of(op.attributes["call_target_name"]) if name == "custom_call" else name) in _COLLECTIVES


def _is_of_partitions(op: mlir.Operation) -> bool:
    """Whether a collective is between partitions, not only between replicas."""
    given = op.attributes
    if op.name.endswith("partition_id") or "channel_handle" in given or "use_global_device_ids" in given:
        return True
    if "channel_id" in typed_options(op):
        return True
    return "replica_groups" in given and stablehlo.ReplicaGroupMeshAxesAttr.isinstance(given["replica_groups"])


def _mesh_sizes(module: mlir.Module) -> list[int]:
    """The numbers of devices of the meshes that the module declares."""
    axes = (sdy.MeshAttr(op.attributes["mesh"]).axes for op in outermost(module, "sdy.mesh"))
    return [math.prod(sdy.MeshAxisAttr(axis).size for axis in each) for each in axes]


def _has_placed_arguments(module: mlir.Module) -> bool:
    """Whether any argument or result of a function has a sharding."""
    texts = (text for given in _ends(module) for text in _hlo_sharding(given))
    return any(_PLACED.search(text) and "manual" not in text for text in texts) or _has_ends_of_shardy(module)


def _is_partitioned(module: mlir.Module, collectives: Sequence[mlir.Operation]) -> bool:
    """Whether a module whose arguments have shardings is a result of XLA's partitioner: partitions communicate, and
    nothing else in it is annotated. (Shardy's annotations are removed before XLA partitions.)"""
    if _has_ends_of_shardy(module) or not any(map(_is_of_partitions, collectives)):
        return False
    return not any(_is_annotation(op) for op in operations(module))


def _is_annotation(op: mlir.Operation) -> bool:
    if op.name.startswith("sdy."):
        return op.name != "sdy.mesh"  # Groups of devices may be along the axes of one.
    if is_annotated(op):
        return True
    return op.name.endswith(".custom_call") and says_a_sharding(op)


def _ends(module: mlir.Module) -> Iterator[Mapping[str, mlir.Attribute]]:
    """The attributes of each argument and result of the module's functions."""
    for op in outermost(module, "func.func"):
        for name in ("arg_attrs", "res_attrs"):
            yield from map(entries, items(op.attributes, name))


def _has_ends_of_shardy(module: mlir.Module) -> bool:
    return any("sdy.sharding" in given for given in _ends(module))


def _hlo_sharding(given: Mapping[str, mlir.Attribute]) -> list[str]:
    sharding = given.get("mhlo.sharding")
    return [text_of(sharding)] if isinstance(sharding, mlir.StringAttr) else []


def _listed(op: mlir.Operation) -> Ids:
    """The ids in a collective's groups or pairs; empty if it lists none."""
    for name in ("replica_groups", "source_target_pairs"):
        if name in op.attributes and isinstance(op.attributes[name], mlir.DenseIntElementsAttr):
            listed = np.asarray(op.attributes[name], dtype=np.int64)
            return listed if name == "replica_groups" else listed.ravel()
    return np.zeros(0, np.int64)


def _is_of_another_order(mesh: Mesh, groups: Ids) -> bool:
    """Whether groups of all devices are not along axes of the mesh."""
    if sorted(groups.ravel().tolist()) != list(range(mesh.size)):
        return False
    return tile_axes(mesh, groups.T, prefix="group")[0] != mesh


def _as_tiles(groups: Ids) -> str:
    """An HLO sharding that splits a dim as the groups split the devices."""
    count, size = groups.shape
    return f"{{devices=[{size},{count}]{','.join(map(str, groups.T.ravel().tolist()))} last_tile_dim_replicate}}"


def entry_of(
    function: Function, name: str, mesh: Mesh, axes: tuple[AxisRef, ...], placed: Sequence[Sharding | None]
) -> Function:
    """The entry of the program: a manual region along the axes, in which each device calls the function.

    `placed` has the shardings of the tensors that each parameter, and then each result, is a shard of, if known.
    """
    outer = RegionBuilder()
    inner = RegionBuilder(outer.names)
    outer.span = inner.span = function.span
    operands: list[Value] = []
    given: list[Value] = []
    manual = frozenset(axis.name for axis in axes)
    ends: tuple[Value | Result, ...] = (*function.params, *function.results)
    wholes = [_whole(end, mesh, axes, said) for end, said in zip(ends, placed, strict=True)]
    for param, (whole, sharding) in zip(function.params, wholes, strict=False):
        operands.append(outer.param(param.name, whole, sharding, span=param.span))
        part = inner.param(param.name, inner_type(whole, sharding, manual), sharding, of=whole)
        given.append(part if part.type == param.type else inner.append("reshape", [part], {"shape": ()})[0])
    types = [r.type for r in function.results]
    called = inner.append("call", given, {"function": function.name}, types=types)
    returned = wholes[len(function.params) :]
    parts = [
        v if v.type.rank == whole.rank else inner.append("reshape", [v], {"shape": (1,)})[0]
        for v, (whole, _) in zip(called, returned, strict=True)
    ]
    results = outer.append(
        "manual", operands, {"axes": axes}, shardings=[s for _, s in returned], types=[t for t, _ in returned],
        regions=(inner.region(*parts),),
    )  # fmt: skip
    named = [Result(r.name, v.type, None, span=r.span) for r, v in zip(function.results, results, strict=True)]
    return Function(name, outer.region(*results), tuple(named), function.span)


def _whole(
    end: Value | Result, mesh: Mesh, axes: Sequence[AxisRef], sharding: Sharding | None
) -> tuple[TensorType, Sharding]:
    """The tensor that an argument or result is a shard of on each device, and its sharding, as far as it has one."""
    if sharding is None:
        return _together(end.type, end.sharding, mesh, axes)
    counts = map(axes_size, sharding.axes)
    return end.type.with_shape(tuple(n * count for n, count in zip(end.type.shape, counts, strict=True))), sharding


def _together(
    type: TensorType, sharding: Sharding | None, mesh: Mesh, axes: Sequence[AxisRef]
) -> tuple[TensorType, Sharding]:
    """The concatenation of all devices' tensors of that type, and its sharding, which splits dim 0 over the axes
    first."""
    part = type if type.rank else type.with_shape((1,))
    count = axes_size(axes)
    dims = sharding.dims if sharding is not None and type.rank else tuple(DimSharding(open=True) for _ in part.shape)
    first = DimSharding((*axes, *dims[0].axes), dims[0].open and len(axes) < len(mesh.axes), dims[0].priority)
    return part.with_shape((count * part.shape[0], *part.shape[1:])), Sharding(mesh, (first, *dims[1:]))


def flat_groups(groups: Ids, replicas: int, partitions: int, *, channel: bool, both: bool) -> Ids:
    """Groups of replicas or partitions as groups of devices, partitions minor.

    Without a channel they are of replicas, the same for each partition; with one, of partitions, the same for each
    replica, or, for collectives that reduce or gather (`both`), of replicas with all their partitions.
    """
    if channel and both and (replicas > 1 or int(groups.max(initial=0)) == 0):
        rows = groups if groups.size else np.arange(replicas)[None]
        return (rows[:, :, None] * partitions + np.arange(partitions)).reshape(len(rows), -1)
    count = partitions if channel else replicas
    rows = groups if groups.size else np.arange(count)[None]
    others = np.arange(replicas if channel else partitions)
    stride, step = (1, partitions) if channel else (partitions, 1)
    return np.array([row * stride + other * step for other, row in itertools.product(others, rows)])
