"""A second view of reshape: blocks of dims whose row-major order a split of the leading dim cuts into runs.

The factor rule of reshape splits factors that both shapes share, evenly. Where that is not possible, as in
[3, 2] -> [6] on two devices (GShard, Figure 5c), shards still are runs of elements in row-major order, and a box
exchange re-cuts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir.ops.declaration import FactorKind, FactorRule
from ir.ops.rule_helpers import Factors
from ir.program import Op


@dataclass(frozen=True, slots=True)
class Block:
    """Ranges of dims of both shapes that have the same elements."""

    source: range
    target: range


def blocks_of(source: Sequence[int], target: Sequence[int]) -> tuple[Block, ...]:
    """The finest decomposition of two shapes of equal size into blocks. Shapes of size 0 are one block."""
    if 0 in source:
        return (Block(range(len(source)), range(len(target))),)
    blocks: list[Block] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first_i, first_j = i, j
        left = right = 1
        while (left, right) == (1, 1) or left != right:
            if i < len(source) and (left <= right or j == len(target)):
                left *= source[i]
                i += 1
            elif j < len(target):
                right *= target[j]
                j += 1
            else:
                break
        blocks.append(Block(range(first_i, i), range(first_j, j)))
    return tuple(blocks)


def leading(shape: Sequence[int], dims: range) -> int | None:
    """The first of these dims that has several elements."""
    return next((d for d in dims if shape[d] > 1), None)


def block_rule(op: Op) -> FactorRule | None:
    """The rule in which the leading dims of a block are one WINDOW factor and its other dims stay whole.

    Axes that split those move to the leading dim, by an all_to_all instead of a gather. None if the rule says nothing
    new, because every block is one dim on each side.
    """
    source, target = op.operands[0].shape, op.result.shape
    blocks = blocks_of(source, target)
    if 0 in source or all(len(b.source) <= 1 and len(b.target) <= 1 for b in blocks):
        return None
    factors = Factors()
    left: list[tuple[int, ...]] = [()] * len(source)
    right: list[tuple[int, ...]] = [()] * len(target)
    for block in blocks:
        heads = leading(source, block.source), leading(target, block.target)
        if heads[0] is None or heads[1] is None:
            continue
        single = len(block.source) == len(block.target) == 1
        size = math.prod(source[d] for d in block.source)
        run = factors.new(size, FactorKind.PARALLEL if single else FactorKind.WINDOW)
        left[heads[0]] = right[heads[1]] = run
        for d in _behind(source, block.source, heads[0]):
            left[d] = factors.new(source[d], FactorKind.NEED_REPLICATION, moves_to=run[0])
        for d in _behind(target, block.target, heads[1]):
            right[d] = factors.new(target[d], FactorKind.NEED_REPLICATION, moves_to=run[0])
    return factors.rule([tuple(left)], [tuple(right)])


def _behind(shape: Sequence[int], dims: range, head: int) -> list[int]:
    """The dims behind the leading one that have several elements."""
    return [d for d in dims if shape[d] > 1 and d != head]
