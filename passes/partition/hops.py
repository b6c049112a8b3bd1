"""Exchanges between shards and boxes of very different sizes, in several hops.

Where a shard is cut into many boxes, or a box is put together from many shards, one exchange would need a round for
each of them, and the program would grow with the number of devices. Then the elements go by way of shards of sizes
between the two: in each hop a shard is cut into a few, or a few are put together, so that the rounds grow with the
logarithm. A device on the way receives a fraction of the larger of the two more.
"""

from __future__ import annotations

import functools

from ir.boxes import Boxes

_FEW = 16
"""Boxes that one shard may be cut into, or be put together from, in one hop."""
_FACTOR = 8
"""How many times smaller the next size is."""


@functools.lru_cache(maxsize=4096)
def hops(boxes: Boxes, devices: int) -> tuple[Boxes, ...]:
    """The exchanges, one after the other, that do what `boxes` says; the last one gives the boxes.

    All others cut the needed elements, from the first to the last, into shards of another size.
    """
    sizes = _sizes(boxes)
    low, high = _needed(boxes, devices)
    if not sizes or low >= high or boxes.every > 1 or len(boxes.rounds(devices)) <= _FEW:
        return (boxes,)
    found: list[Boxes] = []
    start, chunk, end = low, boxes.chunk, high
    for size in (max(size, -(-(high - low) // devices)) for size in sizes):
        found.append(Boxes(end, chunk, start, size, size, receivers=-(-(high - low) // size)))
        start, chunk, end = 0, size, high - low
    return (*found, Boxes(end, chunk, boxes.start - low, boxes.step, boxes.size, receivers=boxes.receivers))


def _sizes(boxes: Boxes) -> list[int]:
    """The sizes of the shards on the way."""
    smaller, larger = sorted((boxes.chunk, abs(boxes.step)))
    sizes: list[int] = []
    while larger > _FEW * smaller:
        larger = -(-larger // _FACTOR)
        sizes.append(larger)
    return sizes if boxes.chunk > abs(boxes.step) else sizes[::-1]


def _needed(boxes: Boxes, devices: int) -> tuple[int, int]:
    """The elements that any device needs: from the first to the last."""
    last = min(devices, boxes.receivers or devices) - 1
    ends = boxes.start, boxes.start + boxes.step * last
    return max(0, min(ends)), min(boxes.n, max(ends) + boxes.size)
