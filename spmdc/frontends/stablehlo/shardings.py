"""Converts the shardings of a module, Shardy's and HLO's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy

from ir.diagnostics import Span, error
from ir.manual import free_part
from ir.mesh import AxisRef, Mesh
from ir.sharding import Sharding
from ir.spelling.hlo_shardings import parse_hlo, split_hlo_tuple
from ir.spelling.shardings import parse_shardy, shardy_mesh_name
from ir.types import TensorType
from spmdc.frontends.stablehlo.attributes import cast, entries, is_token, text_of
from spmdc.frontends.stablehlo.hlo_words import ALL_DEVICES, in_shardys_words, manual_axes_of, on_all_devices, tiles_of
from spmdc.frontends.stablehlo.locations import Locations
from spmdc.frontends.stablehlo.meshes import (
    DeclaredMesh,
    check_devices,
    declared_meshes,
    frontend_attributes,
    mesh_of_tiles,
    partitions_of,
    renamed,
    subgroups,
    tile_strings,
)

_UNSPECIFIED = re.compile(r"unspecified_dims=\[([\d,]*)\]")
_GROUP = re.compile(r"\bshard_(?:as|like) (\d{1,9})\b")
_SINGLE = re.compile(r"#sdy\.sharding<mesh<\[\](?:, device_ids=\[(\d+)\])?>")
"""A sharding on a mesh without axes, which has no effect, or is on the single device that it names."""
_SAYS_ITSELF = re.compile(r"Sharding|^SPMD|^xla\.sdy\.|^spmdc\.")
"""The custom calls whose meaning is a sharding."""
_PER_VALUE = re.compile(r"#sdy\.sharding_per_value<\[(.*)\]>$", re.DOTALL)


class Shardings:
    """Reads the shardings of one module. `meshes` are those found so far, the default first."""

    def __init__(self, module: mlir.Module, default: Mesh | None, partitions: int | None, locations: Locations) -> None:
        self.partitions = partitions_of(module, partitions)
        self.declared: dict[str, DeclaredMesh] = declared_meshes(module, default, self.partitions, locations)
        found = dict.fromkeys(m.mesh for m in self.declared.values() if m.mesh is not None)
        self._meshes: list[Mesh] = list(found if default is None else {default: None} | found)
        if self._meshes:
            given = [d for d in self.declared.values() if d.mesh == self._meshes[0]]
            check_devices(self._meshes[0], self.partitions, given[0].span if given else None)
            _check_sizes(list(self.declared.values()), self._meshes[0])
        else:
            mesh = mesh_of_tiles(tile_strings(module), self.partitions)
            if mesh is not None:
                check_devices(mesh, self.partitions, None)
                self._meshes.append(mesh)
                self.partitions = mesh.size
        self._known: dict[tuple[str, int], Sharding | None] = {}
        self._module = module

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        return tuple(self._meshes)

    def of_argument(
        self, attributes: Mapping[str, mlir.Attribute], type: TensorType, span: Span | None, manual: frozenset[str]
    ) -> Sharding | None:
        """The sharding of a function's argument or result, from its attributes; Shardy's takes precedence over HLO's.

        If axes are `manual`, an HLO sharding with a manual subgroup has no effect: the ops of the function specify it.
        """
        if "sdy.sharding" in attributes:
            return self.shardy(str(attributes["sdy.sharding"]), type.rank, span)
        if "mhlo.frontend_attributes" in attributes:
            given = entries(attributes["mhlo.frontend_attributes"])
            if "xla.sdy.sharding" in given:
                return self.shardy(text_of(given["xla.sdy.sharding"]), type.rank, span)
        text = text_of(attributes["mhlo.sharding"]) if "mhlo.sharding" in attributes else None
        if text is None or (manual and "manual" in text):
            return None
        return self.tiled(text, type.rank, span)

    def of_op(
        self, op: mlir.Operation, ranks: Sequence[int], span: Span | None, manual: frozenset[str]
    ) -> list[Sharding | None]:
        """The annotations of the results, of these ranks, of an op that `is_annotated`; empty if there are none.

        `manual` has the axes that are manual at the op.
        """
        attributes = op.attributes
        if "sdy.sharding" in attributes:
            return self.per_value(attributes["sdy.sharding"], ranks, span)
        if manual and ("manual" in text_of(attributes["mhlo.sharding"]) or manual.issuperset(self._meshes[0].names)):
            return []
        parts = split_hlo_tuple(text_of(attributes["mhlo.sharding"]), span=span)
        results = list(op.results)
        if len(parts) == len(results):
            parts = tuple(part for part, result in zip(parts, results, strict=True) if not is_token(result))
        if len(parts) != len(ranks):
            parts = parts * len(ranks) if len(parts) == 1 else parts
        if len(parts) != len(ranks):
            message = f"{op.name}: it has {len(ranks)} results, and {len(parts)} shardings"
            raise error("E303", message, span, help="give a sharding for each result, or one for all")
        return [self.tiled(part, rank, span) for part, rank in zip(parts, ranks, strict=True)]

    def per_value(self, attribute: mlir.Attribute, ranks: Sequence[int], span: Span | None) -> list[Sharding | None]:
        """Shardy's shardings of several values."""
        given = list(cast(sdy.TensorShardingPerValueAttr, attribute).shardings)
        if len(given) != len(ranks):
            message = f"there are {len(given)} shardings of {len(ranks)} values"
            raise error("E303", message, span, help="give one for each")
        return [self.shardy(str(s), rank, span) for s, rank in zip(given, ranks, strict=True)]

    def shardy(self, text: str, rank: int, span: Span | None) -> Sharding | None:
        """The sharding that Shardy's text spells; None on a mesh without axes, which JAX writes if it has no mesh."""
        key = (text, rank)
        if key not in self._known:
            self._known[key] = self._shardy(text, rank, span)
        return self._known[key]

    def _shardy(self, text: str, rank: int, span: Span | None) -> Sharding | None:
        name = shardy_mesh_name(text, span=span)
        declared = self.declared.get(name)
        if declared is None and name:
            raise error("E301", f"{text} is on mesh @{name}, which is not declared", span, help="declare an sdy.mesh")
        single = _SINGLE.match(text)
        if (declared is not None and declared.device is not None) or (single is not None and single[1]):
            # All devices run one program, so what is on a single device is replicated.
            return Sharding.replicate(self._meshes[0], rank) if self._meshes else None
        if single is not None:
            return None
        if declared is None:
            sharding = parse_shardy(text, self._meshes[0] if self._meshes else Mesh(()), rank, span=span)
            return self.adopt(sharding)
        if declared.mesh is None:
            return None
        return _translated(parse_shardy(text, declared.original, rank, span=span), declared, declared.mesh)

    def tiled(self, text: str, rank: int, span: Span | None) -> Sharding | None:
        """The sharding that an HLO string spells. Raises SpmdcError (E303, E305, E309)."""
        text = on_all_devices(text, self.partitions)
        key = (text, rank)
        named = in_shardys_words(text)
        if named is not None:
            return self.shardy(named, rank, span)
        if key not in self._known:
            if not self._meshes and text.strip() in (ALL_DEVICES, "{unknown}"):
                return None
            mesh = self._meshes[0] if self._meshes else Mesh((("x", 1),))
            parsed = parse_hlo(text, mesh, rank, prefix=f"assigned{len(self._meshes)}", span=span)
            self._known[key] = self.adopt(parsed)
        return self._known[key]

    def free_axes(self) -> set[str]:
        """The axes that are not in the manual subgroups of the module's HLO shardings, if these have any."""
        for text in tile_strings(self._module):
            if "manual" not in text or "=" not in text:
                continue
            named = manual_axes_of(text)
            if named is not None:
                return set(self._meshes[0].names) - set(named)
            rank = len(tiles_of(text) or ()) - subgroups(text)
            return {axis.name for axis in self.without_manual(text, rank, None)}
        return set()

    def without_manual(self, text: str, rank: int, span: Span | None) -> set[AxisRef]:
        """The axes of an HLO sharding that are not in its manual subgroup: those of tiles and of copies."""
        sharding = self.tiled(text.replace("manual", "unreduced"), rank, span)
        assert sharding is not None
        manual = {axis for axis, _ in sharding.partial}
        return {a for a in sharding.mesh.whole_axes() if a not in manual}

    def constraint(
        self, op: mlir.Operation, type: TensorType, span: Span | None, manual: frozenset[str]
    ) -> Sharding | None:
        """The sharding of `custom_call @Sharding`; dims that its configuration leaves unspecified are open.

        `manual` has the axes that are manual at the op.
        """
        attributes = op.attributes
        given = frontend_attributes(op)
        if "xla.sdy.sharding" in given:
            match = _PER_VALUE.match(given["xla.sdy.sharding"])
            text = match[1] if match is not None else given["xla.sdy.sharding"]
            return self.shardy(text if text.startswith("#") else f"#sdy.sharding{text}", type.rank, span)
        if "mhlo.sharding" not in attributes:
            raise error("E309", f"{op.name} @Sharding says no sharding", span, help="give it an mhlo.sharding")
        text = text_of(attributes["mhlo.sharding"])
        in_region = bool(manual) and "manual" in text
        sharding = self._free(text, type.rank, manual, span) if in_region else self.tiled(text, type.rank, span)
        config = attributes.get("backend_config", None)
        match = _UNSPECIFIED.search(text_of(config)) if isinstance(config, mlir.StringAttr) else None
        if sharding is None or match is None:
            return sharding
        opened = {int(d) for d in match[1].split(",") if d}
        dims = (replace(d, open=d.open or i in opened) for i, d in enumerate(sharding.dims))
        return replace(sharding, dims=tuple(dims))

    def _free(self, text: str, rank: int, manual: frozenset[str], span: Span | None) -> Sharding | None:
        """The part of an HLO sharding in a manual region that is along free axes."""
        if "devices=" not in text:
            return None
        sharding = self.tiled(text.replace("manual", "replicated"), rank, span)
        assert sharding is not None
        return free_part(sharding, manual)

    def adopt(self, sharding: Sharding) -> Sharding:
        """The sharding on a mesh of the program, to which its own mesh is added if it is new."""
        own = sharding.mesh
        same = next((m for m in self._meshes if m.shape == own.shape and m.devices == own.devices), None)
        if same is None and self._meshes:
            _check_sizes([DeclaredMesh(own, own)], self._meshes[0])
            declared = renamed(own, own.name or f"mesh_{len(self._meshes)}", self._meshes)
            self._meshes.append(declared.mesh or own)
            return _translated(sharding, declared, declared.mesh or own)
        if same is None:
            self._meshes.append(own)
            return sharding
        return _translated(sharding, DeclaredMesh(own, same), same) if same is not own else sharding


