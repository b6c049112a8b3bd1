"""The meshes of a module: those that Shardy declares, or one that can express the tile assignments of HLO.

An HLO sharding has no axis names. All shardings of a module together cut the devices at certain strides; the axes are
the parts between the cuts, so that each sharding uses whole axes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy

from ir.diagnostics import Span, SpmdcError, error
from ir.mesh import MAX_DEVICES, AxisRef, Mesh
from ir.spelling.hlo_shardings import parse_hlo, split_hlo_tuple
from spmdc.frontends.stablehlo.attributes import cast, entries, int_of, items, operations, outermost, parsed, text_of
from spmdc.frontends.stablehlo.hlo_words import named_mesh, on_all_devices, tiles_of
from spmdc.frontends.stablehlo.locations import Locations
from spmdc.frontends.stablehlo.names import identifier

_AXIS_NAMES = ("x", "y", "z", "w")
_ON_MESH = re.compile(r"<@([\w$.-]+)")
_SUBGROUPS = re.compile(r"last_tile_dims=\{([\w, ]*)\}")


@dataclass(frozen=True)
class DeclaredMesh:
    """A mesh as Shardy declares it, and its axes by the names that they have there.

    `mesh` is None for a mesh without axes, which has no meaning; `device` is set for one that is a single device.
    """

    original: Mesh
    mesh: Mesh | None
    device: int | None = None
    span: Span | None = None

    def translate(self, axis: AxisRef) -> AxisRef:
        """The axis under its name in the program."""
        assert self.mesh is not None
        position = self.original.names.index(axis.name)
        return AxisRef(self.mesh.names[position], axis.pre, axis.size)


def declared_meshes(
    module: mlir.Module, default: Mesh | None, partitions: int | None, locations: Locations
) -> dict[str, DeclaredMesh]:
    """The used meshes of `sdy.mesh` ops, by name, and of the attribute for them in HLO. One that equals `default` is
    that."""
    ops = {text_of(op.attributes["sym_name"]): op for op in outermost(module, "sdy.mesh")}
    spelt = {name: op.attributes["mesh"] for name, op in ops.items()}
    frontend = frontend_attributes(module.operation)
    if "xla.sdy.meshes" in frontend:
        spelt |= entries(parsed(frontend["xla.sdy.meshes"], "xla.sdy.meshes"))
    found: dict[str, DeclaredMesh] = {}
    earlier = [default] if default is not None else []
    for name, attribute in _in_use(module, spelt, default, partitions).items():
        declared = _declared(cast(sdy.MeshAttr, attribute), name, earlier)
        span = locations.span(ops[name].location) if name in ops else None
        found[name] = declared = replace(declared, span=span)
        if declared.mesh is not None and declared.mesh not in earlier:
            earlier.append(declared.mesh)
    return found


def _in_use(
    module: mlir.Module, spelt: Mapping[str, mlir.Attribute], default: Mesh | None, partitions: int | None
) -> dict[str, mlir.Attribute]:
    """The meshes that are used, that of the manual regions first.

    A mesh with a different number of devices is used only if some sharding is on it. If no shardings are on any mesh,
    the used ones are those with as many devices as `default`, or as the number of partitions, or as the first.
    """
    sizes = {name: math.prod(axis.size for axis in _axes(mesh)) for name, mesh in spelt.items() if _axes(mesh)}
    unused: set[str] = set()
    if len(set(sizes.values())) > 1:
        text = str(module.operation.get_asm(large_elements_limit=1))
        unused = {name for name in sizes if not _is_named(name, text)}
    if unused == set(sizes):
        wanted = default.size if default is not None else partitions
        kept = next((n for n in sizes.values() if n == wanted), next(iter(sizes.values()), 1))
        unused = {name for name, size in sizes.items() if size != kept}
    of_regions = _meshes_of_regions(module)[:1] if len(sizes) - len(unused) > 1 else []
    return {name: spelt[name] for name in (*of_regions, *spelt) if name in spelt and name not in unused}


def _axes(mesh: mlir.Attribute) -> list[sdy.MeshAxisAttr]:
    return list(map(sdy.MeshAxisAttr, cast(sdy.MeshAttr, mesh).axes))


def _is_named(name: str, text: str) -> bool:
    """Whether the text of a module names the mesh outside of its declaration."""
    return len(re.findall(rf"""@(?:"{re.escape(name)}"|{re.escape(name)}(?![\w$.-]))""", text)) > 1


def _meshes_of_regions(module: mlir.Module) -> list[str]:
    """The names of the meshes that manual regions are on."""
    regions = (op.attributes for op in operations(module) if op.name == "sdy.manual_computation")
    given = (str(attributes[name]) for attributes in regions for name in ("in_shardings", "out_shardings"))
    return [name for one in given for name in _ON_MESH.findall(one)]


def frontend_attributes(op: mlir.Operation) -> dict[str, str]:
    """The frontend attributes of an op, which JAX and others set for XLA."""
    attributes = op.attributes
    if "mhlo.frontend_attributes" not in attributes:
        return {}
    given = entries(attributes["mhlo.frontend_attributes"])
    return {name: text_of(value) for name, value in given.items() if isinstance(value, mlir.StringAttr)}


def _declared(attribute: sdy.MeshAttr, name: str, earlier: list[Mesh]) -> DeclaredMesh:
    axes = tuple((axis.name, axis.size) for axis in _axes(attribute))
    devices = tuple(attribute.device_ids) or None
    original = Mesh(axes, devices)
    if not axes:
        return DeclaredMesh(original, None, devices[0] if devices else None)
    same = next((m for m in earlier if m.shape == original.shape and m.devices == original.devices), None)
    if same is not None and [identifier(n, "axis") for n, _ in axes] == list(same.names):
        return DeclaredMesh(original, same)
    return renamed(original, name, earlier)


def renamed(original: Mesh, name: str, earlier: Sequence[Mesh]) -> DeclaredMesh:
    """The mesh with names for itself and its axes that no earlier mesh has."""
    taken = {axis for mesh in earlier for axis in mesh.names}
    title = "" if not earlier else identifier(name, f"mesh_{len(earlier)}")
    axes: list[tuple[str, int]] = []
    for axis, size in original.axes:
        spelt = identifier(axis, "axis").replace(".", "_")
        spelt = spelt if spelt not in taken else f"{title}_{spelt}"
        while spelt in taken:
            spelt += "_"
        taken.add(spelt)
        axes.append((spelt, size))
    return DeclaredMesh(original, Mesh(tuple(axes), original.devices, title))


def tile_strings(module: mlir.Module) -> Iterator[str]:
    """Every `mhlo.sharding` of a function's arguments and results and of ops, tuples taken apart."""
    for op in operations(module):
        given = [op.attributes.get("mhlo.sharding", None)]
        if op.name == "func.func":
            arguments = (*items(op.attributes, "arg_attrs"), *items(op.attributes, "res_attrs"))
            given += [entries(each).get("mhlo.sharding") for each in arguments]
        for text in filter(None, given):
            with contextlib.suppress(SpmdcError):  # What is no text is reported at its place.
                yield from split_hlo_tuple(text_of(text))


