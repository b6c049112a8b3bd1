"""The partitioner: walks a propagated program once and writes what one device does (GShard, section 3.3).

For each value it keeps the layouts in which the value exists, so that no reshard is computed twice; a reshard of a
value from outside a loop is written outside. For each op it asks `plan.strategies` how to split it, brings the
operands there, masks their padding where a reduction would see it, and writes the local op. Reductions stay owed until
someone needs the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ir.builder import RegionBuilder
from ir.diagnostics import Diagnostic, InternalError, Span
from ir.ops import OPS, FactorKind, FactorRule
from ir.ops.reduction import identity_of
from ir.program import Op, Program, Value, all_ops, walk
from ir.sharding import ReductionKind, Sharding
from ir.types import TensorType
from passes.cost.model import LOOP_HOIST_WEIGHT
from passes.factors import factor_rule, other_rules
from passes.partition.closed_sharding import ClosedSharding, closed_sharding_of
from passes.partition.context import Callers, OpContext
from passes.partition.options import PartitionOptions
from passes.partition.plan.loop_linearity import LinearParts, linear_parts
from passes.partition.plan.pending_reductions import reduced_anyway, wanted_whole
from passes.partition.plan.static_starts import constants_of
from passes.partition.plan.strategies import StrategyQuery, StrategySelector, can_be_made, can_stay_split
from passes.partition.registry import REWRITES, Constants, partitioning_of
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import emit_step
from passes.partition.reshard.strided_sharding import StridedSharding
from passes.partition.shards import mask, uneven_dims
from passes.partition.strategy import Strategy
from passes.partition.write.empty import of_nothing
from passes.partition.write.functions import Functions, Given, inlined_functions
from passes.partition.write.recompute import (
    Estimate,
    PartitionedValue,
    Recompute,
    assignment_for,
    is_recomputable,
    only_narrowed,
)
from passes.propagation.reasons import Propagated

_MAX_DEPTH = 16

__all__ = ["PartitionedValue", "Partitioner"]

Control = Callable[["Partitioner", RegionBuilder, Op], None]
"""Partitions one op that is not split by its factors: one that holds regions or names functions, or whose operands have
nothing to do with one another."""

_CONTROL: dict[str, Control] = {}


def partitions_region(*names: str) -> Callable[[Control], Control]:
    """Registers a function that partitions these ops whole, with their regions."""

    def register(control: Control) -> Control:
        _CONTROL.update(dict.fromkeys(names, control))
        return control

    return register


@dataclass(eq=False)
class Partitioner:
    """Partitions one program."""

    propagated: Propagated
    resharder: Resharder
    policy: PartitionOptions
    warnings: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def __post_init__(self) -> None:
        self.program: Program = self.propagated.program
        self.mesh = self.program.mesh
        self.chooser = StrategySelector(self.resharder, self.policy)
        self.placed: dict[Value, PartitionedValue] = {}
        self.arguments: dict[RegionBuilder, list[tuple[int, ClosedSharding, Value]]] = {}
        self.wants: dict[Value, ClosedSharding] = {}
        self.propagated_layouts: dict[Value, ClosedSharding] = {}
        self.known_parts: dict[Op, Mapping[int, LinearParts]] = {}
        self.decisions: dict[object, tuple[Mapping[int, ClosedSharding], frozenset[Value]]] = {}
        self.warned: set[tuple[Value, ClosedSharding]] = set()
        self.times: dict[RegionBuilder, float] = {}
        self.of_the_caller: Callers = {}

    @cached_property
    def uses(self) -> Counter[Value]:
        """How many ops use each value."""
        return _uses(self.program)

    @cached_property
    def needed(self) -> frozenset[Value]:
        """Values that ops use, or that regions give."""
        return frozenset(self.uses).union(*_given(self.program))

    @cached_property
    def only_narrowed(self) -> frozenset[Value]:
        """Values of which nobody needs more than what a conversion to fewer bytes makes of them."""
        return only_narrowed(self.program)

    @cached_property
    def reduced_anyway(self) -> frozenset[Value]:
        """Values that are reduced in any case."""
        return reduced_anyway(self.program)

    @cached_property
    def wanted_whole(self) -> frozenset[Value]:
        """Values that are reduced as they are, not only what is made of them."""
        return wanted_whole(self.program)

    @cached_property
    def inlined(self) -> frozenset[str]:
        """Functions that are written where they are called."""
        return inlined_functions(self.program)

    @cached_property
    def constants(self) -> Constants:
        """The numbers that are known."""
        return constants_of(all_ops(self.program))

    @cached_property
    def functions(self) -> Functions:
        """The functions written so far."""
        return Functions(self)

    def run(self) -> Program:
        """The SPMD program."""
        program, warnings = self.functions.write()
        self.warnings[:] = warnings
        return program

    # Functions and regions.

    def owed(self, values: Sequence[Value], wanted: ClosedSharding) -> ClosedSharding:
        """The layout in which all of these values exist with reductions still owed, so that who gets one of them can
        add first; the wanted one if there is none, or if that is there already."""
        layouts = [self.placed[v].layouts for v in values]
        if any(wanted in have for have in layouts):
            return wanted
        return next((have for have in layouts[0] if have.partial and all(have in others for others in layouts)), wanted)

    def add_parameter(self, b: RegionBuilder, param: Value) -> None:
        """A parameter of the entry, which lies as propagation wants it."""
        sharding = self.sharding(param.sharding, param.type)
        layout = self.layout(sharding, param.type)
        local = param.type.with_shape(layout.local_shape(param.shape))
        value = b.param(param.name, local, sharding, span=param.span, of=param.type)
        self.placed[param] = PartitionedValue(param, layout, {layout: value}, b)

    def add_argument(self, b: RegionBuilder, i: int, param: Value, given: Given, *, fixed: bool) -> None:
        """A parameter of a function. Unless it is `fixed`, the function can ask for it in other layouts too."""
        local = b.param(param.name, param.type.with_shape(given.layout.local_shape(param.shape)), span=param.span)
        self.arguments.setdefault(b, []).append((i, given.layout, local))
        placed = PartitionedValue(param, self.wanted(param), {given.layout: local}, b, argument=None if fixed else i)
        placed.share = LOOP_HOIST_WEIGHT if given.outside else 1.0
        self.placed[param] = placed

    def _asked(self, placed: PartitionedValue, layout: ClosedSharding, argument: int) -> Value:
        """An argument in another layout, which the caller is to bring it to."""
        value, b = placed.value, placed.home
        local = b.param(value.name, value.type.with_shape(layout.local_shape(value.shape)), span=value.span)
        self.arguments[b].append((argument, layout, local))
        placed.layouts[layout] = local
        return local

    def given(self, value: Value, param: Value, b: RegionBuilder) -> Given:
        """How a call in the region of `b` has an argument. Of what is owed a reduction, the callee decides when."""
        placed = self.placed[value]
        lies = next(iter(placed.layouts))
        lazy = all(have.partial for have in placed.layouts) and lies.order is None
        return Given(lies if lazy else self.wanted(param), self.share(value, b) < 1)

    def sharding(self, sharding: Sharding | None, type: TensorType) -> Sharding:
        """The sharding itself; none stands for replicated."""
        return sharding if sharding is not None else Sharding.replicate(self.mesh, type.rank)

    def layout(self, sharding: Sharding | None, type: TensorType) -> ClosedSharding:
        """The layout of a closed sharding; none stands for replicated."""
        return closed_sharding_of(self.sharding(sharding, type), self.resharder.sub_axes)

    def ops(self, b: RegionBuilder, ops: Sequence[Op]) -> None:
        """Partitions these ops, in order."""
        for op in ops:
            b.span = op.span
            if op.name == "shard":
                self._annotation(op)
            elif op.name in _CONTROL:
                _CONTROL[op.name](self, b, op)
            else:
                for each in self._in_other_words(op):
                    self._op(b, each)

    # Values.

    def wanted(self, value: Value) -> ClosedSharding:
        """The layout that propagation gave a value, or that was chosen for what a loop carries."""
        chosen = self.wants.get(value)
        if chosen is not None:
            return chosen
        found = self.propagated_layouts.get(value)
        if found is None:
            found = self.propagated_layouts[value] = self.layout(value.sharding, value.type)
        return found

    def put(self, value: Value, layout: ClosedSharding, local: Value, home: RegionBuilder) -> None:
        """Records where a value was made."""
        expected = layout.local_shape(value.shape)
        if local.shape != expected or local.dtype != value.dtype:
            raise InternalError(f"{value.name} in {layout.spell(self.mesh)} is {local.type}, expected shape {expected}")
        self.placed[value] = PartitionedValue(value, self.wanted(value), {layout: local}, home)

    def reshard_to(self, value: Value, layout: ClosedSharding, span: Span | None, why: str, name: str = "") -> Value:
        """The value in that layout, resharded the cheapest way from the layouts it has if need be."""
        placed = self.placed[value]
        local = placed.layouts.get(layout)
        if local is not None:
            return local
        made = self._made(placed, layout)
        if made is not None:
            placed.layouts[layout] = made
            return made
        if placed.recipe is not None and layout.partial and layout.order is None:
            whole = self.reshard_to(value, layout.without_partial(), span, why, name)
            if self._is_identity(placed.recipe, layout.partial[0][1]):
                placed.layouts[layout] = whole
                return whole
        plan, layout_now = placed.cheapest(self.resharder, layout)
        if placed.maker is not None and Estimate(self.placed, self.resharder).again(placed, layout, plan) is not None:
            again = self._computed(placed, *placed.maker, layout)
            if again is not None:
                placed.layouts[layout] = again
                return again
        if placed.argument is not None and plan.received:
            return self._asked(placed, layout, placed.argument)
        local = placed.layouts[layout_now]
        b = placed.home
        before = b.span, b.note
        b.span = span
        start: ClosedSharding | StridedSharding = layout_now
        now = start
        for step, after in plan.steps:
            b.note = f"{now.spell(self.mesh)} -> {after.spell(self.mesh)}, {why}"
            local = emit_step(b, local, value.shape, step, after, self.resharder.sub_axes, name or value.name)
            now = after
            if isinstance(after, ClosedSharding) and after.used <= self.resharder.sub_axes.rank.keys():
                placed.layouts.setdefault(after, local)
        b.span, b.note = before
        if now != layout:
            raise InternalError(f"a reshard of {value.name} from {start} ended in {now}, not in {layout}")
        return local

    def share(self, value: Value, b: RegionBuilder) -> float:
        """How often what the value needs is written once, for each time that the region of `b` runs: a reshard of a
        value from outside a loop stands outside."""
        placed = self.placed[value]
        return placed.share * self.times.get(placed.home, 1.0) / self.times.get(b, 1.0)

    def linear_parts(self, op: Op) -> Mapping[int, LinearParts]:
        """What each value that a loop carries is made of, found out once for each loop."""
        found = self.known_parts.get(op)
        if found is None:
            found = self.known_parts[op] = linear_parts(self.program, self.inlined, op)
        return found

    def alias(self, value: Value, source: Value, span: Span | None, why: str) -> None:
        """Records that a value is another one. If propagation wants it elsewhere it is brought there, unless a
        reduction is owed, which then stays owed."""
        layout, placed = self.wanted(value), self.placed[source]
        if not all(have.partial for have in placed.layouts):
            self.reshard_to(source, layout, span, why)
        self.placed[value] = replace(placed, value=value, wanted=layout)

    def _made(self, placed: PartitionedValue, layout: ClosedSharding) -> Value | None:
        """The value made in that layout, if it has a recipe."""
        if placed.recipe is None or not can_be_made(layout):
            return None
        return self._computed(placed, placed.recipe.op, placed.recipe.rule, layout)

    def _computed(self, placed: PartitionedValue, op: Op, rule: FactorRule, layout: ClosedSharding) -> Value | None:
        """The result of an op, computed in that layout where the value was made; None if it cannot be."""
        assignment = assignment_for(op, rule, layout)
        if assignment is None:
            return None
        b = placed.home
        before = b.span, b.note
        operands = tuple(
            self.reshard_to(v, at, op.span, f"operand of {op.name}")
            for v, at in zip(op.operands, assignment.operands, strict=True)
        )
        b.span, b.note = op.span, op.note
        (local,) = self._localized(OpContext(self.mesh, op, rule, assignment, operands, b))
        b.span, b.note = before
        return local

    def _is_identity(self, recipe: Recompute, kind: ReductionKind) -> bool:
        """Whether every element is one that changes no result of that reduction."""
        op = recipe.op
        if op.name == "constant":
            return op.attrs["value"] == identity_of(kind, op.result.dtype)
        recipes = [self.placed[op.operands[i]].recipe for i in OPS[op.name].sources(op)]
        return bool(recipes) and all(inner is not None and self._is_identity(inner, kind) for inner in recipes)

    def _recipe(self, op: Op, rule: FactorRule) -> Recompute | None:
        opdef = OPS[op.name]
        if not opdef.made_anywhere and opdef.family != "elementwise":
            return None
        if op.name == "constant" and isinstance(op.attrs["value"], tuple):
            return None
        depth = 1
        for v in op.operands:
            placed = self.placed[v]
            whole = opdef.made_anywhere and ClosedSharding.replicated(v.type.rank) in placed.layouts
            if placed.recipe is None and not whole:
                return None
            depth = max(depth, 1 + (placed.recipe.depth if placed.recipe is not None else 0))
        return Recompute(op, rule, depth) if depth <= _MAX_DEPTH else None

    def _in_other_words(self, op: Op) -> Sequence[Op]:
        """Ops that do the same and can be split in more ways, where that helps; the op itself elsewhere."""
        known = of_nothing(op)
        if known is not None:
            return (known,)
        rewrite = REWRITES.get(op.name)
        return (op,) if rewrite is None else rewrite(op, self)

    def is_split(self, value: Value, dim: int) -> bool:
        """Whether a dim lies split in the layout in which a value was made."""
        return bool(next(iter(self.placed[value].layouts)).axes[dim])

    # Ops.

    def _annotation(self, op: Op) -> None:
        """The value is brought where it is annotated to be; what is only narrowed there, once that is done."""
        operand, result = op.operands[0], op.result
        layout = self.wanted(result)
        if result not in self.only_narrowed:
            self.reshard_to(operand, layout, op.span, f"{result.name} is annotated so", result.name)
        source = self.placed[operand]
        self.placed[result] = replace(source, value=result, wanted=layout)

    def _op(self, b: RegionBuilder, op: Op) -> None:
        own = factor_rule(op)
        if own is None:
            raise InternalError(f"{op.name} has neither a factor rule nor a partitioning of its own")
        rule, assignment = self._choose(b, op, own)
        self._warn_of_memory(op, assignment)
        self._warn_of_gathers(op, own, assignment)
        operands = tuple(
            self.reshard_to(v, layout, op.span, f"operand of {op.name}")
            for v, layout in zip(op.operands, assignment.operands, strict=True)
        )
        b.span, b.note = op.span, op.note
        operands = self._masked(b, op, rule, assignment, operands)
        context = OpContext(self.mesh, op, rule, assignment, operands, b, self.of_the_caller)
        results = self._localized(context)
        recipe = self._recipe(op, rule)
        for value, layout, local in zip(op.results, assignment.results, results, strict=True):
            self.put(value, layout, local, b)
            self.placed[value].recipe = recipe
            self.placed[value].maker = (op, rule) if is_recomputable(op) else None
        if any(v in self.only_narrowed for v in op.operands):
            (annotated,), (result,) = op.operands, op.results
            self.reshard_to(result, self.placed[annotated].wanted, op.span, f"{annotated.name} is annotated so")

    def _localized(self, context: OpContext) -> Sequence[Value]:
        return partitioning_of(context.op).write(context)

    def _choose(self, b: RegionBuilder, op: Op, rule: FactorRule) -> tuple[FactorRule, Strategy]:
        """The cheapest assignment under the op's rule, or under another view of the op."""
        known = tuple(self._known(v) for v in op.operands)
        anywhere = tuple(self.placed[v].recipe is not None for v in op.operands)
        shares = tuple(self.share(v, b) for v in op.operands)
        wanted = tuple(self.placed[v].wanted for v in op.operands), tuple(self.wanted(v) for v in op.results)
        shared = tuple(self.uses[v] > 1 for v in op.operands)
        used = tuple(v in self.needed for v in op.results)
        whole = any(v in self.wanted_whole for v in op.results)
        rules = (rule, *other_rules(op))
        questions = (StrategyQuery(op, r, known, anywhere, shares, *wanted, shared, used, whole) for r in rules)
        choices = [(q.rule, self.chooser.choose(q)) for q in questions]
        return min(choices, key=lambda choice: (choice[1].excess, choice[1].seconds))

    def _known(self, value: Value) -> tuple[ClosedSharding, ...]:
        """The layouts in which a value exists, and will exist: reduced, if another op wants it so."""
        placed = self.placed[value]
        have = tuple(placed.layouts)
        wanted = placed.wanted
        will_be = value in self.reduced_anyway and all(layout.partial for layout in have) and not wanted.partial
        return (*have, wanted) if will_be else have

    def _masked(
        self, b: RegionBuilder, op: Op, rule: FactorRule, assignment: Strategy, operands: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """The operands with the identity in the padding of dims that are reduced, where the op would read it."""
        split = {f for f, _ in assignment.factors}
        if assignment.ring is not None:
            split.add(assignment.ring.factor)
        unread = partitioning_of(op).ignores_padding_of
        masked: list[Value] = []
        for i, (value, layout, tensor) in enumerate(zip(op.operands, assignment.operands, rule.operands, strict=True)):
            local = operands[i]
            for dim in uneven_dims(value.shape, layout) if i not in unread else ():
                factor = rule.factors[tensor[dim][0]]
                if factor.kind is not FactorKind.REDUCTION or tensor[dim][0] not in split:
                    continue
                kind = factor.reduction
                if kind is None:
                    continue
                local = mask(b, local, value.shape, layout, (dim,), identity_of(kind, value.dtype))
            masked.append(local)
        return tuple(masked)

    def _warn_of_memory(self, op: Op, assignment: Strategy) -> None:
        if not assignment.excess:
            return
        limit = self.policy.memory_limit
        self.warnings.append(
            Diagnostic(
                "W002",
                f"{op.name} takes {limit + assignment.excess} bytes on each device, and the limit is {limit}",
                op.span,
                notes=("these are its operands and results, and what they are made from",),
                help="split its operands and results over more axes, or raise the limit",
                severity="warning",
            )
        )

    def _warn_of_gathers(self, op: Op, rule: FactorRule, assignment: Strategy) -> None:
        """Of operands whose axes are lost because the op can be split in no way along their dims."""
        for position, (value, layout) in enumerate(zip(op.operands, assignment.operands, strict=True)):
            placed = self.placed[value]
            if layout in placed.layouts or placed.recipe is not None:
                continue
            views = (rule, *other_rules(op))
            split = placed.wanted.axes
            for dim, axes in enumerate(split):
                lost = value.shape[dim] > 1 and not layout.used.issuperset(axes)
                if lost and not any(can_stay_split(op, view, position, split, dim) for view in views):
                    self._warn(op, value, dim, layout)

    def _warn(self, op: Op, value: Value, dim: int, layout: ClosedSharding) -> None:
        """Once for each layout that a value is brought to."""
        placed = self.placed[value]
        moved = self.resharder.received(value.shape, value.dtype.nbytes, list(placed.layouts), layout)
        if (value, layout) in self.warned or not moved:
            return
        self.warned.add((value, layout))
        name, way = op.name, f"split another dim of {value.name} before this op"
        if op.name == "opaque":
            name = f"{op.name} {op.attrs['target']}"
            way += f", or give its factors: spmdc.register_rule({op.attrs['target']!r}, …)"
        self.warnings.append(
            Diagnostic(
                "W001",
                f"{name} gathers {value.name}: {moved} bytes to each device",
                op.span,
                notes=(f"dim {dim} is split ({placed.wanted.spell(self.mesh)}), and {name} works along it",),
                help=way,
                severity="warning",
            )
        )


def _given(program: Program) -> Iterator[tuple[Value, ...]]:
    """The results of all regions."""
    for function in program.functions.values():
        yield function.body.results
        yield from (region.results for op in walk(function.body) for region in op.regions)


def _uses(program: Program) -> Counter[Value]:
    """How many ops use each value, itself or under the name that an annotation gives it."""
    uses: Counter[Value] = Counter()
    annotated: dict[Value, Value] = {}
    for op in all_ops(program):
        if op.name == "shard":
            annotated[op.result] = op.operands[0]
        else:
            uses.update(op.operands)
    for value, source in reversed(annotated.items()):
        uses[source] += uses[value]
    for value, source in annotated.items():
        uses[value] = uses[source]
    return uses