def has_sharding(op: mlir.Operation) -> bool:
    """Whether an op has an attribute that is a sharding."""
    attributes = op.attributes
    return "sdy.sharding" in attributes or "mhlo.sharding" in attributes


def is_annotated(op: mlir.Operation) -> bool:
    """Whether an op has shardings of its results. The attributes of custom calls have other meanings."""
    return "sdy.sharding" in op.attributes or (
        "mhlo.sharding" in op.attributes and not (op.name.endswith(".custom_call") and says_a_sharding(op))
    )


def says_a_sharding(custom_call: mlir.Operation) -> bool:
    """Whether the meaning of a custom call is a sharding."""
    return _SAYS_ITSELF.search(text_of(custom_call.attributes["call_target_name"])) is not None


def group_of(text: str) -> int | None:
    """The number of the sharding group that an HLO sharding names, if any."""
    match = _GROUP.search(text)
    return int(match[1]) if match is not None else None


def _check_sizes(declared: Sequence[DeclaredMesh], first: Mesh) -> None:
    """Raises SpmdcError (E304) if the meshes are not all of the same number of devices."""
    for mesh, span in ((d.mesh, d.span) for d in declared if d.mesh is not None):
        if mesh.size != first.size:
            message = f"the mesh ({mesh}) has {mesh.size} devices, and the mesh ({first}) {first.size}"
            raise error("E304", message, span, help="all meshes of a program are of the same devices")


def _translated(sharding: Sharding, declared: DeclaredMesh, mesh: Mesh) -> Sharding:
    """The same sharding with axes named as on `mesh`."""
    return sharding.with_axes(lambda axes: tuple(map(declared.translate, axes)), mesh)
