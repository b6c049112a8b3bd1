"""custom_call: annotations, JAX's calls for linear algebra, and MHLO ops by name. Other targets become opaque ops."""

from __future__ import annotations

from collections.abc import Callable

from jaxlib.mlir import ir as mlir

from ir.program import Value
from spmdc.frontends.stablehlo.annotation_text import CALL_TARGET, DRAW_TARGET, STOP_TARGET
from spmdc.frontends.stablehlo.attributes import dictionary, text_of
from spmdc.frontends.stablehlo.hlo_words import INTO_REGION, OUT_OF_REGION
from spmdc.frontends.stablehlo.ops.decompositions import elementwise
from spmdc.frontends.stablehlo.ops.layout import unchanged
from spmdc.frontends.stablehlo.ops.linalg import potrf, trsm
from spmdc.frontends.stablehlo.ops.opaque import opaque
from spmdc.frontends.stablehlo.ops.sharding import annotated, annotation
from spmdc.frontends.stablehlo.ops.sorting import approximate_top_k, top_k
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

Target = Callable[[mlir.Operation, Scope], "Bound | list[Bound]"]


def _sharding(op: mlir.Operation, scope: Scope) -> Bound:
    value = scope.operand(op.operands[0])
    return annotated(scope, value, scope.module.shardings.constraint(op, value.type, scope.builder.span, scope.manual))


def _top_k(op: mlir.Operation, scope: Scope) -> list[Bound]:
    return top_k(op, scope, dictionary(op, "mhlo.attributes"), scope.result_types(op)[0].shape[-1])


def _mulhi(op: mlir.Operation, scope: Scope) -> Value:
    return elementwise(op, scope, "mulhi", scope.operands(op))


def _draw(op: mlir.Operation, scope: Scope) -> Bound:
    return scope.emit("random_bits", *scope.operands(op), type=scope.result_types(op)[0])


def _by_hand(op: mlir.Operation, scope: Scope) -> Bound:
    message = f"@{_target(op)}: the program is partitioned by hand here"
    raise scope.refuse(op, message, code="E709", help="import the program as it is outside of shard_map")


_UNCHANGED = (
    "annotate_device_placement", "MoveToHost", "MoveToDevice", "PinToDevice", "PinToDeviceSram", "PinToHost",
    "LayoutConstraint", "AssumeGatherIndicesInBound",
)  # fmt: skip
_TARGETS: dict[str, Target] = {
    "Sharding": _sharding,
    "xla.sdy.FuncResultSharding": _sharding,
    **dict.fromkeys(_UNCHANGED, unchanged),
    CALL_TARGET: annotation,
    DRAW_TARGET: _draw,
    STOP_TARGET: lambda op, scope: scope.emit("stop_gradient", *scope.operands(op)),
    "ApproxTopK": approximate_top_k,
    **dict.fromkeys(("TopK", "mhlo.topk", "chlo.top_k"), _top_k),
    **dict.fromkeys(("mhlo.mulhi", "chlo.mulhi"), _mulhi),
    **dict.fromkeys(INTO_REGION | OUT_OF_REGION, _by_hand),
    **{f"lapack_{letter}potrf_ffi": potrf for letter in "sdcz"},
    **{f"lapack_{letter}trsm_ffi": trsm for letter in "sdcz"},
}
_HLO_FUNCTIONS = frozenset({"acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf_inv", "sinh"})
_EFFECTS = ("callback", "infeed", "outfeed", "Send", "Recv")

_SIGNATURES: dict[Target, tuple[int, int]] = {
    approximate_top_k: (4, 2),
    _top_k: (1, 2),
    potrf: (1, 2),
    trsm: (2, 1),
    _mulhi: (2, 1),
}
"""The numbers of operands and results of a target, if not one of each; targets at the boundary of a region may have
any."""


def _target(op: mlir.Operation) -> str:
    return text_of(op.attributes["call_target_name"])


def _check_signature(op: mlir.Operation, scope: Scope, target: str, known: Target) -> None:
    """Raises SpmdcError (E702) if the target has other numbers of operands or results: MLIR does not check this."""
    takes, gives = _SIGNATURES.get(known, (1, 1))
    operands, results = len(scope.operands(op)), len(scope.result_types(op))
    if (operands, results) != (takes, gives):
        message = f"@{target} has {operands} operands and {results} results"
        raise scope.refuse(op, message, help=f"it takes {takes} and returns {gives}")


def _check_types(op: mlir.Operation, scope: Scope, target: str, given: Bound | list[Bound]) -> None:
    """Raises SpmdcError (E702) if the target's result types are not those of the call."""
    flat = [given] if isinstance(given, Value) else given
    for value, type in zip(flat, scope.result_types(op), strict=True):
        if isinstance(value, Value) and value.type != type:
            raise scope.refuse(op, f"@{target} returns {value.type} here, and not {type}", help="give that type")


def _known(target: str) -> Target | None:
    """The converter of the target, if it is known."""
    dialect, _, name = target.partition(".")
    if target in _TARGETS or dialect not in ("mhlo", "chlo"):
        return _TARGETS.get(target)
    if name == "erf":
        return lambda op, scope: scope.emit("erf", *scope.operands(op))
    if name in _HLO_FUNCTIONS:
        return lambda op, scope: elementwise(op, scope, name, scope.operands(op))
    return None


@converts("custom_call")
def _custom_call(op: mlir.Operation, scope: Scope) -> Bound | list[Bound]:
    target = _target(op)
    known = _known(target)
    if known is not None:
        if known is not _by_hand:
            _check_signature(op, scope, target, known)
        computed = known(op, scope)
        _check_types(op, scope, target, computed)
        return computed
    if any(effect in target for effect in _EFFECTS):
        help = "leave out callbacks and debug prints, or compute in JAX what they compute"
        raise scope.refuse(op, f"@{target} runs code on the host", code="E704", help=help)
    return opaque(op, scope)
