"""Where an op at which an axis is wanted for several factors leaves a tensor free to be split along another one.

An axis splits one factor of an op only. A tensor that does not have this factor may have the axis on another. It gets
it there if parameters then arrive split and this saves twice the bytes that are resharded for it, which one device
sends and another receives; without such parameters, if devices then receive less. Results may get it as well as
operands: a sum over the axis is then scattered along it, or only an operand is gathered. If that saves nothing, a
result may get it beside both factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ir.mesh import axes_size
from ir.ops import FactorKind
from ir.ops.declaration import TensorFactors
from ir.program import Value
from passes.factors import factors_of_dims
from passes.propagation.conflicts import Claim
from passes.propagation.fixpoint import Fixpoint
from passes.propagation.graph import PropagationGraph
from passes.propagation.nodes import Learned, Level, Node
from passes.propagation.step import FactorAxes, claims_at, in_order, settle
from passes.propagation.traffic import bytes_between, local_bytes


class FreeTensors:
    """Tries to split the tensors of the contested nodes of a fixpoint, and propagates each split that pays. Results may
    be split beside the factors that are claimed if `beside`."""

    def __init__(self, fixpoint: Fixpoint, *, beside: bool) -> None:
        self.fixpoint, self.graph = fixpoint, fixpoint.graph
        self.beside = beside
        self.split_beside = False
        """Whether some results are."""
        self.compared: dict[int, list[str]] = {}
        """The comparisons made at contested nodes, by number, for reports."""

    def split(self) -> None:
        for node in [self.graph.nodes[number] for number in sorted(self.fixpoint.contested)]:
            if node.op is None or node.annotates:
                continue
            claimed = _Claimed(self.graph, node, self.fixpoint.level)
            for position in range(len(node.tensors)):
                if self._split_first(node, position, list(self._ways(node, position, claimed))):
                    claimed = _Claimed(self.graph, node, self.fixpoint.level)

    def _ways(self, node: Node, position: int, claimed: _Claimed) -> Iterator[FactorAxes]:
        """Ways to split one of the node's tensors: over the axes that its factors claim, without regard to others, and
        then those beside them."""
        rule, is_result = node.relation.rule, position >= node.relation.given
        mine = {f for dim in node.relation.sides[position] for f in dim}
        if is_result:
            mine = {f for f in mine if rule.factors[f].kind is FactorKind.PARALLEL}
        yield claimed.by(mine)
        if is_result and self.beside:
            yield from self._beside(node, position, claimed.claims)

    def _beside(self, node: Node, position: int, claims: Sequence[Claim]) -> Iterator[FactorAxes]:
        """Ways to split a result over an axis that an operand has on a factor that the op reduces, and another tensor
        on another factor: along each parallel factor of the result that this operand has too. An all_to_all then moves
        the axis there, and the other operands are gathered."""
        rule, relation = node.relation.rule, node.relation
        tensor, state = relation.sides[position], self.graph.states[node.tensors[position]]
        split, used = factors_of_dims(rule, tensor, node.axes(position, state)), state.used()
        reduced = [
            c for c in claims if c.position < relation.given and rule.factors[c.factor].kind is FactorKind.REDUCTION
        ]
        for operand, f, axis in [(operand, f, axis) for operand, f, axes in reduced for axis in axes]:
            if axis in used or not any(g != f and axis in others for _, g, others in claims):
                continue
            both = sorted(_alone(tensor) & _alone(relation.sides[operand]))
            wanted = [(g, (*split.get(g, ()), axis)) for g in both]
            yield from ({g: (axes, operand)} for g, axes in wanted if rule.factors[g].size % axes_size(axes) == 0)

    def _split_first(self, node: Node, position: int, ways: Sequence[FactorAxes]) -> bool:
        """Splits a tensor in the first way that saves enough, and returns whether there is one. Axes of ways that do
        not are not tried again for the same tensors."""
        tried: list[Learned] = []
        for i, wanted in enumerate(ways):
            learned, pays = self._try(node, position, wanted)
            if pays:
                self.split_beside = self.split_beside or i > 0
                return True
            tried.extend(learned)
        for reason in tried:
            self.graph.states[reason.value].reserved.add(reason.axis)
        return False

    def _try(self, node: Node, position: int, wanted: FactorAxes) -> tuple[Sequence[Learned], bool]:
        """Spreads the wanted axes to one tensor, and from there to others, and undoes that if it does not save enough.
        Returns what was learned, and whether it was kept."""
        cuts, value = set(self.fixpoint.cuts), node.tensors[position]
        learned = self.fixpoint.learned_from(node, position, wanted)
        if not learned:
            return (), False
        nodes = {n.number: n for reason in learned for n in self.graph.nodes_of.get(reason.value, ())}
        parameters = {reason.value for reason in learned}.intersection(self.graph.program.main.params)
        split = self._bytes(parameters, nodes.values())
        self.fixpoint.forget(learned)
        whole = self._bytes(parameters, nodes.values())
        pays = split[0] + 2 * split[1] <= whole[0] + 2 * whole[1] if parameters else split[1] < whole[1]
        if parameters or pays:
            does, now, other = ("is", split, whole) if pays else ("is not", whole, split)
            arrive, between = (f"{did:,.0f} and not {might:,.0f} bytes" for did, might in zip(now, other, strict=True))
            arrives = f"{arrive} arrive, " if parameters else ""
            found = f"{value.name} {does} split too: {arrives}{between} are received"
            self.compared.setdefault(node.number, []).append(found)
        if pays:
            self.fixpoint.learn_again(learned)
        else:
            self.fixpoint.cuts = cuts
        return learned, pays

    def _bytes(self, parameters: Iterable[Value], nodes: Iterable[Node]) -> tuple[float, float]:
        """The bytes of these parameters that arrive on a device, and those that it receives from others at these
        nodes."""
        states = self.graph.states
        arrive = sum(local_bytes(value, states[value]) for value in parameters)
        return arrive, sum(bytes_between(node, states, self.graph.iterations) for node in nodes)


class _Claimed:
    """What the tensors of a node claim, while nothing changes how they are split. Most tensors of an op with many have
    the same factors."""

    def __init__(self, graph: PropagationGraph, node: Node, level: Level) -> None:
        self.claims = claims_at(graph, node, level)
        self._graph, self._node = graph, node
        self._factors = {claim.factor for claim in self.claims}
        self._settled: dict[frozenset[int], FactorAxes] = {}

    def by(self, factors: set[int]) -> FactorAxes:
        """The axes that these factors claim, without regard to others."""
        mine = frozenset(self._factors.intersection(factors))
        if mine not in self._settled:
            claims = [claim for claim in self.claims if claim.factor in mine]
            self._settled[mine] = settle(in_order(self._graph, self._node, claims))[0]
        return self._settled[mine]


def _alone(tensor: TensorFactors) -> set[int]:
    """The factors of a tensor's dims that have no other."""
    return {dim[0] for dim in tensor if len(dim) == 1}
