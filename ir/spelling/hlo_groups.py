"""Groups of devices that HLO spells by mesh axes: `mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'x'}`."""

from __future__ import annotations

import math
import re

import numpy as np

from ir.mesh import MAX_DEVICES, AxisRef, Mesh
from ir.spelling.device_assignment import Ids, fibers

MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]\n]*)\],?\s*(?:device_ids=\(((?:[^()\n]|\([\d,]*\))*)\),?\s*)?\{([^{}\n]*)\}"
)
"""The sizes of the axes, the order of the devices, and the axes along which groups run."""

_SIZE = re.compile(r"\s*'([^']+)'=(\d{1,9})\s*")
_AXIS = re.compile(r"\s*'([^']+)'(?::\((\d{1,9})\)(\d{1,9}))?\s*")
_IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$")


def groups_on_mesh(sizes: str, order: str | None, names: str) -> Ids:
    """The devices of each group, one row each. Raises ValueError or KeyError if the text does not spell groups."""
    axes = tuple((name, int(size)) for name, size in (_parts(_SIZE, text) for text in sizes.split(",")))
    mesh = Mesh(axes, None if order is None else device_ids_of(order))
    if mesh.size > MAX_DEVICES or sorted(mesh.device_ids) != list(range(mesh.size)):
        raise ValueError(order)
    return fibers(mesh, [_axis(mesh, *_parts(_AXIS, text)) for text in names.split(",") if text.strip()])


def device_ids_of(text: str) -> tuple[int, ...]:
    """A list, or an iota with a transpose, as in tile assignments. Raises ValueError for any other text."""
    iota = _IOTA.match(text.strip())
    if iota is None:
        return tuple(int(n) for n in text.split(","))
    shape = [int(n) for n in iota[1].split(",")]
    if math.prod(shape) > MAX_DEVICES:
        raise ValueError(text)
    perm = [int(n) for n in iota[2].split(",")] if iota[2] else range(len(shape))
    return tuple(np.arange(math.prod(shape)).reshape(shape).transpose(tuple(perm)).ravel().tolist())


def _parts(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match.groups()


def _axis(mesh: Mesh, name: str, pre: str | None = None, size: str | None = None) -> AxisRef:
    whole = mesh.axis(name)
    axis = AxisRef(name, int(pre), int(size)) if pre and size else whole
    if not axis.is_part_of(whole.size):
        raise ValueError(name)
    return axis
