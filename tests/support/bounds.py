"""Lower bounds for any partitioner: the bytes that devices lack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ir.mesh import Mesh
from ir.sharding import Sharding, shard_size

Ints = npt.NDArray[np.int64]


def reshard_lower_bound(shape: Sequence[int], itemsize: int, source: Sharding, target: Sharding) -> int:
    """The bytes that the device which lacks most of its new shard must receive. Both shardings are on one mesh, and not
    partial."""
    needed = held = np.ones(source.mesh.shape, np.int64)
    for dim, n in enumerate(shape):
        (have, have_end), (want, want_end) = (_shards(s, dim, n) for s in (source, target))
        needed = needed * (want_end - want)
        held = held * np.maximum(0, np.minimum(have_end, want_end) - np.maximum(have, want))
    return int(np.max(needed - held)) * itemsize


def _shards(sharding: Sharding, dim: int, n: int) -> tuple[Ints, Ints]:
    """Where the shard of each device begins and ends, by the device's position on the mesh."""
    axes = sharding.dims[dim].axes
    index = np.zeros(sharding.mesh.shape, np.int64)
    coordinates = _coordinates(sharding.mesh)
    for axis in axes:
        inner = sharding.mesh.axis(axis.name).size // axis.end
        index = index * axis.size + coordinates[axis.name] // inner % axis.size
    chunk = shard_size(n, axes)
    return np.minimum(n, index * chunk), np.minimum(n, (index + 1) * chunk)


def _coordinates(mesh: Mesh) -> dict[str, Ints]:
    return dict(zip(mesh.names, np.indices(mesh.shape), strict=True))
