"""From a syntax tree to a program: consts, meshes and signatures first, then the body of each function.

Errors are collected over the whole program. A value, const or function with an error is poisoned, so that its
consequences are not reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from ir.builder import RegionBuilder
from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, SpmdcError, error
from ir.mesh import Mesh
from ir.ops.layout import is_hint
from ir.program import Function, Program, Result, Value, walk
from ir.sharding import Sharding
from ir.types import DType, TensorType, f32
from spmdc.frontends.spmd.expand.choices import float_type
from spmdc.frontends.spmd.expand.context import Context, ParamSpec, Signature
from spmdc.frontends.spmd.expand.expressions import Evaluator
from spmdc.frontends.spmd.expand.manual_regions import undeclared
from spmdc.frontends.spmd.expand.name_scope import NameScope
from spmdc.frontends.spmd.expand.sharded_types import declare_mesh, tensor_type, to_become, type_sharding
from spmdc.frontends.spmd.expand.statements import StatementExpander, written_names
from spmdc.frontends.spmd.expand.weights import initializer
from spmdc.frontends.spmd.items import Bound, Item, PoisonedError, Scope, describe, suggest
from spmdc.frontends.spmd.syntax import nodes as s

ENTRY = "main"


def expand(
    module: s.Module, source: Source, defines: Mapping[str, float], found: Diagnostics, bound: Bound | None
) -> Program | None:
    """The program, or None if there are errors, which are added to `found`. The bindings of names are added to
    `bound`."""
    context = Context(
        source, found, module.locations, consts=Scope(bound=bound, source=source, incomplete=module.is_incomplete)
    )
    context.stage = next((item.stage for item in module.items if isinstance(item, s.Stage)), "global")
    context.meshes.in_plan = context.stage == "plan"
    context.has_manual = any(s.holds_manual(i.body or ()) for i in module.items if isinstance(i, s.FunctionItem))
    _consts(context, [c for item in module.items if isinstance(item, tuple) for c in item], defines)
    for item in module.items:
        if isinstance(item, s.MeshItem):
            _mesh(context, item)
        elif item == ():
            context.meshes.faulty = True
    for item in module.items:
        if isinstance(item, s.DefaultPrecision):
            _precision(context, item)
    functions = _signatures(context, [item for item in module.items if isinstance(item, s.FunctionItem)])
    if ENTRY not in context.signatures and (functions or not found.errors):
        hint = suggest(ENTRY, context.signatures) or "def main(x: f32[8]) -> (y: f32[8]) { … }"
        if functions:
            hint += f', or check a program that has: include "{Path(source.name).name}"'
        found.add(Diagnostic("E403", f"the program has no function {ENTRY!r}", Span(source, 1, 1, 1, 2), help=hint))
    expanded = {item.name: _function(context, item, signature) for item, signature in functions}
    _refuse_recursion(context)
    if found.errors:
        return None
    bodies = {name: function for name, function in expanded.items() if function is not None}
    meshes = tuple(context.meshes.meshes) or (Mesh(()),)
    entry = context.signatures[ENTRY]
    params = entry.params if entry is not None else ()
    weights = {p.name: p.initial for p in params if p.initial is not None}
    return Program(meshes, bodies, context.stage, ENTRY, source, weights, module.included)


def _evaluator(context: Context, span: Span) -> Evaluator:
    """An evaluator for what must be known before any function: ops are errors in it."""
    return Evaluator(context, "", RegionBuilder(), context.consts, span)


def _constant(context: Context, node: s.Expr, what: str, written: Collection[str] = ()) -> Item:
    """The value of an expression at compile time. `written` has the names of all consts."""
    evaluator = _evaluator(context, node.span)
    evaluator.written = written
    item = evaluator.expr(node)
    if isinstance(item, int | float | tuple | DType) and not evaluator.builder.ops:
        return item
    help_text = "numbers, other consts, arithmetic, and functions of numbers such as max and cdiv make one"
    message = f"{what} must be known at compile time, and is {describe(item)}"
    raise error("E207", message, node.span, help=help_text)


def _consts(context: Context, consts: list[s.Const], defines: Mapping[str, float]) -> None:
    names = [c.name for c in consts]
    for name in defines:
        if name not in names:
            hint = suggest(name, names) or (f"its consts are {', '.join(names)}" if names else "it has no consts")
            context.diagnostics.add(Diagnostic("E104", f"the program has no const {name!r} to override", help=hint))
    for const in consts:
        with context.reporting() as faults:
            if const.value is None:
                raise PoisonedError
            try:
                item = _constant(context, const.value, f"const {const.name!r}", names)
            except (SpmdcError, PoisonedError):
                if const.name not in defines:
                    raise
                item = 0  # Its own value, which is not used, may have a fault with what is given for others.
            if const.name in defines:
                item = _overridden(const, item, defines[const.name])
            context.consts.bind(const.name, item, const.span)
        if faults.found:
            context.consts.poison(const.name)


def _overridden(const: s.Const, own: Item, value: object) -> int | float:
    """The value that is given for a const: an integer, or a float where its own is one."""
    if isinstance(own, float) and isinstance(value, int | float):
        return float(value)
    if isinstance(value, int):
        return value
    kind = "a number" if isinstance(own, float) else "an integer"
    raise error(
        "E104",
        f"const {const.name!r} must be {kind}, and is given {value!r}",
        const.span,
        help=f"-D {const.name}={own}",
    )


def _mesh(context: Context, item: s.MeshItem) -> None:
    with context.reporting() as faults:
        declare_mesh(context.meshes, item, lambda node: _constant(context, node, "this"))
    context.meshes.faulty |= faults.found


def _precision(context: Context, item: s.DefaultPrecision) -> None:
    """Records the precision of floats for the functions of a file."""
    source = item.span.source
    is_second = source in context.precisions
    context.precisions[source] = None
    with context.reporting():
        if context.stage != "global":
            raise error("E406", "precisions belong to global programs", item.span, help="write the converts")
        if is_second:
            help_text = "functions that differ begin with return precision(f32) { … }"
            raise error("E102", "the file says twice what is computed in", item.span, help=help_text)
        if item.dtype is not None:
            given = _evaluator(context, item.span).expr(item.dtype)
            context.precisions[source] = float_type(given, item.dtype.span)


# Signatures.


def _signatures(context: Context, functions: list[s.FunctionItem]) -> list[tuple[s.FunctionItem, Signature | None]]:
    """Records the signatures, and returns the functions with them, without those with duplicate names."""
    kept: list[tuple[s.FunctionItem, Signature | None]] = []
    for item in functions:
        if item.name in context.signatures:
            message, help_text = f"function {item.name!r} is defined twice", "give one of them another name"
            context.diagnostics.add(Diagnostic("E403", message, item.name_span, help=help_text))
            continue
        signature = _signature(context, item)
        names = [p.name for p in signature.params] if signature is not None else []
        context.signatures[item.name] = signature if len(set(names)) == len(names) else None
        kept.append((item, signature))
    return kept


def _signature(context: Context, item: s.FunctionItem) -> Signature | None:
    """A function's signature, with its faulty parts marked; None if its parameters are unknown."""
    if item.header is None:
        return None
    params, results = item.header
    twice = _refuse_twice(context, params, "parameter")
    _refuse_twice(context, results or (), "result")
    specs = [_with_initializer(context, item, p, _param(context, p)) for p in params]
    outs = [_param(context, p) for p in results or ()]
    names = _result_names(item, results or ())
    return Signature(
        item.name,
        tuple(replace(p, faulty=p.faulty or p.name in twice) for p in specs),
        tuple(Result(name, out.type, out.sharding, out.of, out.span) for name, out in zip(names, outs, strict=True)),
        frozenset(i for i, out in enumerate(outs) if out.faulty),
        results is not None,
    )


