"""Groups of devices that an HLO text says by the axes of a mesh: jaxlib does not read its order of devices, nor any
such groups of an all-to-all of several operands."""

from __future__ import annotations

import re

from ir.diagnostics import Source, Span, error
from ir.mesh import MAX_DEVICES, AxisRef, Mesh
from spmdc.frontends.stablehlo.hlo_words import device_ids_of
from spmdc.frontends.stablehlo.ops.manual import fibers

_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]\n]*)\],?\s*(?:device_ids=\(((?:[^()\n]|\([\d,]*\))*)\),?\s*)?\{([^{}\n]*)\}"
)
_OF_SEVERAL = re.compile(r"= \(.*\ball-to-all(?:-start)?\(")
_SIZE = re.compile(r"\s*'([^']+)'=(\d{1,9})\s*")
_AXIS = re.compile(r"\s*'([^']+)'(?::\((\d{1,9})\)(\d{1,9}))?\s*")
_HELP = "write device_ids=([2,4]T(1,0)) or a list of each device once, and name axes of the mesh; or list the groups"


def in_lists(text: str, source: Source) -> str:
    """The text, with a list of the devices of each group where jaxlib does not read what names axes of a mesh.

    Raises SpmdcError (E701) if they make no groups.
    """

    def listed(match: re.Match[str]) -> str:
        line = text.rfind("\n", 0, match.start()) + 1
        if match[2] is None and _OF_SEVERAL.search(text, line, match.start()) is None:
            return match[0]
        try:
            return _listed(*match.groups())
        except (ValueError, KeyError):
            line, column = text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())
            place = Span(source, line, column, line, column + len(match[0]))
            raise error("E701", f"{match[0]} are no groups of devices", place, help=_HELP) from None

    return _GROUPS.sub(listed, text)


def _listed(sizes: str, order: str | None, names: str) -> str:
    """Raises ValueError or KeyError if they are none."""
    axes = tuple((name, int(size)) for name, size in (_parts(_SIZE, text) for text in sizes.split(",")))
    mesh = Mesh(axes, None if order is None else device_ids_of(order))
    if mesh.size > MAX_DEVICES or sorted(mesh.device_ids) != list(range(mesh.size)):
        raise ValueError(order)
    along = [_axis(mesh, *_parts(_AXIS, text)) for text in names.split(",") if text.strip()]
    rows = fibers(mesh, along).tolist()
    return f"replica_groups={{{','.join('{' + ','.join(map(str, row)) + '}' for row in rows)}}}"


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
