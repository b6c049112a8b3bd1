"""Into how many pieces boxes are cut for an exchange.

All devices run one program, so all transfers of a round are as long as its longest. Where shards and boxes advance
differently, a device may then receive more than it lacks: what one device takes from two shards, another takes from
one, and both rounds are long. If boxes are cut into pieces that are exchanged separately, the rounds have unequal
lengths, and a device takes part only in those in which it lacks something. With a cut wherever some device's box
crosses from one shard into the next, each device receives exactly what it lacks. Of these cuts the fewest are made for
which the worst device receives no more, up to a maximum number of pieces.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ir.ops.boxes import Boxes
from ir.ops.rows import Positions

MAX_PIECES = 12
"""The most pieces into which one box is cut. A device receives the remainder of one more piece for each shard that its
box overlaps."""
_MAX_ROUNDS = 16
"""The most rounds for each box of an op that is cut, unless it needs more without cuts."""

Places = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def divided(boxes: tuple[Boxes, ...], weights: tuple[int, ...], devices: int) -> tuple[tuple[Boxes, ...], ...]:
    """The pieces of the boxes of one op's operands for which the worst device receives least in total.

    `weights` are the bytes of an element of each operand.
    """
    nowhere: tuple[Places, ...] = ((),) * len(boxes)
    best, least = nowhere, _worst(boxes, nowhere, weights, devices)
    chosen = Boxes.row(boxes, devices).chosen
    lacking = np.array([w * b.lacking(chosen, devices) for b, w in zip(boxes, weights, strict=True)])
    lack = int(lacking.sum(axis=0).max(initial=0))
    if least > lack:
        allowed = max(_MAX_ROUNDS * len(boxes), _rounds(boxes, nowhere, devices))
        for cuts in _splits(boxes, devices):
            worst = _worst(boxes, cuts, weights, devices)
            cuts = _fewest(boxes, cuts, weights, devices, worst)
            if worst < least and _rounds(boxes, cuts, devices) <= allowed:
                best, least = cuts, worst
            if least == lack:
                break
    return tuple(b.cut(places) for b, places in zip(boxes, best, strict=True))


def received(pieces: Sequence[Sequence[Boxes]], weights: Sequence[int], devices: int) -> int:
    """Bytes that the worst device receives."""
    chosen = Boxes.row(itertools.chain.from_iterable(pieces), devices).chosen
    totals: Positions = np.zeros(len(chosen), np.int64)
    for parts, weight in zip(pieces, weights, strict=True):
        for part in parts:
            totals += weight * part.received(chosen, devices)
    return int(totals.max(initial=0))


def _splits(boxes: tuple[Boxes, ...], devices: int) -> Iterator[tuple[Places, ...]]:
    """Cuts where some box enters a shard. For boxes with many such places, the cuts are at equal distances."""
    exact = tuple(b.boundaries(devices) for b in boxes)
    for pieces in (MAX_PIECES, MAX_PIECES // 2, 2):
        yield tuple(
            places if len(places) < pieces else _even(b.count, pieces) for b, places in zip(boxes, exact, strict=True)
        )


def _even(count: int, pieces: int) -> Places:
    size = -(-count // pieces)
    return tuple(range(size, count, size))


def _fewest(
    boxes: tuple[Boxes, ...], cuts: tuple[Places, ...], weights: tuple[int, ...], devices: int, least: int
) -> tuple[Places, ...]:
    """The cuts without those that do not reduce what the worst device receives."""
    kept = list(cuts)
    for k, places in enumerate(cuts):
        for place in places:
            fewer = [*kept[:k], tuple(p for p in kept[k] if p != place), *kept[k + 1 :]]
            if _worst(boxes, fewer, weights, devices) <= least:
                kept = fewer
    return tuple(kept)


def _worst(boxes: Sequence[Boxes], cuts: Sequence[Places], weights: Sequence[int], devices: int) -> int:
    pieces = [b.cut(places) for b, places in zip(boxes, cuts, strict=True)]
    return received(pieces, weights, devices)


def _rounds(boxes: Sequence[Boxes], cuts: Sequence[Places], devices: int) -> int:
    pieces = [part for b, places in zip(boxes, cuts, strict=True) for part in b.cut(places)]
    return sum(len(part.rounds(devices)) for part in pieces)
