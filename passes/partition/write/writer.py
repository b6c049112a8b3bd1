"""The writer: turns a plan into the program of one device (GShard, section 3.3). It decides nothing.

A reshard becomes the collectives and local ops of its steps. An op is written on the shards of its operands: their
padding is masked where a reduction would read it, and the function of the op's family writes it by its strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from ir.builder import Names, RegionBuilder
from ir.causes import Cause
from ir.diagnostics import InternalError
from ir.ops import OPS, FactorKind, FactorRule
from ir.ops.collective import COLLECTIVES
from ir.ops.control import is_manual
from ir.ops.reduction import neutral_of
from ir.ops.resharding import is_reshard
from ir.program import Attr, Function, Op, Program, Region, Result, Value
from ir.types import TensorType
from passes.partition.closed_sharding import ClosedSharding, PlanShardings
from passes.partition.context import Callers, OpContext
from passes.partition.plan.plan import Plan
from passes.partition.registry import partitioning_of
from passes.partition.reshard.steps import Steps, emit_steps
from passes.partition.shards import mask, uneven_dims
from passes.partition.spelling import Spelled, read_steps, read_strategy
from passes.partition.strategy import Strategy
from passes.signatures import signature_of

_WRITTEN: WeakKeyDictionary[Plan, Program] = WeakKeyDictionary()
"""The programs of plans that have been written: the choice between two plans writes both."""


def write_plan(plan: Plan) -> Program:
    """The SPMD program of a plan. It is written once for as long as the plan exists."""
    written = _WRITTEN.get(plan)
    if written is None:
        written = _WRITTEN[plan] = Writer(plan).written()
    return written


class Writer:
    """Writes one plan. `local` maps each value to its local value, `became` each op without regions to the ops that it
    became."""

    def __init__(self, plan: Plan) -> None:
        self.program = plan.program
        self.mesh = plan.program.mesh
        self.sub_axes = plan.sub_axes
        self.local: dict[Value, Value] = {}
        self.shardings = PlanShardings(plan.program, plan.sub_axes)
        self.steps: dict[str, Steps] = {}
        self.strategies: dict[str, Spelled] = {}
        self.of_the_caller: Callers = {}
        self.names: dict[Value, str] = {}
        """What causes call the results of reshards that have no name in the program: as what is resharded."""
        self.became: dict[Op, Sequence[Op]] = {}
        self.of_one_op: dict[object, tuple[dict[str, Attr], Sequence[TensorType]]] = {}
        """The attributes and result types of ops that are written as one op of the same name on local operands, by all
        that these depend on. Host callbacks are left out, since what they are given depends on earlier calls."""

    def written(self) -> Program:
        """The SPMD program."""
        entry = self.program.entry
        functions = {name: self.function(f, name == entry) for name, f in self.program.functions.items()}
        return replace(self.program, functions=functions, stage="spmd")

    def function(self, function: Function, is_entry: bool) -> Function:
        b = RegionBuilder(Names())
        for param in function.params:
            self.param(b, param, is_entry)
        self.ops(b, function.body.ops)
        results = [self.local[v] for v in function.body.results]
        declared = [
            Result(r.name, local.type, r.sharding, r.type, r.span)
            if is_entry
            else Result(r.name, local.type, span=r.span)
            for r, local in zip(function.results, results, strict=True)
        ]
        return Function(function.name, b.region(*results), tuple(declared), function.span)

    def param(self, b: RegionBuilder, param: Value, is_entry: bool = False, name: str = "") -> None:
        sharding, of = (param.sharding, param.type) if is_entry else (None, None)
        self.local[param] = b.param(name or param.name, self.local_type(param), sharding, span=param.span, of=of)

    def local_type(self, value: Value) -> TensorType:
        return value.type.with_shape(self.shardings.of(value).local_shape(value.shape))

    def ops(self, b: RegionBuilder, ops: Sequence[Op]) -> None:
        around = b.span, b.cause
        for op in ops:
            first = len(b.ops)
            b.span, b.cause = op.span, op.cause or self.by_the_user(op)
            self.local.update(zip(op.results, self.locals(b, op), strict=True))
            if not op.regions:
                self.became[op] = b.ops[first:]
        b.span, b.cause = around

    def region(self, outer: RegionBuilder, region: Region, named: Region) -> Region:
        """A region whose parameters have the names of another one."""
        b = RegionBuilder(outer.names)
        for param, other in zip(region.params, named.params, strict=True):
            self.param(b, param, name=other.name)
        self.ops(b, region.ops)
        return b.region(*(self.local[v] for v in region.results))

    # One op.

    def locals(self, b: RegionBuilder, op: Op) -> Sequence[Value]:
        """The local values of the op's results."""
        if is_reshard(op):
            return self.checked(op, self.reshard(b, op))
        if is_manual(op):
            return self.checked(op, self.manual(b, op))
        return self.op(b, op) if OPS[op.name].has_strategy else self.same(b, op)

    def checked(self, op: Op, written: Sequence[Value]) -> Sequence[Value]:
        """The local values themselves. Raises InternalError if they are not the shards of the op's results."""
        for value, local in zip(op.results, written, strict=True):
            if local.type != self.local_type(value):
                at = self.shardings.of(value).spell(self.mesh)
                raise InternalError(f"{value.name} in {at} is {local.type}, expected {self.local_type(value)}")
        return written

    def reshard(self, b: RegionBuilder, op: Op) -> Sequence[Value]:
        (operand,), result = op.operands, op.result
        text = str(op.attrs["steps"])
        steps = self.steps.get(text)
        if steps is None:
            steps = self.steps[text] = read_steps(self.program.meshes, text, op.span)
        cause, moved = op.cause or Cause("written"), self.names.get(operand, operand.name)
        if cause.kind != "annotation" or cause.name != result.name:
            self.names[result] = moved
        cause, before, x = replace(cause, values=(moved,)), self.shardings.of(operand), self.local[operand]
        return (emit_steps(b, x, result.shape, before, steps, self.sub_axes, result.name, cause),)

    def op(self, b: RegionBuilder, op: Op) -> Sequence[Value]:
        operands = tuple([self.shardings.of(v) for v in op.operands])
        results = tuple([self.shardings.of(v) for v in op.results])
        kind = signature_of(op), op.strategy, operands, results
        known = self.of_one_op.get(kind)
        if known is not None:
            attrs, types = known
            return b.append(op.name, self.locals_of(op), attrs, names=[v.name for v in op.results], types=types)
        spelled = self.strategies.get(op.strategy)
        if spelled is None:
            spelled = self.strategies[op.strategy] = read_strategy(self.program.meshes, op.strategy, op.span)
        rule = spelled.rule(op)
        if rule is None:
            raise InternalError(f"{op.name} has no rule with the factors of its strategy {op.strategy!r}")
        strategy = Strategy(
            spelled.factors, operands, results, 0.0, spelled.windowed, candidates_to=spelled.candidates_to
        )
        first = len(b.ops)
        local = self.masked(b, op, rule, spelled, operands)
        context = OpContext(self.mesh, op, rule, strategy, local, b, self.of_the_caller, self.names)
        written = self.checked(op, partitioning_of(op).write(context))
        made = b.ops[first:] if OPS[op.name].family != "host" else []
        if len(made) == 1 and (made[0].name, made[0].operands) == (op.name, tuple(self.locals_of(op))):
            self.of_one_op[kind] = dict(made[0].attrs), [v.type for v in made[0].results]
        return written

    def locals_of(self, op: Op) -> list[Value]:
        """The local values of the op's operands."""
        return [self.local[v] for v in op.operands]

    def masked(
        self, b: RegionBuilder, op: Op, rule: FactorRule, spelled: Spelled, shardings: Sequence[ClosedSharding]
    ) -> tuple[Value, ...]:
        """The operands with the identity in the padding of reduced dims, if the op would read it."""
        split = {f for f, _ in spelled.factors}
        if spelled.windowed is not None:
            split.add(spelled.windowed.factor)
        unread = partitioning_of(op).ignores_padding_of
        masked: list[Value] = []
        for i, (value, sharding, tensor) in enumerate(zip(op.operands, shardings, rule.operands, strict=True)):
            local = self.local[value]
            for dim in uneven_dims(value.shape, sharding) if i not in unread else ():
                factor = rule.factors[tensor[dim][0]]
                if factor.kind is not FactorKind.REDUCTION or tensor[dim][0] not in split:
                    continue
                kind = factor.reduction
                if kind is None:
                    continue
                local = mask(b, local, op, i, sharding, (dim,), neutral_of(kind, value.dtype))
            masked.append(local)
        return tuple(masked)

    def same(self, b: RegionBuilder, op: Op) -> Sequence[Value]:
        """The op itself on local operands, with its regions."""
        regions = tuple(self.region(b, region, op.regions[-1]) for region in op.regions)
        names = [v.name for v in op.results]
        types = [self.local_type(v) for v in op.results]
        return b.append(op.name, self.locals_of(op), dict(op.attrs), names=names, regions=regions, types=types)

    def manual(self, b: RegionBuilder, op: Op) -> Sequence[Value]:
        """The ops of a manual region, inlined: values that cross its boundary are the same locally on both sides."""
        (region,) = op.regions
        self.local.update((param, self.local[v]) for param, v in zip(region.params, op.operands, strict=True))
        self.ops(b, region.ops)
        return [self.local[v] for v in region.results]

    def by_the_user(self, op: Op) -> Cause | None:
        """The cause of a collective that no pass inserted."""
        if op.name not in COLLECTIVES:
            return None
        return Cause("written", op.name, name=op.label, values=tuple([self.names.get(v, v.name) for v in op.operands]))
