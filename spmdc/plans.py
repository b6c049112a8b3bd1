"""Plans for users: the cost of each op, what else it could be computed by, and plans with other strategies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace

from ir.diagnostics import Diagnostic, error, require
from ir.graph import Graph, dataflow
from ir.mesh import Mesh
from ir.names import did_you_mean
from ir.notebooks import Lines
from ir.ops import FactorKind, FactorRule
from ir.ops.declaration import factor_letter
from ir.ops.resharding import is_reshard
from ir.program import Function, Op, Program, Value, all_ops, values_within, walk
from ir.spelling.printer import print_program
from passes.manager import Compilation, MakePlan, run
from passes.partition import Plan as MadePlan
from passes.partition import read_plan
from passes.partition.closed_sharding import closed_sharding_of
from passes.partition.options import PartitionOptions
from passes.partition.plan.decisions import Decision
from passes.partition.plan.sides import StrategyQuery
from passes.partition.plan.strategies import StrategySelector
from passes.partition.registry import ALONG, can_split_along
from passes.partition.spelling import read_strategy, spell_strategy
from passes.partition.strategy import Strategy
from passes.partition.write.cost import PlanCost, plan_cost
from passes.propagation.reasons import Propagated
from passes.sub_axes import find_sub_axes_of
from spmdc.choices import Choice, Choices
from spmdc.pictures import pages
from spmdc.reports.cost_text import cost_text, sum_text
from spmdc.reports.plan_differences import plan_differences
from spmdc.reshard_choices import reshard_choices

_Queries = list[tuple[StrategySelector, Sequence[StrategyQuery]]]
"""What was asked for an op, and of whom."""
_MOST_FOLLOWED = 12
"""The most candidates whose consequences for the whole plan are computed."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The partitioner's decisions for a program, as a program with global shapes in which every value has a closed
    sharding, each change of sharding is a `reshard`, and each op that is split names its strategy.

    `source` is the program that it is a plan for, `options` those that it was planned with, and `decided` the
    strategies that were not left to the cost model, by what tells the planned ops apart.
    """

    program: Program
    propagated: Propagated
    source: Program
    options: PartitionOptions
    warnings: tuple[Diagnostic, ...]
    timings: Mapping[str, float]
    decided: Mapping[object, str] = field(default_factory=dict[object, str])
    made: MadePlan | None = None
    """The planner's own form of this plan, so that it need not be read again."""

    def __repr__(self) -> str:
        return f"<Plan {self.program.summary}>"

    def _repr_html_(self) -> str:
        return pages.program(f"{self.program.summary}, planned: {sum_text(self.cost())}", self.text(locations=False))

    def text(self, *, costs: bool = False, locations: bool = True) -> str:
        """The plan in the .spmd language, which `parse` reads. With `costs`, each op is followed by its seconds,
        received bytes and the memory that is alive while it runs."""
        remarks = {op: cost_text(cost) for op, cost in self.cost().ops.items()} if costs else {}
        return print_program(self.program, locations=locations or costs, remarks=remarks)

    def cost(self) -> PlanCost:
        """Seconds, bytes and memory, for each op and in total, on the machine of the options. Takes as long as writing
        the plan, because the ops that it is written as are priced."""
        made = self.made
        if made is None or made.program is not self.program:
            made = read_plan(self.program, self.options)
        return plan_cost(made, self.options.machine)

    def graph(self) -> Graph:
        """The dataflow graph of the entry: a networkx graph of its ops (`ir.graph`). Each node has the costs of its op,
        `seconds`, `received` and `alive`, and says whether the op is `critical`: on the longest path."""
        cost = self.cost()
        graph = dataflow(self.program.main.body.ops)
        for op, data in graph.nodes(data=True):
            data.update(asdict(cost.ops[op]), critical=op in cost.critical_path)
        return graph

    def explain(self, value: str) -> Choices:
        """The possible strategies for the op that makes the value of that name, or of `function.name` if several
        functions have one; for a reshard, why it is there, and its steps. Raises SpmdcError (E101, E413).
        """
        made = list(_makers(self.program, value))
        if made and all(map(is_reshard, made)):
            return reshard_choices(self.program, made[0], self.options, self.cost().seconds)
        return choices_for(self, value)

    def replace(self, value: str, strategy: str) -> Plan:
        """The plan with another strategy for the op that makes the value of that name; everything else is decided
        again.

        Raises SpmdcError (E101, E309, E413) if there is no such op, or it has no such strategy.
        """
        require(isinstance(strategy, str), "a strategy is a text", strategy, "plan.explain(value) lists them")
        asked = _asked(self, value)
        decided = {**self.decided, asked.key: strategy}
        found = _planned(self, decided)
        if asked.key not in found.met and strategy == asked.made.strategy:
            return self  # The op has it although it was never asked for it: it is computed again, where it is needed.
        if asked.key not in found.met:
            choices = self.explain(value).choices
            known = ", ".join(repr(c.strategy) for c in choices if c.total is not None)
            message = f"the op that makes {value!r} has no strategy {strategy!r}"
            raise error("E413", message, help=f"it has {known}")
        lost = next((chosen for key, chosen in decided.items() if key not in found.met), None)
        if lost is not None:
            message = f"with {strategy!r} for {value!r}, the op for which {lost!r} was chosen before cannot have it"
            raise error("E413", message, help="explain lists what it can have")
        return replace(found.plan, decided=decided)

    def diff(self, other: Plan) -> str:
        """The differences of another plan, and their costs: a line for each op that differs, and the totals."""
        require(isinstance(other, Plan), "plans are compared with plans", other, "spmdc.plan(program)")
        costs = self.cost(), other.cost()
        return Lines(plan_differences((self.program, other.program), costs))


