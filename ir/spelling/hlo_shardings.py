"""HLO's shardings: tile assignments such as `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ir.diagnostics import Span, SpmdcError, error
from ir.mesh import MAX_DEVICES, AxisRef, Mesh
from ir.sharding import DimSharding, Partial, Sharding
from ir.spelling.cursor import Cursor
from ir.spelling.device_assignment import Ids, tile_axes
from ir.types import MAX_RANK

_SAME_DEVICES = "a sharding is over all devices: the tiles multiply to their number, copies included"
_SPELLING = "write it as XLA does: {replicated}, {devices=[2,4]<=[8]}, {devices=[2,1,4]<=[8] last_tile_dim_replicate}"
_ALL_TILES = "list a device for each tile"
_SUBGROUPS = ("replicated", "unreduced", "manual", "maximal")


def parse_hlo(text: str, mesh: Mesh, rank: int, *, prefix: str = "assigned", span: Span | None = None) -> Sharding:
    """The sharding that an HLO string spells, on `mesh` if its axes can express the tiles, else on a new mesh."""
    scanner = Cursor(text, "an HLO sharding", span, help=_SPELLING)
    scanner.expect("{")
    kind = scanner.word()
    if kind == "devices":
        sharding = _tiled(scanner, mesh, rank, prefix)
    elif kind == "replicated":
        sharding = Sharding.replicate(mesh, rank)
    elif kind == "unknown":
        sharding = Sharding.unknown(mesh, rank)
    elif kind == "unreduced":
        sharding = Sharding(mesh, (DimSharding(),) * rank, sums(mesh.whole_axes()))
    elif kind in ("manual", "maximal"):
        raise _inexpressible(kind, span)
    else:
        raise scanner.fault("devices=, replicated, unreduced, manual or maximal")
    if scanner.accept("shard_as") or scanner.accept("shard_like"):
        scanner.integer()  # The number of a sharding group.
    _skip_metadata(scanner)
    scanner.expect("}")
    scanner.end()
    return sharding


def split_hlo_tuple(text: str, *, span: Span | None = None) -> tuple[str, ...]:
    """The shardings of a tuple, `{{replicated}, {devices=…}}`; any other sharding by itself."""
    inner = text.strip()
    if not inner.startswith("{{"):
        return (inner,)
    parts: list[str] = []
    depth = start = 0
    for i, c in enumerate(inner):
        depth += (c == "{") - (c == "}")
        if c == "{" and depth == 2:
            start = i
        elif c == "}" and depth == 1:
            parts.append(inner[start : i + 1])
    if depth:
        raise Cursor(text, "an HLO sharding", span, len(text), _SPELLING).fault("'}'")
    return tuple(parts)


def _inexpressible(kind: str, span: Span | None) -> SpmdcError:
    if kind == "maximal":
        message = "a tensor on one device alone (maximal) is no layout of a program that every device runs"
        return error("E303", message, span, help="replicate it: {replicated}")
    message = "a manual sharding says that the program is partitioned by hand here, and leaves nothing to partition"
    return error("E303", message, span, help="partition the program as it is outside of shard_map")


def _tiled(scanner: Cursor, mesh: Mesh, rank: int, prefix: str) -> Sharding:
    scanner.expect("=", "[")
    tiles = scanner.integers()
    scanner.expect("]")
    if len(tiles) > MAX_RANK + len(_SUBGROUPS):
        message = f"there are {len(tiles):,} tile sizes, and a tensor has at most {MAX_RANK} dims"
        raise error("E303", message, scanner.span, help="write a number of tiles for each dim of the tensor")
    count = math.prod(tiles)
    if count < 1:
        help_text = "a dim that is not split has 1 tile"
        raise error("E305", f"the tiles {tiles} are not all at least 1", scanner.span, help=help_text)
    if count > MAX_DEVICES:
        message = f"there are {count} partitions, and a mesh has at most {MAX_DEVICES:,} devices"
        raise error("E305", message, scanner.span, help=_SAME_DEVICES)
    if count > mesh.size:
        message = f"there are {count} partitions, and the mesh ({mesh}) has {mesh.size} devices"
        raise error("E305", message, scanner.span, help=_SAME_DEVICES)
    ids = _iota(scanner, count) if scanner.accept("<=") else np.array(scanner.integers(), dtype=np.int64)
    if len(ids) != count:
        message = f"the tiles {tiles} are {count}, and {len(ids)} devices are listed"
        raise error("E305", message, scanner.span, help=_ALL_TILES)
    subgroups = _subgroups(scanner)
    if len(tiles) != rank + len(subgroups):
        message = f"the sharding tiles {len(tiles) - len(subgroups)} dims, and the tensor has {rank}"
        help_text = "a number of tiles for each dim; a last one for copies is marked last_tile_dim_replicate"
        raise error("E303", message, scanner.span, help=help_text)
    for manual in ("manual", "maximal"):
        if any(kind == manual and n > 1 for kind, n in zip(subgroups, tiles[rank:], strict=True)):
            raise _inexpressible(manual, scanner.span)
    return _from_tiles(mesh, ids.reshape(tiles), subgroups, prefix, scanner.span)


def _from_tiles(mesh: Mesh, ids: Ids, subgroups: Sequence[str], prefix: str, span: Span | None) -> Sharding:
    rank = ids.ndim - len(subgroups)
    pending = [rank + i for i, kind in enumerate(subgroups) if kind == "unreduced"]
    copies = [rank + i for i, kind in enumerate(subgroups) if kind != "unreduced"]
    order = [*range(rank), *pending, *copies]
    sizes = (*ids.shape[:rank], *(ids.shape[d] for d in pending), -1)
    mesh, axes = tile_axes(mesh, ids.transpose(order).reshape(sizes), prefix=prefix, span=span)
    return Sharding(mesh, tuple(map(DimSharding, axes[:rank])), sums(itertools.chain(*axes[rank:])))


def sums(axes: Iterable[AxisRef]) -> Partial:
    """A pending sum over these axes."""
    return tuple((axis, "sum") for axis in axes)


def _iota(scanner: Cursor, count: int) -> Ids:
    scanner.expect("[")
    shape = scanner.integers()
    scanner.expect("]")
    perm = list(range(len(shape)))
    if scanner.accept("T"):
        scanner.expect("(")
        perm = scanner.integers()
        scanner.expect(")")
    if sorted(perm) != list(range(len(shape))):
        raise scanner.fault(f"a permutation of the {len(shape)} dims before it")
    if math.prod(shape) != count:
        message = f"there are {count} tiles, and {math.prod(shape)} devices are listed"
        raise error("E305", message, scanner.span, help=_ALL_TILES)
    return np.arange(count).reshape(shape).transpose(perm).ravel()


def _subgroups(scanner: Cursor) -> list[str]:
    """The meaning of the tile dims behind those of the tensor."""
    if scanner.accept("last_tile_dim_replicate"):
        return ["replicated"]
    kinds: list[str] = []
    if scanner.accept("last_tile_dims"):
        scanner.expect("=", "{")
        while not scanner.accept("}"):
            kind = scanner.word()
            if kind not in _SUBGROUPS:
                raise scanner.fault(f"one of {', '.join(_SUBGROUPS)}")
            kinds.append(kind)
            scanner.accept(",")
    return kinds


def _skip_metadata(scanner: Cursor) -> None:
    if not scanner.accept("metadata"):
        return
    scanner.expect("=", "{")
    depth = 1
    while depth:
        if scanner.accept("{"):
            depth += 1
        elif scanner.accept("}"):
            depth -= 1
        elif scanner.string() is None and not scanner.skip():
            raise scanner.fault("'}'")
