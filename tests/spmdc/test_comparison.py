"""What XLA's partitioner communicates is read right, and reported beside what spmdc does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hlo_texts import collectives_of_hlo, received_in_hlo
from jax.experimental import custom_partitioning as jax_custom_partitioning

import spmdc
from ir.diagnostics import SpmdcError
from ir.ops.opaque import calls_of_functions
from spmdc.comparison.called_functions import with_functions
from spmdc.comparison.compare import compile_with_xla, pinned, xla_job
from spmdc.reports.hlo_collectives import XlaCollective, received_by_the_worst

_MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
}

%inner (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %all-reduce.1 = f32[4,8]{1,0} all-reduce(%a), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  %all-to-all = (bf16[2,3]{1,0}, bf16[2,3]{1,0}) all-to-all(%b, %c), replica_groups=[4,2]<=[8]
}

%outer (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %while.1 = (s32[], f32[4,8]) while(%t), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
  %collective-permute = s8[16]{0} collective-permute(%d), source_target_pairs={{0,1},{1,0}}
}

%c (p: (s32[], f32[4,8])) -> pred[] {
}

ENTRY %main (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %q = bf16[2]{0} parameter(1)
  %while.2 = (s32[], f32[4,8]) while(%t), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"2"}}
  %all-gather = f32[8,8]{1,0} all-gather(%p), replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}, dimensions={0}
  %ags = (f32[4,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%p), replica_groups=mesh['a'=8] {'a':(2)2}, dimensions={0}
  %agd = f32[8,8]{1,0} all-gather-done(%ags)
  %two = ((f32[4,8], bf16[2]), (f32[8,8], bf16[4])) all-gather-start(%p, %q), replica_groups=[4,2]<=[8]
  %ars = (f32[4,8]{1,0}, f32[4,8]{1,0}) all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add
  %cps = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}
  ROOT %reduce-scatter = f32[1,8]{1,0} reduce-scatter(%p), replica_groups={}, dimensions={0}, to_apply=%add
}
"""


def test_collectives_are_read_in_every_spelling_and_counted_in_loops() -> None:
    assert collectives_of_hlo(_MODULE) == [
        XlaCollective("all_reduce", "all-reduce.1", 128, 10, 128, (0, 1)),
        XlaCollective("all_to_all", "all-to-all", 12, 10, 24, (0, 1)),
        XlaCollective("collective_permute", "collective-permute", 16, 2, 16, pairs=((0, 1), (1, 0))),
        XlaCollective("all_gather", "all-gather", 128, 1, 128, (0, 1)),
        XlaCollective("all_gather", "ags", 128, 1, 128, (0, 2)),
        XlaCollective("all_gather", "two", 132, 1, 132, (0, 1)),
        XlaCollective("all_reduce", "ars", 128, 1, 128, (0, 1)),
        XlaCollective("collective_permute", "cps", 128, 1, 128, pairs=((0, 1),)),
        XlaCollective("reduce_scatter", "reduce-scatter", 224, 1, 256, tuple(range(8))),
    ]


def test_the_layer_of_experts_communicates_as_much_under_xla() -> None:
    comparison = spmdc.compare(spmdc.load(Path(spmdc.__file__).parent / "programs" / "moe_layer.spmd"))
    assert comparison.notes == ()
    assert comparison.ratio == 1.0
    assert sorted(c.kind for c in comparison.xla_collectives) == ["all_reduce", "all_to_all", "all_to_all"]


def test_partial_sums_are_added_before_they_are_reduced() -> None:
    text = """mesh (x=8)
def main(a: f32[256, 256@x], b: f32[256@x, 256], c: f32[256, 256@x], d: f32[256@x, 256]) -> (f32[256, 256]) {
  return matmul(a, b) + matmul(c, d)
}"""
    comparison = spmdc.compare(spmdc.parse(text))
    assert (comparison.bytes, comparison.xla_bytes) == (458_752, 917_504)


def test_what_jax_cannot_say_is_noted() -> None:
    comparison = spmdc.compare(spmdc.parse("mesh (x=4)\ndef main(a: f32[7@x]) -> (b: f32[7@x]) {\n  return a + a\n}"))
    assert comparison.bytes == 0
    assert comparison.notes[0].startswith("a is split unevenly")


