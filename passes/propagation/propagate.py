"""Sharding propagation: from a few annotations to a sharding for every value (GShard, section 3.2).

A deterministic worklist over factor rules runs from the annotations outward, forward and backward, in levels (the
layering is Shardy's): data-movement and elementwise ops first, then factors that every tensor of an op shares (batch
dims), so that an einsum is split as its inputs are and the `split` after it reshards, then backward through
annotations, and last the rest. Axes are only ever added, minor to those that a dim has, and only to open dims. So each
value changes at most as often as there are axes, and propagation is linear in the program.

When tensors of an op disagree on a factor, or two factors claim an axis, the conflict is settled by, in this order:
user priority; the tensor that takes more to move, if the other is gathered for no more than that; the factor
that more tensors share; the tensor that does not only repeat the elements of smaller ones; more axes; the indices by
which the op looks elements up in another tensor; the larger tensor; the factor that is not reduced later; operand
order. A result lacks the factors along which elements are looked up. Unless all tensors share a factor that could take
the axis, it follows the others as if these were not claimed: with tokens and a vocabulary split over the same axes,
embeddings are split as the tokens are. The size of a tensor that a loop computes anew in each iteration is that of all
iterations, since it would be sent in each, unless the axis would only cause a reduction of its users in each iteration.
At last, a tensor on which the axis is still free follows the factor that lost, if that saves bytes: fewer arrive of
parameters, or fewer are received. Otherwise a result may take the axis along a dim, such as that of a batch, that it
shares with an operand of which the op reduces the dim that the axis splits.

Every axis on every value keeps its reason.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ir.mesh import Axes, AxisRef, DimAxes, axes_size, merge_axes
from ir.ops import FactorKind
from ir.ops.declaration import TensorFactors
from ir.program import Function, Program, Result, Value, values_within
from ir.sharding import DimSharding, Sharding
from passes.factors import cuts_between_factors, dims_of_factors, factors_of_dims
from passes.propagation.conflicts import Claim, agree, conflicts_at, have_one_factor_each, outweighed
from passes.propagation.graph import PropagationGraph
from passes.propagation.manual_contexts import one_context_each
from passes.propagation.nodes import Learned, Node
from passes.propagation.reasons import LEVELS, Level, Propagated, Provenance, Reason, ValueId, name_outside
from passes.propagation.survival import extreme_dims, made_along, surviving_dims
from passes.propagation.traffic import bytes_between, local_bytes, repeating
from passes.rewrite import map_values
from passes.sub_axes import find_sub_axes


def propagate(program: Program) -> Propagated:
    """Gives every value a closed sharding. Raises SpmdcError (E307) if annotations cut an axis in ways that clash.

    A function that is called where other axes are manual than elsewhere becomes one function for each place.
    """
    return _propagated(one_context_each(program))


def _propagated(program: Program, *, beside: bool = True, at_once: bool = False) -> Propagated:
    propagation = _spread(program, beside=beside, at_once=at_once)
    found = propagation.finish()
    if propagation.has_yielded and not at_once:
        return replace(found, otherwise=lambda: _propagated(program, beside=beside, at_once=True))
    if propagation.split_beside:
        return replace(found, otherwise=lambda: _propagated(program, beside=False, at_once=at_once))
    return found


Boundary = tuple[tuple[Axes, ...], ...]
"""The axes of each dim of a function's parameters, then of its results."""

Wanted = Mapping[int, tuple[Axes, int]]
"""For each factor of a node the axes that it should be split over, with the position of the tensor that they come
from."""

Spreading = Sequence[tuple[int, DimAxes, Wanted]]
"""The tensors of a node, by position, the split that each should have, and what that follows from. Tensors that are
split as far already may be left out."""


def boundaries(program: Program) -> dict[str, Boundary]:
    """The propagated shardings of each function's boundary. Raises SpmdcError (E307) as `propagate` does."""
    propagation = _spread(program)
    return {name: propagation.boundary(function) for name, function in program.functions.items()}


