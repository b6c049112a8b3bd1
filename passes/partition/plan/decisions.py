"""Decisions: how each op is computed. The cost model is asked once for all ops that it has to answer equally for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.diagnostics import InternalError
from ir.ops import FactorRule
from ir.program import Op
from passes.partition.plan.facts import Facts
from passes.partition.plan.sides import Situation, StrategyQuery, TensorUses, repeated_operands
from passes.partition.plan.strategies import StrategySelector
from passes.partition.registry import partitioning_of
from passes.partition.strategy import Strategy
from passes.signatures import signature_of

Decision = tuple[FactorRule, Strategy]
"""How an op is computed: a strategy under its own factor rule, or under another view of the op."""

Decide = Callable[[StrategySelector, Sequence[StrategyQuery]], Decision | None]
"""Decides how an op is computed, from a query for each of its views; None leaves it to the cost model."""


@dataclass(frozen=True, slots=True, eq=False)
class _AskedOp:
    """The part of a query that does not depend on shardings, and the answers so far, by the rest of the query."""

    rules: tuple[FactorRule, ...]
    uses: TensorUses
    answers: dict[object, Decision]


class Decisions:
    """The decisions for one program. `decide` may override the cost model for some ops."""

    def __init__(self, facts: Facts, decide: Decide | None) -> None:
        self._facts = facts
        self._decide = decide
        self._asked: dict[Op, _AskedOp] = {}
        self._alike: dict[object, _AskedOp] = {}
        """The ops with the same queries share one entry, by what the queries depend on."""

    def of(self, selector: StrategySelector, op: Op, situation: Situation) -> Decision:
        """The cheapest strategy under the op's rule, or under another view of the op."""
        asked = self._asked.get(op)
        if asked is None:
            asked = self._asked[op] = self._asked_of(op)
        reduced = not self._facts.wanted_whole.isdisjoint(op.results) and situation.is_pending
        key = selector, situation, reduced
        if self._decide is None:
            found = asked.answers.get(key)
            if found is not None:
                return found
        queries = [StrategyQuery(op, rule, situation, asked.uses, reduced) for rule in asked.rules]
        decided = self._decide(selector, queries) if self._decide is not None else None
        if decided is not None:
            return decided
        query, strategy = selector.choose_among(queries)
        found = asked.answers[key] = query.rule, strategy
        return found

    def _asked_of(self, op: Op) -> _AskedOp:
        facts, signature = self._facts, signature_of(op)
        if signature.rule is None:
            raise InternalError(f"{op.name} has neither a factor rule nor a partitioning of its own")
        shared = tuple([facts.uses[v] > 1 for v in op.operands]) if partitioning_of(op).in_parts else ()
        used = tuple([v in facts.needed for v in op.results]) if signature.has_candidates else ()
        at_once = tuple([facts.summands.get(v, 1) / facts.narrowed_behind.get(v, 1.0) for v in op.results])
        remains = tuple([facts.remains.get(v, 1.0) for v in op.results])
        uses = TensorUses(shared, used, at_once, remains, repeated_operands(op))
        key = signature, uses
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = _AskedOp((signature.rule, *signature.other_rules), uses, {})
        return found
