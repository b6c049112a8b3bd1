"""Small collectives that may be sent at one time are one message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import spmdc
from ir.ops.boxes import Boxes, Round
from passes.optimize.rounds import Load
from spmdc.testing import check_equivalence

P: Any = PartitionSpec


def sent(text: str, memory_limit: int | None = None) -> list[tuple[str, int, int | None]]:
    """Kind, bytes and count of each collective, of a program whose results are equal on devices and off."""
    program = spmdc.parse(text)
    check_equivalence(program, jax=True)
    return [(c.kind, c.bytes, c.count) for c in spmdc.partition(program, memory_limit=memory_limit).collectives()]


GATHERED = """
    mesh (x=4, y=2)
    def main(a: f32[8@x, 6], b: f32[3, 4@x, 2], c: f32[5, 16@x]) -> (
        a2: f32[8, 6]{replicated}, b2: f32[3, 4, 2]{replicated}, c2: f32[5, 16]{replicated}) {
      return a, b, c
    }"""


def test_gathers_along_any_dims_are_one() -> None:
    """Of 12, 6 and 20 elements of 4 bytes, from 3 devices."""
    assert sent(GATHERED) == [("all_gather", 3 * 4 * (12 + 6 + 20), 1)]
    (one,) = spmdc.partition(spmdc.parse(GATHERED)).collectives()
    assert one.reason == (
        "3 in one: [x, -] -> [-, -], result a2 of main; [-, x, -] -> [-, -, -], result b2 of main and 1 more"
    )


def test_scalars_are_joined() -> None:
    text = """
        mesh (x=4)
        mesh other (y=4) devices=[3, 1, 2, 0]
        def main(a: f32[]{partial: sum y}, b: f32[]{partial: sum y}) -> (
            c: f32[]{partial: sum x}, d: f32[]{partial: sum x}) {
          return a, b
        }"""
    assert sent(text) == [("collective_permute", 8, 1)]


def test_copies_that_take_longer_than_a_message_are_not_made() -> None:
    """On TPUs, whose copies take about a microsecond however small; what that is counts, not which machine it is."""
    program, slow = spmdc.parse(GATHERED), spmdc.machine("tpu-v5p")
    assert slow.kernels is not None
    fast = replace(slow, kernels=replace(slow.kernels, launch=0.0))
    assert len(spmdc.partition(program, machine=slow).collectives()) == 3
    assert len(spmdc.partition(program, machine=fast).collectives()) == 1


def test_scattered_sums_are_one_whatever_dims_they_are_scattered_along() -> None:
    text = """
        mesh (x=4)
        def main(a: f32[8, 16@x], w: f32[16@x, 12]) -> (p: f32[8@x, 12], q: f32[8, 12@x]) {
          return matmul(a, w), matmul(a, w * 2.0)
        }"""
    assert sent(text) == [("reduce_scatter", 3 * (24 + 24) * 4, 1)]


def test_exchanges_of_all_with_all_are_one() -> None:
    text = """
        mesh (x=4)
        def main(a: s32[8@x, 12], b: s32[3, 4, 8@x]) -> (p: s32[8, 12@x], q: s32[3, 4@x, 8]) {
          return a, b
        }"""
    assert sent(text) == [("all_to_all", 3 * 4 * (24 + 24) // 4, 1)]


def test_permutes_of_any_shapes_and_rounds_are_one() -> None:
    """Rows are sent to the device before, and from the first to the last, of tensors with other sizes of shards."""
    text = """
        mesh (x=4)
        def main(a: f32[8@x, 3], b: f32[20@x]) -> (p: f32[8@x, 3], q: f32[20@x]) {
          return concatenate([a[1:], a[:1]], dim=0), concatenate([b[1:], b[:1]], dim=0)
        }"""
    assert sent(text) == [("collective_permute", (3 + 1) * 4, 1)]
    text = """
        mesh (x=2, y=2)
        def main(a: f32[8@x, 6@y], b: f32[4@x, 2@y, 3]) -> (p: f32[8@y, 6@x], q: f32[4@y, 2@x, 3]) {
          return a, b
        }"""
    assert sent(text) == [("collective_permute", (12 + 6) * 4, 1)]


def test_parts_of_one_tensor_that_each_come_from_other_devices_are_exchanged_like_all_of_it() -> None:
    """Each quarter of the columns is on one device, and is brought to all four: three rounds, not twelve."""
    text = """
        mesh (x=4)
        def main(a: f32[6, 32@x]) -> (p: f32[6, 8@x], q: f32[6, 8@x], r: f32[6, 8@x], s: f32[6, 8@x]) {
          return a[:, :8], a[:, 8:16], a[:, 16:24], a[:, 24:]
        }"""
    assert sent(text) == [("collective_permute", 6 * 2 * 4, 1)] * 3


def test_a_round_goes_along_with_longer_ones_only_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself takes eight rounds. No device comes to receive more than the one that receives most."""
    text = """
        mesh (y=4)
        def main(a: f32[8@y], b: f32[16@y], c: f32[16@y]) -> (p: f32[40@y]) { return concatenate([a, b, c], dim=0) }"""
    program = spmdc.parse(text)
    check_equivalence(program, jax=True)
    joined = spmdc.partition(program)
    monkeypatch.setattr("passes.manager.join_collectives", lambda program, *_: program)
    apart = spmdc.partition(program)
    assert (len(joined.collectives()), len(apart.collectives())) == (4, 8)
    assert joined.received_bytes() == apart.received_bytes() == 10 * 4


