"""Groups of devices that an HLO text says by the axes of a mesh: jaxlib does not read its order of devices, nor any
such groups of an all-to-all of several operands."""

from __future__ import annotations

import re

from ir.diagnostics import Source, Span, error
from ir.spelling.hlo_groups import MESH_GROUPS, groups_on_mesh

_OF_SEVERAL = re.compile(r"= \(.*\ball-to-all(?:-start)?\(")
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
            rows = groups_on_mesh(*match.groups()).tolist()
            return f"replica_groups={{{','.join('{' + ','.join(map(str, row)) + '}' for row in rows)}}}"
        except (ValueError, KeyError):
            line, column = text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())
            place = Span(source, line, column, line, column + len(match[0]))
            raise error("E701", f"{match[0]} are no groups of devices", place, help=_HELP) from None

    return MESH_GROUPS.sub(listed, text)
