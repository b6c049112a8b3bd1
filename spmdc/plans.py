"""Plans for users: the cost of each op, the alternatives, and the differences between two plans."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from ir.diagnostics import Diagnostic, error, require
from ir.graph import Graph, dataflow
from ir.mesh import Mesh
from ir.notebooks import Lines
from ir.ops import FactorKind, FactorRule
from ir.ops.declaration import factor_letter
from ir.ops.resharding import is_reshard
from ir.program import Op, Program, all_ops, values_within, walk
from ir.records import as_json
from ir.sharding import Sharding
from ir.spelling.printer import print_program
from passes.cost.machine import TPU_V3, Machine
from passes.factors import factor_rule, other_rules
from passes.manager import Compilation, MakePlan, run
from passes.partition import Decide, read_plan
from passes.partition import Plan as MadePlan
from passes.partition.closed_sharding import ClosedSharding, closed_sharding_of
from passes.partition.options import PartitionOptions
from passes.partition.plan.sides import StrategyQuery
from passes.partition.plan.spelling import read_strategy, spell_strategy
from passes.partition.plan.strategies import StrategySelector
from passes.partition.registry import can_split_along
from passes.partition.reshard.planner import Resharder
from passes.partition.strategy import Strategy
from passes.partition.write.cost import OpCost, PlanCost, plan_cost
from passes.propagation.reasons import Propagated
from passes.sub_axes import find_sub_axes_of
from spmdc.arguments import require_memory_limit
from spmdc.pictures import pages

_MOST_FOLLOWED = 12
"""The most candidates whose consequences for the whole plan are computed."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The partitioner's decisions for a program, as a program with global shapes in which every value has a closed
    sharding, each change of sharding is a `reshard`, and each op that is split names its strategy.

    `source` is the program that it is a plan for, `options` those that it was planned with, and `decided` the
    strategies that were not left to the cost model, by the names that values have in the source.
    """

    program: Program
    propagated: Propagated
    source: Program
    options: PartitionOptions
    warnings: tuple[Diagnostic, ...]
    timings: Mapping[str, float]
    decided: Mapping[str, str] = field(default_factory=dict[str, str])
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
        """The possible strategies for the op that makes the value of that name. Raises SpmdcError (E101)."""
        return choices_for(self, value)

    def replace(self, value: str, strategy: str) -> Plan:
        """The plan with another strategy for the op that makes the value of that name; everything else is decided
        again.

        Raises SpmdcError (E101, E309, E413) if there is no such op, or it has no such strategy.
        """
        return replaced(self, value, strategy)

    def diff(self, other: Plan) -> str:
        """The differences of another plan, and their costs: a line for each op that differs, and the totals."""
        require(isinstance(other, Plan), "plans are compared with plans", other, "spmdc.plan(program)")
        return Lines(differences(self, other))


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
    """The alternatives for an op: its rules, the strategies, cheapest first, and why some factors are never split."""

    value: str
    op: str
    rules: tuple[str, ...]
    choices: tuple[Choice, ...]
    whole: tuple[str, ...]

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
        return "\n".join([*lines, *self.whole])

    def to_json(self) -> dict[str, object]:
        """The choices as plain data."""
        return as_json(self)


def strategies(
    op: Op,
    shardings: Sequence[Sharding],
    *,
    machine: Machine | str = TPU_V3,
    memory_limit: int | None = None,
) -> list[tuple[str, float]]:
    """The strategies of an op with operands in these shardings, each with its seconds, reshards of operands included;
    the cheapest first. Raises SpmdcError (E601; E413 if the op has no factors)."""
    require(isinstance(op, Op), "strategies are those of an op", op, "program.main.body.ops has some")
    fits = isinstance(shardings, Sequence) and all(isinstance(sharding, Sharding) for sharding in shardings)
    fits = fits and len(shardings) == len(op.operands)
    require(fits, f"the shardings are one for each of {len(op.operands)} operands", shardings)
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
    found: dict[str, float] = {}
    for each in (rule, *other_rules(op)):
        n = len(have)
        for strategy in selector.candidates(_query(op, each, have, n)):
            text = spell_strategy(mesh, op, each, strategy)
            seconds = strategy.alone + _moved(selector, op, have, strategy)
            found[text] = min(seconds, found.get(text, seconds))
    return sorted(found.items(), key=lambda pair: pair[1])


def _query(op: Op, rule: FactorRule, have: tuple[ClosedSharding, ...], n: int) -> StrategyQuery:
    """A query in which only the shardings of the operands are known."""
    recomputable, shares, shared = (False,) * n, (1.0,) * n, (False,) * n
    whole = tuple(ClosedSharding.replicated(v.type.rank) for v in op.results)
    known = tuple((sharding,) for sharding in have)
    return StrategyQuery(op, rule, known, recomputable, shares, have, whole, shared, (True,) * len(op.results))


def _moved(selector: StrategySelector, op: Op, have: Sequence[ClosedSharding], strategy: Strategy) -> float:
    plans = (
        selector.resharder.plan(v.shape, v.dtype.nbytes, have, want)
        for v, have, want in zip(op.operands, have, strategy.operands, strict=True)
    )
    return sum(plan.seconds for plan in plans)


def choices_for(plan: Plan, value: str) -> Choices:
    """The possible strategies for the op that makes the value of that name. Raises SpmdcError (E101, E413)."""
    chosen, asked = _asked(plan, value)
    mesh = plan.program.mesh
    selector, queries = next((each for each in reversed(asked) if _could_choose(mesh, *each, chosen)), asked[-1])
    op = queries[0].op
    rows: dict[tuple[str, tuple[ClosedSharding, ...]], tuple[FactorRule, Strategy, str]] = {}
    everything = StrategySelector(selector.resharder, replace(selector.options, windowed_einsum="auto"))
    for query in queries:
        for who, excluded in ((selector, ""), (everything, f"windowed_einsum={selector.options.windowed_einsum}")):
            for strategy in who.candidates(query):
                text = spell_strategy(mesh, op, query.rule, strategy)
                rows.setdefault((text, strategy.operands), (query.rule, strategy, excluded))
    ordered = sorted(rows.items(), key=lambda row: (bool(row[1][2]), row[1][1].excess, row[1][1].seconds))
    choices: list[Choice] = []
    for i, ((text, _), (rule, strategy, excluded)) in enumerate(ordered):
        total = _total(plan, op, rule, strategy) if i < _MOST_FOLLOWED and not excluded else None
        is_chosen = text == chosen and not any(choice.is_chosen for choice in choices)
        over = f"{strategy.excess:,} bytes beyond the memory limit" if strategy.excess and not is_chosen else ""
        choices.append(
            Choice(
                text,
                tuple(sharding.spell(mesh) for sharding in strategy.operands),
                tuple(sharding.spell(mesh) for sharding in strategy.results),
                strategy.seconds,
                strategy.alone,
                total,
                strategy.excess,
                is_chosen,
                excluded or over,
            )
        )
    rules = tuple(str(query.rule) for query in queries)
    return Choices(value, op.name, rules, tuple(choices), tuple(_never_split(op, queries)))


def _never_split(op: Op, queries: Sequence[StrategyQuery]) -> Iterator[str]:
    """Why some factors are split in no strategy."""
    for query in queries:
        for f, factor in enumerate(query.rule.factors):
            if factor.kind is FactorKind.NEED_REPLICATION:
                yield f"{factor_letter(f)} (size {factor.size}) must stay whole: {op.name} works along it"
            elif factor.kind in (FactorKind.WINDOW, FactorKind.SCAN) and not can_split_along(op, query.rule, f):
                yield f"{factor_letter(f)} (size {factor.size}) cannot be split: {op.name} exchanges no boxes along it"


def _total(plan: Plan, op: Op, rule: FactorRule, strategy: Strategy) -> float:
    """The time of the program with that strategy for the op. Ops of other functions may make values of the same
    name."""

    def decide(_: StrategySelector, queries: Sequence[StrategyQuery]) -> tuple[FactorRule, Strategy] | None:
        return (rule, strategy) if queries[0].op.attrs is op.attrs else None

    return _planned(plan, decide).cost().seconds


def _asked(plan: Plan, value: str) -> tuple[str, list[tuple[StrategySelector, Sequence[StrategyQuery]]]]:
    """The strategy of the op that makes a value of the plan, and the queries from its planning: in a loop, or a
    function, for each of the shardings that were tried. A planned op keeps its attributes, but not always the names of
    its results."""
    asked: dict[int, list[tuple[StrategySelector, Sequence[StrategyQuery]]]] = {}

    def decide(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> None:
        asked.setdefault(id(queries[0].op.attrs), []).append((selector, queries))

    made = [op for op in all_ops(_planned(plan, decide).program) if any(v.name == value for v in op.results)]
    for op in made:
        if id(op.attrs) in asked:
            return op.strategy, asked[id(op.attrs)]
    if made:
        help_text = "reshards and loops have none"
        if is_reshard(made[0]) and made[0].cause is not None:
            help_text = f"it is {made[0].operands[0].name!r}, resharded: {made[0].cause}"
        raise error("E413", f"{value!r} is made by an op that has no strategy", help=help_text)
    if _has_value(plan.program, value):
        help_text = "spmdc why FILE NAME explains its sharding"
        raise error("E413", f"{value!r} is a parameter, which no op makes", help=help_text)
    help_text = "spmdc plan FILE shows them all"
    if _has_value(plan.source, value):
        became = ", ".join(repr(v.name) for op in _in_place_of(plan, value) for v in op.results)
        help_text = f"the program has it, and the plan {became} in its place" if became else _UNUSED
    raise error("E101", f"the plan has no value {value!r}", help=help_text)


_UNUSED = "the program has it: no result depends on it, or it is computed in another way"


def _in_place_of(plan: Plan, value: str) -> list[Op]:
    """The ops of a plan at the place of the op that makes the value of that name in the source: those of its kind, or
    else all."""
    places = {op.span: op.name for op in all_ops(plan.source) if any(v.name == value for v in op.results)}
    found = [op for op in all_ops(plan.program) if op.span is not None and op.span in places and not is_reshard(op)]
    return [op for op in found if op.name == places[op.span]] or found


def _has_value(program: Program, name: str) -> bool:
    return any(v.name == name for f in program.functions.values() for v in values_within(f.body))


def _could_choose(mesh: Mesh, selector: StrategySelector, queries: Sequence[StrategyQuery], strategy: str) -> bool:
    """Whether a strategy with that text was one of the answers."""
    candidates = ((query, each) for query in queries for each in selector.candidates(query))
    return any(spell_strategy(mesh, query.op, query.rule, each) == strategy for query, each in candidates)


def _planned(plan: Plan, decide: Decide) -> Plan:
    """The same program planned again, with other decisions; earlier decisions are kept."""
    if not plan.propagated.reasons and plan.source.stage == "global" and plan.propagated.program is plan.source:
        help_text = "edit its text, or plan the program that it is for"
        raise error("E413", "the plan was read from a text, and cannot be made anew", help=help_text)
    before = _as_decided(plan.program.mesh, plan.decided, set())

    def decided(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> tuple[FactorRule, Strategy] | None:
        now = decide(selector, queries)
        return now if now is not None else before(selector, queries)

    state = Compilation(plan.propagated.program, plan.propagated)
    done = run(state, (MakePlan(plan.options, decided),))
    return replace(plan, program=done.program, warnings=done.warnings, timings=done.timings, made=done.plan)


def _as_decided(mesh: Mesh, decided: Mapping[str, str], met: set[str]) -> Decide:
    """Decides for the ops with these labels; those that have such a strategy are added to `met`."""

    def decide(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> tuple[FactorRule, Strategy] | None:
        op = queries[0].op
        if op.label not in decided:
            return None
        wanted = read_strategy((mesh,), decided[op.label], None)
        fitting: list[tuple[FactorRule, Strategy]] = []
        for query in queries:
            for each in selector.candidates(query):
                text = spell_strategy(mesh, op, query.rule, each)
                if read_strategy((mesh,), text, None) == wanted:
                    fitting.append((query.rule, each))
        if not fitting:
            return None
        met.add(op.label)
        return min(fitting, key=lambda found: (found[1].excess, found[1].seconds))

    return decide


def replaced(plan: Plan, value: str, strategy: str) -> Plan:
    """The plan with another strategy for an op. Raises SpmdcError (E101, E309, E413, E601)."""
    require(isinstance(strategy, str), "a strategy is a text", strategy, "plan.explain(value) lists them")
    _, asked = _asked(plan, value)
    label = asked[-1][1][0].op.label
    decided, met = {**plan.decided, label: strategy}, set[str]()
    found = _planned(plan, _as_decided(plan.program.mesh, decided, met))
    missing = next((name for name in decided if name not in met), None)
    if missing is not None:
        choices = choices_for(plan, value if missing == label else missing).choices
        known = ", ".join(dict.fromkeys(repr(c.strategy) for c in choices))
        message = f"the op that makes {missing!r} has no strategy {decided[missing]!r}"
        raise error("E413", message, help=f"it has {known}")
    return replace(found, decided=decided)


# Differences.


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    cost: OpCost


def differences(one: Plan, other: Plan) -> str:
    """The differences between two plans: ops of the first after `-`, of the second after `+`, with costs; and the
    totals."""
    costs = one.cost(), other.cost()
    rows = _rows(one.program, costs[0]), _rows(other.program, costs[1])
    lines: list[str] = []
    for key in dict.fromkeys((*rows[0], *rows[1])):
        pair = [side.get(key, []) for side in rows]
        same = {row.text for row in pair[0]} & {row.text for row in pair[1]}
        for mark, side in zip("-+", pair, strict=True):
            lines.extend(f"{mark} {row.text}  # {cost_text(row.cost)}" for row in side if row.text not in same)
    sums = [sum_text(c) for c in costs]
    return "\n".join([*(lines or ["the plans are the same"]), f"- {sums[0]}", f"+ {sums[1]}"])


def _rows(program: Program, cost: PlanCost) -> Mapping[tuple[str, str], list[_Row]]:
    """The ops of a plan by their results."""
    found: dict[tuple[str, str], list[_Row]] = {}
    for function in program.functions.values():
        for op in walk(function.body):
            if op.regions or not op.results:
                continue
            made = op.operands[0].name if is_reshard(op) else op.results[0].name
            how = f"reshard({op.attrs['steps']})" if is_reshard(op) else f"{op.name} {op.strategy}".rstrip()
            row = _Row(f"{made}: {how}", cost.ops.get(op, OpCost(0.0, 0, 0)))
            found.setdefault((function.name, made), []).append(row)
    return found
