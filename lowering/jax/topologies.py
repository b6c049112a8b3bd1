"""The devices of a TPU topology without TPUs, for which libtpu compiles ahead of time.

libtpu searches this machine for a TPU and its manager, and logs much about that, unless its environment says that there
is none.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies

from ir.diagnostics import error, require
from ir.mesh import Mesh

GENERATIONS = ("v2", "v3", "v4", "v5e", "v5p", "v6e")

NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5e-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A number of chips of a TPU generation, as in tpu-v3:4x4; a chip of up to v4 is two devices."""

    generation: str
    chips: tuple[int, ...]

    def __str__(self) -> str:
        return f"tpu-{self.generation}:{'x'.join(map(str, self.chips))}"


def parse_target(text: str) -> Target | None:
    """The TPUs with that name; None for "cpu", the host's own. Raises SpmdcError (E516) if there is no such target."""
    require(isinstance(text, str), "a target is named", text, "tpu-v3:4x4")
    if text == "cpu":
        return None
    name, colon, layout = text.partition(":")
    generation = name.removeprefix("tpu-")
    if not name.startswith("tpu-") or generation not in GENERATIONS:
        tpus = [f"tpu-{g}" for g in GENERATIONS]
        close = difflib.get_close_matches(name, ["cpu", *tpus], 2)
        known = f"there are cpu, and {', '.join(tpus)}, each with its chips, as in tpu-v3:4x4"
        help_text = f"did you mean {' or '.join(close)}; {known}" if close else known
        raise error("E516", f"there is no target {text!r}", help=help_text)
    if not colon or not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", layout, re.ASCII):
        raise error("E516", f"{text!r} does not say what chips there are", help=f"as in {name}:4x4, or {name}:2x2x2")
    return Target(generation, tuple(map(int, layout.split("x"))))


def devices_of(target: Target, mesh: Mesh, placed: Sequence[int] | None = None) -> list[jax.Device]:
    """The devices of the target, in the order of the mesh's device ids: `topology_devices` in `order_of`."""
    found = topology_devices(target)
    return [found[i] for i in order_of(target, mesh, placed)]


def order_of(target: Target, mesh: Mesh, placed: Sequence[int] | None) -> list[int]:
    """The target's device for each device id of the mesh. If the mesh has no ids and takes all devices, several axes
    are laid out as `placed`, which has for each position of the mesh the number of a device, row-major in x, y, z and
    the core of a chip. Otherwise, and without it, JAX lays them out: one axis along a ring; several along the same
    one, if there are 8 devices. v4 chips with two devices JAX does not lay out.

    Raises SpmdcError: E517 without libtpu, E516 if the mesh has more devices, or libtpu knows no such topology.
    """
    found = topology_devices(target)
    if len(found) < mesh.size:
        message = f"{target} has {len(found)} devices, and the mesh ({mesh}) has {mesh.size}"
        help = "give the mesh other sizes (--devices, --mesh), or the target other chips"
        raise error("E516", message, help=help)
    if mesh.devices is not None or len(found) > mesh.size:
        return list(range(mesh.size))
    if placed is not None and sum(size > 1 for size in mesh.shape) > 1:
        places: list[Any] = list(found)
        in_rows = sorted(range(len(found)), key=lambda i: (*places[i].coords, places[i].core_on_chip))
        return [in_rows[number] for number in placed]
    if target.generation == "v4":
        return list(range(mesh.size))
    laid: np.ndarray[Any, Any] = mesh_utils.create_device_mesh(mesh.shape, found, allow_split_physical_axes=True)
    position = {device.id: i for i, device in enumerate(found)}
    return [position[device.id] for device in laid.flat]


def places_of(target: Target, mesh: Mesh, placed: Sequence[int] | None) -> list[tuple[int, ...]]:
    """The position in the target of the device at each position of the mesh: x, y and z of its chip, and the core."""
    found: Any = topology_devices(target)
    order = order_of(target, mesh, placed)
    return [(*found[order[i]].coords, found[order[i]].core_on_chip) for i in mesh.device_ids]


def libtpu_version() -> str:
    """The version of libtpu. Raises SpmdcError (E517) if it is not installed."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        message = "the TPU compiler, libtpu, is not installed"
        help = "pip install 'spmdc[tpu]': it needs no TPU, on Linux with an x86 processor"
        raise error("E517", message, help=help) from None


@functools.cache
def topology_devices(target: Target) -> list[jax.Device]:
    """All devices of the target. Raises SpmdcError: E517 without libtpu, E516 if libtpu knows no such topology."""
    libtpu_version()
    libtpu: Any = import_module("libtpu")
    for name, value in {**NO_TPU_HERE, "TPU_LIBRARY_PATH": libtpu.get_library_path()}.items():
        os.environ.setdefault(name, value)
    layout = "x".join(map(str, target.chips))
    try:
        found: Any = topologies.get_topology_desc(topology_name=f"{target.generation}:{layout}", platform="tpu")
    except jax.errors.JaxRuntimeError as problem:
        reason = str(problem).partition("\n")[0]
        raise error("E516", f"libtpu has no {target}: {reason}", help=f"try tpu-{target.generation}:4x4") from None
    return list(found.devices)
