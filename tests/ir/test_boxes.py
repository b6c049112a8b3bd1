"""Box exchanges: rounds are permutations, every element that is needed moves, and nothing moves twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from ir.ops.boxes import Boxes, Round, row_of_rounds
from ir.ops.rows import FEW


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
        pairs = Round(boxes, r, devices).pairs()
        assert len({s for s, _ in pairs}) == len({i for _, i in pairs}) == len(pairs)


@given(exchanges())
def test_the_rounds_carry_each_transfer_once(exchange: tuple[Boxes, int]) -> None:
    boxes, devices = exchange
    moved = [pair for r, _ in boxes.rounds(devices) for pair in Round(boxes, r, devices).pairs()]
    needed = {(j, i) for i in range(devices) for j in range(devices) if i != j and boxes.overlap(i, j)}
    assert len(moved) == len(set(moved))
    assert set(moved) == needed


@given(exchanges())
def test_a_round_carries_no_more_than_its_largest_transfer(exchange: tuple[Boxes, int]) -> None:
    boxes, devices = exchange
    for r, elements in boxes.rounds(devices):
        assert elements == max(boxes.overlap(i, j) for j, i in Round(boxes, r, devices).pairs())


@given(exchanges())
def test_a_device_takes_part_in_rounds_that_follow_one_another(exchange: tuple[Boxes, int]) -> None:
    """Receivers where boxes advance at least as fast as shards, else sources."""
    boxes, devices = exchange
    end = 1 if boxes.by_receiver else 0
    for k in range(devices):
        mine = {r for r, _ in boxes.rounds(devices) for pair in Round(boxes, r, devices).pairs() if pair[end] == k}
        own = boxes.overlap(k, k) > 0
        assert not mine or max(mine) - min(mine) + 1 <= len(mine) + own


def test_a_halo_of_one_on_each_side_takes_two_rounds_of_one_element() -> None:
    """GShard, Figure 5a."""
    assert Boxes(n=16, chunk=4, start=-1, step=4, size=6).rounds(4) == ((0, 1), (2, 1))


def test_devices_that_neither_send_nor_receive_are_not_looked_at() -> None:
    boxes = Boxes(n=16, chunk=1, start=-1, step=1, size=3)
    assert len(Boxes.row((boxes,), 10**12).chosen) < 20
    assert boxes.rounds(10**12) == boxes.rounds(20)


@st.composite
def long_rows(draw: st.DrawFn, count: int = 1) -> tuple[list[Boxes], int]:
    """Exchanges between so many devices that not all are looked at."""
    devices = draw(st.integers(FEW + 1, 300))
    found: list[Boxes] = []
    for _ in range(count):
        chunk, every = draw(st.integers(1, 9)), draw(st.sampled_from((1, 1, 2, 3)))
        n = draw(st.integers(0, chunk * devices))
        step, start = draw(st.integers(-12, 12).filter(bool)), draw(st.integers(-40, 40))
        start += 0 if step > 0 else n
        start += draw(st.sampled_from((0, n // 2)))
        size, phase = draw(st.integers(0, 30)), draw(st.integers(0, every - 1))
        found.append(Boxes(n, chunk, start, step, size, every, phase, draw(st.sampled_from((0, 0, devices // 2, 3)))))
    return found, devices


def _overlaps(boxes: Boxes, devices: int) -> npt.NDArray[np.int64]:
    """Wanted elements that each receiver, a row, gets from each source, a column."""
    everyone = np.arange(devices)
    return np.array(boxes.overlap(everyone[:, None], everyone[None, :]))


@given(long_rows())
def test_a_few_devices_show_what_all_send_and_receive(exchange: tuple[list[Boxes], int]) -> None:
    (boxes,), devices = exchange
    everyone, chosen = np.arange(devices), Boxes.row((boxes,), devices).chosen
    overlaps = _overlaps(boxes, devices)
    assert boxes.keeps_own(devices) == bool(np.diag(overlaps).any())
    np.fill_diagonal(overlaps, 0)
    assert boxes.lacking(everyone, devices).tolist() == overlaps.sum(axis=1).tolist()
    assert boxes.lacking(chosen, devices).max() == overlaps.sum(axis=1).max()
    assert boxes.received(chosen, devices).max() == boxes.received(everyone, devices).max()
    most: dict[int, int] = {}
    for i, j in zip(*np.nonzero(overlaps), strict=True):
        r = j - boxes.source_of(i, 0) if boxes.by_receiver else i - boxes.receiver_of(j, 0)
        most[int(r)] = max(most.get(int(r), 0), int(overlaps[i, j]))
    assert boxes.rounds(devices) == tuple(sorted(most.items()))
    assert boxes.least_rounds(devices) <= len(most)
    assert boxes.has_more_rounds(5, devices) == (len(most) > 5)


@given(long_rows())
def test_boxes_enter_shards_at_the_same_places_on_all_devices_as_on_a_few(exchange: tuple[list[Boxes], int]) -> None:
    (boxes,), devices = exchange
    places: set[int] = set()
    for i in range(min(devices, boxes.receivers or devices)):
        first = boxes.number(boxes.start + boxes.step * i)
        low, high = max(first, 0), min(boxes.number(boxes.start + boxes.step * i + boxes.size), boxes.number(boxes.n))
        if low < high:
            inside = (boxes.number(boxes.chunk * j) for j in range(devices + 1))
            places.update(k - first for k in (low, high, *(k for k in inside if low < k < high)))
    assert boxes.boundaries(devices) == tuple(sorted(k for k in places if 0 < k < boxes.count))


@given(long_rows(2), st.data())
def test_positions_of_a_row_are_like_those_that_stand_for_them(
    exchanges: tuple[list[Boxes], int], data: st.DataObject
) -> None:
    boxes, devices = exchanges
    rounds = [Round(each, data.draw(st.integers(-2, 4)), devices) for each in boxes]
    row, everyone = row_of_rounds(rounds), np.arange(devices)
    assert [s.low for s in row.stretches[1:]] == [s.high for s in row.stretches[:-1]]
    for each in rounds:
        for partners in (each.sources, each.receivers):
            assert np.array_equal(partners(everyone) >= 0, (partners(row.chosen) >= 0)[row.like(everyone)])
        senders = each.receivers(everyone)
        assert sorted(each.pairs()) == [(j, i) for j, i in enumerate(senders.tolist()) if i >= 0]


@given(long_rows(2), st.data())
def test_rounds_are_equal_in_which_the_same_send_to_the_same(
    exchanges: tuple[list[Boxes], int], data: st.DataObject
) -> None:
    (boxes, other), devices = exchanges
    other = data.draw(st.sampled_from((other, replace(boxes, n=boxes.n + 1), replace(boxes, size=boxes.size + 1))))
    one, two = (Round(each, data.draw(st.integers(-1, 3)), devices) for each in (boxes, other))
    assert (one == two) == (one.pairs() == two.pairs())
    assert one != two or hash(one) == hash(two)
