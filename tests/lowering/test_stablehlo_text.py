"""Partitioned programs as StableHLO and HLO: XLA runs the module of one device on each, and shards come out as they
must."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jaxlib._hlo
import jaxlib._jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from ir.program import Program
from lowering.jax import ensure_devices, hlo_text, stablehlo_text
from lowering.reference import simulate
from lowering.reference.mesh_dims import grids_of
from lowering.reference.poison import poison_of
from lowering.reference.shards import assemble, distribute

_spec: Any = PartitionSpec
_PROGRAMS = Path(spmdc.__file__).parent / "programs"

_TEXTS = {
    "no axes": """
        def main(a: f32[8], b: f32[8, 4]) -> (out: f32[8], numbers: s32[5]) {
          return a + sum(b, dim=1), iota(s32[5], 0)
        }
    """,
    "one device": """
        mesh (x=1, y=1)
        def main(a: f32[8@x]{partial: y}, b: f32[8, 4@y]) -> (out: f32[8], total: f32[8]{partial: x}) {
          return abs(a) + sum(b), sum(b, dim=1)
        }
    """,
    "even": """
        mesh (d=4)
        def main(x: f32[8@d, 4], w: f32[4, 8@d], unused: f32[3]) -> (y: f32[8@d, 8], z: f32[]) {
          y = dot_general(x, w, lhs_contract=[1], rhs_contract=[0])
          return y, reduce(y, dims=[0, 1], kind=sum)
        }""",
    "uneven": """
        mesh (x=2, y=3)
        def main(a: f32[5@(x,y), 7]) -> (b: f32[5, 7@y], c: s32[7@x]) {
          return reverse(a, dims=[0]), cumsum(convert(reduce(a, dims=[0], kind=max), dtype=s32), dim=0)
        }""",
    "permuted devices": """
        mesh (x=2, y=2) devices=[3, 1, 0, 2]
        mesh m1 (a=4) devices=[2, 3, 1, 0]
        def main(a: f32[8@x, 6], b: f32[8@a, 6]) -> (c: f32[8@y, 6], d: f32[8@a, 6]) {
          return a + b, a * b
        }""",
    "partial ends": """
        mesh (x=4)
        def main(a: f32[6]{partial: x}, b: f32[6]) -> (c: f32[6]{partial: x}, d: f32[6]{partial: x}) {
          return a, b
        }""",
    "no elements": """
        mesh (x=4)
        def main(a: f32[0@x, 3]) -> (b: f32[3]) {
          return reduce(a, dims=[0], kind=sum)
        }""",
}


def _as_replicas(text: str) -> str:
    """The module with replicas for partitions: with several partitions XLA wants to partition it itself."""
    text = re.sub(r"channel_handle = #stablehlo.channel_handle<[^>]*>, ", "", text)
    text = text.replace(", use_global_device_ids", "").replace("stablehlo.partition_id", "stablehlo.replica_id")
    return re.sub("mhlo.num_partitions = [0-9]+", "mhlo.num_partitions = 1", text)


def _run_on_each_device(program: Program, *arrays: Any) -> list[Any]:
    """The results of an SPMD program whose StableHLO each device runs."""
    size = program.mesh.size
    devices = ensure_devices(size)
    options = jaxlib._jax.CompileOptions()
    options.num_replicas, options.num_partitions = size, 1
    options.executable_build_options.num_replicas = size
    options.device_assignment = jaxlib._jax.DeviceAssignment.create(np.arange(size).reshape(size, 1))
    text = _as_replicas(stablehlo_text(program))
    executable = devices[0].client.compile_and_load(text, jaxlib._jax.DeviceList(tuple(devices)), options)
    grids = grids_of(program)
    grid = grids.default
    spread = [
        np.broadcast_to(x, (*grid.shape, *x.shape[grid.rank :])).reshape(size, *x.shape[grid.rank :])
        for x in (
            distribute(a, p.sharding, grids, poison=poison_of(0))
            for a, p in zip(arrays, program.main.params, strict=True)
            if p.sharding is not None
        )
    ]
    sharding = NamedSharding(Mesh(np.array(devices), "i"), _spec("i"))
    placed = [jax.device_put(x.reshape(size * x.shape[1], *x.shape[2:]), sharding) for x in spread]
    results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
    stacked = [np.stack([np.asarray(part) for part in parts]) for parts in results]
    return [
        assemble(x.reshape(*grid.shape, *r.type.shape), r.sharding, r.of.shape, grids, r.name)
        for x, r in zip(stacked, program.main.results, strict=True)
        if r.sharding is not None and r.of is not None
    ]


@pytest.mark.parametrize("name", _TEXTS)
def test_every_partition_of_the_module_gives_its_shard(name: str) -> None:
    program = spmdc.parse(_TEXTS[name])
    partitioned = spmdc.partition(program)
    inputs = spmdc.random_inputs(program, integers=True)
    results = _run_on_each_device(partitioned.program, *inputs)
    for got, expected in zip(results, spmdc.evaluate(program, *inputs), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_layer_of_experts_runs_from_its_module() -> None:
    program = spmdc.load(_PROGRAMS / "moe_layer.spmd", defines={"M": 8, "H": 16, "S": 16})
    partitioned = spmdc.partition(program)
    inputs = spmdc.random_inputs(program)
    results = _run_on_each_device(partitioned.program, *inputs)
    for got, expected in zip(results, simulate(partitioned.program, *inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_types_are_those_of_one_device_and_names_are_the_users() -> None:
    text = stablehlo_text(spmdc.partition(spmdc.parse(_TEXTS["even"], "layer.spmd")).program)
    assert "module @layer attributes {mhlo.num_partitions = 4" in text
    assert 'tensor<2x4xf32> {jax.arg_info = "x"}' in text
    assert 'tensor<3xf32> {jax.arg_info = "unused", mhlo.sharding = "{replicated}"}' in text
    assert '(tensor<2x8xf32> {jax.result_info = "y"}' in text
    assert "sdy" not in text


def test_a_mesh_needs_no_devices_here() -> None:
    program = spmdc.partition(spmdc.parse(_TEXTS["even"]), mesh={"d": 4096}).program
    assert "num_partitions = 4096" in stablehlo_text(program)


def test_hlo_is_what_xla_parses() -> None:
    text = hlo_text(spmdc.partition(spmdc.parse(_TEXTS["uneven"], "scan.spmd")).program)
    assert text.startswith("HloModule scan,")
    assert "num_partitions=6" in text.splitlines()[0]
    assert jaxlib._hlo.hlo_module_from_text(text).name == "scan"


def test_a_program_for_one_device_keeps_its_unused_parameters() -> None:
    text = stablehlo_text(spmdc.parse(_TEXTS["even"]))
    assert 'tensor<8x4xf32> {jax.arg_info = "x"}' in text
    assert 'tensor<3xf32> {jax.arg_info = "unused"}' in text


def test_branches_and_loops_by_what_all_devices_are_given_are_read_back() -> None:
    text = """mesh (x=4)
    def main(a: f32[8@x, 8], p: pred[], n: s32[]) -> (r: f32[8, 8], s: f32[8@x, 8]) {
      r = if (p) { return transpose(a) } else { return a }
      i, s = while(i = 0, s = a) cond { return i < n } do { return i + 1, transpose(s) }
      return r, s
    }"""
    program = spmdc.partition(spmdc.parse(text)).program
    for read, module in ((spmdc.from_mlir, stablehlo_text(program)), (spmdc.from_hlo, hlo_text(program))):
        partitioned = spmdc.partition(read(module))
        a = np.arange(64, dtype=np.float32).reshape(8, 8)
        for p, n in ((True, 2), (False, 3)):
            got = partitioned.simulate(a, np.bool_(p), np.int32(n))
            for mine, want in zip(got, (a.T if p else a, a.T if n % 2 else a), strict=True):
                np.testing.assert_array_equal(mine, want)


def test_large_constants_are_read_back_too() -> None:
    numbers = ", ".join(f"{n}.5" for n in range(40))
    program = spmdc.parse(f"def main(a: f32[40]) -> f32[40] {{ return a + constant(value=[{numbers}], type=f32[40]) }}")
    (got,) = spmdc.evaluate(spmdc.from_hlo(hlo_text(program)), np.zeros(40, np.float32))
    np.testing.assert_array_equal(got, np.arange(40, dtype=np.float32) + 0.5)
