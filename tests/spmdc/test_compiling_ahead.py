"""What a compiler makes of a program is read back to the program: of the host's CPU here, which every machine has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import pytest
from hlo_texts import collectives_of_hlo
from jax.experimental import mesh_utils

import spmdc
from ir.diagnostics import SpmdcError
from ir.mesh import Mesh
from lowering.jax import topologies
from lowering.jax.module import write_entry
from lowering.jax.running import Executable, compile_donating
from lowering.jax.topologies import Target, devices_of, parse_target
from lowering.jax.writer import location
from passes.cost.network import NetworkDim
from spmdc.comparison import compare, xla_child
from spmdc.comparison.on_target import compare_on, seconds_on_network
from spmdc.compiled import CompiledProgram, placed_on
from spmdc.reports.hlo_collectives import XlaCollective
from spmdc.reports.optimised_module import read_module
from spmdc.reports.origins import Origins

_PROGRAMS = Path(spmdc.__file__).parent / "programs"

_CHAIN = """HloModule jit_f, is_scheduled=true, num_partitions=8

%start (p: bf16[32,64]) -> bf16[64,64] {
  %all-gather.1 = bf16[64,64]{1,0:T(8,128)} all-gather(%p), replica_groups={{0,4}}, attributes={chain_id="2"}
}

%update (p: bf16[32,64]) -> bf16[64,64] {
  %all-gather.2 = bf16[64,64]{1,0:T(8,128)S(1)} all-gather(%p), replica_groups={{0,4}}, attributes={chain_id="2"}
}

