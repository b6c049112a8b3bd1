"""Calls, loops and choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jaxlib.mlir import ir as mlir

from ir.diagnostics import SpmdcError
from ir.loops import Loop
from ir.ops.host import TOKEN
from ir.program import Region, Value
from ir.types import TensorType, s32
from spmdc.frontends.stablehlo.attributes import cast, dictionary, is_token, text_of
from spmdc.frontends.stablehlo.scope import CONVERTERS, AnyValue, Bound, Scope, converts

_CHLO = "chlo."


@converts("call")
def _call(op: mlir.Operation, scope: Scope) -> list[Bound]:
    return list(call(op, scope, text_of(op.attributes["callee"])))


@converts("composite")
def _composite(op: mlir.Operation, scope: Scope) -> Bound | list[Bound]:
    """A composite is replaced by its decomposition. Portable artifacts have composites in place of CHLO's ops, whose
    names they keep: such a composite is that op, unless it is refused for these types."""
    name = text_of(op.attributes["name"])
    converter = CONVERTERS.get(name.removeprefix(_CHLO)) if name.startswith(_CHLO) else None
    meant = None if converter is None else _detached(op, name)
    if converter is not None and meant is not None:
        try:
            return converter(meant, scope)
        except SpmdcError:
            pass
        finally:
            meant.erase()
    return list(call(op, scope, text_of(op.attributes["decomposition"])))


def _detached(op: mlir.Operation, name: str) -> mlir.Operation | None:
    """The op of CHLO that a composite names, outside of any block; None if there is no such op. It refers to values of
    the module, before which it must be erased."""
    try:
        made = mlir.Operation.create(
            name, [v.type for v in op.results], list(op.operands), dictionary(op, "composite_attributes"),
            loc=op.location, ip=False,
        )  # fmt: skip
    except (mlir.MLIRError, ValueError):
        return None
    try:
        made.verify()
    except mlir.MLIRError:
        made.erase()
        return None
    return made


def call(op: mlir.Operation, scope: Scope, callee: str) -> Sequence[Value]:
    """A call of a function of the module."""
    name = scope.module.called(callee, scope.manual, scope.builder.span)
    has_effects = scope.module.effects.in_function(callee)
    source = scope.module.sources[callee]
    returned = mlir.FunctionType(cast(mlir.TypeAttr, source.attributes["function_type"]).value).results
    operands = [*scope.operands(op), *scope.tokens(has_effects)]
    types = scope.types(returned)
    results = scope.append("call", operands, {"function": name}, [*types, TOKEN] if has_effects else types)
    if has_effects:
        scope.token = results[-1]
    return results[: len(types)]


@converts("while")
def _while(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Values that the body returns unchanged are not carried: the regions use them from outside."""
    outer = scope.operands(op)
    condition, body = op.regions
    if scope.module.effects.inside([condition]):
        return _while_after_test(scope, outer, condition.blocks[0], body.blocks[0])
    has_effects = scope.module.effects.inside([body])
    returned = _tensors(list(body.blocks[0].operations)[-1].operation.operands)
    arguments = _tensors(body.blocks[0].arguments)
    carried = [i for i, (a, r) in enumerate(zip(arguments, returned, strict=True)) if a != r]
    carried = carried or ([] if has_effects else [0])
    test, _ = _loop_region(condition, scope, outer, carried, has_effects)
    step, inner = _loop_region(body, scope, outer, carried, has_effects)
    kept = [*(step.results[i] for i in carried), *inner.tokens(has_effects)]
    step = Region(step.params, step.ops, tuple(kept))
    initial = [*(outer[i] for i in carried), *scope.tokens(has_effects)]
    trips = Loop(initial, test, step, scope.number).trip_count()
    results = scope.append("while", initial, {"trip_count": trips}, [v.type for v in initial], (test, step))
    found: list[Bound] = list(outer)
    for i, result in zip(carried, results, strict=False):
        found[i] = result
    if has_effects:
        scope.token = results[-1]
    return found


def _loop_region(
    region: mlir.Region, scope: Scope, outer: Sequence[Value], carried: Sequence[int], has_effects: bool
) -> tuple[Region, Scope]:
    """A region of a loop, which gets the carried values, and the scope of its contents."""
    inner = scope.inner()
    inner.repeats = True
    bound = list[Bound](outer)
    for i in carried:
        bound[i] = _parameter(inner, outer[i])
    if has_effects:
        inner.token = inner.builder.param("token", TOKEN)
    return scope.module.region(region, inner, _bound(region.blocks[0], bound)), inner