# Choices.


def choices_for(plan: Plan, value: str) -> Choices:
    """The possible strategies for the op that makes the value of that name. Raises SpmdcError (E101, E413)."""
    asked = _asked(plan, value)
    mesh, op, made = plan.program.mesh, asked.op, asked.made
    could = (
        each for each in reversed(asked.queries) if any(text == made.strategy for text, *_ in _spelled(mesh, *each))
    )
    selector, queries = next(could, asked.queries[-1])
    rows: dict[str, tuple[Strategy, str]] = {}
    everything = StrategySelector(selector.resharder, replace(selector.options, windowed_einsum="auto"))
    for who, excluded in ((selector, ""), (everything, f"windowed_einsum={selector.options.windowed_einsum}")):
        for text, _, strategy in sorted(_spelled(mesh, who, queries), key=lambda row: (row[2].excess, row[2].seconds)):
            rows.setdefault(text, (strategy, excluded))
    choices = [
        Choice(
            text,
            tuple(sharding.spell(mesh) for sharding in strategy.operands),
            tuple(sharding.spell(mesh) for sharding in strategy.results),
            strategy.seconds,
            strategy.alone,
            None,
            strategy.excess,
            text == made.strategy,
            excluded or (f"{strategy.excess:,} bytes beyond the memory limit" if strategy.excess else ""),
        )
        for text, (strategy, excluded) in rows.items()
    ]
    if made.strategy not in rows:
        choices.append(_as_made(asked.plan, made))
    choices.sort(key=lambda c: (bool(c.excluded) and not c.excess, c.excess, c.seconds))
    for i, choice in enumerate(choices):
        if i < _MOST_FOLLOWED or choice.is_chosen:
            choices[i] = _followed(plan, asked.key, choice)
    rules = tuple(str(query.rule) for query in queries)
    return Choices(value, op.name, rules, tuple(choices), tuple(_never_split(op, queries)), asked.copies)


def _as_made(plan: Plan, made: Op) -> Choice:
    """The strategy of an op of a plan that its op was not asked for: it was computed again, for other shardings."""
    mesh, shardings = plan.program.mesh, [v.sharding for v in (*made.operands, *made.results) if v.sharding is not None]
    sub_axes = find_sub_axes_of(mesh, shardings)
    spelled = [closed_sharding_of(sharding, sub_axes).spell(mesh) for sharding in shardings]
    n, seconds = len(made.operands), plan.cost().ops[made].seconds
    return Choice(made.strategy, tuple(spelled[:n]), tuple(spelled[n:]), seconds, seconds, None, 0, is_chosen=True)


def _followed(plan: Plan, key: object, choice: Choice) -> Choice:
    """The choice with the time that the program takes with it, if it can have it."""
    if choice.is_chosen:
        return replace(choice, total=plan.cost().seconds, excluded="")
    if choice.excluded and not choice.excess:
        return choice
    again = _planned(plan, {**plan.decided, key: choice.strategy})
    return replace(choice, total=again.plan.cost().seconds) if key in again.met else choice


def _never_split(op: Op, queries: Sequence[StrategyQuery]) -> Iterator[str]:
    """Why some factors are split in no strategy."""
    for query in queries:
        for f, factor in enumerate(query.rule.factors):
            if factor.kind is FactorKind.NEED_REPLICATION:
                yield f"{factor_letter(f)} (size {factor.size}) must stay whole: {op.name} works along it"
            elif factor.kind in ALONG and not can_split_along(op, query.rule, f):
                yield f"{factor_letter(f)} (size {factor.size}) cannot be split: {op.name} exchanges no boxes along it"