def test_a_free_result_is_free_for_both_and_pinned_for_both() -> None:
    program = spmdc.parse("mesh (x=8)\ndef main(a: f32[64@x, 64], b: f32[64, 64]) -> (r: f32[64, 64]) { return a + b }")
    free, whole = spmdc.compare(program), spmdc.compare(pinned(program))
    assert (free.bytes, free.xla_bytes) == (0, 0)
    assert (whole.bytes, whole.xla_bytes) == (14_336, 14_336)


def test_an_open_dim_of_a_result_is_open_for_both() -> None:
    comparison = spmdc.compare(
        spmdc.parse("mesh (x=2, y=4)\ndef main(a: f32[8@x, 64@y]) -> (r: f32[8@x, 64@?]) { return a + a }")
    )
    assert (comparison.bytes, comparison.xla_bytes) == (0, 0)


def test_groups_along_some_axes_are_of_their_devices() -> None:
    comparison = spmdc.compare(
        spmdc.parse("mesh (x=2, y=2, z=2)\ndef main(a: f32[8, 64, 64@(z,y)]) -> (r: f32[8@z, 64, 64@y]) { return a }")
    )
    assert [c.bytes for c in comparison.xla_collectives if c.kind == "all_to_all"] == [16_384]


def test_floats_of_16_bits_are_sent_as_such() -> None:
    comparison = spmdc.compare(
        spmdc.parse("mesh (x=8)\ndef main(a: bf16[64@x, 64]) -> (r: bf16[64, 64]{replicated}) { return a }")
    )
    assert (comparison.bytes, comparison.xla_bytes) == (7_168, 7_168)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_all_reduce_of_which_each_takes_its_part_is_a_reduce_scatter(dtype: str) -> None:
    text = f"mesh (x=8)\ndef main(a: {dtype}[64, 64@x], b: {dtype}[64@x, 64]) -> (r: {dtype}[64@x, 64]) {{ "
    comparison = spmdc.compare(spmdc.parse(text + "return matmul(a, b) }"))
    assert [c.kind for c in comparison.xla_collectives] == ["reduce_scatter"]
    assert comparison.bytes == comparison.xla_bytes


def test_an_all_reduce_of_which_all_is_used_is_one() -> None:
    text = "mesh (x=8)\ndef main(a: f32[64, 64@x], b: f32[64@x, 64]) -> (r: f32[64, 64]{replicated}) { "
    comparison = spmdc.compare(spmdc.parse(text + "return matmul(a, b) }"))
    assert [c.kind for c in comparison.xla_collectives] == ["all_reduce"]
    assert comparison.bytes == comparison.xla_bytes


def test_permutes_count_for_those_who_receive() -> None:
    text = """HloModule m, num_partitions=4

ENTRY %main (p: f32[4]) -> f32[4] {
  %a = f32[4]{0} collective-permute(%p), source_target_pairs={{0,1},{2,2}}
  %b = f32[4]{0} collective-permute(%p), source_target_pairs={{1,2},{0,3}}
  ROOT %c = f32[4]{0} collective-permute(%a), source_target_pairs={{3,1}}
}
"""
    found = collectives_of_hlo(text)
    assert [sorted(c.receivers or ()) for c in found] == [[1], [2, 3], [1]]
    assert received_by_the_worst(found) == 32
    assert received_in_hlo(text, {"a": 1, "b": 3, "c": 0}) == 48


def test_what_devices_in_step_wait_for_is_the_most_of_each_collective() -> None:
    comparison = spmdc.compare(spmdc.parse(
        "mesh (d=4)\ndef main(x: f32[16@d]) -> (o: f32[32@d]) { return pad(x, 0.0, low=[16], high=[0]) }"
    ))  # fmt: skip
    assert comparison.bytes <= comparison.lock_step_bytes
    assert comparison.to_json()["lock_step_bytes"] == comparison.lock_step_bytes


ENDS = {
    "XLA does not compile the program: INTERNAL: a bug": (
        "import jax\ndef global_main(x):\n  raise jax.errors.JaxRuntimeError('INTERNAL: a bug')"
    ),
    "XLA ends its process over the program: Check failed: axes are there": (
        "import os\ndef global_main(x):\n"
        "  os.write(2, b'F0000 00:00:1 1 spmd.cc:7] Check failed: axes are there\\n*** Check failure stack trace')\n"
        "  os.abort()"
    ),
    "XLA ends its process over the program: Segmentation fault": (
        "import ctypes\ndef global_main(x):\n  ctypes.string_at(0)"
    ),
    "XLA ends its process over the program: Killed": (
        "import os, signal\ndef global_main(x):\n  os.kill(os.getpid(), signal.SIGKILL)"
    ),
    "XLA was stopped over the program: it takes too much time": "def global_main(x):\n  while True: pass",
}


