"""What the next value of a carried value consists of: the carried value itself, and what is added to it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence

from ir.mesh import Axes
from ir.ops import OPS, FactorKind
from ir.ops.declaration import ControlKind
from ir.program import Op, Program, Region, Value, callee_of
from ir.sharding import Partial
from passes.factors import dims_of_factors, factor_rule, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding
from passes.signatures import signature_of

_MAX_VALUES = 128
_MAX_DEPTH = 32
ShardingNow = Callable[[Value], ClosedSharding]
_PLAIN = ("elementwise", "layout", "control")


def linear_parts(program: Program, inlined: Collection[str], op: Op) -> Mapping[int, LinearParts]:
    """The linear parts of each value that a loop carries, by its number. The bodies of `inlined` functions are
    included."""
    body = op.regions[1]
    makers = {v: inner for inner in body.ops for v in inner.results}
    computed: dict[object, ClosedSharding] = {}
    return {i: LinearParts(program, inlined, body, i, makers, computed) for i in range(len(op.results))}


class LinearParts:
    """The values that the next value of carried value `i` is linear in, across choices, inner loops and functions.

    `line` has these values, and for each whether the carried value `param` takes part in it. `makers` has the ops that
    make them, first of all those of the body. `is_linear` says whether the next value is linear in the carried value,
    and `is_sum` whether something is added to it elementwise. `computed` has the shardings of results by those of the
    operands, for all carried values of the loop.
    """

    def __init__(
        self,
        program: Program,
        inlined: Collection[str],
        body: Region,
        i: int,
        makers: MutableMapping[Value, Op],
        computed: dict[object, ClosedSharding],
    ) -> None:
        self.program, self.inlined = program, inlined
        self.param = body.params[i]
        self.result = body.results[i]
        self.makers: MutableMapping[Value, Op] = ChainMap({}, makers)
        self.computed = computed
        self.same: dict[Value, Value] = {}
        self.line: dict[Value, bool] = {}
        self._wants: dict[ClosedSharding, dict[Value, ClosedSharding]] = {}
        self._depends_on: tuple[Value, ...] | None = None
        """The values on whose present shardings the natural ones depend, if that was found already."""
        self._natural: dict[tuple[ClosedSharding, ...], Collection[ClosedSharding]] = {}
        self.is_sum = True
        self.is_linear = self._leads(self.result)
        self.is_sum = self.is_linear and self.is_sum

    def _add(self, ops: Sequence[Op]) -> None:
        self.makers.update({v: op for op in ops for v in op.results})

    def _leads(self, value: Value) -> bool:
        """Adds to `line` the values that a value is linear in. Returns whether the carried value is among them."""
        value = self.same.get(value, value)
        if value is self.param:
            self.line[value] = True
        op = self.makers.get(value)
        if value in self.line or op is None or len(self.line) >= _MAX_VALUES:
            return self.line.get(value, False)
        self.line[value] = False
        found = [self._leads(source) for source in self._sources(op, value)]
        self.line[value] = any(found)
        self.is_sum = self.is_sum and (not self.line[value] or OPS[op.name].family in _PLAIN)
        return self.line[value]

    def _sources(self, op: Op, value: Value) -> list[Value]:
        """The values that a value of the line is equal to, or linear in."""
        k = op.results.index(value)
        match OPS[op.name].control:
            case ControlKind.CALL:
                callee = self.program.functions[callee_of(op) or ""]
                if callee.name not in self.inlined:
                    return []
                self._add(callee.body.ops)
                self.same.update(zip(callee.params, op.operands, strict=True))
                return [callee.body.results[k]]
            case ControlKind.CHOICE:
                for region in op.regions:
                    self._add(region.ops)
                return [region.results[k] for region in op.regions]
            case ControlKind.LOOP:
                body = op.regions[1]
                self._add(body.ops)
                self.same.update(zip(body.params, op.operands, strict=True))
                return [body.results[k], op.operands[k]]
            case _:
                pass
        return [op.operands[position] for position in sorted(signature_of(op).commuting)]

    def wants(self, sharding: ClosedSharding) -> Mapping[Value, ClosedSharding]:
        """The shardings that the values of the line should have if the next value is to have this one. A tensor from
        which only a part is taken has its own, unless it is a partial sum."""
        known = self._wants.get(sharding)
        if known is not None:
            return known
        found = self._wants[sharding] = dict[Value, ClosedSharding]()
        pending = [(self.result, sharding)]
        while pending:
            value, sharding = pending.pop()
            value = self.same.get(value, value)
            if value in found or value not in self.line:
                continue
            found[value] = sharding
            op = self.makers.get(value)
            if op is not None:
                pending.extend(self._wanted_of(op, value, sharding))
        return found

    def _wanted_of(self, op: Op, value: Value, sharding: ClosedSharding) -> Iterator[tuple[Value, ClosedSharding]]:
        rule = factor_rule(op)
        if rule is None:
            yield from ((source, sharding) for source in self._sources(op, value))
            return
        if any(f.kind is FactorKind.REDUCTION for f in rule.factors):
            return
        factors = factors_of_dims(rule, rule.results[op.results.index(value)], sharding.axes)
        for operand, tensor in zip(op.operands, rule.operands, strict=True):
            dims = dims_of_factors(rule, tensor, factors)
            is_cut = operand.type.size > value.type.size
            if dims is not None and not (is_cut and not sharding.partial):
                yield operand, ClosedSharding(dims, sharding.partial)

    def natural(self, sharding_now: ShardingNow) -> Collection[ClosedSharding]:
        """The shardings of the values that are added to the carried value, if they are computed with operands in their
        present shardings. An addend of another shape contributes only its pending reductions.

        They depend on the present shardings of the same values every time, and are found once for these.
        """
        asked: dict[Value, ClosedSharding] = {}

        def asking(value: Value) -> ClosedSharding:
            now = asked[value] = sharding_now(value)
            return now

        found = None
        if self._depends_on is not None:
            found = self._natural.get(tuple(map(sharding_now, self._depends_on)))
        if found is None:
            found = self._find_natural(asking)
            self._depends_on = tuple(asked)
            self._natural[tuple(asked.values())] = found
        return found

    def _find_natural(self, sharding_now: ShardingNow) -> Collection[ClosedSharding]:
        memo: dict[Value, ClosedSharding] = {}
        found: dict[ClosedSharding, None] = {}
        for value, carries in self.line.items():
            if not carries:
                sharding = self._natural_of(sharding_now, value, memo, 0)
                if value.shape == self.param.shape:
                    found[sharding] = None
                elif sharding.partial:
                    found[ClosedSharding(((),) * self.param.type.rank, sharding.partial)] = None
        return tuple(found)

    def _natural_of(
        self, sharding_now: ShardingNow, value: Value, memo: dict[Value, ClosedSharding], depth: int
    ) -> ClosedSharding:
        """The sharding in which a value would be computed so, by ops that are not too many before it."""
        value = self.same.get(value, value)
        if value not in memo:
            memo[value] = ClosedSharding.replicated(value.type.rank)
            op = self.makers.get(value)
            if value is not self.param and op is not None and depth < _MAX_DEPTH and factor_rule(op) is not None:
                memo[value] = self._computed(sharding_now, op, value, memo, depth)
            elif value is not self.param and (now := sharding_now(value)).order is None:
                memo[value] = now
        return memo[value]

    def _computed(
        self, sharding_now: ShardingNow, op: Op, value: Value, memo: dict[Value, ClosedSharding], depth: int
    ) -> ClosedSharding:
        """The sharding of an op's result if its operands are not resharded. The larger operand decides if they
        disagree."""
        largest_first = sorted(enumerate(op.operands), key=lambda pair: -pair[1].type.size)
        given = {position: self._natural_of(sharding_now, v, memo, depth + 1) for position, v in largest_first}
        key = value, *given.values()
        found = self.computed.get(key)
        if found is None:
            found = self.computed[key] = _computed_of(op, value, given)
        return found


def _computed_of(op: Op, value: Value, given: Mapping[int, ClosedSharding]) -> ClosedSharding:
    """The sharding of an op's result whose operands have these, by their numbers. If they disagree, the first one
    decides."""
    rule = factor_rule(op)
    assert rule is not None
    factors: dict[int, Axes] = {}
    pending: dict[object, Partial] = {}
    linear = signature_of(op).commuting
    for position, sharding in given.items():
        if position in linear and sharding.partial:
            pending.setdefault("operand", sharding.partial)
        for f, axes in factors_of_dims(rule, rule.operands[position], sharding.axes).items():
            if f not in factors and not {a for have in factors.values() for a in have}.intersection(axes):
                factors[f] = axes
    for f, axes in factors.items():
        kind = rule.factors[f].reduction
        if kind is not None:
            pending[f] = tuple((a, kind) for a in axes)
    dims = dims_of_factors(rule, rule.results[op.results.index(value)], factors)
    if dims is None:
        return ClosedSharding.replicated(value.type.rank)
    used = {a for axes in dims for a in axes}
    partial = sorted({p for pairs in pending.values() for p in pairs if p[0] not in used}, key=lambda p: p[0])
    return ClosedSharding(dims, tuple(partial) if len({kind for _, kind in partial}) == 1 else ())
