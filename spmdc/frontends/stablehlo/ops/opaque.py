"""Custom calls of unknown targets become `opaque` ops, with everything that the runtime needs for the call. Also calls
of JAX functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy, stablehlo

from ir.ops.declaration import factor_letter
from ir.ops.opaque import TYPED_API
from ir.program import Attr, Value
from ir.types import TensorType
from spmdc.custom_calls import RULES
from spmdc.frontends.stablehlo.attributes import cast, dictionary, int_of, items, parsed, text_of
from spmdc.frontends.stablehlo.effects import has_side_effect
from spmdc.frontends.stablehlo.meshes import frontend_attributes
from spmdc.frontends.stablehlo.names import identifier
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

CUSTOM_PARTITIONING = "spmdc.custom_partitioning"
"""The target of a call of a function with `jax.custom_partitioning`. The call has the function's number among the host
functions, its name, and its rule."""
FUNCTION = "spmdc.function"
"""The target of a call of a JAX function that takes arrays of these shapes only. The call has the function's number and
its name."""


def opaque(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The call as an opaque op. Raises SpmdcError: E704 if it has unordered effects, E705 if it runs functions of the
    module."""
    target = text_of(op.attributes["call_target_name"])
    if items(op.attributes, "called_computations"):
        message = f"spmdc does not know what @{target} does with the functions that it is given"
        help = "write what it computes in ops of StableHLO, or as a custom call that needs no function"
        raise scope.refuse(op, message, code="E705", help=help)
    operands, types = scope.operands(op), scope.result_types(op)
    config, version = _options(op)
    attrs: dict[str, Attr] = {
        "target": target,
        "types": tuple(types),
        "rule": _rule(op, target, operands, types),
        "config": config,
        "api_version": version,
        "operand_layouts": _layouts(op, "operand_layouts"),
        "result_layouts": _layouts(op, "result_layouts"),
        "aliases": _aliases(op),
    }
    return called(op, scope, "opaque", attrs)


def called(op: mlir.Operation, scope: Scope, opname: str, attrs: dict[str, Attr]) -> list[Bound]:
    """The call as an op; if it has effects, it takes the token and returns the next one. Raises SpmdcError (E704)."""
    effect = has_side_effect(op)
    if effect and scope.token is None:
        message = "the call has effects, in a function of elements that runs in no order"
        raise scope.refuse(op, message, code="E704", help="call it outside of reductions, sorts and the like")
    operands = [*scope.operands(op), *scope.tokens(effect)]
    results = list(scope.builder.append(opname, operands, {**attrs, "effect": effect}))
    if effect:
        scope.token = results.pop()
    return list(results)


