"""Times on networks: rings, lines and switches, several dims at a time, and how meshes lie on them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.mesh import Axes, AxisRef, Mesh
from ir.ops.collective import COLLECTIVES
from passes.cost.machine import TPU_V3, Machine
from passes.cost.measured import Measured
from passes.cost.model import communication_seconds, loop_seconds, messages_seconds
from passes.cost.network import DIM_KINDS, Link, Network, NetworkDim, Reach, permute_seconds, place, reaches_among
from spmdc.testing import check_equivalence

DOUBLINGS = ("4x2", "4x4", "8x4", "8x8", "16x8", "16x16", "32x16", "32x32")
"""Tori of 16 to 2048 TPU v3 cores, two to a chip (GShard, Figure 9)."""
MB = 2**20


def on(spec: str, **axes: int) -> tuple[Machine, Axes]:
    mesh = Mesh(tuple(axes.items()))
    return spmdc.machine(spec).laid_out([mesh]), mesh.whole_axes()


def seconds(spec: str, kind: str, nbytes: int, **axes: int) -> float:
    machine, along = on(spec, **axes)
    return communication_seconds(machine, kind, along, nbytes)


def own(*dims: tuple[int, str], bandwidth: float = 1.0) -> Machine:
    """A machine of such dims, whose messages take no time, and whose links pass a byte a second."""
    network = tuple(
        NetworkDim(f"d{i}", size, next(k for k in DIM_KINDS if k == kind), bandwidth, 0.0)
        for i, (size, kind) in enumerate(dims)
    )
    return replace(TPU_V3, name="own", network=network)


@pytest.mark.parametrize("nbytes", [8 * MB, 32 * MB])
def test_figure_9_all_reduce_is_flat_and_all_to_all_grows_as_the_root(nbytes: int) -> None:
    """From 16 to 2048 partitions: AllReduce O(1), AllToAll 9 times, O(sqrt D)."""
    reduced, exchanged = (
        [seconds(f"tpu-v3:{shape}", kind, nbytes, d=16 * 2**i) for i, shape in enumerate(DOUBLINGS)]
        for kind in ("all_reduce", "all_to_all")
    )
    assert max(reduced) / min(reduced) < 1.25
    assert exchanged[-1] / exchanged[0] == pytest.approx(9, rel=0.25)
    assert exchanged == sorted(exchanged)
    for i in range(len(DOUBLINGS) - 2):
        assert exchanged[i + 2] / exchanged[i] == pytest.approx(2, rel=0.05)


def test_figure_8_dispatch_and_combine_grow_to_less_than_four_times() -> None:
    """From 128 to 2048 experts on as many cores the time of the all_to_alls of an MoE layer increases by about 3.75
    times; here by 4, as each ring is 4 times as long."""
    found: list[float] = []
    for devices, spec in ((128, "tpu-v3:8x8"), (2048, "tpu-v3:32x32")):
        sizes = {"D": devices, "M": 1024, "H": 8192, "S": 1024}
        program = spmdc.load(Path(spmdc.__file__).parent / "programs" / "moe_layer.spmd", sizes)
        rows = spmdc.partition(program, machine=spmdc.machine(spec)).cost("kind").rows
        found.append(next(row.seconds for row in rows if row.what == "all_to_all"))
    assert found[1] / found[0] == pytest.approx(3.75, rel=0.2)


def test_a_small_sum_is_sent_to_all_at_once_and_a_large_one_in_parts() -> None:
    """Of 4 bytes on 16 chips, a message to all is enough; of many, each device adds up its part for all."""
    spec = "tpu-v5e:4x4"
    assert seconds(spec, "all_reduce", 4, d=16) == seconds(spec, "all_gather", 4, d=16)
    in_parts = seconds(spec, "reduce_scatter", 64 * MB, d=16) + seconds(spec, "all_gather", 4 * MB, d=16)
    assert seconds(spec, "all_reduce", 64 * MB, d=16) == pytest.approx(in_parts)


def test_table_4_gathers_grow_with_the_devices_and_neighbours_stay_neighbours() -> None:
    gathered = [seconds(f"tpu-v3:{shape}", "all_gather", MB, d=16 * 2**i) for i, shape in enumerate(DOUBLINGS)]
    assert gathered[-1] / gathered[0] == pytest.approx(128, rel=0.25)
    machines = [on(f"tpu-v3:{shape}", d=16 * 2**i) for i, shape in enumerate(DOUBLINGS)]
    beside = [messages_seconds(machine, axes, MB) for machine, axes in machines]
    assert max(beside) == pytest.approx(min(beside))


@pytest.mark.parametrize(
    ("main", "per_device", "kind", "grown"),
    [
        ("(a: f32[{n}@d, 64], b: f32[{n}@d, 64]) -> (o: f32[{n}@d, 64]) { return a + b }", 4, "", 0),
        ("(a: f32[4096, {n}@d], b: f32[{n}@d, 4096]) -> (o: f32[4096, 4096]) { return matmul(a, b) }", 2048,
         "all_reduce", 1),
        ("(a: f32[{n}@d, 1024], b: f32[1024, {n}@d]) -> (o: f32[{n}@d, {n}]) { return matmul(a, b) }", 4,
         "all_gather", 16),
        ("(a: f32[{n}@d, 2048, 1024]) -> (o: f32[{n}, 2048@d, 1024]) { return a }", 2, "all_to_all", 4),
    ],
)  # fmt: skip
def test_table_4_communication_of_partitioned_ops(main: str, per_device: int, kind: str, grown: float) -> None:
    """The shards stay as they are while devices, and so the dims that are split, grow by 16."""
    found: list[float] = []
    for devices, spec in ((128, "tpu-v3:8x8"), (2048, "tpu-v3:32x32")):
        program = spmdc.parse(f"mesh (d={devices})\ndef main{main.replace('{n}', str(devices * per_device))}")
        machine, axes = on(spec, d=devices)
        partitioned = spmdc.partition(program, machine=spmdc.machine(spec), windowed_einsum="never").program
        sent = [op for op in partitioned.main.body.ops if op.name in COLLECTIVES]
        assert {op.name for op in sent} == {kind} - {""}
        found.append(sum(communication_seconds(machine, op.name, axes, op.operands[0].type.nbytes) for op in sent))
    assert found[1] == pytest.approx(grown * found[0], rel=0.25)


def test_a_ring_passes_bytes_in_both_directions_and_a_line_in_one() -> None:
    ring, line, switch = (own((8, kind)).laid_out([Mesh((("x", 8),))]) for kind in ("ring", "line", "switch"))
    x = Mesh((("x", 8),)).whole_axes()
    assert communication_seconds(ring, "all_gather", x, 100) == pytest.approx(350)
    assert communication_seconds(line, "all_gather", x, 100) == pytest.approx(700)
    assert communication_seconds(switch, "all_gather", x, 100) == pytest.approx(700)
    # Half of 8 devices send half of what they have to the other half, over 2 links in a ring and 1 in a line.
    assert communication_seconds(ring, "all_to_all", x, 800) == pytest.approx(4 * 400 / 2)
    assert communication_seconds(line, "all_to_all", x, 800) == pytest.approx(4 * 400)
    assert communication_seconds(switch, "all_to_all", x, 800) == pytest.approx(700)


def test_two_rings_gather_at_the_same_time() -> None:
    mesh = Mesh((("x", 8), ("y", 8)))
    torus = own((8, "ring"), (8, "ring")).laid_out([mesh])
    assert communication_seconds(torus, "all_gather", mesh.whole_axes(), 100) == pytest.approx(6300 / 4)


def test_a_slow_network_between_nodes_bounds_a_gather_over_both() -> None:
    """Each of 32 nodes must receive 31 parts of each of its devices, over their links to the network."""
    mesh = Mesh((("n", 32), ("g", 8)))
    machine = spmdc.machine("h100:32").laid_out([mesh])
    found = communication_seconds(machine, "all_gather", mesh.whole_axes(), 64 * MB)
    assert found == pytest.approx(31 * 64 * MB / 50e9, rel=0.01)


def test_groups_that_are_apart_share_the_links_between_them() -> None:
    """The ring of 16 is (x=4, y=4): x goes round it in steps of 4, y is a line of 4."""
    mesh = Mesh((("x", 4), ("y", 4)))
    machine = own((16, "ring")).laid_out([mesh])
    x, y = mesh.whole_axes()
    assert messages_seconds(machine, (x,), 100) == pytest.approx(400)
    assert messages_seconds(machine, (y,), 100) == pytest.approx(100)
    assert communication_seconds(machine, "all_gather", (y,), 100) == pytest.approx(300)
    assert communication_seconds(machine, "all_gather", (x,), 100) == pytest.approx(300 / (2 / 4))
    half = AxisRef("y", 2, 2)
    assert communication_seconds(machine, "all_gather", (half,), 100) == pytest.approx(100)


def test_the_order_of_devices_of_a_placement_is_a_permutation_that_keeps_neighbours() -> None:
    mesh = Mesh((("x", 8), ("y", 4)))
    placement = place(Network(own((4, "ring"), (8, "ring")).network), (mesh,))
    order = placement.device_order(mesh)
    assert sorted(order) == list(range(32))
    # Along x, the first axis, devices differ in the second dim, whose coordinate is the number modulo 8.
    assert [order[i * 4] for i in range(8)] == list(range(8))


@given(st.data())
@settings(max_examples=examples(60))
def test_every_mesh_lies_on_an_open_network_in_an_order_of_all_devices(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    mesh = Mesh(tuple((f"a{i}", n) for i, n in enumerate(sizes)))
    kinds = data.draw(st.lists(st.sampled_from(DIM_KINDS), min_size=1, max_size=3))
    machine = own(*((0, kind) for kind in kinds)).laid_out([mesh])
    assert machine.placement is not None
    assert sorted(machine.placement.device_order(mesh)) == list(range(mesh.size))
    for axis in mesh.whole_axes():
        assert math.prod(reach.size for reach in machine.reaches((axis,))) == axis.size


@given(st.data())
@settings(max_examples=examples(60))
def test_more_bytes_and_slower_links_never_take_less_time(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from((2, 3, 4, 8)), min_size=1, max_size=3))
    mesh = Mesh(tuple((f"a{i}", n) for i, n in enumerate(sizes)))
    dims = [(0, data.draw(st.sampled_from(DIM_KINDS))) for _ in range(data.draw(st.integers(1, 3)))]
    fast, slow = (own(*dims, bandwidth=b).laid_out([mesh]) for b in (2.0, 1.0))
    axes = mesh.whole_axes()[: data.draw(st.integers(1, len(sizes)))]
    for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute"):
        one, two = (communication_seconds(slow, kind, axes, n) for n in (1000, 2000))
        assert one <= two
        assert communication_seconds(fast, kind, axes, 1000) <= one


def test_a_mesh_that_does_not_divide_the_network_is_refused() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"E604.*the mesh \(x=3\) does not lie on the network"):
        on("tpu-v4:4x4x4", x=3)
    with pytest.raises(spmdc.SpmdcError, match="E604"):
        on("tpu-v4:2x2x2", x=16)
    with pytest.raises(spmdc.SpmdcError, match="E604"):
        on("tpu-v4:128x64x64", **{f"a{i}": 2 for i in range(20)})


def test_what_was_measured_counts_and_what_was_not_is_reckoned() -> None:
    mesh = Mesh((("x", 8),))
    tables = tuple(Measured("all_gather", g, (1e3, 1e5), (g * 1e-3, g * 1e-1)) for g in (4, 16))
    plain, measured = (replace(TPU_V3, measured=m) for m in ((), tables))
    x = mesh.whole_axes()
    assert communication_seconds(measured, "all_gather", x, 10_000) == pytest.approx(8e-2)
    assert communication_seconds(measured, "all_gather", x, 10) == pytest.approx(8e-3)
    assert communication_seconds(measured, "all_gather", x, 10**6) == pytest.approx(8.0)
    for kind, axes in (("all_to_all", x), ("all_gather", (AxisRef("x", 1, 2),))):
        assert communication_seconds(measured, kind, axes, 1000) == communication_seconds(plain, kind, axes, 1000)


def test_devices_that_cannot_compute_while_they_send_take_the_sum() -> None:
    waiting = replace(TPU_V3, asynchronous=False, turn=0.0)
    assert loop_seconds(waiting, 4, 3.0, 2.0) == 4 * 3 + 3 * 2
    assert loop_seconds(replace(waiting, asynchronous=True), 4, 3.0, 2.0) == 4 * 3


CROSSED = spmdc.parse("""
mesh (x=4, y=2)