def _parameter(inner: Scope, value: Value) -> Value:
    """A parameter of a loop's region, named as its initial value."""
    name = value.name.partition(".")[0] if not value.name.startswith("constant") else "carried"
    return inner.builder.param(name, value.type)


def _while_after_test(scope: Scope, outer: Sequence[Value], condition: mlir.Block, body: mlir.Block) -> list[Bound]:
    """A loop whose condition has effects. The condition is evaluated before the loop and at the end of each iteration,
    because a condition here returns only whether to continue."""
    (goes_on,) = inlined(condition, scope, outer)
    test, step = scope.inner(), scope.inner()
    step.repeats = True
    carried = [goes_on, *outer, *scope.tokens()]
    asked = [_parameter(test, v) for v in carried]
    _, *given, step.token = [_parameter(step, v) for v in carried]
    stepped = inlined(body, step, given)
    (again,) = inlined(condition, step, stepped)
    regions = test.builder.region(asked[0]), step.builder.region(again, *stepped, *step.tokens())
    _, *results, scope.token = scope.append("while", carried, {"trip_count": None}, [v.type for v in carried], regions)
    return list(results)


def counted_loop(
    scope: Scope, trips: int | Value, carried: Sequence[Value], step: Callable[[Scope, Value, list[Value]], list[Value]]
) -> list[Value]:
    """The carried values after that many iterations. `step` writes one: it takes the inner scope, the number of the
    iteration, from 0 on, and the carried values, and returns the next ones."""
    scalar = TensorType((), s32)
    types = [scalar, *(v.type for v in carried)]
    test, body = scope.inner(), scope.inner()
    body.repeats = True
    i, *_ = [test.builder.param("x" if n else "i", t) for n, t in enumerate(types)]
    limit = trips if isinstance(trips, Value) else test.full(trips, scalar)
    condition = test.builder.region(test.emit("compare", i, limit, direction="LT"))
    i, *xs = [body.builder.param("x" if n else "i", t) for n, t in enumerate(types)]
    stepped = step(body, i, xs)
    turn = body.builder.region(body.emit("add", i, body.full(1, scalar)), *stepped)
    count = None if isinstance(trips, Value) else trips
    outer = [scope.full(0, scalar), *carried]
    return list(scope.append("while", outer, {"trip_count": count}, types, (condition, turn)))[1:]


def inlined(block: mlir.Block, scope: Scope, values: Sequence[Value]) -> list[Value]:
    """The results of a block for these arguments, with its ops inlined. Raises PoisonedError if it has errors."""
    scope.values.update(zip(block.arguments, _bound(block, values), strict=True))
    return scope.module.block(block, scope)


def _tensors(values: Iterable[AnyValue]) -> list[AnyValue]:
    return [v for v in values if not is_token(v)]


def _bound(block: mlir.Block, values: Sequence[Bound]) -> list[Bound]:
    """The values that each argument of a block is bound to. The tensors among them are `values`, in order."""
    tensors = iter(values)
    return [() if is_token(a) else next(tensors) for a in block.arguments]


@converts("case")
def _case(op: mlir.Operation, scope: Scope) -> list[Bound]:
    index = scope.operand(op.operands[0])
    if index.dtype != s32:
        index = scope.emit("convert", index, dtype=s32)
    return choose(op, scope, index, list(op.regions))


@converts("if")
def _if(op: mlir.Operation, scope: Scope) -> list[Bound]:
    index = scope.emit("convert", scope.operand(op.operands[0]), dtype=s32)
    return choose(op, scope, index, list(op.regions)[::-1])


def choose(op: mlir.Operation, scope: Scope, index: Value, branches: Sequence[mlir.Region]) -> list[Bound]:
    """A case over these regions."""
    has_effects = scope.module.effects.inside(branches)
    regions: list[Region] = []
    for branch in branches:
        inner = scope.inner()
        region = scope.module.region(branch, inner, ())
        regions.append(Region((), region.ops, (*region.results, *inner.tokens(has_effects))))
    types = [*scope.result_types(op), *([TOKEN] if has_effects else [])]
    results = list(scope.append("case", [index], {}, types, tuple(regions)))
    if has_effects:
        scope.token = results.pop()
    return list(results)