ENTRY %main (p: bf16[32,64]) -> bf16[64,64] {
  %fusion.1 = bf16[64,64]{1,0:T(8,128)} fusion(%p), kind=kCustom, calls=%start
  ROOT %fusion.2 = bf16[64,64]{1,0:T(8,128)} fusion(%p, %fusion.1), kind=kOutput, calls=%update
}
"""


def _compiled(name: str, windowed_einsum: Literal["auto", "always"] = "auto") -> CompiledProgram:
    return spmdc.partition(spmdc.load(_PROGRAMS / name), windowed_einsum=windowed_einsum).compile("cpu")


def test_each_collective_is_found_in_the_compiled_module() -> None:
    compiled = _compiled("moe_layer.spmd")
    found = [(o.kind, o.op.label, o.count, [c.kind for c in o.compiled], o.elements) for o in compiled.outcomes]
    assert found == [
        ("all_to_all", "dispatched", 1, ["all_to_all"], ("f32",)),
        ("all_to_all", "expert_out.2", 1, ["all_to_all"], ("f32",)),
        ("all_reduce", "aux.10", 1, ["all_reduce"], ("f32",)),
    ]
    assert compiled.added == ()
    assert compiled.received_bytes == 2 * 114_688 + 7
    assert not any(o.is_narrowed or o.is_asynchronous for o in compiled.outcomes)
    assert compiled.memory.arguments == 593_920
    assert compiled.memory.total > compiled.memory.arguments
    assert compiled.cycles == 0


def test_results_take_the_memory_of_arguments_that_are_donated() -> None:
    """A shard of w and a shard of its sum with x have 2 KiB."""
    text = "mesh (x=8)\ndef main(w: f32[64@x, 64], x: f32[64@x, 64]) -> (new: f32[64@x, 64]) {\n  return w + x\n}\n"
    q = spmdc.partition(spmdc.parse(text))
    apart, donated = q.compile("cpu").memory, q.compile("cpu", donate="w").memory
    assert (apart.aliased, donated.aliased) == (0, 2048)
    assert apart.total - donated.total == 2048
    with pytest.raises(SpmdcError, match="no argument 'v' to donate"):
        q.compile("cpu", donate=["v"])


def test_collectives_in_loops_count_as_often_as_the_loop_runs() -> None:
    compiled = _compiled("matmul_cases.spmd", windowed_einsum="always")
    turns = {o.op.label: (o.count, [c.count for c in o.compiled]) for o in compiled.outcomes if "rhs" in o.op.label}
    assert turns == {"rhs_b.3": (7, [7]), "rhs_c.3": (7, [7])}


def test_every_line_of_a_module_with_an_op_says_where_the_op_is_from() -> None:
    q = spmdc.partition(spmdc.load(_PROGRAMS / "moe_gather.spmd")).with_even_results()
    written, _ = write_entry(q.program)
    lines = written.text.split("\n")
    ops = written.op_of_line()
    assert len(ops) > 30
    assert all(location(op) in lines[number - 1] for number, op in ops.items() if not op.regions)


def test_a_collective_without_a_line_is_from_the_op_of_its_reducer() -> None:
    """Two of the three add, by a reducer that JAX traces once, and none can be merged into another."""
    body = "  s = sum(a, dims=[0])\n  m = max(a * cos(s), dims=[0])\n  n = sum(a * cos(m), dims=[0])\n  return n\n"
    q = spmdc.partition(spmdc.parse(f"mesh (x=8)\ndef main(a: f32[8@x, 8]) -> (n: f32[8]) {{\n{body}}}\n"))
    executable = compile_donating(q.program, None, ())
    lines = str(executable.ahead().as_text()).split("\n")
    bare = "\n".join(re.sub(r", metadata=\{[^}]*\}", "", line) if " all-reduce(" in line else line for line in lines)
    module = read_module(bare)
    origins = Origins(executable, bare, module)
    found = [origins.of(i) for _, i, _ in module.executed() if i.op == "all-reduce"]
    labels = [o.op.label for o in q.compile("cpu").outcomes]
    assert len(labels) == 3
    assert [op.label for op in found if op is not None] == labels


def test_the_parts_of_a_collective_in_the_background_are_one() -> None:
    (gathered,) = collectives_of_hlo(_CHAIN)
    assert (gathered.name, gathered.bytes) == ("all-gather.1", 64 * 64 * 2 // 2)


@pytest.mark.parametrize(
    ("text", "message", "way_out"),
    [
        ("tpu3:2x2", "no target 'tpu3:2x2'", "tpu-v3"),
        ("gpu", "no target 'gpu'", "there are cpu, and tpu-v2, tpu-v3"),
        ("cpu:4", "no target 'cpu:4'", "did you mean cpu; there are cpu, and tpu-v2, tpu-v3"),
        ("tpu-v33:2x2", "no target 'tpu-v33:2x2'", "each with its chips, as in tpu-v3:4x4"),
        ("tpu-v3", "what chips there are", "tpu-v3:4x4"),
        ("tpu-v3:0x2", "what chips there are", "tpu-v3:4x4"),
        ("tpu-v3:4", "what chips there are", "tpu-v3:4x4"),
    ],
)
def test_unknown_targets_are_reported(text: str, message: str, way_out: str) -> None:
    with pytest.raises(SpmdcError) as caught:
        parse_target(text)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E516"
    assert message in diagnostic.message
    assert way_out in diagnostic.help


def test_a_target_is_printed_as_it_is_read() -> None:
    assert parse_target("tpu-v5p:2x2x2") == Target("v5p", (2, 2, 2))
    assert str(parse_target("tpu-v5p:2x2x2")) == "tpu-v5p:2x2x2"
    assert parse_target("cpu") is None


def test_a_mesh_larger_than_the_target_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topologies, "topology_devices", lambda target: [None] * 4)
    q = spmdc.partition(spmdc.load(_PROGRAMS / "moe_layer.spmd"))
    with pytest.raises(SpmdcError, match=r"tpu-v3:2x2 has 4 devices, and the mesh \(d=8\) has 8") as caught:
        devices_of(Target("v3", (2, 2)), q.program.mesh)
    assert caught.value.diagnostics[0].code == "E516"


@dataclass(frozen=True)
class _Core:
    """A device of a topology: its number, the position of its chip, and its own on the chip."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0