def main(a: f32[64@x, 32@y], b: f32[32@x, 48]) -> (o: f32[64@y, 48@x]) {
  c = tanh(matmul(a, b))
  return c + 1.0
}""")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    rates = st.floats(1e9, 1e13)
    dims = draw(st.lists(st.tuples(st.sampled_from(DIM_KINDS), rates, st.floats(0, 1e-4)), max_size=3))
    network = tuple(NetworkDim(f"d{i}", 0, *dim) for i, dim in enumerate(dims))
    return replace(
        TPU_V3,
        name="drawn",
        flops=draw(rates),
        memory_bandwidth=draw(rates),
        turn=draw(st.floats(0, 1e-3)),
        asynchronous=draw(st.booleans()),
        usual_link=Link(draw(rates), draw(st.floats(0, 1e-4))),
        network=network,
    )


@given(machines(), machines())
@settings(max_examples=examples(8), deadline=None)
def test_machines_in_one_process_never_share_an_answer(one: Machine, other: Machine) -> None:
    """What one gets after the other is what it gets alone, with costs of its own."""
    texts = [spmdc.plan(CROSSED, machine=one).text(costs=True)]
    for machine in (other, one):
        texts.append(spmdc.plan(CROSSED, machine=machine).text(costs=True))
    assert texts[0] == texts[2]
    cost = spmdc.plan(CROSSED, machine=one).cost().seconds
    slower = replace(one, flops=one.flops / 8, memory_bandwidth=one.memory_bandwidth / 8)
    assert spmdc.plan(CROSSED, machine=slower).cost().seconds > cost


@pytest.mark.parametrize("spec", ["tpu-v3:2x2", "tpu-v4", "h100", "host", "tpu-v5e:4x2"])
def test_a_program_that_was_planned_for_a_network_computes_the_same(spec: str) -> None:
    check_equivalence(CROSSED, machine=spmdc.machine(spec))


def test_a_plan_for_a_network_is_written_as_it_is_printed() -> None:
    for spec in ("tpu-v4", "h100"):
        machine = spmdc.machine(spec)
        plan = spmdc.plan(CROSSED, machine=machine)
        written = spmdc.partition(spmdc.parse(plan.text()), machine=machine)
        assert written.text(locations=False) == spmdc.partition(plan).text(locations=False)


_TORUS = (
    NetworkDim("x", 4, "ring", 10.0, 1.0),
    NetworkDim("y", 8, "ring", 20.0, 1.0),
    NetworkDim("c", 2, "line", 5.0, 1.0),
)


def test_places_of_a_group_say_what_joins_it() -> None:
    """A whole ring, and every second of the half of another, where two groups share each link."""
    whole_and_half = [(x, y, 1) for x in range(4) for y in (0, 2)]
    assert reaches_among(_TORUS, whole_and_half) == (Reach(4, 1, "ring", 10.0, 1.0), Reach(2, 2, "line", 10.0, 1.0))
    assert reaches_among(_TORUS, [(3, 5, 0)]) == ()


@pytest.mark.parametrize(
    ("pairs", "seconds"),
    [
        pytest.param([((0, 0, 0), (0, 0, 0))], 0, id="stays"),
        pytest.param([((0, 0, 0), (0, 7, 0))], 1 + 5, id="the shorter way round"),
        pytest.param([((0, 0, 0), (1, 0, 1))], 2 + 20, id="the slowest of its links"),
        pytest.param([((x, 0, 0), ((x + 1) % 4, 0, 0)) for x in range(4)], 1 + 10, id="each has a link"),
        pytest.param([((0, y, 0), (0, (y + 3) % 8, 0)) for y in range(8)], 3 + 15, id="three pass each link"),
    ],
)
def test_a_permute_takes_what_its_busiest_link_does(
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], seconds: float
) -> None:
    assert permute_seconds(_TORUS, pairs, 100.0) == seconds


def test_a_line_is_passed_in_both_directions_and_a_switch_by_one_link() -> None:
    dims = NetworkDim("l", 4, "line", 10.0, 0.0), NetworkDim("s", 4, "switch", 10.0, 0.0)
    ends = [((0, 0), (3, 0)), ((3, 0), (0, 0))]
    assert permute_seconds(dims, ends, 100.0) == 10
    assert permute_seconds(dims, [*ends, ((1, 0), (2, 0))], 100.0) == 20
    assert permute_seconds(dims, [((0, 0), (0, 3))], 100.0) == 10