def _refuse_twice(context: Context, params: tuple[s.Param, ...], what: str) -> set[str]:
    """The names that occur more than once, which are reported."""
    seen: set[str] = set()
    twice: set[str] = set()
    for param in params:
        if param.name and param.name in seen:
            message, help_text = f"{what} {param.name!r} is declared twice", f"give each {what} a name of its own"
            context.diagnostics.add(Diagnostic("E102", message, param.span, help=help_text))
            twice.add(param.name)
        seen.add(param.name)
    return twice


def _param(context: Context, param: s.Param) -> ParamSpec:
    """A parameter or result. Errors are reported. Without its sharding it is known, without its type it is not."""
    evaluate = _evaluator(context, param.span).expr
    type: TensorType | None = None
    of: TensorType | None = None
    sharding: Sharding | None = None
    if param.type is not None:
        with context.reporting():
            type = tensor_type(param.type, evaluate, context.consts)
    if param.type is None or type is None:
        return ParamSpec(param.name, TensorType((), f32), None, None, param.span, faulty=True)
    with context.reporting():
        if param.type.of is not None:
            _check_shard(context, param.type)
            of = tensor_type(param.type.of, evaluate, context.consts)
        sharding = type_sharding(param.type.of or param.type, of or type, context.meshes)
    return ParamSpec(param.name, type, sharding, of, param.span)


def _with_initializer(context: Context, function: s.FunctionItem, param: s.Param, spec: ParamSpec) -> ParamSpec:
    """The parameter with its initial value. If that has errors, they are reported, and the parameter is an input."""
    if param.initial is None:
        return spec
    with context.reporting():
        if function.name != ENTRY:
            message = f"{param.name!r} is a parameter of {function.name!r}, and gets its value from a call"
            raise error("E414", message, param.initial.span, help=f"the parameters of {ENTRY} may be weights")
        if not spec.faulty:
            what = "what a weight holds"
            initial = initializer(param.initial, spec.type.dtype, lambda node: _constant(context, node, what))
            return replace(spec, initial=initial)
    return spec


