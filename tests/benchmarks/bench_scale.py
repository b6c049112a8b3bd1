"""How time grows with the program and with the number of devices. Run with `make bench`; prints every figure."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import TypeVar

import numpy as np
import pytest

import spmdc
from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.program import Program, all_ops
from ir.sharding import Sharding
from ir.types import TensorType, f32
from ir.verify.program import verify
from passes.cost.machine import TPU_V3
from passes.manager import Compilation, pipeline, run
from passes.partition.options import PartitionOptions
from spmdc.frontends.spmd import parse, print_program

T = TypeVar("T")
PROGRAMS = files("spmdc") / "programs"


def shipped(name: str, **defines: int) -> Program:
    return spmdc.load(str(PROGRAMS / name), defines)


def seconds(work: Callable[[], T], repeats: int = 3) -> tuple[float, T]:
    """The best time of a few runs, and the last result."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def layered_program(ops: int) -> Program:
    """Feed-forward layers and normalisations until there are that many ops."""
    mesh = Mesh((("x", 4), ("y", 2)))
    square = TensorType((64, 64), f32)
    b = RegionBuilder()
    x = b.param("x", square, Sharding.of(mesh, "x", None))
    w = b.param("w", square, Sharding.of(mesh, None, "y"))
    v = b.param("v", square, Sharding.of(mesh, "y", None))
    while len(b.ops) < ops:
        h = b.op("tanh", b.op("dot_general", x, w, name="h", lhs_contract=(1,), rhs_contract=(0,)), name="h")
        x = b.op("add", x, b.op("dot_general", h, v, name="h", lhs_contract=(1,), rhs_contract=(0,)), name="x")
        total = b.op("reduce", x, name="total", dims=(1,), kind="sum")
        x = b.op("subtract", x, b.op("broadcast_in_dim", total, shape=(64, 64), dims=(0,)), name="x")
    return Program((mesh,), {"main": b.function("main", (x,))})


def test_a_program_of_100000_ops_is_built_verified_and_printed_in_under_10_seconds() -> None:
    figures: dict[int, dict[str, float]] = {}
    for ops in (1_000, 10_000, 100_000):
        took: dict[str, float] = {}
        took["build"], program = seconds(partial(layered_program, ops), 1)
        took["verify"], problems = seconds(partial(verify, program), 1)
        took["print"], _ = seconds(partial(print_program, program), 1)
        assert not problems
        state = run(Compilation(program), pipeline(PartitionOptions.on(TPU_V3)))
        took |= state.timings
        figures[ops] = took
        print(f"\n{ops:>7} ops:", "  ".join(f"{k} {v:.3f} s" for k, v in took.items()), end="")
    print()
    assert figures[100_000]["build"] + figures[100_000]["verify"] + figures[100_000]["print"] < 10
    for step in ("verify", "print", "propagate", "plan", "write"):
        per_op = [figures[n][step] / n for n in (10_000, 100_000)]
        assert per_op[1] < 2.5 * per_op[0], f"{step} grows faster than the program"


def test_a_program_of_5000_ops_is_printed_and_parsed_in_under_5_seconds() -> None:
    program = layered_program(5_000)
    printing, text = seconds(lambda: print_program(program, locations=False))
    parsing, again = seconds(lambda: parse(text))
    print(f"\n5000 ops: print {printing:.3f} s, parse {parsing:.3f} s")
    same = print_program(again, locations=False) == text
    assert same
    assert printing + parsing < 5


def test_compile_time_does_not_depend_on_the_number_of_devices() -> None:
    programs = {devices: shipped("moe_layer.spmd", D=devices) for devices in (8, 128, 2048)}
    took = dict.fromkeys(programs, float("inf"))
    sizes: set[int] = set()
    for _ in range(25):
        for devices, program in programs.items():
            spent, q = seconds(partial(spmdc.partition, program, verify=False), 1)
            took[devices] = min(took[devices], spent)
            sizes.add(sum(1 for _ in all_ops(q.program)))
    for devices, spent in took.items():
        print(f"\n{devices:>5} devices: propagate + partition {spent:.4f} s, {max(sizes)} ops", end="")
    print()
    assert len(sizes) == 1
    assert max(took.values()) < 0.5
    assert max(took.values()) < 1.25 * min(took.values())


def test_a_moe_transformer_of_12_layers_is_parsed_and_partitioned_in_under_3_seconds() -> None:
    def compile_it() -> spmdc.PartitionedProgram:
        return spmdc.partition(shipped("moe_transformer.spmd", LAYERS=12), verify=False)

    took, q = seconds(compile_it, 2)
    print(
        f"\nmoe_transformer, 12 + 12 layers: {took:.2f} s, {sum(1 for _ in all_ops(q.program))} ops, {dict(q.timings)}"
    )
    assert took < 3


@pytest.mark.parametrize("devices", [256])
def test_the_simulator_runs_the_moe_layer_on_256_devices(devices: int) -> None:
    program = shipped("moe_layer.spmd", D=devices, M=16, H=32)
    q = spmdc.partition(program)
    inputs = spmdc.random_inputs(program)
    took, outputs = seconds(lambda: q.simulate(*inputs), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    expected = spmdc.evaluate(program, *inputs)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(expected, outputs, strict=True))
    print(f"\n{devices} logical devices: {took:.1f} s, peak {peak:.2f} GiB, largest difference {worst:.1e}")
    assert took < 60
    assert peak < 4
    assert worst < 1e-5