def test_a_mesh_is_laid_out_as_planned_or_as_by_jax_where_its_collectives_take_less_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JAX lays 8 devices along one ring, in which those that differ in the first of two axes are no neighbours."""
    chips = [_Core(4 * y + x, (x, y, 0)) for y in range(2) for x in range(4)]
    ring = np.array(chips, object)[[0, 1, 2, 3, 7, 6, 5, 4]]
    monkeypatch.setattr(topologies, "topology_devices", lambda target: chips)
    monkeypatch.setattr(mesh_utils, "create_device_mesh", lambda shape, *_, **__: ring.reshape(shape))
    target = Target("v5e", (4, 2))

    def placed(spec: str) -> tuple[int, ...] | None:
        text = f"mesh (x=2, y=4)\ndef main(a: f32[64@x, 64@y]) -> (r: f32[{spec}]) {{\n  return a\n}}\n"
        planned = spmdc.partition(spmdc.parse(text), machine=str(target))
        found = placed_on(str(target), planned.program, planned.options.machine)
        assert found in (None, planned.device_order())
        assert placed_on("tpu-v5p:2x2x2", planned.program, planned.options.machine) is None
        assert placed_on("cpu", planned.program, planned.options.machine) is None
        return found

    order = placed("64, 64@y")
    assert order is not None
    mesh = spmdc.parse("mesh (x=2, y=4)\ndef main(a: f32[8]) -> (r: f32[8]) {\n  return a\n}\n").mesh
    found = np.array([chip.coords for chip in topologies.devices_of(target, mesh, order)]).reshape(2, 4, 3)
    assert np.abs(np.diff(found, axis=0)).sum(-1).max() == 1
    assert np.abs(np.diff(found, axis=1)).sum(-1).max() == 1
    assert placed("64@x, 64") is None
    assert placed("64@x, 64@y") is None


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    topologies.topology_devices.cache_clear()
    with pytest.raises(SpmdcError, match="libtpu, is not installed") as caught:
        topologies.devices_of(Target("v3", (2, 2)), spmdc.load(_PROGRAMS / "moe_layer.spmd").mesh)
    assert caught.value.diagnostics[0].code == "E517"
    assert "spmdc[tpu]" in caught.value.diagnostics[0].help


def test_both_sides_are_compiled_for_a_target() -> None:
    program = spmdc.load(_PROGRAMS / "transformer_block.spmd")
    found = compare_on(program, "cpu")
    assert (found.target, found.notes) == ("cpu", ())
    assert found.ours.received_bytes == found.xla.received_bytes == 134_144
    assert sorted(c.kind for c in found.ours.collectives) == sorted(c.kind for c in found.xla.collectives)
    assert found.ours.memory.arguments == found.xla.memory.arguments == 41_216
    assert found.to_json()["target"] == "cpu"
    assert found.ours.network == found.ours.time == 0.0


def test_collectives_take_what_the_network_does_where_their_devices_are() -> None:
    """Devices 0 and 1 are beside each other, 0 and 2 at opposite ends of a ring of four."""
    ring = (NetworkDim("x", 4, "ring", 100.0, 0.0),)
    places = [(0,), (1,), (2,), (3,)]
    gathered = XlaCollective("all_gather", "beside", 100, 1, 100, (0, 1))
    assert seconds_on_network(gathered, ring, places) == 1.0
    assert seconds_on_network(replace(gathered, group=(0, 2)), ring, places) == 2.0
    sent = XlaCollective("collective_permute", "sent", 100, 1, 100, pairs=((0, 1), (0, 2)))
    assert seconds_on_network(sent, ring, places) == 1.0


def test_what_the_compiler_refuses_is_reported_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def ahead(self: Executable) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\n  " + "x" * 9000)

    monkeypatch.setattr(Executable, "ahead", ahead)
    with pytest.raises(SpmdcError, match="RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm") as caught:
        _compiled("moe_layer.spmd")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E518"
    assert len(diagnostic.message) < 700
    assert diagnostic.help


def test_xla_gets_the_devices_of_the_target_in_the_order_that_ours_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process too, where programs are compiled that call functions of it. They are asked for once."""
    asked: list[str] = []

    def order_of(target: Target, mesh: Mesh, placed: Sequence[int] | None) -> list[int]:
        assert placed is None
        asked.append(f"{target} for {mesh}")
        return [7, 6, 5, 4, 3, 2, 1, 0]

    monkeypatch.setattr(compare, "order_of", order_of)
    monkeypatch.setattr(xla_child, "topology_devices", lambda target: [f"{target} {i}" for i in range(8)])
    program = spmdc.load(_PROGRAMS / "moe_layer.spmd")
    job, _ = compare.xla_job(program, "tpu-v3:2x2")
    assert asked == ["tpu-v3:2x2 for d=8"]
    assert job.devices == (7, 6, 5, 4, 3, 2, 1, 0)
    devices: list[object] = list(xla_child._devices(job.target))
    assert devices == [f"tpu-v3:2x2 {i}" for i in range(8)]
