"""What each device holds, as pictures have it, is what JAX's devices hold."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import NamedSharding, PartitionSpec

from ir.mesh import AxisRef, Mesh
from ir.program import Program, values_within
from ir.sharding import Sharding
from spmdc.pictures.placement import Placement
from spmdc.testing import programs


@pytest.mark.parametrize("order", [None, (3, 1, 4, 0, 5, 2, 7, 6)])
@pytest.mark.parametrize("dims", [("x", "y", None), (("y", "x"), None, None), (None, "y", "x"), (None, None, None)])
def test_devices_hold_what_those_of_jax_do(dims: tuple[Any, ...], order: tuple[int, ...] | None) -> None:
    mesh = Mesh((("x", 4), ("y", 2)), order)
    placement = Placement((8, 16, 4), Sharding.of(mesh, *dims))
    devices = np.array(jax.devices())[list(mesh.device_ids)].reshape(mesh.shape)
    spec: Any = PartitionSpec
    theirs: Any = NamedSharding(jax.sharding.Mesh(devices, mesh.names), spec(*dims))
    held = {
        device.id: tuple(s.indices(n)[:2] for s, n in zip(slices, placement.shape, strict=True))
        for device, slices in theirs.devices_indices_map(placement.shape).items()
    }
    ours = {
        device: tuple(zip(block.start, block.stop, strict=True))
        for block in placement.blocks()
        for device in block.devices
    }
    assert ours == held


@given(programs(max_ops=3))
def test_each_element_is_in_one_block_and_each_device_holds_one(program: Program) -> None:
    for value in values_within(program.main.body):
        if value.sharding is None:
            continue
        placement, mesh = Placement(value.shape, value.sharding), value.sharding.mesh
        found = np.zeros(value.shape, np.int64)
        for block in placement.blocks():
            found[tuple(map(slice, block.start, block.stop))] += 1
            assert len(block.devices) == placement.replicas
            assert {placement.index_at(mesh.device_ids.index(d)) for d in block.devices} == {block.index}
        assert (found == 1).all()
        assert sorted(d for block in placement.blocks() for d in block.devices) == list(range(mesh.size))


def test_parts_of_axes_cut_as_whole_axes_of_their_sizes_do() -> None:
    whole, cut = Mesh((("p", 2), ("q", 4))), Mesh((("x", 8),))
    a = Placement((5, 8), Sharding.of(whole, "q", "p"))
    b = Placement((5, 8), Sharding.of(cut, (AxisRef("x", 2, 4),), (AxisRef("x", 1, 2),)))
    assert list(a.blocks()) == list(b.blocks())