def test_rounds_in_a_loop_and_in_front_of_it_have_room_as_often_as_they_run() -> None:
    load = Load(
        spmdc.partition(
            spmdc.parse("""
        mesh (x=4)
        def main(a: f32[8@x], b: f32[65536@x]) -> (p: f32[8@x], q: f32[65536@x]) {
          i, p = while(i = 0, u = a, trip_count=3) cond { return i < 3 } do {
            return i + 1, pad(u, 0.0, low=[1], high=[-1])
          }
          return p, pad(b, 0.0, low=[-1], high=[1])
        }""")
        ).program
    )
    assert [received.tolist() for received in load.received.values()] == [[4, 16, 16, 12]]
    (most,) = load.most.values()
    assert most == 16
    in_loop, alone = sorted(load.times, key=lambda op: -load.times[op])
    assert [load.times[op] for op in (in_loop, alone)] == [3, 1]
    assert not load.takes(alone, np.arange(4) == 1, 1)
    assert not load.takes(in_loop, np.arange(4) == 3, 4)
    assert load.takes(alone, np.arange(4) % 3 == 0, 4)
    assert not load.takes(alone, np.arange(4) % 3 == 0, 4)
    assert [received.tolist() for received in load.received.values()] == [[8, 16, 16, 16]]


@pytest.mark.parametrize("dtype", ["pred", "bf16", "f8e4m3fn", "s4", "c64", "u64"])
def test_rounds_of_every_kind_of_element_are_one(dtype: str) -> None:
    text = f"""
        mesh (x=4)
        def main(a: {dtype}[8@x, 2]) -> (p: {dtype}[8@x, 2]) {{ return concatenate([a[1:], a[:1]], dim=0) }}"""
    assert len(sent(text)) == 1


@pytest.mark.parametrize(("mesh", "axes"), [("(x=2, y=2)", "(y,x)"), ("(x=4, y=1)", "(y,x)"), ("(y=1)", "y")])
def test_rounds_along_axes_of_any_order_arrive_where_they_belong(mesh: str, axes: str) -> None:
    text = f"""
        mesh {mesh}
        def main(a: f32[8@{axes}, 3], b: f32[20@{axes}]) -> (p: f32[8@{axes}, 3], q: f32[20@{axes}]) {{
          return concatenate([a[1:], a[:1]], dim=0), concatenate([b[1:], b[:1]], dim=0)
        }}"""
    assert len(sent(text)) == (mesh != "(y=1)")