def _spread(program: Program, *, beside: bool = True, at_once: bool = False) -> _Propagation:
    """Propagates until nothing changes. Results may be split beside the factors that are claimed if `beside`. If all
    factors propagate `at_once`, batch dims do not go before others.

    A dim of several factors may be split over an axis of which each factor can take a part, as by a reshape to fewer
    rows than devices. Then the axis is cut there and propagation starts again, at most as often as the axes of the mesh
    have prime factors.
    """
    sub_axes = find_sub_axes(program)
    while True:
        propagation = _Propagation(PropagationGraph(program, sub_axes), beside=beside, at_once=at_once)
        propagation.spread()
        cut = sub_axes.cut_at(propagation.cuts)
        if cut is sub_axes:
            return propagation
        sub_axes = cut


class _Propagation:
    def __init__(self, graph: PropagationGraph, *, beside: bool, at_once: bool) -> None:
        self.graph = graph
        self.levels: Sequence[Level] = [level for level, _ in LEVELS if level in (0, 3) or not at_once]
        self.has_yielded = False
        """Whether a batch dim did not take an axis because its tensor is gathered for less than others would be moved
        for."""
        self.beside = beside
        """Whether results may be split beside the factors that are claimed."""
        self.split_beside = False
        """Whether some are."""
        self.nodes, self.nodes_of, self.states = graph.nodes, graph.nodes_of, graph.states
        self.iterations = graph.iterations
        self.reasons: dict[tuple[Value, int], list[Learned]] = {}
        self.step = 0
        self.queue: list[int] = []
        """A heap of the numbers of nodes to visit: a function's returns come first, then its ops in order."""
        self.level: Level = 0
        self.cuts: set[tuple[str, int]] = set()
        """Axes of which factors that share a dim could each take a part, with the product of the parts before the
        cut."""
        self.parameters = frozenset(graph.program.main.params)
        self.contested: set[int] = set()
        """The numbers of nodes at which several factors claimed an axis."""
        self.weighed: dict[int, list[str]] = {}
        """The comparisons made at contested nodes where a tensor could have followed either factor, for reports."""
        self.learned: list[Learned] = []
        """The axes that were added since the list was last emptied."""
        self.spreadings: dict[object, Spreading] = {}
        """What nodes of a relation spread, by the level and how their tensors are split."""

    def boundary(self, function: Function) -> Boundary:
        """The axes of a function's parameters and results so far."""
        slots = (self.graph.slots[function.name, i] for i in range(len(function.results)))
        return tuple(tuple(self.states[v].axes) for v in (*function.params, *slots))

    def spread(self) -> None:
        """Propagates until nothing changes."""
        priorities = sorted({p for s in self.states.values() for p, _, _ in s.later} | {0})
        for priority in priorities:
            self._admit(priority)
            for level in self.levels:
                self.level = level
                for node in self.nodes:
                    if node.is_split:
                        self._enqueue(node)
                self._drain()
        self._split_what_is_free()

    def _admit(self, priority: int) -> None:
        """Adds the axes of the annotations of this user priority."""
        for value, state in self.states.items():
            for p, dim, axes in state.later:
                if p != priority:
                    continue
                state.reserved -= set(axes)
                state.axes[dim] = axes
                for node in self.nodes_of.get(value, ()):
                    node.settled, node.is_split = None, True
                for axis in axes:
                    self._because(Learned(value, dim, axis, self.step, "annotated", value.span))

    # The worklist.

    def _enqueue(self, node: Node) -> None:
        if not node.queued and node.relation.level <= self.level:
            node.queued = True
            heapq.heappush(self.queue, node.number)

    def _drain(self) -> None:
        while self.queue:
            node = self.nodes[heapq.heappop(self.queue)]
            node.queued = False
            self.step += 1
            if node.settled == node.phase(self.level):
                continue
            node.settled = node.phase(self.level)
            for value in self._visit(node):
                self._enqueue_others(value, node)

    def _enqueue_others(self, value: Value, source: Node) -> None:
        """Enqueues the other nodes of a value that got new axes at the source."""
        for neighbour in self.nodes_of.get(value, ()):
            neighbour.settled, neighbour.is_split = None, True
            if neighbour is not source:
                self._enqueue(neighbour)

    def _visit(self, node: Node) -> Iterator[Value]:
        """Spreads the axes of each of the node's tensors to the others; yields the values that got new ones."""
        if self._agrees(node):
            return
        for position, target, wanted in self._spreading(node):
            value = node.tensors[position]
            if self._extend(value, target, node, wanted):
                yield value

    def _spreading(self, node: Node) -> Spreading:
        """What the node's tensors want from each other. It is found once for all nodes of a relation whose tensors are
        split alike, unless several factors claim an axis, or tensors claim other axes for a factor."""
        key: object = None
        if node.relation.is_shared and node.is_usual:
            times = [self.iterations.get(v, 1) for v in node.tensors] if self.iterations else ()
            split = [tuple(self.states[v].axes) for v in node.tensors]
            key = node.relation, self.level, tuple(split), tuple(times)
            known = self.spreadings.get(key)
            if known is not None:
                return known
        claims = self._claims(node)
        possible = list(self._targets(node, claims))
        if key is not None and have_one_factor_each(claims) and agree(claims):
            possible = [(i, axes, wanted) for i, axes, wanted in possible if self._is_more(node, i, axes)]
            self.spreadings[key] = possible
        return possible

    def _targets(self, node: Node, claims: list[Claim]) -> Iterator[tuple[int, DimAxes, Wanted]]:
        """The split that each of the node's tensors should have, by their claims. Those that cannot have it are left
        out."""
        relation, count = node.relation, len(node.tensors)
        of_operands = of_results = self._settled(node, claims)
        if not of_operands:
            return
        if relation.is_plain and not relation.replicated and not node.prefix:
            nothing = (), 0
            axes = tuple([of_operands.get(f, nothing)[0] for f in range(len(relation.rule.factors))])
            yield from ((i, axes, of_operands) for i in range(count))
            return
        if relation.looked_up:
            of_results = self._settled(node, [claim for claim in claims if claim[1] not in relation.looked_up])
        for i in range(count):
            wanted = of_operands if i < relation.given else of_results
            target = self._target(node, i, wanted)
            if target is not None:
                yield i, target, wanted

    def _is_more(self, node: Node, position: int, target: DimAxes) -> bool:
        """Whether the target splits one of the node's tensors further in some dim."""
        have = self.states[node.tensors[position]].axes
        return any(len(axes) > len(old) for axes, old in zip(target, have, strict=True))

    def _agrees(self, node: Node) -> bool:
        """Whether the tensors have the same dims, split in the same way. Then there is nothing to spread."""
        if not node.relation.is_plain or node.prefix:
            return False
        split = self.states[node.tensors[0]].axes
        return all(self.states[v].axes == split for v in node.tensors[1:])

    def _target(self, node: Node, position: int, wanted: Wanted) -> DimAxes | None:
        """The split that one of the node's tensors should have; None if it cannot have it."""
        value, relation = node.tensors[position], node.relation
        tensor, windows = relation.sides[position], relation.windows
        result = position >= relation.given
        mine = {f: axes for f, (axes, _) in wanted.items() if result or f not in relation.replicated}
        target = dims_of_factors(relation.rule, tensor, mine)
        if target is None:  # Without factors that share a dim with others, it may be possible.
            shared = {f for dim in tensor if len(dim) > 1 for f in dim}
            target = dims_of_factors(relation.rule, tensor, {f: axes for f, axes in mine.items() if f not in shared})
        if target is not None and windows:  # Dims with fewer elements than shards are not split along these.
            target = tuple(
                () if n < axes_size(axes) and not windows.isdisjoint(factors) else axes
                for factors, n, axes in zip(tensor, value.shape, target, strict=True)
            )
        if target is not None and node.prefix and node.prefix[position]:
            target = tuple((*p, *axes) for p, axes in zip(node.prefix[position], target, strict=True))
        return target

    def _extend(self, value: Value, target: DimAxes, node: Node, wanted: Wanted) -> bool:
        """Splits a tensor further, towards the target. Returns whether it got new axes."""
        state, changed = self.states[value], False
        used: set[AxisRef] | None = None
        for dim, axes in enumerate(target):
            have = state.axes[dim]
            if not state.open[dim] or len(axes) <= len(have) or axes[: len(have)] != have:
                continue
            used = state.used() if used is None else used
            for axis in axes[len(have) :]:
                if axis in used:
                    break
                used.add(axis)
                state.axes[dim] = (*state.axes[dim], axis)
                self._because(self._reason(node, value, dim, axis, wanted))
                changed = True
        return changed

    def _claims(self, node: Node, among: Collection[int] | None = None) -> list[Claim]:
        """The axes over which each of the node's tensors splits a factor, or each one in `among`."""
        claims, others = list[Claim](), list[Claim]()
        relation, level = node.relation, self.level
        batch_only = level < 3 and relation.level > 0
        for position, (value, tensor) in enumerate(zip(node.tensors, relation.sides, strict=True)):
            state = self.states[value]
            if not any(state.axes) or node.is_silent(position, level):
                continue
            split = node.axes(position, state)
            if relation.shares_dims:
                self.cuts.update(cuts_between_factors(relation.rule, tensor, split))
            for f, axes in factors_of_dims(relation.rule, tensor, split).items():
                if among is not None and f not in among:
                    continue
                if f in relation.replicated and (level < 3 or position >= relation.given):
                    continue
                (others if batch_only and f not in relation.batch else claims).append((position, f, axes))
        if others and claims:
            lighter = outweighed(node, [*claims, *others], self.states, self._repeating)
            self.has_yielded = self.has_yielded or bool(lighter)
            claims = [claim for claim in claims if claim not in lighter]
        return claims

    def _settled(self, node: Node, claims: list[Claim]) -> dict[int, tuple[Axes, int]]:
        """For each claimed factor the axes that it should be split over, and the position of the tensor that they come
        from. Sorts the claims by their precedence."""
        if len(claims) > 1:
            claims.sort(key=self._order(node, claims))
        wanted: dict[int, tuple[Axes, int]] = {}
        taken: dict[AxisRef, int] = {}
        for position, f, axes in claims:
            current = wanted.get(f, ((), position))[0]
            if len(axes) <= len(current) or axes[: len(current)] != current:
                continue
            free: list[AxisRef] = []
            for axis in axes:
                if taken.get(axis, f) != f:
                    self.contested.add(node.number)
                    break
                free.append(axis)
            if len(free) > len(current):
                wanted[f] = (tuple(free), position)
                taken.update(dict.fromkeys(free, f))
        return wanted

    def _order(self, node: Node, claims: Sequence[Claim]) -> Callable[[Claim], tuple[int, ...]]:
        """The key by which a node's claims are ordered; `RULES` describes it in words."""
        ending, relation = self._ending(node, claims), node.relation
        lighter = outweighed(node, claims, self.states, self._repeating)

        def order(claim: Claim) -> tuple[int, ...]:
            position, f, axes = claim
            value = node.tensors[position]
            size = value.type.size * (1 if f in ending else self.iterations.get(value, 1))
            finds = position in relation.indices
            first = claim in lighter, relation.ranks[f], value in self._repeating
            return *first, -len(axes), not finds, -size, f in ending, position

        return order

    def _ending(self, node: Node, claims: Iterable[Claim]) -> Collection[int]:
        """The claimed factors that are reduced here or by all users of the results, unless all claimed factors are:
        what an axis saves on one of them here is sent when it is reduced, in each iteration of the loops around. If
        there are none, the factors over which a maximum or another extreme is taken on the way."""
        if node.op is None or have_one_factor_each(claims):
            return ()
        factors = {f for _, f, _ in claims}
        here = {f for f in factors if node.relation.rule.factors[f].kind is not FactorKind.PARALLEL}
        made = {f: made_along(node, f) for f in factors}
        ending = here.union(f for f in factors if made[f] and self._surviving.isdisjoint(made[f]))
        if not ending:
            ending = {f for f in factors if not self._extreme.isdisjoint(made[f])}
        return ending if ending != factors else here

    @cached_property
    def _repeating(self) -> frozenset[Value]:
        return repeating(self.nodes)

    @cached_property
    def _surviving(self) -> frozenset[tuple[Value, int]]:
        return surviving_dims(self.nodes)

    @cached_property
    def _extreme(self) -> frozenset[tuple[Value, int]]:
        return extreme_dims(self.nodes)

    # Where the op at which an axis is wanted for several factors leaves a tensor free.

    def _split_what_is_free(self) -> None:
        """Splits tensors of contested nodes along the factor that lost.

        An axis splits one factor of an op only. A tensor that does not have this factor may have the axis on another.
        It gets it there if parameters then arrive split and this saves twice the bytes that are resharded for it, which
        one device sends and another receives; without such parameters, if devices then receive less. Results may get it
        as well as operands: a sum over the axis is then scattered along it, or only an operand is gathered. If that
        saves nothing, a result may get it beside both factors.
        """
        for number in sorted(self.contested):
            node = self.nodes[number]
            if node.op is None or node.annotates:
                continue
            rule, given = node.relation.rule, node.relation.given
            for position, tensor in enumerate(node.relation.sides):
                mine = {f for dim in tensor for f in dim}
                if position >= given:
                    mine = {f for f in mine if rule.factors[f].kind is FactorKind.PARALLEL}
                lost = self._settled(node, self._claims(node, mine))
                beside = self._beside(node, position) if position >= given and self.beside else ()
                self._try(node, position, lost, tuple(beside))

    def _beside(self, node: Node, position: int) -> Iterator[Wanted]:
        """Ways to split a result over an axis that an operand has on a factor that the op reduces, and another tensor
        on another factor: along each parallel factor of the result that this operand has too. An all_to_all then moves
        the axis there, and the other operands are gathered."""
        rule, relation = node.relation.rule, node.relation
        value, tensor = node.tensors[position], relation.sides[position]
        split, used = factors_of_dims(rule, tensor, node.axes(position, self.states[value])), self.states[value].used()
        claims = self._claims(node)
        for operand, f, axes in claims:
            if operand >= relation.given or rule.factors[f].kind is not FactorKind.REDUCTION:
                continue
            both = sorted(_alone(tensor) & _alone(relation.sides[operand]))
            for axis in axes:
                is_contested = any(g != f and axis in others for _, g, others in claims)
                for g in both if is_contested and axis not in used else ():
                    wanted = (*split.get(g, ()), axis)
                    if rule.factors[g].size % axes_size(wanted) == 0:
                        yield {g: (wanted, operand)}

    def _try(self, node: Node, position: int, lost: Wanted, beside: Sequence[Wanted]) -> None:
        """Spreads the axes of factors that lost to one tensor, and from there to others; if that does not save enough,
        those of the first way beside them that does. Axes of ways that do not are not tried again for the same tensors.
        """
        tried: list[Learned] = []
        for wanted in (lost, *beside):
            learned, is_worth_it = self._weighed(node, position, wanted)
            if is_worth_it:
                self.split_beside = self.split_beside or wanted is not lost
                return
            tried.extend(learned)
        for reason in tried:
            self.states[reason.value].reserved.add(reason.axis)

    def _weighed(self, node: Node, position: int, wanted: Wanted) -> tuple[Sequence[Learned], bool]:
        """Spreads the wanted axes to one tensor, and from there to others, and undoes that if it does not save enough.
        Returns what was learned, and whether it was kept."""
        cuts, value = set(self.cuts), node.tensors[position]
        self.learned = []
        target = self._target(node, position, wanted)
        if target is None or not self._extend(value, target, node, wanted):
            return (), False
        self._enqueue_others(value, node)
        self._drain()
        learned, self.learned = self.learned, []
        nodes = {n.number: n for reason in learned for n in self.nodes_of.get(reason.value, ())}
        parameters = {reason.value for reason in learned if reason.value in self.parameters}
        split = self._bytes(parameters, nodes.values())
        self._forget(learned)
        whole = self._bytes(parameters, nodes.values())
        is_worth_it = split[0] + 2 * split[1] <= whole[0] + 2 * whole[1] if parameters else split[1] < whole[1]
        if parameters or is_worth_it:
            does, now, other = ("is", split, whole) if is_worth_it else ("is not", whole, split)
            arrive, between = (f"{did:,.0f} and not {might:,.0f} bytes" for did, might in zip(now, other, strict=True))
            arrives = f"{arrive} arrive, " if parameters else ""
            found = f"{value.name} {does} split too: {arrives}{between} are received"
            self.weighed.setdefault(node.number, []).append(found)
        if not is_worth_it:
            self.cuts = cuts
            return learned, False
        for reason in learned:
            state = self.states[reason.value]
            state.axes[reason.dim] = (*state.axes[reason.dim], reason.axis)
            self._because(reason)
        return learned, True

    def _forget(self, learned: Sequence[Learned]) -> None:
        """Removes the axes that were added last."""
        for reason in reversed(learned):
            state = self.states[reason.value]
            state.axes[reason.dim] = state.axes[reason.dim][:-1]
            self.reasons[reason.value, reason.dim].pop()

    def _bytes(self, parameters: Iterable[Value], nodes: Iterable[Node]) -> tuple[float, float]:
        """The bytes of these parameters that arrive on a device, and those that it receives from others at these
        nodes."""
        arrive = sum(local_bytes(value, self.states[value]) for value in parameters)
        return arrive, sum(bytes_between(node, self.states, self.iterations) for node in nodes)

    # Reasons.

    def _because(self, reason: Learned) -> None:
        self.learned.append(reason)
        self.reasons.setdefault((reason.value, reason.dim), []).append(reason)

    def _reason(self, node: Node, value: Value, dim: int, axis: AxisRef, wanted: Wanted) -> Learned:
        source, source_dim = value, 0
        for axes, position in wanted.values():
            if axis in axes:
                source = node.tensors[position]
                source_dim = next(d for d, split in enumerate(self.states[source].axes) if axis in split)
        backward = node.op is not None and value in node.op.operands and source in node.op.results
        how = f"{node.what}, {'backward' if backward else 'forward'}" if node.op is not None else node.what
        return Learned(value, dim, axis, self.step, how, node.span, source, source_dim)

    # The program that comes out.

    def finish(self) -> Propagated:
        shardings: dict[object, Sharding] = {}  # What is sharded alike shares one.
        graph = self.graph

        def sharding(value: Value) -> Sharding:
            annotated = value.sharding
            if annotated is not None and annotated.mesh != graph.program.mesh:
                return annotated.closed()
            key = tuple(self.states[value].axes), annotated.partial if annotated is not None else ()
            if key not in shardings:
                dims = tuple(DimSharding(merge_axes(axes)) for axes in key[0])
                shardings[key] = Sharding(graph.program.mesh, dims, key[1])
            return shardings[key]

        def result(function: Function, i: int) -> Result:
            return replace(function.results[i], sharding=sharding(graph.slots[function.name, i]))

        def value(old: Value) -> Value:
            return Value(old.name, old.type, sharding(graph.edges.get(old, old)), old.span, old.of)

        bodies = [function.body for function in graph.program.functions.values()]
        annotated = frozenset(v.name for body in bodies for v in values_within(body) if v.sharding is not None)
        return Propagated(map_values(graph.program, value, result), self.explained, self.step, annotated)

    def explained(self) -> Provenance:
        """The reasons and conflicts of the propagated program, by the names of values."""
        graph, functions = self.graph, self.graph.program.functions
        names = {v: (f, v.name) for f, function in functions.items() for v in values_within(function.body)}
        for (function, i), slot in graph.slots.items():
            names[slot] = (function, f"-> {functions[function].results[i].name}")
        for param, edge in graph.edges.items():
            names[edge] = (names[param][0], name_outside(param.name))

        def reason(r: Learned) -> Reason:
            source = names[r.source] if r.source is not None else None
            return Reason(names[r.value], r.dim, r.axis, r.step, r.how, r.span, source, r.source_dim)

        reasons: dict[tuple[ValueId, int], tuple[Reason, ...]] = {}
        for (value, dim), found in self.reasons.items():
            key = names[value], dim
            reasons[key] = _earliest(reasons.get(key, ()), tuple(map(reason, found)))
        conflicts = conflicts_at(self.nodes, self.states, self._order, self.weighed, names)
        return Provenance(reasons, tuple(conflicts))


def _earliest(some: tuple[Reason, ...], others: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The earliest reason for each axis: the condition and the body of a loop have parameters of the same names."""
    found: dict[AxisRef, Reason] = {}
    for reason in (*some, *others):
        known = found.setdefault(reason.axis, reason)
        if reason.step < known.step:
            found[reason.axis] = reason
    return tuple(found.values())


def _alone(tensor: TensorFactors) -> set[int]:
    """The factors of a tensor's dims that have no other."""
    return {dim[0] for dim in tensor if len(dim) == 1}
