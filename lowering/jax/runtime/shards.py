"""Functions that written modules bring along as text: from whole arrays to shards and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering.jax.runtime.ordering import limits_of


def pad_to(x: Any, shape: Sequence[int]) -> Any:
    """`x` with zeros behind its end in each dim, up to `shape`."""
    library: Any = np if isinstance(x, np.ndarray) else jnp
    return library.pad(x, [(0, n - m) for m, n in zip(x.shape, shape, strict=True)])


def partial_parts(x: Any, parts: int, identity: Any) -> Any:
    """Along a new first dim, `parts` partial values that combine to `x`: itself, then the reduction's identity."""
    rest = np.full((parts - 1, *x.shape), identity, x.dtype)
    library: Any = np if isinstance(x, np.ndarray) else jnp
    return library.concatenate([x[None], rest])


def tile_of_device(axes: Mapping[str, int], ids: np.ndarray, split: Sequence[str], devices: np.ndarray) -> np.ndarray:
    """For each of `devices`, which tile it has of a tensor that the mesh's axes `split` cut into tiles, major first."""
    coordinates = np.unravel_index(np.argsort(ids)[devices], list(axes.values()))
    tiles = np.zeros(len(devices), int)
    for name, coordinate in zip(axes, coordinates, strict=True):
        minor = split[split.index(name) + 1 :] if name in split else None
        if minor is not None:
            tiles += coordinate * math.prod(axes[a] for a in minor)
    return tiles


def take_tiles(x: Any, parts: Sequence[int], tiles: np.ndarray) -> Any:
    """`x` cut into parts[d] equal parts along each dim d; its tiles of these numbers, along a new first dim."""
    rank = len(parts)
    cut = x.reshape([n for d in range(rank) for n in (parts[d], x.shape[d] // parts[d])])
    cut = cut.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
    return cut.reshape(math.prod(parts), *cut.shape[rank:])[tiles]


def taken(x: Any, index: Any) -> Any:
    """x[index], bit for bit. XLA adds zeros to what it takes from several devices, and -0.0 + 0.0 is 0.0."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(taken(x.real, index), taken(x.imag, index))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x[index]
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{limits_of(x.dtype).bits}"))
    return lax.bitcast_convert_type(bits[index], x.dtype)


def join_tiles(stacked: Any, parts: Sequence[int], tiles: np.ndarray) -> Any:
    """The tensor that `take_tiles` cuts into `stacked`: of equal tiles, the first counts."""
    rank = len(parts)
    _, first = np.unique(tiles, return_index=True)
    shape = stacked.shape[1:]
    cut = taken(stacked, first).reshape(*parts, *shape)
    cut = cut.transpose([i for d in range(rank) for i in (d, rank + d)])
    return cut.reshape([p * n for p, n in zip(parts, shape, strict=True)])