@pytest.mark.parametrize("along", ["x", "one"])
def test_rounds_that_the_user_wrote_as_one_message_run(along: str) -> None:
    """Each device sends its rows on, but the last, which sends its first row to the first device."""
    text = f"""
        mesh (x=4, one=1)
        def main(a: s32[8@x, 3]) -> (p: s32[8@x, 3]) {{
          p: s32[8@x, 3] = manual(v of s32[8@x, 3] = a) {{
            rows, row = box_permutes(v, v[:1], axes=({along}), boxes=[[8, 2, -2, 2, 2], [8, 2, 6, 2, 2]], round=[0, 0])
            return v + rows + row
          }}
          return p
        }}"""
    check_equivalence(spmdc.parse(text), jax=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("v, v, axes=(x), boxes=[[8,2,2,2,2],[8,2,-2,2,2]], round=[0,0]", "the device at 1 sends in two of the rounds"),
        (
            "v, v, axes=(x), boxes=[[8,2,-2,2,2],[2,2,-2,2,2]], round=[0,0]",
            "the device at 0 sends in two of the rounds",
        ),
        ("v, v, axes=(x), boxes=[[8,2,-2,2,2]], round=[0,0]", "2 operands have 1 boxes and 2 rounds"),
        ("v, s32(v), axes=(x), boxes=[[8,2,-2,2,2],[8,2,6,2,2]], round=[0,0]", "of one type, not f32 and s32"),
        ("v, v, axes=(x), boxes=[[8,2,-2,2,2],[8,0,6,2,2]], round=[0,0]", "chunk positive and step not zero"),
    ],
)
def test_rounds_that_are_no_message_are_refused(arguments: str, message: str) -> None:
    text = f"""
        mesh (x=4)
        def main(a: f32[8@x]) -> (p: f32[8@x]) {{
          p: f32[8@x] = manual(v of f32[8@x] = a) {{ q, r = box_permutes({arguments})
            return q }}
          return p
        }}"""
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.parse(text)
    assert [d.code for d in refused.value.diagnostics] == ["E201"]
    assert message in str(refused.value)


@pytest.mark.parametrize("devices", [2, 5, 8])
def test_who_sends_to_whom_in_a_round_is_what_boxes_and_shards_overlap_in(devices: int) -> None:
    for boxes in (
        Boxes(20, 4, 1, 4, 4),
        Boxes(64, 32, 0, 34, 34),
        Boxes(9, 2, 8, -2, 3),
        Boxes(30, 4, 0, 7, 7, 3, 1, 3),
    ):
        for r in range(-devices, 2 * devices):
            expected = [
                (j, i)
                for j in range(devices)
                for i in range(devices)
                if i != j and (boxes.source_of(i, r) == j if boxes.by_receiver else boxes.receiver_of(j, r) == i)
                if boxes.overlap(i, j)
            ]
            assert sorted(Round(boxes, r, devices).pairs()) == expected


def test_one_that_nothing_waits_for_waits_for_a_later_one_of_its_kind() -> None:
    text = """
        mesh (x=4)
        def main(a: s32[8@x], b: s32[4@x, 16]) -> (p: s32[8]{replicated}, q: s32[4]{replicated}) {
          total = reduce(b, dims=[0, 1], kind=sum)
          return a, reduce(b, dims=[1], kind=sum) * total
        }"""
    assert sent(text) == [("all_reduce", 6, 1), ("all_gather", 3 * (2 + 1) * 4, 1)]


def test_a_round_that_shares_no_message_with_those_due_waits_for_later_ones() -> None:
    """Device 0 receives in the first two, so these are two messages; the third waits for the second, but goes from 1 to
    2, in one message with the first."""
    text = """
        mesh (x=4)
        def main(a: s32[8@x], b: s32[8@x]) -> (p: s32[8@x]) {
          p: s32[8@x] = manual(v of s32[8@x] = a, w of s32[8@x] = b) {
            from_3 = box_permute(v, axes=(x), boxes=[8, 2, 0, 8, 8], round=3)
            from_2 = box_permute(w, axes=(x), boxes=[8, 2, 0, 8, 8], round=2)
            from_1 = box_permute(from_2 * w + w, axes=(x), boxes=[16, 4, -24, 10, 10], round=2)
            return from_1 * from_3 + v
          }
          return p
        }"""
    assert sent(text) == [("collective_permute", 2 * 4, 1)] * 2


def test_what_waits_for_another_is_not_joined_with_it() -> None:
    text = """
        mesh (x=4)
        def main(a: s32[8@x], b: s32[64@x, 8]) -> (p: s32[64]{replicated}) {
          whole: s32[8]{replicated} = a
          return reduce(b * broadcast_in_dim(whole, shape=[64, 8], dims=[1]), dims=[1], kind=sum)
        }"""
    assert [kind for kind, _, _ in sent(text)] == ["all_gather", "all_gather"]


