"""Syntax tree to program: consts, meshes and signatures first, then each function's body.

Errors are collected over the whole program; a value, const or function that has one is poisoned, so that what
follows from it is not told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from ir.builder import RegionBuilder
from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, SpmdcError, error
from ir.mesh import Mesh
from ir.program import Function, Program, Result, Value, walk
from ir.sharding import Sharding
from ir.text import syntax as s
from ir.text.blocks import Block, Claims, Returned, written_names
from ir.text.context import Context, ParamSpec, Signature
from ir.text.expressions import Evaluator
from ir.text.items import Item, PoisonedError, Scope, describe, suggest
from ir.text.placement import declare_mesh, tensor_type, type_sharding
from ir.types import TensorType

ENTRY = "main"


def expand(module: s.Module, source: Source, defines: Mapping[str, int], found: Diagnostics) -> Program | None:
    """The program, or None if there are errors, which are then in `found`."""
    context = Context(source, found, module.locations)
    if any(isinstance(item, s.Stage) for item in module.items):
        context.stage = "spmd"
    _consts(context, [c for item in module.items if isinstance(item, tuple) for c in item], defines)
    for item in module.items:
        if isinstance(item, s.MeshItem):
            _mesh(context, item)
        elif item == ():
            context.meshes.faulty = True
    functions = _signatures(context, [item for item in module.items if isinstance(item, s.FunctionItem)])
    if ENTRY not in context.signatures and (functions or not found.errors):
        hint = suggest(ENTRY, context.signatures) or "def main(x: f32[8]) -> (y: f32[8]) { … }"
        found.add(Diagnostic("E403", f"the program has no function {ENTRY!r}", Span(source, 1, 1, 1, 2), help=hint))
    expanded = {item.name: _function(context, item) for item in functions}
    _refuse_recursion(context)
    if found.errors:
        return None
    bodies = {name: function for name, function in expanded.items() if function is not None}
    meshes = tuple(context.meshes.meshes) or (Mesh(()),)
    return Program(meshes, bodies, context.stage, ENTRY, source)


def _evaluator(context: Context, span: Span) -> Evaluator:
    """Evaluates what must be known before any function: ops that it should build are errors."""
    return Evaluator(context, "", RegionBuilder(), context.consts, span)


def _constant(context: Context, node: s.Expr, what: str) -> Item:
    evaluator = _evaluator(context, node.span)
    item = evaluator.expr(node)
    if isinstance(item, int | float | tuple) and not evaluator.builder.ops:
        return item
    raise error("E207", f"{what} must be known at compile time, and is {describe(item)}", node.span)


def _consts(context: Context, consts: list[s.Const], defines: Mapping[str, int]) -> None:
    names = [c.name for c in consts]
    for name, value in defines.items():
        if name not in names:
            hint = suggest(name, names) or f"its consts are {', '.join(names) or 'none'}"
            context.diagnostics.add(Diagnostic("E104", f"the program has no const {name!r} to override", help=hint))
        elif not isinstance(value, int):
            context.diagnostics.add(Diagnostic("E104", f"const {name!r} must be an integer, and is given {value!r}"))
    for const in consts:
        try:
            if const.value is None:
                raise PoisonedError
            override = defines.get(const.name)
            item = override if isinstance(override, int) else _constant(context, const.value, f"const {const.name!r}")
            context.consts.bind(const.name, item, const.span)
        except SpmdcError as problem:
            context.diagnostics.extend(problem.diagnostics)
            context.consts.poison(const.name)
        except PoisonedError:
            context.consts.poison(const.name)


def _mesh(context: Context, item: s.MeshItem) -> None:
    try:
        declare_mesh(context.meshes, item, lambda node: _constant(context, node, "this"))
    except SpmdcError as problem:
        context.diagnostics.extend(problem.diagnostics)
        context.meshes.faulty = True
    except PoisonedError:
        context.meshes.faulty = True


# Signatures.


def _signatures(context: Context, functions: list[s.FunctionItem]) -> list[s.FunctionItem]:
    """Makes the signatures known, and returns the functions without those whose name is taken."""
    kept: list[s.FunctionItem] = []
    for item in functions:
        if item.name in context.signatures:
            context.diagnostics.add(Diagnostic("E403", f"function {item.name!r} is defined twice", item.name_span))
            continue
        context.signatures[item.name] = _signature(context, item)
        kept.append(item)
    return kept


def _signature(context: Context, item: s.FunctionItem) -> Signature | None:
    if item.header is None:
        return None
    params, results = item.header
    specs = [_param(context, p) for p in params]
    names = _result_names(item, results)
    outs = [_param(context, p) for p in results]
    faulty = _refuse_twice(context, params, "parameter")
    faulty |= _refuse_twice(context, results, "result")
    known_params = tuple(p for p in specs if p is not None)
    known_results = tuple(
        Result(name, out.type, out.sharding, out.of, out.span)
        for name, out in zip(names, outs, strict=True)
        if out is not None
    )
    if faulty or len(known_params) < len(specs) or len(known_results) < len(outs):
        return None
    return Signature(item.name, known_params, known_results, item.name_span)


def _refuse_twice(context: Context, params: tuple[s.Param, ...], what: str) -> bool:
    seen: set[str] = set()
    twice = False
    for param in params:
        if param.name and param.name in seen:
            context.diagnostics.add(Diagnostic("E102", f"{what} {param.name!r} is declared twice", param.span))
            twice = True
        seen.add(param.name)
    return twice


def _param(context: Context, param: s.Param) -> ParamSpec | None:
    """A parameter or result; None if its type has errors, which are told."""
    try:
        return _placed(context, param)
    except SpmdcError as problem:
        context.diagnostics.extend(problem.diagnostics)
    except PoisonedError:
        pass
    return None


def _placed(context: Context, param: s.Param) -> ParamSpec:
    evaluate = _evaluator(context, param.span).expr
    type = tensor_type(param.type, evaluate)
    sharding: Sharding | None
    of: TensorType | None = None
    if param.type.of is not None:
        if context.stage != "spmd":
            raise error(
                "E406",
                "only the parameters and results of an SPMD program are shards `of` something",
                param.type.span,
                help="begin the program with `spmd`",
            )
        if param.type.annotated:
            raise error("E303", "the sharding stands behind `of`, at the global type", param.type.span)
        of = tensor_type(param.type.of, evaluate)
        sharding = type_sharding(param.type.of, of, context.meshes)
    else:
        sharding = type_sharding(param.type, type, context.meshes)
    return ParamSpec(param.name, type, sharding, of, param.span)


def _result_names(item: s.FunctionItem, results: tuple[s.Param, ...]) -> list[str]:
    """Names for all results: those written, else those of the values returned, else `out`."""
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


def _function(context: Context, item: s.FunctionItem) -> Function | None:
    signature = context.signatures.get(item.name)
    if item.body is None:
        return None
    params = signature.params if signature is not None else ()
    result_names = [r.name for r in signature.results] if signature is not None else []
    claims = Claims({p.name for p in params} | set(written_names(item.body)) | set(result_names))
    builder = RegionBuilder(claims.names)
    scope = Scope(context.consts)
    for param in params:
        claims.claim(param.name)
        value = Value(param.name, param.type, param.sharding, param.span, param.of)
        builder.params.append(value)
        scope.items[param.name] = value
    if signature is None and item.header is not None:
        for faulty in item.header[0]:
            scope.poison(faulty.name)
    block = Block(context, item.name, claims, scope, builder, item.name_span)
    returned = block.run(item.body, result_names, item.name_span, f"function {item.name!r}")
    if returned is None or signature is None:
        return None
    try:
        results = _results(block, returned, signature)
    except SpmdcError as problem:
        context.diagnostics.extend(problem.diagnostics)
        return None
    function = builder.function(item.name, results, signature.results, span=item.name_span)
    _refuse_nowhere(context, function)
    return function


def _refuse_nowhere(context: Context, function: Function) -> None:
    """Tells of `shard` ops that do not say where."""
    for op in walk(function.body):
        if op.name == "shard" and op.result.sharding is None:
            message = "shard needs to know where: write a type with a sharding, or a device assignment"
            help_text = f"{op.result.name}: {op.result.type}{{replicated}} = shard(x)"
            context.diagnostics.add(Diagnostic("E203", message, op.span, help=help_text))


def _results(block: Block, returned: Returned, signature: Signature) -> list[Value]:
    """The returned values, checked against the signature. Raises SpmdcError (E401)."""
    if len(returned.items) != len(signature.results):
        raise error(
            "E401",
            f"function {signature.name!r} returns {len(returned.items)} values, and its signature has "
            f"{len(signature.results)}",
            returned.span,
        )
    values: list[Value] = []
    for (item, span), result in zip(returned.items, signature.results, strict=True):
        block.evaluator.emitter.hint = result.name
        value = block.as_result(item, result.type, span)
        if value.type != result.type:
            raise error("E401", f"result {result.name!r} is declared {result.type}, and is {value.type}", span)
        values.append(value)
    return values


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
        context.diagnostics.add(
            Diagnostic(
                "E402",
                f"function {path[0]!r} calls itself: {' → '.join(path)}",
                context.calls[path[0]][path[1]],
                help="repeat and while loop within a function",
            )
        )
        for name in cycle:
            calls[name] = set()
