"""The custom call that stands for an annotation in a module, and the text by which it carries a sharding."""

from __future__ import annotations

import json

from ir.mesh import AxisRef, Mesh
from ir.sharding import DimSharding, Sharding

CALL_TARGET = "spmdc.shard"
"""The custom call's target; its backend_config is what `decode` reads."""


def encode(sharding: Sharding) -> str:
    """The sharding as text for a custom call."""
    mesh = sharding.mesh
    return json.dumps(
        {
            "axes": mesh.axes,
            "devices": mesh.devices,
            "name": mesh.name,
            "dims": [[[_parts(a) for a in d.axes], d.open, d.priority] for d in sharding.dims],
            "partial": [[_parts(a), kind] for a, kind in sharding.partial],
            "replicated": [_parts(a) for a in sharding.replicated],
        }
    )


def decode(text: str) -> Sharding:
    """The sharding that `encode` wrote."""
    read = json.loads(text)
    devices = None if read["devices"] is None else tuple(read["devices"])
    mesh = Mesh(tuple((name, size) for name, size in read["axes"]), devices, read["name"])
    dims = tuple(DimSharding(tuple(AxisRef(*a) for a in axes), o, p) for axes, o, p in read["dims"])
    partial = tuple((AxisRef(*a), kind) for a, kind in read["partial"])
    return Sharding(mesh, dims, partial, tuple(AxisRef(*a) for a in read["replicated"]))


def _parts(axis: AxisRef) -> tuple[str, int, int]:
    return axis.name, axis.pre, axis.size