@converts(f"custom_call @{CUSTOM_PARTITIONING}", f"custom_call @{FUNCTION}")
def _function(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """A call of a JAX function. Its parts are independent along the dims in its rule, if it has one.

    Raises SpmdcError (E704) in a module that is read from text.
    """
    given = dictionary(op, "mhlo.backend_config")
    name = identifier(text_of(given["name"]) if "name" in given else "", "function")
    function = scope.module.effects.function(op, name)
    if function is None:
        raise scope.refuse(
            op,
            f"@{text_of(op.attributes['call_target_name'])} calls a JAX function, which a module that is read from "
            "text does not hold",
            code="E704",
            help="import the function that was lowered to this: spmdc.from_jax, spmdc.jit",
        )
    operands, types = scope.operands(op), scope.result_types(op)
    written = op.attributes.get("sdy.sharding_rule", None)
    kind = text_of(given["reduction"]) if "reduction" in given else ""
    shapes = [*(v.type.shape for v in operands), *(t.shape for t in types)]
    rule = ""
    if written is not None:
        own = shardy_rule(cast(sdy.OpShardingRuleAttr, written), shapes, kind or "sum")
        rule = RULES.get(name, own)
    return scope.emit_all("opaque", *operands, target=function.name, types=tuple(types), rule=rule, function=function)


def _options(op: mlir.Operation) -> tuple[str, int]:
    """The options, and the version of the API that takes them: in the typed version they are a dictionary."""
    for name in ("mhlo.backend_config", "backend_config"):
        given = op.attributes.get(name, None)
        if isinstance(given, mlir.DictAttr):
            return str(given), TYPED_API
    version = int_of(op.attributes["api_version"]) if "api_version" in op.attributes else 1
    text = text_of(op.attributes["backend_config"]) if "backend_config" in op.attributes else ""
    return text, max(version, 1)


def _layouts(op: mlir.Operation, name: str) -> tuple[tuple[int, ...], ...]:
    """The dims of each tensor in memory order, major first; empty if all are row-major."""
    minor_first = [np.asarray(cast(mlir.DenseIntElementsAttr, a)).ravel().tolist() for a in items(op.attributes, name)]
    layouts = tuple(tuple(reversed(layout)) for layout in minor_first)
    return layouts if any(list(layout) != sorted(layout) for layout in layouts) else ()


def _aliases(op: mlir.Operation) -> tuple[tuple[int, int], ...]:
    """The operands that may be overwritten with results."""
    given = [stablehlo.OutputOperandAlias(a) for a in items(op.attributes, "output_operand_aliases")]
    return tuple((a.operand_index, (*a.output_tuple_indices, 0)[0]) for a in given)


def _rule(op: mlir.Operation, target: str, operands: Sequence[Value], types: Sequence[TensorType]) -> str:
    """The user's rule for the target; or that of the call, in Shardy's form; or, for JAX's LAPACK calls, one with a
    number of leading batch dims."""
    if target in RULES:
        return RULES[target]
    shapes = [*(v.type.shape for v in operands), *(t.shape for t in types)]
    if "sdy.sharding_rule" in op.attributes:
        return shardy_rule(cast(sdy.OpShardingRuleAttr, op.attributes["sdy.sharding_rule"]), shapes)
    frontend = frontend_attributes(op)
    if "xla.sdy.sharding_rule" in frontend:
        written = parsed(frontend["xla.sdy.sharding_rule"], "sdy.sharding_rule")
        return shardy_rule(cast(sdy.OpShardingRuleAttr, written), shapes)
    batch = frontend.get("num_batch_dims", "0")
    return _batch_rule(int(batch), operands, types) if batch.isdigit() and int(batch) else ""


def _batch_rule(batch: int, operands: Sequence[Value], types: Sequence[TensorType]) -> str:
    def side(ranks: Sequence[int], first: int) -> str:
        tensors = [[*(f"b{i}" for i in range(batch)), *(f"d{first + t}_{i}" for i in range(batch, rank))]
                   for t, rank in enumerate(ranks)]  # fmt: skip
        return ", ".join(map(" ".join, tensors))

    return f"{side([v.type.rank for v in operands], 0)} -> {side([t.rank for t in types], len(operands))}"


def shardy_rule(rule: sdy.OpShardingRuleAttr, shapes: Sequence[Sequence[int]], kind: str = "sum") -> str:
    """Shardy's rule as a text, for operands and results of these shapes. Shardy does not specify the reduction, which
    is `kind`. Pass-through factors are parallel if an operand and a result have them. Dims of different sizes with the
    same factor are unsplit, each with a factor of its own."""
    operands = [_dims(t) for t in rule.operand_mappings]
    results = [_dims(t) for t in rule.result_mappings]
    tensors, sizes = [*operands, *results], list(rule.factor_sizes)
    sized = [pair for t, shape in zip(tensors, shapes, strict=True) for pair in zip(t, shape, strict=True)]
    uneven = {dim[0] for dim, n in sized if len(dim) == 1 and n != sizes[dim[0]]}
    while more := {f for dim, _ in sized if uneven.intersection(dim) for f in dim} - uneven:
        uneven |= more
    apart = {(i, d): f"d{i}_{d}" for i, t in enumerate(tensors) for d, dim in enumerate(t) if uneven.intersection(dim)}
    said = [f"{name}: need_replication" for name in apart.values()]
    whole = {*rule.need_replication_factors, *rule.permutation_factors}
    for f, size in enumerate(sizes):
        given, made = ([any(f in dim for dim in t) for t in side] for side in (operands, results))
        if f in uneven:
            continue
        if f in rule.reduction_factors:
            said.append(f"{factor_letter(f)}: reduction({kind})")
        elif f in whole:
            said.append(f"{factor_letter(f)}: need_replication")
        elif any(given) and any(made) and not all(made):
            said.append(f"{factor_letter(f)}: parallel")
        elif not any((f,) in t for t in tensors) and (any(given) or any(made)):
            said.append(f"{factor_letter(f)}={size}")
    texts = [" ".join(apart.get((i, d)) or _spelt(dim) for d, dim in enumerate(t)) for i, t in enumerate(tensors)]
    sides = " -> ".join(", ".join(side) for side in (texts[: len(operands)], texts[len(operands) :]))
    return sides + (f" {{{', '.join(said)}}}" if said else "")


def _dims(tensor: mlir.Attribute) -> list[tuple[int, ...]]:
    return [tuple(sdy.DimMappingAttr(d).factor_indices) for d in sdy.TensorMappingAttr(tensor).dim_mappings]


def _spelt(dim: tuple[int, ...]) -> str:
    return factor_letter(dim[0]) if len(dim) == 1 else f"({' '.join(map(factor_letter, dim))})"
