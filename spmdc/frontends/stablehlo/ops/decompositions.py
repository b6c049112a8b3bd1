"""Ops that spmdc does not have, decomposed by StableHLO's own passes into ops that it has.

An elementwise function, such as CHLO's asin or digamma, becomes a function of scalars that is mapped over the elements,
unless it is short enough to be inlined.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import func

from ir.builder import RegionBuilder
from ir.program import Value
from ir.types import TensorType
from spmdc.frontends.stablehlo.attributes import parsed
from spmdc.frontends.stablehlo.mlir_modules import NoSimplerFormError
from spmdc.frontends.stablehlo.ops.control import inlined
from spmdc.frontends.stablehlo.ops.reduction import add_function, mapped
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_SHORT = 8
_HELP = "write what it computes in ops of StableHLO"
_FUNCTIONS = (
    "_asin_acos_kernel", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf_inv",
    "erfc", "is_inf", "is_neg_inf", "is_pos_inf", "lgamma", "mulhi", "next_after", "polygamma", "sinh", "zeta",
)  # fmt: skip
_BROADCASTS = (
    "add", "and", "atan2", "compare", "complex", "divide", "maximum", "minimum", "multiply", "next_after", "or",
    "polygamma", "power", "remainder", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "subtract", "xor", "zeta",
)  # fmt: skip


@converts(*_FUNCTIONS)
def _function(op: mlir.Operation, scope: Scope) -> Bound:
    operands = scope.operands(op)
    return elementwise(op, scope, op.name.partition(".")[2], operands)


def elementwise(op: mlir.Operation, scope: Scope, name: str, operands: Sequence[Value]) -> Value:
    """CHLO's function of that name, applied to the elements of operands of one shape."""
    key = (name, *(v.dtype.name for v in operands))
    known = scope.module.elementwise.get(key)
    if known is not None:
        return mapped(scope, known, operands)[0]
    scalars = [_scalar(v.type) for v in op.operands]
    body = _decomposed(op, scope, f"chlo.{name}", scalars, [_scalar(v.type) for v in op.results])
    if len(body.operations) <= _SHORT:
        whole = [v.type for v in op.operands], [v.type for v in op.results]
        body = _decomposed(op, scope, f"chlo.{name}", *whole)
        return _inlined(scope, body, operands)[0]
    inner = Scope(scope.module, RegionBuilder(), fallback=scope.builder.span, repeats=True)
    params = [inner.builder.param("ab"[i] if len(operands) == 2 else "x", TensorType((), v.dtype))
              for i, v in enumerate(operands)]  # fmt: skip
    (result,) = _inlined(inner, body, params)
    function = scope.module.elementwise[key] = add_function(inner, name, [result], scope.builder.span)
    return mapped(scope, function, operands)[0]


def _scalar(type: mlir.Type) -> mlir.Type:
    assert isinstance(type, mlir.RankedTensorType)
    return mlir.RankedTensorType.get([], type.element_type, loc=mlir.Location.unknown())


@converts(*(f"broadcast_{name}" for name in _BROADCASTS), "constant_like", "ragged_dot")
def _chlo(op: mlir.Operation, scope: Scope) -> list[Bound]:
    types, name = ([v.type for v in op.operands], [v.type for v in op.results]), op.name.partition(".")[2]
    return list(_inlined(scope, _decomposed(op, scope, f"chlo.{name}", *types), scope.operands(op)))


def _decomposed(
    op: mlir.Operation, scope: Scope, name: str, operands: Sequence[mlir.Type], results: Sequence[mlir.Type]
) -> mlir.Block:
    """The body of a function of these types that computes the op by other ops. Raises SpmdcError (E702)."""
    module = mlir.Module.create(mlir.Location.unknown())
    # Both modules must live as long as the importer, because values are identified by their addresses.
    scope.module.kept.append(module)
    attributes = {n: _in_chlo(op.attributes[n]) for n in op.attributes}
    with mlir.Location.unknown(), mlir.InsertionPoint(module.body):
        function = func.FuncOp("body", mlir.FunctionType.get(list(operands), list(results)))
    unknown = [mlir.Location.unknown()] * len(operands)
    block: mlir.Block = function.operation.regions[0].blocks.append(*operands, arg_locs=unknown)
    with mlir.Location.unknown(), mlir.InsertionPoint(block):
        made = mlir.Operation.create(name, list(results), list(block.arguments), attributes)
        func.ReturnOp(list(made.results))
    try:
        simpler = scope.module.in_simpler_ops(module)
    except NoSimplerFormError as problem:
        raise scope.refuse(op, f"it has no form in simpler ops: {problem}", help=_HELP) from None
    scope.module.kept.append(simpler)
    block = simpler.body.operations[0].regions[0].blocks[0]
    if any(view.operation.name == name for view in block.operations):
        raise scope.refuse(op, "it has no form in simpler ops", help=_HELP)
    return block


def _in_chlo(attribute: mlir.Attribute) -> mlir.Attribute:
    """MHLO's attribute in CHLO's spelling, if the dims of a product are not in an attribute of their own."""
    text = str(attribute)
    if "#mhlo" not in text:
        return attribute
    text = re.sub(r"dot_dimension_numbers = #mhlo\.dot<(.*?)>", r"\1", text)
    return parsed(text.replace("#mhlo", "#chlo"), "ragged_dot")


def _inlined(scope: Scope, block: mlir.Block, operands: Sequence[Value]) -> list[Value]:
    span, fallback = scope.builder.span, scope.fallback
    scope.fallback = span
    try:
        return inlined(block, scope, operands)
    finally:
        scope.builder.span, scope.fallback = span, fallback
