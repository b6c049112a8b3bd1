"""Box exchanges: rounds are permutations, every element that is needed moves, and nothing moves twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ir.ops.boxes import Boxes


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Boxes, int]:
    devices = draw(st.integers(1, 7))
    n = draw(st.integers(0, 20))
    chunk = max(1, -(-n // devices))
    step = draw(st.integers(-8, 8).filter(bool))
    return Boxes(n, chunk, draw(st.integers(-12, 24)), step, draw(st.integers(0, 12))), devices


@given(exchanges())
def test_no_device_sends_or_receives_twice_in_a_round(exchange: tuple[Boxes, int]) -> None:
    boxes, devices = exchange
    for r, _ in boxes.rounds(devices):
        pairs = boxes.pairs(r, devices)
        assert len({s for s, _ in pairs}) == len({i for _, i in pairs}) == len(pairs)


@given(exchanges())
def test_the_rounds_carry_each_transfer_once(exchange: tuple[Boxes, int]) -> None:
    boxes, devices = exchange
    moved = [pair for r, _ in boxes.rounds(devices) for pair in boxes.pairs(r, devices)]
    needed = {(j, i) for i in range(devices) for j in range(devices) if i != j and boxes.overlap(i, j)}
    assert len(moved) == len(set(moved))
    assert set(moved) == needed


@given(exchanges())
def test_a_round_carries_no_more_than_its_largest_transfer(exchange: tuple[Boxes, int]) -> None:
    boxes, devices = exchange
    for r, elements in boxes.rounds(devices):
        assert elements == max(boxes.overlap(i, j) for j, i in boxes.pairs(r, devices))


@given(exchanges())
def test_a_device_takes_part_in_rounds_that_follow_one_another(exchange: tuple[Boxes, int]) -> None:
    """Receivers where boxes advance at least as fast as shards, else sources."""
    boxes, devices = exchange
    end = 1 if boxes.by_receiver else 0
    for k in range(devices):
        mine = {r for r, _ in boxes.rounds(devices) for pair in boxes.pairs(r, devices) if pair[end] == k}
        own = boxes.overlap(k, k) > 0
        assert not mine or max(mine) - min(mine) + 1 <= len(mine) + own


def test_a_halo_of_one_on_each_side_takes_two_rounds_of_one_element() -> None:
    """GShard, Figure 5a."""
    assert Boxes(n=16, chunk=4, start=-1, step=4, size=6).rounds(4) == ((0, 1), (2, 1))


def test_devices_that_neither_send_nor_receive_are_not_looked_at() -> None:
    boxes = Boxes(n=16, chunk=1, start=-1, step=1, size=3)
    assert boxes.involved(10**12) < 20
    assert boxes.rounds(10**12) == boxes.rounds(20)