def test_large_ones_other_axes_and_other_types_are_not_joined() -> None:
    def main(a: str, b: str) -> list[str]:
        results = [t.replace("@x", "").replace("@y", "") for t in (a, b)]
        text = f"""
            mesh (x=4, y=2)
            def main(a: {a}, b: {b}) -> (p: {results[0]}{{replicated}}, q: {results[1]}{{replicated}}) {{
              return a, b
            }}"""
        return [kind for kind, _, _ in sent(text)]

    assert main("f32[8@x]", "f32[4@x]") == ["all_gather"]
    assert main("f32[8@x]", "s32[8@x]") == ["all_gather"] * 2
    assert main("f32[8@x]", "f32[8@y]") == ["all_gather"] * 2
    assert main("f32[65536@x]", "f32[65536@x]") == ["all_gather"] * 2


def test_what_all_devices_have_does_not_come_to_vary_with_what_is_joined() -> None:
    text = """
        mesh (x=4, y=2)
        def main(a: f32[8@x], b: f32[8@x, 4@y]) -> (p: f32[8]{replicated}, q: f32[8, 4@y]) {
          return a, b
        }"""
    assert [kind for kind, _, _ in sent(text)] == ["all_gather"] * 2


def test_those_of_a_turn_of_a_loop_are_one_in_each() -> None:
    text = """
        mesh (x=4)
        def main(a: s32[8@x, 16384], b: s32[4@x, 16384]) -> (p: s32[8@x, 16384], q: s32[4@x, 16384]) {
          i, p, q = while(i = 0, u = a, v = b, trip_count=3) cond { return i < 3 } do {
            r: s32[8]{replicated} = reduce(u, dims=[1], kind=max)
            s: s32[4]{replicated} = reduce(v, dims=[1], kind=max)
            t = broadcast_in_dim(sort(r, dim=0), shape=[8, 16384], dims=[0])
            return i + 1, u + t, v + broadcast_in_dim(sort(s, dim=0), shape=[4, 16384], dims=[0])
          }
          return p, q
        }"""
    assert sent(text) == [("all_gather", 3 * (2 + 1) * 4, 3)]


def test_what_the_user_wrote_in_a_manual_region_stays() -> None:
    text = """
        mesh (x=4)
        def main(a: f32[8@x], b: f32[8@x]) -> (p: f32[8]{replicated}, q: f32[8]{replicated}) {
          p: f32[8]{replicated}, q: f32[8]{replicated} = manual(u of f32[8@x] = a, v of f32[8@x] = b, axes=(x)) {
            return all_gather(u, axes=(x), dim=0), all_gather(v, axes=(x), dim=0)
          }
          return p, q
        }"""
    assert [kind for kind, _, _ in sent(text)] == ["all_gather"] * 2
    # What the ops of a printed plan cost stands behind them, and is not why they are there.
    planned = spmdc.plan(spmdc.parse(text)).text(costs=True)
    found = spmdc.partition(spmdc.parse(planned)).collectives()
    assert [(c.kind, c.cause.kind, c.cause.op) for c in found] == [("all_gather", "written", "all_gather")] * 2


def test_as_many_are_joined_as_fit_into_memory() -> None:
    """With copies, they take 2 (48 + 192), 2 (24 + 96) and 2 (80 + 320) bytes."""
    assert [nbytes for _, nbytes, _ in sent(GATHERED, memory_limit=800)] == [3 * 4 * (12 + 6), 3 * 4 * 20]


def test_many_gathers_are_one_and_gradients_pass_through_it() -> None:
    def total(parts: list[jax.Array]) -> jax.Array:
        return jax.numpy.stack([jax.numpy.square(jax.numpy.sort(part)).sum() for part in parts]).sum()

    parts = [np.arange(n * 4, dtype="f4") for n in range(1, 4)]
    split = [P("x")] * len(parts)
    q = spmdc.partition(spmdc.from_jax(total, parts, mesh={"x": 4}, in_shardings=(split,)))
    assert [c.kind for c in q.collectives()].count("all_gather") == 1
    jitted = spmdc.jit(total, mesh={"x": 4}, in_shardings=(split,))
    for got, x in zip(jax.grad(jitted)(parts), parts, strict=True):
        np.testing.assert_array_equal(np.asarray(got), 2 * x)
