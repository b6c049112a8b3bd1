"""Microbenchmarks of the available devices: the figures of a machine file for a device, and for collectives."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

from lowering.jax.running import ensure_devices
from lowering.jax.untyped import spec_of

_ROUNDS = 5
_LONG_ENOUGH = 5e-3
"""Seconds from which on the time of a call is dominated by its arithmetic or memory, rather than by the call."""
_MOST_QUEUED = 32
_SHARE = 16
"""The largest operand takes one part of so many of the memory: results of queued calls may take as much each."""
_DTYPES = ("f32", "bf16", "f16", "f64")
_TURNS = 1000
_SENT = (2**12, 2**16, 2**20, 2**22)
"""Bytes that each device puts into a collective."""

_jax: Any = jax
_lax: Any = lax
_make: Any = jax.device_put


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """Seconds of a collective among `group` devices, for each number of bytes that a device puts in."""

    kind: str
    group: int
    nbytes: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MeasuredDevices:
    """Measurements: of one device while all are busy, flop/s by element type, bytes/s and bytes of memory, and seconds
    of an iteration; and of whole calls of collectives."""

    kind: str
    count: int
    rates: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory: int
    turn: float
    collectives: tuple[MeasuredCollective, ...]


def measure(count: int | None) -> MeasuredDevices:
    """Measures `count` devices, by default all of jax's default platform, or eight of a host's CPU. Raises SpmdcError
    (E502, E503) if there are fewer."""
    if count is None:
        count = 8 if jax.default_backend() == "cpu" else len(jax.devices())
    devices = ensure_devices(count)
    mesh = Mesh(np.array(devices), ("d",))
    memory = _memory(devices)
    bandwidth = _memory_bandwidth(mesh, memory)
    rates = tuple((name, _rate(mesh, name, memory)) for name in _DTYPES if name != "f64" or _jax.config.jax_enable_x64)
    found = tuple(_collectives(devices))
    kind = "".join(c if c.isalnum() else "-" for c in devices[0].device_kind.lower())
    return MeasuredDevices(kind, count, rates, bandwidth, memory, _turn(mesh), found)


def _seconds(function: Callable[..., Any], *arrays: Any) -> float:
    """The least time of repeated calls after the first one."""
    _jax.block_until_ready(function(*arrays))
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        _jax.block_until_ready(function(*arrays))
        best = min(best, time.perf_counter() - start)
    return best


def _seconds_each(function: Callable[..., Any], *arrays: Any) -> float:
    """The least time of a call among several that are queued, so that it is not that of waiting for a device."""
    best = _seconds(function, *arrays)
    calls = min(max(math.ceil(_ROUNDS * _LONG_ENOUGH / best), 1), _MOST_QUEUED)
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            result = function(*arrays)
        _jax.block_until_ready(result)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def _on_each(mesh: Mesh, function: Callable[..., Any]) -> Any:
    """The function on the shard of each device, run on all at the same time."""
    names = tuple(mesh.axis_names)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec_of(names), out_specs=spec_of(names), check_vma=False)
    return jax.jit(mapped)


def _shards(mesh: Mesh, shape: Sequence[int], dtype: Any) -> Any:
    """An array of ones with a shard of that shape on each device."""
    whole = jnp.ones((mesh.size * shape[0], *shape[1:]), dtype)
    return _make(whole, NamedSharding(mesh, spec_of(tuple(mesh.axis_names))))


def _rate(mesh: Mesh, name: str, memory: int) -> float:
    """flop/s of products of square matrices, which grow until they take long enough, as far as the memory allows."""
    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "f64": jnp.float64}[name]
    multiply, best = _on_each(mesh, lambda x: x @ x), 0.0
    for n in (256, 512, 1024, 2048, 4096, 8192, 16384):
        if best and n * n * jnp.dtype(dtype).itemsize > memory / _SHARE:
            break
        seconds = _seconds_each(multiply, _shards(mesh, (n, n), dtype))
        best = max(best, 2 * n**3 / seconds)
        if seconds > _LONG_ENOUGH:
            break
    return best


def _memory_bandwidth(mesh: Mesh, memory: int) -> float:
    """bytes/s that are read and written when one is added to every element of an array, which grows until that takes
    long enough, as far as the memory allows. Smaller ones are found in caches."""
    add, found = _on_each(mesh, lambda x: x + 1), 0.0
    for size in (2**22, 2**24, 2**26, 2**28, 2**30, 2**32):
        if found and size > memory / _SHARE:
            break
        seconds = _seconds_each(add, _shards(mesh, (size // 4,), jnp.float32))
        found = 2 * size / seconds
        if seconds > _LONG_ENOUGH:
            break
    return found


def _memory(devices: Sequence[Any]) -> int:
    """The memory of a device in bytes; of the host's CPU, its share of the host's memory."""
    stats = devices[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)


def _turn(mesh: Mesh) -> float:
    loop = _on_each(mesh, lambda x: _lax.fori_loop(0, _TURNS, lambda i, y: jnp.sin(y) + i, x))
    return _seconds(loop, _shards(mesh, (1,), jnp.float32)) / _TURNS


def _collectives(devices: Sequence[Any]) -> Iterator[MeasuredCollective]:
    """Each kind of collective in groups of all devices, of half of them, and so on, all groups at the same time."""
    group = len(devices)
    while group > 1:
        mesh = Mesh(np.array(devices).reshape(-1, group), ("outer", "d"))
        for kind, function in _kinds(group).items():
            collective = _on_each(mesh, function)
            seconds: list[float] = []
            for nbytes in _SENT:
                seconds.append(_seconds(collective, _shards(mesh, (nbytes // 4,), jnp.float32)))
            yield MeasuredCollective(kind, group, _SENT, tuple(seconds))
        group = group // 2 if group % 2 == 0 else 1


def _kinds(group: int) -> dict[str, Callable[[Any], Any]]:
    beside = [(i, (i + 1) % group) for i in range(group)]
    return {
        "all_gather": lambda x: _lax.all_gather(x, "d", tiled=True),
        "all_reduce": lambda x: _lax.psum(x, "d"),
        "reduce_scatter": lambda x: _lax.psum_scatter(x[: len(x) // group * group], "d", tiled=True),
        "all_to_all": lambda x: _lax.all_to_all(x[: len(x) // group * group], "d", 0, 0, tiled=True),
        "collective_permute": lambda x: _lax.ppermute(x, "d", beside),
    }
