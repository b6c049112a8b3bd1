"""Plans for users: the cost of each op, the alternatives, and the differences between two plans."""

from __future__ import annotations

import functools
import re
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
from ir.records import as_json
from ir.sharding import Sharding
from ir.spelling.printer import print_attrs, print_mesh, print_program, print_type
from passes.cost.machine import TPU_V3, Machine
from passes.factors import factor_rule, other_rules
from passes.manager import Compilation, MakePlan, run
from passes.partition import Plan as MadePlan
from passes.partition import read_plan
from passes.partition.closed_sharding import ClosedSharding, closed_sharding_of
from passes.partition.options import PartitionOptions
from passes.partition.plan.sides import StrategyQuery, plain_query
from passes.partition.plan.strategies import StrategySelector
from passes.partition.registry import can_split_along
from passes.partition.reshard.planner import Resharder
from passes.partition.spelling import read_strategy, spell_strategy
from passes.partition.strategy import Strategy
from passes.partition.write.cost import OpCost, PlanCost, plan_cost
from passes.propagation.reasons import Propagated
from passes.sub_axes import find_sub_axes_of
from spmdc.arguments import require_memory_limit
from spmdc.pictures import pages

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
        functions have one. Raises SpmdcError (E101).
        """
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
        rows = _rows(self.program, costs[0]), _rows(other.program, costs[1])
        lines: list[str] = []
        for key in dict.fromkeys((*rows[0], *rows[1])):
            pair = [side.get(key, []) for side in rows]
            same = {row.details for row in pair[0]} & {row.details for row in pair[1]}
            for mark, side, others in zip("-+", pair, reversed(pair), strict=True):
                lines.extend(f"{mark} {row.shown(others)}" for row in side if row.details not in same)
        sums = [sum_text(c) for c in costs]
        return Lines("\n".join([*(lines or ["the plans are the same"]), f"- {sums[0]}", f"+ {sums[1]}"]))


# Costs.


def cost_text(cost: OpCost) -> str:
    """`3.2 us, 4,096 bytes received, 65,536 alive`."""
    received = f"{cost.received:,} bytes received, " if cost.received else ""
    return f"{seconds_text(cost.seconds)}, {received}{cost.alive:,} alive"


def sum_text(cost: PlanCost) -> str:
    """`1.2 ms (critical path 1 ms), 4,096 bytes received, 65,536 bytes of memory at the peak`."""
    seconds = f"{seconds_text(cost.seconds)} (critical path {seconds_text(cost.critical_seconds)})"
    return f"{seconds}, {cost.received:,} bytes received, {cost.peak:,} bytes of memory at the peak"


@functools.lru_cache(maxsize=2**14)
def seconds_text(seconds: float) -> str:
    """A time in a suitable unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        text = f"{seconds * factor:.3g}"
        if abs(float(text)) >= 1:
            return f"{text} {unit}"
    return f"{seconds * 1e9:.3g} ns"


