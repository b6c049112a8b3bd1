"""Limits the number of devices where each takes memory: a mesh may be larger than any machine."""

from __future__ import annotations

from ir.diagnostics import error
from ir.mesh import Mesh

MOST_DEVICES = 1 << 20


def check_countable(mesh: Mesh, what: str) -> None:
    """Raises SpmdcError (E505) if the mesh has more devices than `what` supports."""
    if mesh.size > MOST_DEVICES:
        message = f"{what} {mesh.size} devices takes more memory than there is"
        raise error("E505", message, help=f"choose a smaller mesh, of at most {MOST_DEVICES} devices")
