"""The fixpoint of propagation: nodes are visited until no tensor gets a further axis."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ir.mesh import Axes, AxisRef
from ir.program import Value
from passes.propagation.graph import PropagationGraph
from passes.propagation.nodes import Learned, Level, Node
from passes.propagation.step import FactorAxes, Target, cuts_at, find_step, target_of


class Fixpoint:
    """Adds axes to the states of a graph, and keeps the reason for each.

    For each user priority its annotations are admitted, and for each level nodes are visited from a worklist. If all
    factors propagate `at_once`, batch dims do not go before others.
    """

    def __init__(self, graph: PropagationGraph, *, at_once: bool) -> None:
        self.graph = graph
        self.levels = (Level.SIMPLE, Level.ALL) if at_once else tuple(Level)
        self.level = Level.SIMPLE
        self.step = 0
        self.reasons: dict[tuple[Value, int], list[Learned]] = {}
        self.cuts: set[tuple[str, int]] = set()
        """Axes of which factors that share a dim could each take a part, with the product of the parts before the
        cut."""
        self.contested: set[int] = set()
        """The numbers of nodes at which several factors claimed an axis."""
        self.has_yielded = False
        """Whether a batch dim did not take an axis because its tensor is gathered for less than others would be moved
        for."""
        self._queue: list[int] = []
        """A heap of the numbers of nodes to visit: a function's returns come first, then its ops in order."""
        self._learned: list[Learned] = []
        """The axes that were added since the list was last emptied."""
        self._known: dict[object, Sequence[Target]] = {}
        """The targets of nodes of a relation, by the level and how their tensors are split."""

    def run(self) -> None:
        states = self.graph.states
        for priority in sorted({p for state in states.values() for p, _, _ in state.annotated} | {0}):
            admitted = [
                (v, dim, axes) for v, state in states.items() for p, dim, axes in state.annotated if p == priority
            ]
            for value, dim, axes in admitted:
                self._admit(value, dim, axes)
            for level in self.levels:
                self.level = level
                for node in self.graph.nodes:
                    if node.is_split:
                        self._enqueue(node)
                self._drain()

    def _admit(self, value: Value, dim: int, axes: Axes) -> None:
        """Adds the axes that a dim is annotated with."""
        state = self.graph.states[value]
        state.reserved -= set(axes)
        state.axes[dim] = axes
        self._wake(value)
        for axis in axes:
            self._keep(Learned(value, dim, axis, self.step, "annotated", value.span))

    # The worklist.

    def _wake(self, value: Value) -> Sequence[Node]:
        """The nodes of a value that got new axes: whatever they were settled for, they have to be visited again."""
        nodes = self.graph.nodes_of.get(value, ())
        for node in nodes:
            node.settled, node.is_split = None, True
        return nodes

    def _enqueue(self, node: Node) -> None:
        if not node.queued and node.relation.level <= self.level:
            node.queued = True
            heapq.heappush(self._queue, node.number)

    def _drain(self) -> None:
        while self._queue:
            node = self.graph.nodes[heapq.heappop(self._queue)]
            node.queued = False
            self.step += 1
            if node.settled == node.phase(self.level):
                continue
            node.settled = node.phase(self.level)
            for target in self._targets(node):
                self._extend(node, target)

    def _targets(self, node: Node) -> Sequence[Target]:
        """How the node's tensors should be split. It is found once for all nodes of a relation whose tensors are split
        equally, unless their claims are disputed."""
        if node.is_even(self.graph.states):
            return ()
        key = self._key(node)
        if key in self._known:
            return self._known[key]
        if node.relation.shares_dims:
            self.cuts.update(cuts_at(self.graph, node, self.level))
        found = find_step(self.graph, node, self.level)
        self.has_yielded = self.has_yielded or found.yields
        if found.is_contested:
            self.contested.add(node.number)
        targets = [target for target in found.targets if self._is_more(node, target)]
        if key is not None and found.is_undisputed:
            self._known[key] = targets
        return targets

    def _key(self, node: Node) -> object:
        """What the targets of a node depend on, if that is no more than its relation and how its tensors are split."""
        if not node.relation.is_shared or not node.is_usual:
            return None
        graph = self.graph
        times = tuple([graph.iterations.get(v, 1) for v in node.tensors]) if graph.iterations else ()
        return node.relation, self.level, tuple([tuple(graph.states[v].axes) for v in node.tensors]), times

    def _is_more(self, node: Node, target: Target) -> bool:
        """Whether the target splits the tensor further in some dim."""
        have = self.graph.states[node.tensors[target.position]].axes
        return any(len(axes) > len(old) for axes, old in zip(target.split, have, strict=True))

    def _extend(self, node: Node, target: Target) -> bool:
        """Splits a tensor of the node further, towards the target. Returns whether it got new axes; then the value's
        other nodes are visited again."""
        value, before = node.tensors[target.position], len(self._learned)
        state = self.graph.states[value]
        for dim, axes in enumerate(target.split):
            for axis in state.missing(dim, axes):
                self._learn(self._reason(node, value, dim, axis, target.wanted))
        if len(self._learned) == before:
            return False
        for neighbour in self._wake(value):
            if neighbour is not node:
                self._enqueue(neighbour)
        return True

    # Reasons.

    def _reason(self, node: Node, value: Value, dim: int, axis: AxisRef, wanted: FactorAxes) -> Learned:
        source, source_dim = value, 0
        for axes, position in wanted.values():
            if axis in axes:
                source = node.tensors[position]
                source_dim = next(d for d, split in enumerate(self.graph.states[source].axes) if axis in split)
        return Learned(value, dim, axis, self.step, node.how(value, source), node.span, source, source_dim)

    def _learn(self, reason: Learned) -> None:
        """Adds an axis."""
        state = self.graph.states[reason.value]
        state.axes[reason.dim] = (*state.axes[reason.dim], reason.axis)
        self._keep(reason)

    def _keep(self, reason: Learned) -> None:
        self._learned.append(reason)
        self.reasons.setdefault((reason.value, reason.dim), []).append(reason)

    # Trials.

    def learned_from(self, node: Node, position: int, wanted: FactorAxes) -> Sequence[Learned]:
        """Splits a tensor of the node over the wanted axes, and propagates that. Returns what was added."""
        self._learned = []
        split = target_of(node, position, wanted)
        if split is not None and self._extend(node, Target(position, split, wanted)):
            self._drain()
        learned, self._learned = self._learned, []
        return learned

    def forget(self, learned: Sequence[Learned]) -> None:
        """Removes the axes that were added last."""
        for reason in reversed(learned):
            state = self.graph.states[reason.value]
            state.axes[reason.dim] = state.axes[reason.dim][:-1]
            self.reasons[reason.value, reason.dim].pop()

    def learn_again(self, learned: Sequence[Learned]) -> None:
        """Adds the axes that were forgotten last."""
        for reason in learned:
            self._learn(reason)
