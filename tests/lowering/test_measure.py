"""How devices are measured: with what size, and without the time of waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from lowering.jax import measure

MEMORY = 2**30


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("d",))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each operand that is measured. All take a microsecond."""
    found: list[int] = []

    def shards(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> None:
        found.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)

    monkeypatch.setattr(measure, "_shards", shards)
    monkeypatch.setattr(measure, "_seconds_each", lambda function, *arrays: 1e-6)
    return found


def test_the_bandwidth_is_that_of_the_largest_operand_that_the_memory_allows(mesh: Mesh, sizes: list[int]) -> None:
    assert measure._memory_bandwidth(mesh, MEMORY) == pytest.approx(2 * 2**26 / 1e-6)
    assert sizes == [2**22, 2**24, 2**26]


def test_products_grow_as_far_as_the_memory_allows(mesh: Mesh, sizes: list[int]) -> None:
    assert measure._rate(mesh, "f32", MEMORY) == pytest.approx(2 * 4096**3 / 1e-6)
    assert sizes[-1] == 4 * 4096**2


def test_nothing_grows_once_it_takes_long_enough(mesh: Mesh, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_seconds_each", lambda function, *arrays: 1.0)
    measure._memory_bandwidth(mesh, MEMORY)
    measure._rate(mesh, "f32", MEMORY)
    assert sizes == [2**22, 4 * 256**2]


def test_the_time_of_waiting_counts_once_for_all_calls_that_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which a call takes 1 ms, and waiting for it 100 ms."""
    now = [0.0]

    def takes(seconds: float) -> Callable[..., None]:
        def passes(*arrays: Any) -> None:
            now[0] += seconds

        return passes

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(measure._jax, "block_until_ready", takes(0.1))
    monkeypatch.setattr(measure, "_LONG_ENOUGH", 1.0)
    assert measure._seconds(takes(1e-3)) == pytest.approx(0.101)
    assert measure._seconds_each(takes(1e-3)) == pytest.approx(1e-3 + 0.1 / measure._MOST_QUEUED)
