"""opaque: a call of code outside the program, such as a custom call of XLA's, an FFI call, or LAPACK's."""

from __future__ import annotations

from collections.abc import Sequence

from ir.host import HostFunction
from ir.ops.declaration import (
    AttrDef,
    Attrs,
    Factor,
    FactorKind,
    FactorRule,
    TensorFactors,
    TypeRuleError,
    Types,
    declare,
)
from ir.ops.factor_text import factors_of
from ir.ops.host import TOKEN
from ir.ops.rule_helpers import all_apart, int_attr, types_attr
from ir.program import Op, Program, all_ops

TYPED_API = 4
"""The version of XLA's custom call API whose options are typed, and written as an MLIR dictionary."""


def layouts_attr(attrs: Attrs, name: str, types: Types) -> tuple[tuple[int, ...], ...]:
    """For each tensor the order of its dims in memory, major first, where the call reads or writes it."""
    value = attrs[name]
    if not isinstance(value, tuple) or not value:
        return tuple(tuple(range(t.rank)) for t in types)
    return tuple(tuple(d for d in layout if isinstance(d, int)) for layout in value if isinstance(layout, tuple))


def aliases_attr(attrs: Attrs) -> dict[int, int]:
    """The result that may use the memory of each operand."""
    value = attrs["aliases"]
    assert isinstance(value, tuple)
    pairs = [tuple(i for i in pair if isinstance(i, int)) for pair in value if isinstance(pair, tuple)]
    return {pair[0]: pair[1] for pair in pairs}


def is_opaque(op: Op) -> bool:
    """Whether the op is a call of code outside the program."""
    return op.name == "opaque"


def is_ordered(op: Op) -> bool:
    """Whether the op is such a call with an effect. The next token depends only on the token that it takes, and is the
    same on all devices, whatever other operands they have."""
    return is_opaque(op) and bool(op.attrs["effect"])


def calls_of_functions(program: Program) -> dict[str, tuple[HostFunction, Op]]:
    """The JAX functions that the program calls, by name, each with one of its calls."""
    found = ((op.attrs["function"], op) for op in all_ops(program) if is_opaque(op))
    return {function.name: (function, op) for function, op in found if isinstance(function, HostFunction)}


def _infer(types: Types, attrs: Attrs) -> Types:
    if not attrs["effect"]:
        return _infer_tensors(types, attrs)
    if not types or types[-1] != TOKEN:
        raise TypeRuleError(f"a call with an effect takes a token, {TOKEN}, behind its operands", "u32(0)")
    return (*_infer_tensors(types[:-1], attrs), TOKEN)


def _infer_tensors(types: Types, attrs: Attrs) -> Types:
    results = types_attr(attrs)
    for name, tensors in (("operand_layouts", types), ("result_layouts", results)):
        layouts = layouts_attr(attrs, name, tensors)
        if [sorted(layout) for layout in layouts] != [list(range(t.rank)) for t in tensors]:
            raise TypeRuleError(f"{name} does not order the dims of {_listed(tensors)}", "major first: [[0, 2, 1]]")
    aliases = attrs["aliases"]
    pairs = aliases if isinstance(aliases, tuple) else (None,)
    if not all(isinstance(pair, tuple) and [type(number) for number in pair] == [int, int] for pair in pairs):
        raise TypeRuleError("aliases are pairs of an operand's number and a result's", "aliases=[[0, 0]]")
    for operand, result in aliases_attr(attrs).items():
        if not (0 <= operand < len(types) and 0 <= result < len(results)):
            raise TypeRuleError(f"there is no operand {operand}, or no result {result}, to alias", "aliases=[[0, 0]]")
        if types[operand] != results[result]:
            raise TypeRuleError(f"operand {operand} is {types[operand]}, and its alias {results[result]}")
    if attrs["rule"]:
        factors_of(str(attrs["rule"]), [t.shape for t in types], [t.shape for t in results])
    return results


def _listed(types: Types) -> str:
    return ", ".join(map(str, types)) or "no tensors"


def _factors(op: Op) -> FactorRule:
    """The rule that the call states. Without one every dim needs replication, because what the call does along it is
    not known."""
    operands, results = [v.shape for v in op.operands], [v.shape for v in op.results]
    if op.attrs["rule"] and op.attrs["effect"]:
        rule = _without_padding(factors_of(str(op.attrs["rule"]), operands[:-1], results[:-1]))
        return FactorRule(rule.factors, (*rule.operands, ()), (*rule.results, ()))
    if op.attrs["rule"]:
        return _without_padding(factors_of(str(op.attrs["rule"]), operands, results))
    return all_apart(op)


def _without_padding(rule: FactorRule) -> FactorRule:
    """The rule with reduced dims as two factors, the second of size 1: such dims are split evenly only, because what
    the call makes of padding is not known, whatever number it holds."""
    reduced = {i for i, factor in enumerate(rule.factors) if factor.kind is FactorKind.REDUCTION}
    if not reduced:
        return rule
    one = len(rule.factors)

    def tensors(side: Sequence[TensorFactors]) -> tuple[TensorFactors, ...]:
        return tuple(tuple((*dim, one) if reduced.intersection(dim) else dim for dim in tensor) for tensor in side)

    return FactorRule((*rule.factors, Factor(1)), tensors(rule.operands), tensors(rule.results))


def is_typed(attrs: Attrs) -> bool:
    """Whether `config` is an MLIR dictionary of typed options, and not a text that only the target can read."""
    return int_attr(attrs, "api_version") >= TYPED_API


declare(
    "opaque",
    "opaque",
    None,
    _infer,
    _factors,
    (
        AttrDef("target", "text", doc='the name under which XLA knows it: target="lapack_sgetrf_ffi"'),
        AttrDef("types", "types", doc="the types of its results: types=[f32[8, 4], s32[8]]"),
        AttrDef("rule", "text", default="", required=False, doc='its factors: rule="b i j -> b i"'),
        AttrDef("config", "text", default="", required=False, doc="its options, as MLIR writes them"),
        AttrDef("api_version", "int", default=TYPED_API, required=False),
        AttrDef("operand_layouts", "pairs", default=(), required=False),
        AttrDef("result_layouts", "pairs", default=(), required=False),
        AttrDef("aliases", "pairs", default=(), required=False),
        AttrDef("effect", "bool", default=False, required=False),
        AttrDef("function", "host", required=False, doc="the JAX function that it is, in place of XLA's target"),
    ),
    doc=(
        "What a custom call computes, of which only the types of its results are known. It is computed whole by "
        "each device, and along the parallel factors of its rule by shards. If it does more than that, it says "
        "`effect`, and its last operand and result are tokens: each device makes such calls in their order. With "
        "`function`, that function of JAX arrays is traced, for the shapes that a device has."
    ),
)
