"""What an op could be computed by: its strategies, with what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.causes import Cause
from ir.diagnostics import error, require
from ir.mesh import Mesh
from ir.program import Op
from ir.records import as_json
from ir.sharding import Sharding
from passes.cost.machine import TPU_V3, Machine
from passes.factors import factor_rule, other_rules
from passes.partition.closed_sharding import ClosedSharding, closed_sharding_of
from passes.partition.options import PartitionOptions
from passes.partition.plan.sides import plain_query
from passes.partition.plan.strategies import StrategySelector
from passes.partition.reshard.planner import Resharder
from passes.partition.spelling import spell_strategy
from passes.sub_axes import find_sub_axes_of
from spmdc.arguments import require_memory_limit
from spmdc.pictures import pages
from spmdc.reports.cost_text import seconds_text


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy of an op. `seconds` is the time of the op and of the reshards for it, `alone` that of the op only, and
    `total` that of the whole plan with that strategy, if it was computed. `excess` is the number of bytes beyond the
    memory limit. `excluded` names the option that forbids it. The strategies of a reshard are steps, one for each
    sharding in which the value existed before."""

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
    """The alternatives for an op: its rules, the strategies, cheapest first, and why some factors are never split. A
    reshard has a `cause` in place of rules.

    The plan has `copies` of the op if the function that it is of was planned for several calls, or it is computed again
    in other shardings. Another strategy is for all of them.
    """

    value: str
    op: str
    rules: tuple[str, ...]
    choices: tuple[Choice, ...]
    whole: tuple[str, ...]
    copies: int = 1
    cause: Cause | None = None

    def __repr__(self) -> str:
        return f"<Choices for {self.value}, {self.op}: {len(self.choices)}>"

    def _repr_html_(self) -> str:
        return pages.lines(str(self))

    def __str__(self) -> str:
        what = f"{self.op}: {' | '.join(self.rules)}"
        if self.cause is not None:
            what = f"{self.op} of {' and '.join(self.cause.values)}: {self.cause}"
        lines = [f"{self.value} = {what}"]
        for choice in self.choices:
            mark = "*" if choice.is_chosen else "-" if choice.excluded else " "
            total = f", the program {seconds_text(choice.total)}" if choice.total is not None else ""
            text = choice.strategy or "computed whole on every device"
            alone = f"{seconds_text(choice.alone)} without reshards" if self.cause is None else "sent from there"
            costs = f"{seconds_text(choice.seconds)} ({alone}{total})"
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
        raise error(
            "E413",
            f"{op.name} has no factors, and so no strategies",
            op.span,
            help="there is nothing to choose: its tensors are whole, or sharded as in its body",
        )
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
            ends = zip(op.operands, zip(have, strategy.operands, strict=True), strict=True)
            plans = [selector.resharder.plan(v.shape, v.dtype.nbytes, *at) for v, at in ends]
            seconds = strategy.alone + sum(plan.seconds for plan in plans)
            found[text] = min(seconds, found.get(text, seconds))
    return sorted(found.items(), key=lambda pair: pair[1])
