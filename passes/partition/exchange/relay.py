"""Exchanges between shards and boxes of very different sizes, in several hops.

If a shard is cut into many boxes, or a box consists of many shards, one exchange would need a round for each of them,
and the program would grow with the number of devices. Instead the elements are exchanged through shards of intermediate
sizes: each hop cuts a shard into a few, or joins a few, so that the number of rounds is logarithmic. A device receives
in addition a fraction of the larger of the two.
"""

from __future__ import annotations

import functools
import math

from ir.ops.boxes import Boxes

_RELAY_FANOUT = 16
"""The most boxes that one shard may be cut into, or be joined from, in one hop."""
_FACTOR = 8
"""The ratio between the sizes of successive hops."""


def unit_of(boxes: Boxes) -> int:
    """The distance between the elements that are relayed: every wanted one, or more where shards hold different
    numbers."""
    return math.gcd(boxes.chunk, boxes.every)


@functools.lru_cache(maxsize=4096)
def hops(boxes: Boxes, devices: int) -> tuple[Boxes, ...]:
    """The exchanges that together have the effect of `boxes`, in order; the last one makes the boxes.

    Earlier hops cut the needed elements, from the first to the last, into shards of another size. They count elements
    that are `unit_of(boxes)` apart, and lead to shards that hold equal numbers of wanted ones.
    """
    first, end = _needed(boxes, devices)
    unit = unit_of(boxes)
    sizes = _sizes(boxes.chunk // unit, max(1, abs(boxes.step) // unit), boxes.every // unit)
    if first >= end or not sizes or not boxes.has_more_rounds(_RELAY_FANOUT, devices):
        return (boxes,)
    count = -(-(end - first) // unit)
    least = -(-count // (devices * boxes.every // unit)) * (boxes.every // unit)
    found: list[Boxes] = []
    start, chunk, n = first // unit, boxes.chunk // unit, first // unit + count
    for size in (max(size, least) for size in sizes):
        found.append(Boxes(n, chunk, start, size, size, receivers=-(-count // size)))
        start, chunk, n = 0, size, count
    start, chunk = boxes.start - first, chunk * unit
    last = Boxes(end - first, chunk, start, boxes.step, boxes.size, boxes.every, receivers=boxes.receivers)
    return (*found, last.compact() or last)


def _sizes(chunk: int, step: int, multiple: int) -> list[int]:
    """The sizes of the intermediate shards."""
    smaller, larger = sorted((chunk, step))
    sizes: list[int] = []
    while larger > _RELAY_FANOUT * max(smaller, multiple):
        larger = -(-larger // (_FACTOR * multiple)) * multiple
        sizes.append(larger)
    return sizes if chunk > step else sizes[::-1]


def _needed(boxes: Boxes, devices: int) -> tuple[int, int]:
    """The first wanted element that any device needs, and the end of the last."""
    last = min(devices, boxes.receivers or devices) - 1
    ends = boxes.start, boxes.start + boxes.step * last
    first = boxes.phase + boxes.every * boxes.number(max(0, min(ends)))
    return first, min(boxes.n, max(ends) + boxes.size)