# Choices.


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy of an op. `seconds` is the time of the op and of the reshards for it, `alone` that of the op only, and
    `total` that of the whole plan with that strategy, if it was computed. `excess` is the number of bytes beyond the
    memory limit. `excluded` names the option that forbids it."""

    strategy: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    seconds: float
    alone: float
    total: float | None
    excess: int
    is_chosen: bool
    excluded: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Choices:
    """The alternatives for an op: its rules, the strategies, cheapest first, and why some factors are never split.

    The plan has `copies` of the op if the function that it is of was planned for several calls, or it is computed again
    in other shardings. Another strategy is for all of them.
    """

    value: str
    op: str
    rules: tuple[str, ...]
    choices: tuple[Choice, ...]
    whole: tuple[str, ...]
    copies: int = 1

    def __repr__(self) -> str:
        return f"<Choices for {self.value}, {self.op}: {len(self.choices)}>"

    def _repr_html_(self) -> str:
        return pages.lines(str(self))

    def __str__(self) -> str:
        lines = [f"{self.value} = {self.op}: {' | '.join(self.rules)}"]
        for choice in self.choices:
            mark = "*" if choice.is_chosen else "-" if choice.excluded else " "
            total = f", the program {seconds_text(choice.total)}" if choice.total is not None else ""
            text = choice.strategy or "computed whole on every device"
            costs = f"{seconds_text(choice.seconds)} ({seconds_text(choice.alone)} without reshards{total})"
            lines.append(f"{mark} {text}: {costs}")
            lines.append(f"      {', '.join(choice.operands)} -> {', '.join(choice.results)}")
            if choice.excluded:
                lines.append(f"      excluded: {choice.excluded}")
        shared = f"the plan has {self.copies} copies of this op: another strategy is for all of them"
        return "\n".join([*lines, *self.whole, *([shared] if self.copies > 1 else [])])

    def to_json(self) -> dict[str, object]:
        """The choices as plain data."""
        return as_json(self)


def strategies(
    op: Op, shardings: Sequence[Sharding], *, machine: Machine | str = TPU_V3, memory_limit: int | None = None
) -> list[tuple[str, float]]:
    """The strategies of an op with operands in these shardings, each with its seconds, reshards of operands included;
    the cheapest first. Raises SpmdcError (E601; E413 if the op has no factors)."""
    require(isinstance(op, Op), "strategies are those of an op", op, "program.main.body.ops has some")
    fits = isinstance(shardings, Sequence) and all(isinstance(sharding, Sharding) for sharding in shardings)
    fits = fits and [sharding.rank for sharding in shardings] == [v.type.rank for v in op.operands]
    fits = fits and len({sharding.mesh for sharding in shardings}) <= 1
    message = f"the shardings are one for each of {len(op.operands)} operands, of its rank, and on one mesh"
    require(fits, message, shardings)
    if memory_limit is not None:
        require_memory_limit(memory_limit)
    rule = factor_rule(op)
    if rule is None:
        raise error("E413", f"{op.name} has no factors, and so no strategies", op.span)
    mesh = shardings[0].mesh if shardings else Mesh(())
    sub_axes = find_sub_axes_of(mesh, shardings)
    machine = Machine.of(machine).laid_out((mesh,))
    options = PartitionOptions(machine, machine.memory if memory_limit is None else memory_limit)
    selector = StrategySelector(Resharder(sub_axes, machine), options)
    have = tuple(closed_sharding_of(sharding, sub_axes) for sharding in shardings)
    whole = [ClosedSharding.replicated(v.type.rank) for v in op.results]
    found: dict[str, float] = {}
    for each in (rule, *other_rules(op)):
        for strategy in selector.candidates(plain_query(op, each, have, whole)):
            text = spell_strategy(mesh, op, each, strategy)
            seconds = strategy.alone + _moved(selector, op, have, strategy)
            found[text] = min(seconds, found.get(text, seconds))
    return sorted(found.items(), key=lambda pair: pair[1])


def _moved(selector: StrategySelector, op: Op, have: Sequence[ClosedSharding], strategy: Strategy) -> float:
    plans = (
        selector.resharder.plan(v.shape, v.dtype.nbytes, have, want)
        for v, have, want in zip(op.operands, have, strategy.operands, strict=True)
    )
    return sum(plan.seconds for plan in plans)


def choices_for(plan: Plan, value: str) -> Choices:
    """The possible strategies for the op that makes the value of that name. Raises SpmdcError (E101, E413)."""
    asked = _asked(plan, value)
    mesh, op, made = plan.program.mesh, asked.op, asked.made
    fitting = (each for each in reversed(asked.queries) if _could_choose(mesh, *each, made.strategy))
    selector, queries = next(fitting, asked.queries[-1])
    rows: dict[str, tuple[Strategy, str]] = {}
    everything = StrategySelector(selector.resharder, replace(selector.options, windowed_einsum="auto"))
    for who, excluded in ((selector, ""), (everything, f"windowed_einsum={selector.options.windowed_einsum}")):
        found = [(spell_strategy(mesh, op, q.rule, each), each) for q in queries for each in who.candidates(q)]
        for text, strategy in sorted(found, key=lambda row: (row[1].excess, row[1].seconds)):
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
            elif factor.kind in (FactorKind.WINDOW, FactorKind.SCAN) and not can_split_along(op, query.rule, f):
                yield f"{factor_letter(f)} (size {factor.size}) cannot be split: {op.name} exchanges no boxes along it"


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
    help_text = did_you_mean(value, _names(plan.program)) or "spmdc plan FILE shows them all"
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


def _names(program: Program) -> list[str]:
    return [v.name for f in program.functions.values() for v in values_within(f.body)]


def _makers(program: Program, name: str) -> Iterator[Op]:
    for function in program.functions.values():
        for op in walk(function.body):
            if any(_is_called(name, function, v) for v in op.results):
                yield op


def _has_value(program: Program, name: str) -> bool:
    return any(_is_called(name, f, v) for f in program.functions.values() for v in values_within(f.body))


def _is_called(name: str, function: Function, value: Value) -> bool:
    return name in (value.name, f"{function.name}.{value.name}")


def _could_choose(mesh: Mesh, selector: StrategySelector, queries: Sequence[StrategyQuery], strategy: str) -> bool:
    """Whether a strategy with that text was one of the answers."""
    candidates = ((query, each) for query in queries for each in selector.candidates(query))
    return any(spell_strategy(mesh, query.op, query.rule, each) == strategy for query, each in candidates)


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

    def decide(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> tuple[FactorRule, Strategy] | None:
        op = queries[0].op
        asked.setdefault(id(op.attrs), []).append((selector, queries))
        chosen = decided.get(_key(own, op)) if decided else None
        if chosen is None:
            return None
        wanted = read_strategy((mesh,), chosen, None)
        candidates = ((query.rule, each) for query in queries for each in selector.candidates(query))
        fitting = [
            (rule, each)
            for rule, each in candidates
            if read_strategy((mesh,), spell_strategy(mesh, op, rule, each), None) == wanted
        ]
        if not fitting:
            return None
        met.add(_key(own, op))
        return min(fitting, key=lambda found: (found[1].excess, found[1].seconds))

    state = Compilation(plan.propagated.program, plan.propagated)
    done = run(state, (MakePlan(plan.options, decide),))
    made = replace(plan, program=done.program, warnings=done.warnings, timings=done.timings, made=done.plan)
    return _Planned(made, asked, met, own)


# Differences.


@dataclass(frozen=True, slots=True)
class _Row:
    """Something of a plan: in `text` as it is shown where that differs, in `details` with all that may. Values are
    called as in the source there, without the numbers that a plan adds to their names."""

    text: str
    details: str
    cost: OpCost | None = None

    def shown(self, others: Sequence[_Row]) -> str:
        text = self.details if any(row.text == self.text for row in others) else self.text
        return text if self.cost is None else f"{text}  # {cost_text(self.cost)}"


def _rows(program: Program, cost: PlanCost) -> Mapping[tuple[str, str], list[_Row]]:
    """The meshes, the signatures and the ops of a plan, by the function and what they declare or make."""
    found: dict[tuple[str, str], list[_Row]] = {}

    def add(where: str, what: str, text: str, details: str, cost: OpCost | None = None) -> None:
        found.setdefault((where, what), []).append(_Row(text, details, cost))

    for mesh in program.meshes:
        add("", mesh.name, print_mesh(mesh), print_mesh(mesh))
    for function in program.functions.values():
        for param in function.params:
            text = f"parameter {param.name}: {print_type(param.type, param.sharding)}"
            add(function.name, f"parameter {param.name}", text, text)
        for result, value in zip(function.results, function.body.results, strict=True):
            text = f"result {result.name}: {print_type(result.type, result.sharding)}"
            add(function.name, f"result {result.name}", text, f"{text} = {_plain(value)}")
        for op in walk(function.body):
            made = op.operands[0].name if is_reshard(op) else ", ".join(v.name for v in op.results)
            how = f"reshard({op.attrs['steps']})" if is_reshard(op) else f"{op.name} {op.strategy}".rstrip()
            given = ", ".join([*map(_plain, op.operands), print_attrs(op, program.meshes)])
            types = ", ".join(print_type(v.type, v.sharding) for v in op.results)
            returned = "".join(f"; returns {', '.join(map(_plain, region.results))}" for region in op.regions)
            details = f"{made}: {types} = {op.name}({given.strip(', ')}) {op.strategy}".rstrip() + returned
            if is_reshard(op):
                details = f"{made}: {how}"
            add(function.name, made, f"{made}: {how}", details, cost.ops.get(op, OpCost(0.0, 0, 0)))
    return found


def _plain(value: Value) -> str:
    """The name of a value without the number that a plan added to it."""
    return re.sub(r"(\.\d+)+$", "", value.name)
