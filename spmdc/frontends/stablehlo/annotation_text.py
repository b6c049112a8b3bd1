"""Custom calls in a module for constructs that only spmdc has: annotations, whose sharding is encoded as text, draws of
random bits, and ends of gradients."""

from __future__ import annotations

import json

from ir.mesh import AxisRef, Mesh
from ir.sharding import DimSharding, Sharding
from lowering.jax.writer import Annotation

CALL_TARGET = "spmdc.shard"
"""The custom call's target; its backend_config is what `decode` reads."""

DRAW_TARGET = "spmdc.random_bits"
"""The target of a custom call that returns random bits drawn with its operand."""

STOP_TARGET = "spmdc.stop_gradient"
"""The target of a custom call that returns its operand, which gradients treat as a constant."""


def encode(annotation: Annotation) -> str:
    """The annotation as text for a custom call."""
    sharding = annotation.sharding
    mesh = sharding.mesh
    return json.dumps(
        {
            "axes": mesh.axes,
            "devices": mesh.devices,
            "name": mesh.name,
            "dims": [[[_parts(a) for a in d.axes], d.open, d.priority] for d in sharding.dims],
            "partial": [[_parts(a), kind] for a, kind in sharding.partial],
            "replicated": [_parts(a) for a in sharding.replicated],
            "group": annotation.group,
            "passes": annotation.passes,
        }
    )


def decode(text: str) -> Annotation:
    """The annotation that `encode` wrote."""
    read = json.loads(text)
    devices = None if read["devices"] is None else tuple(read["devices"])
    mesh = Mesh(tuple((name, size) for name, size in read["axes"]), devices, read["name"])
    dims = tuple(DimSharding(tuple(AxisRef(*a) for a in axes), o, p) for axes, o, p in read["dims"])
    partial = tuple((AxisRef(*a), kind) for a, kind in read["partial"])
    sharding = Sharding(mesh, dims, partial, tuple(AxisRef(*a) for a in read["replicated"]))
    return Annotation(sharding, read["group"], read["passes"])


def _parts(axis: AxisRef) -> tuple[str, int, int]:
    return axis.name, axis.pre, axis.size
