"""Rewrites HLO's shardings for the rest of the importer: as tiles of all devices, or Shardy's axes."""

from __future__ import annotations

import math
import re

from ir.mesh import Mesh
from ir.spelling.hlo_groups import device_ids_of
from spmdc.frontends.stablehlo.names import identifier

_TILES = re.compile(r"devices=\[([\d,]+)\]")
_NAMED = re.compile(
    r"\{mesh\[((?:'[^']+'=[1-9]\d{0,8},?\s*)+)\],?\s*(?:device_ids=\(((?:[^()]|\([\d,]*\))*)\),?\s*)?(\[.*)\}$"
)
_AXES = re.compile(r"'([^']+)'=(\d+)")
_METADATA = re.compile(r",? metadata=\{.*\}(?=\}$)")
_MANUAL_AXES = re.compile(r",? *manual=\{([^{}]*)\}")
_MULHI = re.compile(r"(?<=[\]}] )mulhi(\((?:[^()\n]|\([^()\n]*\))*\))")
_MAXIMAL = re.compile(r"\{\s*(?:maximal(?:_mesh)?|single_device)\b")
_TYPE = r"\w+\[[^\]\n]*\](?:\{[^{}\n]*\})?"
_TYPES = re.compile(_TYPE)
_OPERANDS = re.compile(rf"(?:{_TYPE} )?(%?[\w.-]+)(?:, |,|$)")
_OF_SEVERAL = re.compile(
    r"^([ \t]*(?:ROOT )?)(%?[\w.-]+) = \((.*)\) (reduce-scatter|collective-permute)\(((?:[^()\n]|\([\d,]*\))*)\)(.*)$",
    re.MULTILINE,
)
ALL_DEVICES = "{replicated}"
INTO_REGION = frozenset({"SPMDFullToShardShape", "xla.sdy.GlobalToLocalShape"})
OUT_OF_REGION = frozenset({"SPMDShardToFullShape", "xla.sdy.LocalToGlobalShape"})
"""The custom calls at the boundary of a manual region."""


def in_calls(text: str) -> str:
    """The text with custom calls in place of ops that XLA's parser reads, but that jaxlib cannot convert to
    StableHLO."""
    return _MULHI.sub(r'custom-call\1, custom_call_target="chlo.mulhi"', text)


def one_by_one(text: str) -> str:
    """The text with one op for each operand of collectives that have a single operand in StableHLO, on the same
    line."""

    def apart(match: re.Match[str]) -> str:
        head, name, results, opcode, given, rest = match.groups()
        types, operands = _TYPES.findall(results), _OPERANDS.findall(given)
        if len(types) != len(operands):
            return match[0]
        parts = [f"{name}.{opcode}.{i}" for i in range(len(types))]
        ops = [f"{p} = {t} {opcode}({o}){rest}" for p, t, o in zip(parts, types, operands, strict=True)]
        return f"{' '.join(ops)} {head.strip()} {name} = ({results}) tuple({', '.join(parts)})"

    return _OF_SEVERAL.sub(apart, text)


def on_all_devices(text: str, partitions: int | None) -> str:
    """The sharding over all devices. Every device runs the same program here, so a tensor that is on a single device
    (maximal), or on a number of devices that does not divide the total, is replicated. One on a number that divides it
    has copies on the others."""
    if _MAXIMAL.match(text):
        return ALL_DEVICES
    count = tile_count(text)
    if count is not None and partitions is not None and 0 < count < partitions and partitions % count:
        return ALL_DEVICES
    return _METADATA.sub("", text.replace("maximal", "replicated"))


def tiles_of(text: str) -> tuple[int, ...] | None:
    """The number of tiles along each dim, subgroups included; None for a sharding without tiles."""
    match = _TILES.search(text)
    return tuple(int(n) for n in match[1].split(",") if n) if match is not None else None


def tile_count(text: str) -> int | None:
    """The number of tiles, copies included; None for a sharding without tiles."""
    tiles = tiles_of(text)
    return math.prod(tiles) if tiles is not None else None


def named_mesh(text: str) -> Mesh | None:
    """The mesh whose axes an HLO sharding names, `{mesh['x'=2,'y'=4], [{'x'}, {}]}`; None for any other."""
    match = _NAMED.match(text)
    if match is None:
        return None
    axes = tuple((identifier(name, "axis"), int(size)) for name, size in _AXES.findall(match[1]))
    return Mesh(axes, device_ids_of(match[2]) if match[2] else None)


def in_shardys_words(text: str) -> str | None:
    """A sharding that names mesh axes, in Shardy's spelling; None for any other. Manual axes are left out, because a
    region specifies them."""
    match, mesh = _NAMED.match(text), named_mesh(text)
    if match is None or mesh is None:
        return None
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.axes)
    devices = f", device_ids=[{', '.join(map(str, mesh.devices))}]" if mesh.devices is not None else ""
    said = _MANUAL_AXES.sub("", match[3])
    dims = re.sub(r"'([^']*)'", lambda quoted: f'"{identifier(quoted[1], "axis")}"', said)
    return f"#sdy.sharding<mesh<[{axes}]{devices}>, {dims}>"


def manual_axes_of(text: str) -> tuple[str, ...] | None:
    """The manual axes of a sharding that names axes; None for any other sharding."""
    match = _MANUAL_AXES.search(text) if _NAMED.match(text) else None
    return tuple(identifier(n.strip(" '"), "axis") for n in match[1].split(",")) if match is not None else None
