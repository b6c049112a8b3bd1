"""Rounds of box exchanges that go in one message: nearly as few messages as the busiest device has transfers."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.ops.boxes import Boxes
from ir.program import Program
from ir.types import TensorType, s32
from passes.optimize.rounds import Load, messages


@st.composite
def boxes_apart(draw: st.DrawFn) -> tuple[Boxes, int]:
    """Boxes that do not overlap, many of them in part outside the tensor."""
    devices = draw(st.integers(1, 8))
    n = draw(st.integers(1, 20))
    size = draw(st.integers(1, 8))
    step = draw(st.integers(size, 8)) * draw(st.sampled_from((1, -1)))
    return Boxes(n, -(-n // devices), draw(st.integers(-12, 24)), step, size), devices


@given(boxes_apart())
@example((Boxes(5, 1, 16, -7, 7), 5))
def test_boxes_apart_take_at_most_one_message_more_than_the_busiest_device(exchange: tuple[Boxes, int]) -> None:
    """In the example two devices take from two others each, in four rounds, which are two messages."""
    boxes, devices = exchange
    b = RegionBuilder()
    x = b.param("x", TensorType((1,), s32))
    mesh = Mesh((("d", devices),))
    numbers = [r for r, _ in boxes.rounds(devices)]
    rounds = [b.op("box_permute", x, axes=mesh.whole_axes(), boxes=boxes.to_attr(), round=r) for r in numbers]
    program = Program((mesh,), {"main": b.function("main", rounds)}, "spmd")
    ops = program.main.body.ops
    found = messages(ops, ops, Load(program))
    pairs = [(j, i) for i in range(devices) for j in range(devices) if i != j and boxes.overlap(i, j)]
    busiest = max((sum(pair[end] == k for pair in pairs) for k in range(devices) for end in (0, 1)), default=0)
    assert busiest <= len(found) <= min(busiest + 1, len(ops))
    assert {op for message in found for each in message for op in each} == set(ops)
