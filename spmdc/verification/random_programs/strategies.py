"""Strategies at random: every way in which an op may be computed is tried, not only those that are cheapest."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ir.ops import FactorRule
from passes.partition import Decide
from passes.partition.plan.sides import StrategyQuery
from passes.partition.plan.strategies import StrategySelector
from passes.partition.strategy import Strategy


def random_strategies(seed: int) -> Decide:
    """Decides for every op by chance; equal seeds decide alike."""

    def decide(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> tuple[FactorRule, Strategy] | None:
        op = queries[0].op
        found = [(query.rule, each) for query in queries for each in selector.candidates(query)]
        name = op.results[0].name if op.results else op.name
        return found[zlib.crc32(f"{seed} {name}".encode()) % len(found)] if found else None

    return decide