@pytest.mark.parametrize("message", ENDS)
def test_what_xla_does_not_compile_is_reported_as_its_fault(message: str) -> None:
    """The module stands for XLA, which has no fault that all its versions share."""
    program = spmdc.parse("mesh (x=4)\ndef main(a: f32[8@x]) -> (r: f32[8@x]) { return a + a }")
    job, _ = xla_job(program)
    with pytest.raises(SpmdcError) as caught:
        compile_with_xla(
            replace(job, source=ENDS[message], most_seconds=0.5 if "time" in message else job.most_seconds)
        )
    (reported,) = caught.value.diagnostics
    assert (reported.code, reported.message) == ("E515", message)
    assert spmdc.compare(program).xla_bytes == 0


def test_as_many_devices_are_compared_as_the_program_has_whatever_jax_runs_with() -> None:
    count = 2 * len(jax.devices())
    text = f"mesh (x={count})\ndef main(a: f32[{count}@x]) -> (r: f32[{count}]{{replicated}}) {{ return a }}"
    comparison = spmdc.compare(spmdc.parse(text))
    assert comparison.bytes == comparison.xla_bytes == 4 * (count - 1)


def test_more_devices_than_a_host_can_be_are_refused() -> None:
    with pytest.raises(SpmdcError, match="up to 2048") as caught:
        spmdc.compare(spmdc.parse("mesh (x=8192)\ndef main(a: f32[8192@x]) -> (r: f32[8192@x]) { return a + a }"))
    assert caught.value.diagnostics[0].code == "E502"


def test_several_meshes_are_not_for_xla() -> None:
    text = "mesh (x=4)\nmesh m (y=4) devices=[3, 1, 2, 0]\ndef main(a: f32[8@x]) -> (b: f32[8@y]) {\n  return a + a\n}"
    with pytest.raises(SpmdcError, match="one mesh"):
        spmdc.compare(spmdc.parse(text))


LOOP = """mesh (x=8)
def added(b: f32[64]) -> (f32[64]) { return b + sum(b) }
def main(a: f32[64@x], turns: s32[]) -> (b: f32[64@x], c: f32[]) {
  n, b = while(i = 0, b = a%s) cond { return i < %s } do { return i + 1, added(added(b)) }
  return b, sum(b)
}"""


@pytest.mark.parametrize(("trips", "turns"), [("", "turns"), (", trip_count=5", "turns"), (", trip_count=5", "5")])
def test_where_one_side_does_not_know_the_turns_of_a_loop_both_count_one(trips: str, turns: str) -> None:
    comparison = spmdc.compare(spmdc.parse(LOOP % (trips, turns)))
    knows = turns == "5"
    assert any("one turn of each loop" in note for note in comparison.notes) != knows
    sums = 2 * (5 if knows else 1) + 1
    assert sum(c.count or 0 for c in comparison.collectives) == sum(c.count for c in comparison.xla_collectives) == sums
    assert comparison.bytes == comparison.xla_bytes == sums * comparison.collectives[0].bytes
    assert comparison.lock_step_bytes == comparison.xla_lock_step_bytes == comparison.bytes


def test_functions_that_a_program_calls_are_compiled_elsewhere_too() -> None:
    """As many devices as this process has not: its own JAX compiles nothing."""

    def softened(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, axis=1)

    by_hand: Any = jax_custom_partitioning
    spec: Any = jax.sharding.PartitionSpec
    partitioned = by_hand.custom_partitioning(softened)
    partitioned.def_partition(
        lambda mesh, operands, result: (mesh, softened, result.sharding, (operands[0].sharding,)),
        sharding_rule="i j -> i j", need_replication_factors=("j",),
    )  # fmt: skip
    rows = np.zeros((64, 6), np.float32)
    program = spmdc.from_jax(lambda x: partitioned(x) + partitioned(2 * x), rows, mesh={"x": 32},
                             in_shardings=(spec("x"),))  # fmt: skip
    assert len(calls_of_functions(program)) > 0
    comparison = spmdc.compare(program)
    assert comparison.bytes == comparison.xla_bytes == 0
    own = with_functions(program)
    assert not calls_of_functions(own)
    given = np.arange(384, dtype=np.float32).reshape(64, 6)
    np.testing.assert_array_equal(spmdc.evaluate(own, given)[0], spmdc.evaluate(program, given)[0])
