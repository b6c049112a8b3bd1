"""Machines as TOML files: what a file must contain. docs/machines.md describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ir.mesh import MAX_DEVICES
from ir.ops.declaration import COLLECTIVES, OPS
from ir.toml_tables import TomlKind, TomlReader, read_toml
from ir.types import DTYPES
from passes.cost.kernels import Kernels
from passes.cost.measured import Measured
from passes.cost.network import DIM_KINDS, MAX_DIMS, Link, NetworkDim

_KIND = TomlKind("machine", "E602", "docs/machines.md")
_TOP = ("name", "about", "sources", "device", "kernels", "link", "network", "measured")
_DEVICE = ("flops", "rates", "memory_bandwidth", "memory", "turn", "asynchronous", "clock")
_KERNELS = ("bandwidth", "launch", "fill", "lone", "vector", "tile", "narrow", "near")
_FRACTIONS = ("reads", "reorders", "products", "waits")
_ALSO = (*_FRACTIONS, "rows", "library", "overwrites", "workspace", "cache", "cached")
"""What a table of kernels may leave out."""
_LINK = ("bandwidth", "latency")
_DIM = ("name", "size", "kind", "bandwidth", "latency")
_MEASURED = ("kind", "group", "bytes", "seconds")


def read_machine(path: Path) -> dict[str, Any]:
    """The fields of `Machine` that a file gives. Raises SpmdcError (E005, E602) with all that is wrong with it."""
    reader, table = read_toml(path, _KIND)
    return _fields(reader, table)


def _fields(read: TomlReader, table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the table. Raises SpmdcError with all errors that were found."""
    read.known("", table, _TOP)
    device = read.table("device", table.get("device"), _DEVICE)
    dims = [_dim(read, *pair) for pair in read.tables("network", table.get("network", []), _DIM)]
    measured = [_measured(read, *pair) for pair in read.tables("measured", table.get("measured", []), _MEASURED)]
    fields: dict[str, Any] = {
        "name": read.text("name", table, "the machine's name"),
        "flops": read.positive("device.flops", device),
        "memory_bandwidth": read.positive("device.memory_bandwidth", device),
        "turn": read.positive("device.turn", device, zero=True),
        "memory": read.whole("device.memory", device),
        "asynchronous": read.truth("device.asynchronous", device),
        "rates": _rates(read, device),
        "clock": read.positive("device.clock", device) if "clock" in device else 0.0,
        "network": tuple(dims),
        "measured": tuple(measured),
    }
    if "kernels" in table:
        fields["kernels"] = _kernels(read, read.table("kernels", table["kernels"], (*_KERNELS, *_ALSO)))
    for name in ("about", "sources"):
        if not isinstance(table.get(name, ""), str | list):
            read.wrong(name, f"{name} is text")
    if "link" in table:
        link = read.table("link", table["link"], _LINK)
        latency = read.positive("link.latency", link, zero=True)
        fields["usual_link"] = Link(read.positive("link.bandwidth", link), latency)
        if dims:
            message = "[link] joins devices that have no network, and these have one"
            read.wrong("link", message, "remove [link], or each [[network]]")
    elif not dims and not read.found.items:
        help_text = "add [link], or [[network]] for each dim of the network"
        read.wrong("", "nothing says what joins the devices", help_text)
    for i, own in enumerate(measured):
        if own.kind and any((own.kind, own.group) == (other.kind, other.group) for other in measured[:i]):
            message = f"{own.kind} among {own.group} devices is measured twice"
            read.wrong(f"measured.{i}", message, "write all its bytes and seconds in one table")
    names = [dim.name for dim in dims]
    for i, name in enumerate(names):
        if name in names[:i]:
            read.wrong(f"network.{i}.name", f"two dims of the network are called {name!r}")
    if len(dims) > MAX_DIMS:
        read.wrong(f"network.{MAX_DIMS}", f"the network has {len(dims)} dims, and no more than {MAX_DIMS} are possible")
    if math.prod(dim.size or 1 for dim in dims) > MAX_DEVICES:
        read.wrong("network.0", f"the network has more than {MAX_DEVICES:,} devices")
    read.found.raise_errors()
    if "usual_link" not in fields:
        fields["usual_link"] = Link(dims[0].bandwidth, dims[0].latency)
    return fields


def _dim(read: TomlReader, path: str, table: Mapping[str, Any]) -> NetworkDim:
    kind = read.choice(f"{path}.kind", table, DIM_KINDS)
    size = read.whole(f"{path}.size", table) if "size" in table else 0
    bandwidth = read.positive(f"{path}.bandwidth", table)
    latency = read.positive(f"{path}.latency", table, zero=True)
    name = read.text(f"{path}.name", table, "the dim's name")
    known = next((known for known in DIM_KINDS if known == kind), DIM_KINDS[0])
    return NetworkDim(name, size, known, bandwidth, latency)


def _measured(read: TomlReader, path: str, table: Mapping[str, Any]) -> Measured:
    kinds = tuple(sorted(name for name in COLLECTIVES if OPS[name].communication is not None))
    kind = read.choice(f"{path}.kind", table, kinds)
    group = read.whole(f"{path}.group", table)
    nbytes, seconds = (read.numbers(f"{path}.{key}", table) for key in ("bytes", "seconds"))
    if len(nbytes) != len(seconds):
        read.wrong(f"{path}.seconds", f"{len(seconds)} times were measured for {len(nbytes)} numbers of bytes")
    if list(nbytes) != sorted(set(nbytes)):
        read.wrong(f"{path}.bytes", "the numbers of bytes ascend")
    return Measured(kind, group, nbytes, seconds)


def _kernels(read: TomlReader, table: Mapping[str, Any]) -> Kernels:
    tile = read.numbers("kernels.tile", table)
    if tile and (len(tile) != 2 or any(size != int(size) for size in tile)):
        read.wrong("kernels.tile", "tile is two whole numbers, of rows and of columns")
    bandwidth, vector = (read.positive(f"kernels.{name}", table) for name in ("bandwidth", "vector"))
    launch, fill, lone = (read.positive(f"kernels.{n}", table, zero=True) for n in ("launch", "fill", "lone"))
    height, width = map(int, tile) if len(tile) == 2 else (1, 1)
    narrow, near = read.truth("kernels.narrow", table), int(read.positive("kernels.near", table, zero=True))
    also: dict[str, Any] = {}
    for name in _ALSO:
        if name not in table and not (name == "cached" and "cache" in table):
            continue
        if name in ("rows", "library", "overwrites"):
            also[name] = read.truth(f"kernels.{name}", table)
        elif name in ("workspace", "cache"):
            also[name] = read.whole(f"kernels.{name}", table)
        else:
            also[name] = read.positive(f"kernels.{name}", table)
        if name in _FRACTIONS and also[name] > 1:
            read.wrong(f"kernels.{name}", f"{name} is a fraction of what the device reaches, 1 at most")
    return Kernels(bandwidth, launch, fill, lone, vector, (height, width), narrow, near, **also)


def _rates(read: TomlReader, device: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    if "rates" not in device:
        return ()
    known = tuple(DTYPES)
    table = read.table("device.rates", device["rates"], known)
    return tuple((name, read.positive(f"device.rates.{name}", table)) for name in table if name in known)