def _check_shard(context: Context, type: s.TypeExpr) -> None:
    """Raises SpmdcError (E406, E303) if the type cannot be that of a shard."""
    if context.stage != "spmd":
        message = "only the parameters and results of an SPMD program are shards `of` something"
        raise error("E406", message, type.span, help="begin the program with `spmd`")
    if type.annotated:
        help_text = "f32[4, 64] of f32[16@x, 64]"
        raise error("E303", "the sharding comes after `of`, with the global type", type.span, help=help_text)


def _result_names(item: s.FunctionItem, results: tuple[s.Param, ...]) -> list[str]:
    """Names for all results: those in the text, else those of the returned values, else `out`."""
    last = item.body[-1] if item.body else None
    returned = last.values if isinstance(last, s.Return) and len(last.values) == len(results) else ()
    names: list[str] = [r.name for r in results]
    for i, name in enumerate(names):
        value = returned[i] if i < len(returned) else None
        stem = name or (value.id if isinstance(value, s.Name) else "out")
        count = 0
        shown = stem
        while not name and shown in names:
            count += 1
            shown = f"{stem}.{count}"
        names[i] = shown
    return names


# Bodies.


def _function(context: Context, item: s.FunctionItem, signature: Signature | None) -> Function | None:
    if item.body is None:
        return None
    params = signature.params if signature is not None else ()
    result_names = [r.name for r in signature.results] if signature is not None else []
    bound = frozenset(written_names(item.body))
    claims = NameScope({p.name for p in params} | bound | set(result_names), bound=bound)
    builder = RegionBuilder(claims.names)
    scope = Scope(context.consts, incomplete=signature is None)
    for param in params:
        claims.claim(param.name)
        if param.faulty:
            scope.poison(param.name)
            continue
        value = Value(param.name, param.type, param.sharding, param.span, param.of)
        builder.params.append(value)
        scope.items.pop(param.name, None)
        scope.bind(param.name, value, param.span)
    precision = context.precisions.get(item.name_span.source)
    block = StatementExpander(context, item.name, claims, scope, builder, item.name_span, precision)
    block.run(item.body, result_names, item.name_span, f"function {item.name!r}")
    results = _results(block, signature)
    if results is None or signature is None:
        return None
    function = builder.function(item.name, results, signature.results, span=item.name_span)
    _refuse_nowhere(context, function)
    return function


def _refuse_nowhere(context: Context, function: Function) -> None:
    """Reports `shard` ops without a sharding."""
    for op in walk(function.body):
        if op.name != "shard" or op.result.sharding is not None or is_hint(op):
            continue
        if not context.meshes.faulty:
            message = "shard needs to know where: write a type with a sharding, or a device assignment"
            help_text = f"{op.result.name}: {op.result.type}{{replicated}} = shard(x)"
            context.diagnostics.add(Diagnostic("E203", message, op.span, help=help_text))


def _results(block: StatementExpander, signature: Signature | None) -> list[Value] | None:
    """The returned values, checked against the signature as far as both are known; None if there are errors."""
    given = block.given_back
    if given is None or signature is None or not signature.results_known:
        return None
    if len(given.items) != len(signature.results):
        message = f"function {signature.name!r} returns {len(given.items)} values, and its signature has "
        shown = ", ".join(f"{r.name}: {r.type}" for r in signature.results)
        help_text = "" if signature.faulty_results else f"it declares -> ({shown})"
        block.report(error("E401", f"{message}{len(signature.results)}", given.span, help=help_text))
        return None
    values: list[Value] = []
    for i, ((item, span), result) in enumerate(zip(given.items, signature.results, strict=True)):
        if item is None or i in signature.faulty_results:
            continue
        try:
            values.append(_result(block, item, result, span))
        except SpmdcError as problem:
            block.report(problem)
    return None if block.failed or len(values) < len(signature.results) else values


def _result(block: StatementExpander, item: Item, result: Result, span: Span) -> Value:
    """A returned value. Raises SpmdcError (E401) if it does not have the declared type."""
    block.evaluator.emitter.hint = result.name
    value = block.evaluator.emitter.as_declared(block.as_result(item, result.type, span), result.type)
    if value.type != result.type:
        place, help_text = undeclared(value, result.type, block.builder.ops) or (
            span,
            to_become(result.type, value.type),
        )
        message = f"result {result.name!r} is declared {result.type}, and is {value.type}"
        raise error("E401", message, place, help=help_text)
    return value


def _refuse_recursion(context: Context) -> None:
    calls: dict[str, set[str]] = {caller: set(callees) for caller, callees in context.calls.items()}
    while True:
        try:
            TopologicalSorter(calls).prepare()
        except CycleError as found:
            cycle: list[str] = found.args[1][:0:-1]
        else:
            return
        start = cycle.index(next(name for name in context.signatures if name in cycle))
        path = [*cycle[start:], *cycle[:start], cycle[start]]
        message, call = f"function {path[0]!r} calls itself: {' → '.join(path)}", context.calls[path[0]][path[1]]
        help = "loop, repeat and while loop within a function"
        context.diagnostics.add(Diagnostic("E402", message, call, help=help))
        for name in cycle:
            calls[name] = set()
