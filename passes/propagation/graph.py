"""A program as propagation sees it: a node for each op, loop, call and boundary, and the tensors that these relate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ir.dataflow import uses_of
from ir.diagnostics import Span
from ir.manual import Manual, contexts, region_axes
from ir.mesh import Axes, AxisRef, DimAxes
from ir.ops import OPS, Factor, FactorRule
from ir.ops.declaration import ControlKind
from ir.ops.layout import is_annotation, is_hint
from ir.ops.rule_helpers import int_attr
from ir.program import Function, Op, Program, Region, Value, callee_of
from ir.sharding import Sharding
from passes.cost.model import trips_of
from passes.joined_parts import moved_along, parts_of
from passes.propagation.nodes import Level, Node, Relation, State, relations_of
from passes.propagation.survival import LaterReductions, extreme_dims, later_reductions, surviving_dims
from passes.propagation.traffic import repeating
from passes.signatures import Signature, Signatures
from passes.sub_axes import SubAxes


class PropagationGraph:
    """The nodes of a program, in its order, and what its annotations say of each tensor before anything is propagated.

    It does not depend on the number of devices, and is as large as the program.
    """

    def __init__(self, program: Program, sub_axes: SubAxes) -> None:
        self.program = program
        self.sub_axes = sub_axes
        self.nodes: list[Node] = []
        self.nodes_of: dict[Value, list[Node]] = {}
        self.states: dict[Value, State] = {}
        self.slots: dict[tuple[str, int], Value] = {}
        """The tensor of each result of a function, as the function declares it."""
        self.edges: dict[Value, Value] = {}
        """The tensor that each parameter of a manual region is a shard of, sharded as the region takes it."""
        self.iterations: dict[Value, int] = {}
        """How often loops compute a value, where that is more than once. Loop-invariant values are not counted."""
        self._groups: dict[int, list[tuple[Value, Span | None]]] = {}
        """The annotated values of each sharding group, with their spans."""
        self._makers = uses_of(program).makers
        self._signatures = Signatures()
        self._relations: dict[Signature, tuple[Relation, ...]] = {}
        """The relations of all ops with the same signature."""
        self._of_equals: dict[tuple[tuple[int, ...], int], Relation] = {}
        """The relation of a number of tensors of one shape that should be sharded equally."""
        around = contexts(program)
        for function in program.functions.values():
            (manual,) = around[function.name]
            self._add_function(function, manual)
        for group, members in self._groups.items():
            self._relate([value for value, _ in members], f"sharding group {group}", members[0][1])

    @cached_property
    def repeating(self) -> Mapping[Value, int]:
        """The values that only repeat the elements of smaller ones, and how many elements these have."""
        return repeating(self.nodes)

    @cached_property
    def surviving(self) -> frozenset[tuple[Value, int]]:
        """The dims of values that are not reduced later."""
        return surviving_dims(self.nodes)

    @cached_property
    def reductions(self) -> LaterReductions:
        """The ops that reduce each dim of a value later."""
        return later_reductions(self.nodes, self.iterations)

    @cached_property
    def extreme(self) -> frozenset[tuple[Value, int]]:
        """The dims of values over which a maximum or another extreme is taken later."""
        return extreme_dims(self.nodes)

    def _add_function(self, function: Function, manual: Manual) -> None:
        reserved = self._manual_axes(manual)
        for i, (value, declared) in enumerate(zip(function.body.results, function.results, strict=True)):
            slot = Value(declared.name, declared.type, declared.sharding, declared.span)
            self.slots[function.name, i] = slot
            self._add_tensor(slot, slot.sharding, reserved)
            self._relate((value, slot), f"return of {function.name}", declared.span)
        self._add_region(function.body, reserved)

    def _manual_axes(self, manual: Manual) -> frozenset[AxisRef]:
        return frozenset(self.sub_axes.split(axis for axis in self.program.mesh.whole_axes() if axis.name in manual))

    def _add_region(self, region: Region, reserved: frozenset[AxisRef]) -> None:
        """Adds a region. `reserved` has the manual axes, along which none of its values may be split."""
        for param in region.params:
            self._add_tensor(param, param.sharding, reserved)
        for op in region.ops:
            self._add_op(op, reserved)

    def _add_manual(self, op: Op, reserved: frozenset[AxisRef]) -> None:
        """Relates the two sides of a manual region's boundary. Free axes cross it, and are minor to the manual axes of
        each dim."""
        region, own = op.regions[0], self._manual_axes(region_axes(op))
        inside = reserved | own
        for operand, param in zip(op.operands, region.params, strict=True):
            assert param.of is not None
            edge = Value(param.name, param.of, param.sharding, param.span)
            self.edges[param] = edge
            prefix = self._add_edge(edge, own, inside)
            self._add_tensor(param, None, inside)
            self._relate((operand, edge), f"operand {param.name} of the manual region", op.span, annotates=True)
            self._cross(edge, param, prefix, f"into the manual region as {param.name}", op.span)
        for inner in region.ops:
            self._add_op(inner, inside)
        for i, (returned, result) in enumerate(zip(region.results, op.results, strict=True)):
            prefix = self._add_edge(result, own, inside)
            self._cross(result, returned, prefix, f"result {i} of the manual region", op.span)

    def _add_edge(self, value: Value, own: frozenset[AxisRef], reserved: frozenset[AxisRef]) -> DimAxes:
        """Adds a tensor that crosses a boundary, and returns the manual axes that split it there. No other manual axes
        ever do."""
        self._add_tensor(value, value.sharding, reserved)
        state = self.states[value]
        prefix: list[Axes] = [()] * value.type.rank
        for _, dim, axes in state.annotated:
            prefix[dim] = tuple(a for a in axes if a in own)
        return tuple(prefix)

    def _cross(self, outer: Value, inner: Value, prefix: DimAxes, what: str, span: Span | None) -> None:
        none = ((),) * outer.type.rank
        self._add_node((outer, inner), self._equal(inner.shape, 2), None, what, span, prefix=(prefix, none))

    def _add_op(self, op: Op, reserved: frozenset[AxisRef]) -> None:
        control = OPS[op.name].control
        if control is ControlKind.MANUAL:
            self._add_manual(op, reserved)
            return
        iterations = max([self.iterations.get(v, 1) for v in op.operands], default=1) if self.iterations else 1
        for value in op.results:
            self._add_tensor(value, value.sharding, reserved)
            self._is_made(value, iterations)
        if control is ControlKind.LOOP:
            self._add_entries(op)
        for inner in op.regions:
            for param in inner.params:
                self._is_made(param, iterations * max(1, trips_of(op)) if control is ControlKind.LOOP else iterations)
            self._add_region(inner, reserved)
        if control in (ControlKind.LOOP, ControlKind.CHOICE, ControlKind.CALL) or OPS[op.name].passes_each:
            self._add_links(op, control)
        else:
            self._add_rule(op)

    def _add_entries(self, op: Op) -> None:
        """Relates what a loop starts with to its parameters, before any op of its body: a batch then splits what is
        carried, rather than weights that the body uses."""
        condition, body = op.regions
        for i, operand in enumerate(op.operands):
            entering = condition.params[i], body.params[i], operand
            self._relate(entering, f"value {i} carried by the loop", op.span)

    def _add_links(self, op: Op, control: ControlKind | None) -> None:
        """Relates the values that an op with regions or a callee makes equal: they should be sharded equally."""
        if control is ControlKind.LOOP:
            condition, body = op.regions
            for i, result in enumerate(op.results):
                carried = (condition.params[i], body.params[i], op.operands[i], body.results[i], result)
                self._relate(carried, f"value {i} carried by the loop", op.span)
        elif control is ControlKind.CHOICE:
            for i, result in enumerate(op.results):
                branches = (region.results[i] for region in op.regions)
                self._relate((result, *branches), f"result {i} of the {op.name}", op.span)
        elif control is ControlKind.CALL:
            callee = self.program.functions[str(callee_of(op))]
            for operand, param in zip(op.operands, callee.params, strict=True):
                self._relate((operand, param), f"argument {param.name} of {callee.name}", op.span)
            for value, result in zip(callee.body.results, op.results, strict=True):
                self._relate((value, result), f"result of {callee.name}", op.span)
        else:
            for operand, result in zip(op.operands, op.results, strict=True):
                self._relate((operand, result), op.name, op.span)

    def _add_rule(self, op: Op) -> None:
        signature = self._signatures.of(op)
        relations = self._relations.get(signature)
        if relations is None:
            relations = self._relations[signature] = relations_of(signature)
        else:
            for relation in relations:
                relation.is_shared = True
        if is_annotation(op):
            self._add_annotation(op, relations[0])
            return
        tensors = (*op.operands, *op.results)
        for relation in relations:
            self._add_node(tensors, relation, op, op.name, op.span)
        for part, value in zip(parts_of(op, self._makers.get), op.operands, strict=False):
            if part.source is not value:
                dim = int_attr(op.attrs, "dim")
                moved = Relation(moved_along(part.source, dim), Level.ALL, frozenset())
                self._add_node((part.source, op.result), moved, None, f"{op.name} of slices", op.span)

    def _add_annotation(self, op: Op, relation: Relation) -> None:
        """An annotation propagates backward only from its own level on, unless it just ties tensors together, or gives
        a direction."""
        group, passes = op.attrs.get("group"), str(op.attrs.get("passes", "both"))
        sharding = op.result.sharding
        says_where = not is_hint(op) or any(
            d.axes or not d.open for d in (sharding.dims if sharding is not None else ())
        )
        tensors = (op.operands[0], op.result)
        self._add_node(tensors, relation, op, op.name, op.span, annotates=says_where, passes=passes)
        if isinstance(group, int):
            self._groups.setdefault(group, []).append((op.result, op.span))

    def _relate(self, values: Sequence[Value], what: str, span: Span | None, *, annotates: bool = False) -> None:
        """Relates values that should be sharded equally."""
        unique = tuple(dict.fromkeys(values))
        self._add_node(unique, self._equal(unique[0].shape, len(unique)), None, what, span, annotates=annotates)

    def _equal(self, shape: tuple[int, ...], count: int) -> Relation:
        """The relation of `count` tensors of one shape that should be sharded equally."""
        found = self._of_equals.get((shape, count))
        if found is None:
            dims = tuple((i,) for i in range(len(shape)))
            rule = FactorRule(tuple(map(Factor, shape)), (dims,) * count, ())
            found = self._of_equals[shape, count] = Relation(rule, Level.SIMPLE, frozenset(range(len(dims))))
        return found

    def _add_node(
        self,
        tensors: tuple[Value, ...],
        relation: Relation,
        op: Op | None,
        what: str,
        span: Span | None,
        *,
        prefix: tuple[DimAxes, ...] = (),
        annotates: bool = False,
        passes: str = "both",
    ) -> None:
        node = Node(len(self.nodes), tensors, relation, op, what, span, prefix, annotates, passes)
        self.nodes.append(node)
        for value in tensors if len(tensors) == 1 else dict.fromkeys(tensors):
            self.nodes_of.setdefault(value, []).append(node)

    def _is_made(self, value: Value, iterations: int) -> None:
        if iterations > 1:
            self.iterations[value] = iterations

    def _add_tensor(self, value: Value, annotation: Sharding | None, never: frozenset[AxisRef]) -> None:
        rank = value.type.rank
        if annotation is None:
            self.states[value] = State([()] * rank, [True] * rank, set(never), [])
            return
        sharding = self.sub_axes.home(annotation)
        split = [self.sub_axes.split(d.axes) for d in sharding.dims]
        reserved = {a for axis, _ in sharding.partial for a in self.sub_axes.split((axis,))}
        reserved |= {*self.sub_axes.split(sharding.replicated), *never}
        annotated = [
            (d.priority, i, axes) for i, (d, axes) in enumerate(zip(sharding.dims, split, strict=True)) if axes
        ]
        reserved |= {a for priority, _, axes in annotated if priority > 0 for a in axes}
        self.states[value] = State([()] * rank, [d.open for d in sharding.dims], reserved, annotated)
