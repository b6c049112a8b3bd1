"""Checks that a plan can be written: every sharding is closed, every op's operands and results are sharded as its
strategy requires, and every reshard's steps lead from its operand's sharding to its result's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.diagnostics import Diagnostic, SpmdcError
from ir.manual import region_axes
from ir.mesh import Axes, AxisRef
from ir.ops import OPS, FactorKind, FactorRule
from ir.ops.control import is_manual
from ir.ops.declaration import ControlKind, factor_letter
from ir.ops.resharding import is_reshard
from ir.program import Function, Op, Program, Region, Result, Value, callee_of
from ir.sharding import Partial
from passes.partition.closed_sharding import ClosedSharding, PlanShardings, inside_sharding
from passes.partition.plan.recompute import is_identity
from passes.partition.registry import ALONG, can_split_along, cut_of_the_whole, is_worth_writing, partitioning_of
from passes.partition.reshard.step_checks import StepChecks, is_same
from passes.partition.reshard.steps import AnySharding
from passes.partition.spelling import IDENTITY, STEPS_HELP, Spelled, read_steps, read_strategy, spell_step
from passes.partition.strategy import WindowedEinsum, results_of_candidates, shardings_under
from passes.sub_axes import SubAxes

_UNKNOWN_PARTS = "parts of axes that no sharding of the plan has"
_IN_FRONT = "a reshard in front of the op brings it there"
_ON_THE_LEFT = "write the sharding that a result must have in its type on the left, and reshard it behind the op"


def plan_diagnostics(program: Program, sub_axes: SubAxes) -> list[Diagnostic]:
    """The errors in a program of stage "plan" that is valid otherwise (E309, E413)."""
    checker = _Checker(program, sub_axes)
    for function in program.functions.values():
        checker.function(function)
    return checker.found


class _Checker:
    """Checks one plan."""

    def __init__(self, program: Program, sub_axes: SubAxes) -> None:
        self.program = program
        self.sub_axes = sub_axes
        self.found: list[Diagnostic] = []
        self.shardings = PlanShardings(program, sub_axes)
        self.steps = StepChecks(program.mesh, sub_axes)
        self.makers: dict[Value, Op] = {}
        self.open: set[Value] = set()
        """The values without a sharding, for which only that is an error."""

    def add(self, where: Op | Value | Result, message: str, help: str, notes: Sequence[str] = ()) -> None:
        """Adds an error. An op that was read from a text has the line that it was planned for; its results have those
        of the text."""
        place = where.results[0] if isinstance(where, Op) and where.results else where
        self.found.append(Diagnostic("E413", message, place.span, help=help, notes=tuple(notes)))

    def function(self, function: Function) -> None:
        self.region(function.body)
        for value, result in zip(function.body.results, function.results, strict=True):
            what = f"result {result.name} of {function.name}"
            if value not in self.open:
                self.agree(result, what, self.shardings.of(value), self.shardings.of(result))

    def region(self, region: Region) -> None:
        for value in region.params:
            self.closed(value)
        for op in region.ops:
            for value in op.results:
                self.closed(value)
                self.makers[value] = op
            self.op(op)

    def closed(self, value: Value) -> None:
        sharding = value.sharding
        if value not in self.shardings.inside and (
            sharding is None or any(d.open or d.priority for d in sharding.dims)
        ):
            help_text = f"{value.name}: {value.type.dtype.name}[…]{{replicated}}, or with axes behind its dims"
            self.open.add(value)
            self.add(value, f"in a plan every value has a sharding, and {value.name!r} has none", help_text)

    def agree(self, where: Op | Result, what: str, have: AnySharding, wanted: AnySharding) -> bool:
        if is_same(have, wanted):
            return True
        help = _IN_FRONT if isinstance(where, Op) else "a reshard in front of the return brings it there"
        self.add(where, self.clash(what, have, wanted), help)
        return False

    def clash(self, what: str, have: AnySharding, wanted: AnySharding) -> str:
        mesh = self.program.mesh
        return f"{what} is sharded {have.spell(mesh)}, and must be {wanted.spell(mesh)}"

    # One op.

    def op(self, op: Op) -> None:
        try:
            if is_reshard(op):
                self.reshard(op)
            elif is_manual(op):
                self.manual(op)
            elif OPS[op.name].has_strategy:
                self.strategy(op)
            else:
                self.control(op)
        except SpmdcError as problem:
            self.found.extend(problem.diagnostics)

    def manual(self, op: Op) -> None:
        (region,) = op.regions
        for param, operand in zip(region.params, op.operands, strict=True):
            self.agree(op, f"operand {operand.name}", self.shardings.of(operand), self.shardings.around(param))
        self.region(region)
        for value, result in zip(region.results, op.results, strict=True):
            inside = inside_sharding(self.shardings.of(result), region_axes(op))
            self.agree(op, value.name, self.shardings.of(value), inside)

    def control(self, op: Op) -> None:
        for region in op.regions:
            self.region(region)
        opdef = OPS[op.name]
        match opdef.control:
            case ControlKind.LOOP:
                condition, body = op.regions
                for many in (condition.params, body.params, body.results, op.results):
                    self.pairs(op, op.operands, many)
                self.whole(op, condition.results)
            case ControlKind.CHOICE:
                self.whole(op, op.operands)
                for region in op.regions:
                    self.pairs(op, region.results, op.results)
            case ControlKind.CALL:
                callee = self.program.functions[callee_of(op) or ""]
                self.pairs(op, op.operands, callee.params)
                self.pairs(op, op.results, callee.results)
            case _:
                self.pairs(op, op.operands if opdef.passes_each else (), op.results)

    def pairs(self, op: Op, have: Sequence[Value], wanted: Sequence[Value | Result]) -> None:
        for one, other in zip(have, wanted, strict=True):
            if self.open.isdisjoint((one, other)):
                self.agree(op, f"{one.name} of the {op.name}", self.shardings.of(one), self.shardings.of(other))

    def whole(self, op: Op, values: Sequence[Value]) -> None:
        for value in values:
            self.agree(op, f"{value.name} of the {op.name}", self.shardings.of(value), ClosedSharding(()))

    def strategy(self, op: Op) -> None:
        spelled = read_strategy(self.program.meshes, op.strategy, op.results[0].span)
        rule = spelled.rule(op)
        if rule is None:
            self.add(op, f"{op.name} has no such factors as its strategy {op.strategy!r} names", self.rules(op))
            return
        fault = self.fault(op, rule, spelled)
        if not fault:
            group, pending = self.pending(op, rule, spelled)
            fault = self.fault_of_rotation(rule, spelled, group, pending)
            if not fault:
                self.sides(op, *self.shardings_of(op, rule, spelled, group, pending))
        if fault:
            self.add(op, f"the strategy {op.strategy!r} of {op.name}: {fault}", f"its factors: {rule}")

    def sides(self, op: Op, operands: Sequence[ClosedSharding], results: Sequence[ClosedSharding]) -> None:
        """Adds one error for all operands and results that are sharded otherwise than the strategy requires."""
        clashes: list[str] = []
        ways: dict[str, None] = {}
        sides = ("operand", _IN_FRONT, op.operands, operands), ("result", _ON_THE_LEFT, op.results, results)
        for side, way, values, shardings in sides:
            for value, wanted in zip(values, shardings, strict=True):
                have = self.shardings.of(value)
                if value not in self.open and not is_same(have, wanted):
                    clashes.append(self.clash(f"{side} {value.name} of {op.name}", have, wanted))
                    ways[way] = None
        if clashes:
            self.add(op, clashes[0], "; ".join(ways), clashes[1:])

    def rules(self, op: Op) -> str:
        rule = Spelled().rule(op)
        return f"its factors: {rule}" if rule is not None else ""

    def fault(self, op: Op, rule: FactorRule, spelled: Spelled) -> str:
        """Why the op cannot be split so; empty if it can."""
        windowed = spelled.windowed
        used: list[AxisRef] = []
        for f, axes in spelled.factors:
            letter = factor_letter(f)
            if not self.are_known(axes):
                return f"{letter} is split over {_UNKNOWN_PARTS}"
            for axis in axes:
                if any(axis.overlaps(other) for other in used):
                    return f"{letter} is split over an axis twice, or over one that splits another factor"
                used.append(axis)
            kind = rule.factors[f].kind
            if kind is FactorKind.NEED_REPLICATION:
                return f"{letter} must stay whole"
            if kind in ALONG and not can_split_along(op, rule, f):
                return f"{letter} cannot be split here"
        found = shardings_under(rule, dict(spelled.factors), (), (), self.sub_axes)
        if found is None:
            return "its shards would be no boxes"
        if windowed is not None and (fault := self.fault_of_loop(op, rule, windowed)):
            return fault
        to = spelled.candidates_to
        if to is not None and results_of_candidates(rule, dict(spelled.factors), to, found[1]) is None:
            return f"no candidates can be scattered evenly along {factor_letter(to)}"
        along = [(f, a) for f, a in spelled.factors if rule.factors[f].kind is FactorKind.WINDOW]
        if not all(is_worth_writing(op, rule, f, axes, found[0]) for f, axes in along):
            return "it exchanges boxes with more devices than is worth writing"
        return ""

    def are_known(self, axes: Axes) -> bool:
        return all(axis in self.sub_axes.rank for axis in axes)

    def fault_of_loop(self, op: Op, rule: FactorRule, windowed: WindowedEinsum) -> str:
        """Why parts of the op cannot rotate so, however it is sharded; empty if they can."""
        factor, axes, i = windowed.factor, windowed.axes, windowed.rotating
        if not partitioning_of(op).in_parts:
            return f"{op.name} is not computed part by part"
        if i is not None and i >= len(op.operands):
            return f"{op.name} has no operand {i}"
        if not self.are_known(axes) or len(set(axes)) < len(axes):
            return f"its parts rotate over {_UNKNOWN_PARTS}"
        if (factor,) not in (rule.results[0] if i is None else rule.operands[i]):
            tensor = "its result" if i is None else f"operand {i}"
            return f"{tensor} has no dim {factor_letter(factor)}, of which parts are to rotate"
        return ""

    def fault_of_rotation(self, rule: FactorRule, spelled: Spelled, group: Sequence[int], pending: Partial) -> str:
        """Why no parts can rotate around the devices with these reductions pending; empty if they can, or none do."""
        windowed = spelled.windowed
        found = shardings_under(rule, dict(spelled.factors), group, pending, self.sub_axes)
        if windowed is None or found is None:
            return ""
        (operands, results), axes, i = found, set(windowed.axes), windowed.rotating
        if i is None:
            summed = {a for a, kind in results[0].partial if kind == "sum"}
            return "" if summed >= axes else "sums rotate over axes over which no sum is pending"
        if operands[i].used & axes:
            return "its parts rotate over an axis that splits another dim of theirs"
        distinct = results[0].used >= axes
        return "" if distinct else "devices would add up the same in another order: results are not split over all axes"

    def pending(self, op: Op, rule: FactorRule, spelled: Spelled) -> tuple[Sequence[int], Partial]:
        """The operands for which reductions are pending, and these, as far as the op passes them on."""
        given = [self.shardings.of(v).partial for v in op.operands]
        for linearity in OPS[op.name].linearity(op):
            found = next((given[p] for p in linearity.group if given[p]), ())
            if found and all(kind in linearity.kinds for _, kind in found):
                operands, _ = self.shardings_of(op, rule, spelled, linearity.group, found)
                if given == [v.partial for v in operands]:
                    return linearity.group, found
        return (), ()

    def shardings_of(
        self, op: Op, rule: FactorRule, spelled: Spelled, group: Sequence[int], pending: Partial
    ) -> tuple[list[ClosedSharding], list[ClosedSharding]]:
        found = shardings_under(rule, dict(spelled.factors), group, pending, self.sub_axes)
        assert found is not None, "shards that are no boxes are a fault"
        operands, results = map(list, found)
        if spelled.windowed is not None:
            _travelling(rule, spelled.windowed, operands, results)
        if spelled.candidates_to is not None:
            scattered = results_of_candidates(rule, dict(spelled.factors), spelled.candidates_to, results)
            results = list(scattered or results)
        for f, axes in spelled.factors:
            for i, dim in cut_of_the_whole(op, rule, f, axes) if rule.factors[f].kind is FactorKind.WINDOW else ():
                if not self.shardings.of(op.operands[i]).axes[dim]:
                    operands[i] = operands[i].with_dim(dim, ())
        return operands, results

    # Reshards.

    def reshard(self, op: Op) -> None:
        if self.open.intersection((op.operands[0], op.result)):
            return
        text = str(op.attrs["steps"])
        source, target = self.shardings.of(op.operands[0]), self.shardings.of(op.result)
        if text == IDENTITY:
            self.agree(op, op.result.name, replace(target, partial=()), replace(source, partial=()))
            kinds = {kind for _, kind in target.partial}
            maker = self.makers.get
            if source != target and not all(is_identity(maker(op.operands[0]), kind, maker) for kind in kinds):
                message = f"{op.operands[0].name} is not known to change nothing in a reduction"
                self.add(op, message, f'only then is it a part of itself, as steps="{IDENTITY}" says')
            return
        now: AnySharding = source
        for step, after in read_steps(self.program.meshes, text, op.result.span):
            fits = len(after.axes) == op.result.type.rank
            try:
                fault = self.steps.fault(op.result.shape, step, now, after) if fits else "its shards have another rank"
            except ValueError:
                fault = "axes are cut where no sharding of the plan cuts them"
            if fault:
                mesh = self.program.mesh
                message = (
                    f"{spell_step(mesh, step)} does not lead from {now.spell(mesh)} to {after.spell(mesh)}: {fault}"
                )
                self.add(op, message, STEPS_HELP)
                return
            now = after
        self.agree(op, f"{op.result.name} after its steps", now, target)


def _travelling(
    rule: FactorRule, windowed: WindowedEinsum, operands: list[ClosedSharding], results: list[ClosedSharding]
) -> None:
    """Changes the shardings so that the parts of the windowed factor are on the devices at which they begin or end."""
    side, i = (results, 0) if windowed.rotating is None else (operands, windowed.rotating)
    tensor = rule.results[0] if windowed.rotating is None else rule.operands[i]
    if (windowed.factor,) not in tensor:
        return
    dim, sharding = tensor.index((windowed.factor,)), side[i]
    side[i] = sharding.with_dim(dim, (*sharding.axes[dim], *windowed.axes))
    if windowed.rotating is None:
        side[i] = replace(side[i], partial=tuple(part for part in sharding.partial if part[0] not in windowed.axes))
