"""Box exchanges: every device gets exactly its box, whatever the boxes are, in as few transfers as there can be."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.ops.boxes import Boxes
from ir.program import Program, Result, all_ops
from ir.sharding import Sharding, shard_size
from ir.types import TensorType, s32
from ir.verify.program import check
from lowering.jax import compile
from lowering.reference import simulate
from passes.partition.exchange.box_exchange import Box, boxes_of, exchange
from passes.partition.exchange.pieces import MAX_PIECES, divided, received
from spmdc.testing import check_equivalence


def exchange_program(n: int, mesh: Mesh, box: Box, fill: int | None) -> Program:
    """A program whose result lists every device's box of a vector of n elements."""
    b = RegionBuilder()
    axes = mesh.whole_axes()
    split = Sharding.of(mesh, axes)
    local = TensorType((shard_size(n, axes),), s32)
    x = b.param("x", local, split, of=TensorType((n,), s32))
    filler = b.op("constant", value=fill, type=TensorType((), s32)) if fill is not None else None
    y = exchange(b, x, 0, n, axes, box, fill=filler)
    result = Result("y", y.type, split, TensorType((box.size * mesh.size,), s32))
    program = Program((mesh,), {"main": b.function("main", (y,), (result,))}, "spmd")
    check(program)
    return program


def boxes_by_hand(x: np.ndarray, devices: int, box: Box, fill: int) -> np.ndarray:
    wanted = [[box.start + box.step * i + k for k in range(box.size)] for i in range(devices)]
    return np.array([[x[k] if 0 <= k < len(x) else fill for k in row] for row in wanted], np.int32).reshape(-1)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, Mesh, Box]:
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (5,), (2, 3), (4, 2)]))
    mesh = Mesh(tuple(zip("xy", sizes, strict=False)))
    n = draw(st.integers(1, 20))
    step = draw(st.integers(-8, 8).filter(bool))
    return n, mesh, Box(draw(st.integers(-12, 24)), step, draw(st.integers(0, 12)))


@settings(max_examples=examples(300))
@given(exchanges(), st.sampled_from([-7, 0]))
def test_every_device_gets_its_box_and_what_lies_outside_is_filled(exchange: tuple[int, Mesh, Box], fill: int) -> None:
    n, mesh, box = exchange
    x = np.arange(100, 100 + n, dtype=np.int32)
    (y,) = simulate(exchange_program(n, mesh, box, fill), x)
    np.testing.assert_array_equal(y, boxes_by_hand(x, mesh.size, box, fill))


@settings(max_examples=examples(15))
@given(exchanges())
def test_the_same_on_jax_devices(exchange: tuple[int, Mesh, Box]) -> None:
    n, mesh, box = exchange
    x = np.arange(100, 100 + n, dtype=np.int32)
    (y,) = compile(exchange_program(n, mesh, box, -7))(x)
    np.testing.assert_array_equal(np.asarray(y), boxes_by_hand(x, mesh.size, box, -7))


def test_a_permute_carries_only_what_its_receivers_lack() -> None:
    mesh = Mesh((("d", 4),))
    program = exchange_program(16, mesh, Box(-1, 4, 7), None)
    sent = [op.operands[0].shape for op in all_ops(program) if op.name == "box_permute"]
    assert sorted(sent) == [(1,), (2,)]


def test_the_size_of_the_program_does_not_depend_on_the_number_of_devices() -> None:
    def ops(devices: int) -> list[str]:
        mesh = Mesh((("d", devices),))
        return [op.name for op in all_ops(exchange_program(10 * devices, mesh, Box(-3, 11, 13), 0))]

    assert ops(64) == ops(256) == ops(2048)


def test_reversing_an_uneven_dim_moves_each_element_once() -> None:
    mesh = Mesh((("d", 4),))
    boxes = boxes_of(7, mesh.whole_axes(), Box(5, -2, 2))
    assert np.max(boxes.received(np.arange(4), 4)) == 2


@pytest.mark.parametrize("axes", ["(x, y)", "(y, x)", "(x:(2)2, y, x:(1)2)"])
def test_boxes_of_a_dim_split_over_axes_in_any_order_move_on_jax_devices(axes: str) -> None:
    text = f"""
        mesh (x=4, y=2)
        def main(a: f32[16@{axes}, 3]) -> (r: f32[16@{axes}, 3]) {{
          return pad(a, 1.0, low=[1, 0], high=[-1, 0])
        }}
        """
    check_equivalence(spmdc.parse(text), jax=True)


def test_a_partial_value_between_parts_of_an_axis_is_resharded_on_jax_devices() -> None:
    text = "mesh (x=8)\ndef main(a: f32[4@(x:(4)2, x:(1)2), 5]{partial: x:(2)2}) -> (r: f32[4@x, 5]) { return a }"
    check_equivalence(spmdc.parse(text), jax=True)


@settings(max_examples=examples(150))
@given(st.data())
def test_boxes_cut_in_pieces_make_up_the_whole_and_bring_no_device_more(data: st.DataObject) -> None:
    """Where it is out of reach that the worst device receives just what it lacks, it receives no more than uncut."""
    devices = data.draw(st.integers(2, 40))
    n = data.draw(st.integers(1, 400))
    chunk = -(-n // devices)
    step = data.draw(st.integers(max(1, chunk // 2), 2 * chunk + 1)) * data.draw(st.sampled_from([1, -1]))
    boxes = Boxes(n, chunk, data.draw(st.integers(-30, 30)), step, data.draw(st.integers(1, 3 * chunk)))
    (pieces,) = divided((boxes,), (1,), devices)
    assert [piece.start for piece in pieces[1:]] == [piece.start + piece.size for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].start + pieces[-1].size) == (boxes.start, boxes.start + boxes.size)
    everyone = np.arange(devices)
    got, lacking = received((pieces,), (1,), devices), boxes.lacking(everyone, devices)
    assert np.max(lacking) <= got <= np.max(boxes.received(everyone, devices))
    if len(boxes.boundaries(devices)) < MAX_PIECES and len(boxes.rounds(devices)) <= 1:
        assert got == np.max(lacking)