# The op that makes a value.


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for an op of the propagated program when the `plan` was made, which has it as `made`, and other
    `copies`. In a loop, or a function, there are queries for each of the shardings that were tried."""

    plan: Plan
    op: Op
    key: object
    made: Op
    queries: _Queries
    copies: int


def _asked(plan: Plan, value: str) -> _Asked:
    """What was asked for the op that makes a value of the plan, called by its name or `function.name`. A planned op
    keeps its attributes, but not always the names of its results."""
    again = _planned(plan, plan.decided)
    ops = list(all_ops(again.plan.program))
    made = list(_makers(again.plan.program, value))
    for op in made:
        queries = again.asked.get(id(op.attrs))
        if queries is not None:
            copies = sum(other.attrs is op.attrs for other in ops)
            asked = queries[0][1][0].op
            return _Asked(again.plan, asked, _key(again.own, asked), op, queries, copies)
    if made:
        help_text = "reshards and loops have none"
        if is_reshard(made[0]) and made[0].cause is not None:
            help_text = f"it is {made[0].operands[0].name!r}, resharded: {made[0].cause}"
        raise error("E413", f"{value!r} is made by an op that has no strategy", help=help_text)
    if _has_value(plan.program, value):
        help_text = "spmdc why FILE NAME explains its sharding"
        raise error("E413", f"{value!r} is a parameter, which no op makes", help=help_text)
    names = [v.name for f in plan.program.functions.values() for v in values_within(f.body)]
    help_text = did_you_mean(value, names) or "spmdc plan FILE shows them all"
    if _has_value(plan.source, value):
        became = ", ".join(repr(v.name) for op in _in_place_of(plan, value) for v in op.results)
        help_text = "the program has it: no result depends on it, or it is computed in another way"
        if became:
            help_text = f"the program has it, and the plan {became} in its place"
    raise error("E101", f"the plan has no value {value!r}", help=help_text)


def _in_place_of(plan: Plan, value: str) -> list[Op]:
    """The ops of a plan at the place of the op that makes the value of that name in the source: those of its kind, or
    else all."""
    places = {op.span: op.name for op in _makers(plan.source, value)}
    found = [op for op in all_ops(plan.program) if op.span is not None and op.span in places and not is_reshard(op)]
    return [op for op in found if op.name == places[op.span]] or found


def _makers(program: Program, name: str) -> Iterator[Op]:
    for function in program.functions.values():
        for op in walk(function.body):
            if any(_is_called(name, function, v) for v in op.results):
                yield op


def _has_value(program: Program, name: str) -> bool:
    return any(_is_called(name, f, v) for f in program.functions.values() for v in values_within(f.body))


def _is_called(name: str, function: Function, value: Value) -> bool:
    return name in (value.name, f"{function.name}.{value.name}")


# Planned anew.


def _spelled(
    mesh: Mesh, selector: StrategySelector, queries: Sequence[StrategyQuery]
) -> Iterator[tuple[str, FactorRule, Strategy]]:
    """The candidates for an op under each of its rules, with their texts."""
    for q in queries:
        for strategy in selector.candidates(q):
            yield spell_strategy(mesh, q.op, q.rule, strategy), q.rule, strategy


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan made anew, what each op was asked, by the ids of its attributes, and which decisions ops could meet."""

    plan: Plan
    asked: Mapping[int, _Queries]
    met: AbstractSet[object]
    own: AbstractSet[int]


def _key(own: AbstractSet[int], op: Op) -> object:
    """What tells an op apart in every planning: its attributes, which copies share, or, if planning made it from
    another op, its names."""
    return id(op.attrs) if id(op.attrs) in own else (op.name, op.label)


def _planned(plan: Plan, decided: Mapping[object, str]) -> _Planned:
    """The same program planned again, with strategies that are decided for some ops."""
    if not plan.propagated.reasons and plan.source.stage == "global" and plan.propagated.program is plan.source:
        help_text = "edit its text, or plan the program that it is for"
        raise error("E413", "the plan was read from a text, and cannot be made anew", help=help_text)
    mesh, own = plan.program.mesh, {id(op.attrs) for op in all_ops(plan.propagated.program)}
    asked: dict[int, _Queries] = {}
    met = set[object]()

    def decide(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> Decision | None:
        op = queries[0].op
        asked.setdefault(id(op.attrs), []).append((selector, queries))
        chosen = decided.get(_key(own, op)) if decided else None
        if chosen is None:
            return None
        wanted = read_strategy((mesh,), chosen, None)
        fitting = [
            (rule, strategy)
            for text, rule, strategy in _spelled(mesh, selector, queries)
            if read_strategy((mesh,), text, None) == wanted
        ]
        if not fitting:
            return None
        met.add(_key(own, op))
        return min(fitting, key=lambda found: (found[1].excess, found[1].seconds))

    state = Compilation(plan.propagated.program, plan.propagated)
    done = run(state, (MakePlan(plan.options, decide),))
    made = replace(plan, program=done.program, warnings=done.warnings, timings=done.timings, made=done.plan)
    return _Planned(made, asked, met, own)