def mesh_of_tiles(shardings: Iterable[str], partitions: int | None) -> Mesh | None:
    """A mesh that can express as many of the shardings as possible; None if none splits anything.

    `partitions` is the number of devices if the module specifies it; else it is that of the tiles.
    """
    counted = Counter(shardings)
    named = next((mesh for mesh in map(named_mesh, counted) if mesh is not None), None)
    if named is not None:
        return named
    tiled = {text: tiles for text in counted if (tiles := tiles_of(text)) is not None}
    tiled = {text: tiles for text, tiles in tiled.items() if 0 < math.prod(tiles) <= MAX_DEVICES}
    if not tiled:
        return Mesh(((_AXIS_NAMES[0], partitions),)) if partitions is not None and partitions > 1 else None
    devices = partitions or max((math.prod(tiles) for tiles in tiled.values()), default=1)
    line = Mesh((("d", devices),))
    cuts: Counter[int] = Counter()
    for text, tiles in tiled.items():
        for cut in _cuts(text, line, len(tiles) - subgroups(text)):
            cuts[cut] += counted[text]
    return _mesh_of_cuts(cuts, devices)


def subgroups(text: str) -> int:
    """How many of a sharding's tile dims do not belong to dims of the tensor."""
    if "last_tile_dim_replicate" in text:
        return 1
    match = _SUBGROUPS.search(text)
    return len(match[1].split(",")) if match is not None and match[1].strip() else 0


def _cuts(text: str, line: Mesh, rank: int) -> set[int]:
    """The strides at which the sharding cuts the devices; empty if it is faulty, which is reported at its location."""
    try:
        sharding = parse_hlo(on_all_devices(text.replace("manual", "unreduced"), line.size), line, rank)
    except SpmdcError:
        return set()
    return {cut for axis in sharding.used_axes() for cut in (axis.pre, axis.end)} if sharding.mesh == line else set()


def _mesh_of_cuts(cuts: Mapping[int, int], devices: int) -> Mesh:
    """A mesh whose axes are between the most frequent cuts, each of which divides the next."""
    chain = [1, devices]
    for cut in sorted(cuts, key=lambda c: (-cuts[c], c)):
        merged = sorted({*chain, cut})
        if all(high % low == 0 for low, high in itertools.pairwise(merged)):
            chain = merged
    sizes = [high // low for low, high in itertools.pairwise(chain)]
    names = _AXIS_NAMES if len(sizes) <= len(_AXIS_NAMES) else [f"x{i}" for i in range(len(sizes))]
    return Mesh(tuple(zip(names, sizes, strict=False)))


def partitions_of(module: mlir.Module, written: int | None) -> int | None:
    """The number of devices that the module is for; None if it is one, which is the default."""
    attributes = module.operation.attributes
    name = "mhlo.num_partitions"
    count = written if written is not None else int_of(attributes[name]) if name in attributes else 1
    if count > MAX_DEVICES:
        help = f"a mesh has {MAX_DEVICES} devices at most"
        raise error("E304", f"the module is for {count} devices, which are too many", help=help)
    return count if count > 1 else None


def check_devices(mesh: Mesh, partitions: int | None, span: Span | None) -> None:
    """Raises SpmdcError (E305) if the mesh is for another number of devices than the module."""
    if partitions is not None and mesh.size != partitions:
        message = f"the mesh ({mesh}) has {mesh.size} devices, and the module is for {partitions} partitions"
        raise error("E305", message, span, help="make the mesh as large as the number of partitions")
