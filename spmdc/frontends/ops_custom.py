"""custom_call: the targets that are annotations, that JAX calls for linear algebra, and that name ops of MHLO."""

from __future__ import annotations

from collections.abc import Callable

from jaxlib.mlir import ir as mlir

from spmdc.frontends.attributes import entries, int_of, text_of
from spmdc.frontends.decompositions import elementwise
from spmdc.frontends.ops_linalg import potrf, trsm
from spmdc.frontends.ops_sharding import annotated
from spmdc.frontends.scope import Bound, Scope, converts

Target = Callable[[mlir.Operation, Scope], "Bound | list[Bound]"]


def _sharding(op: mlir.Operation, scope: Scope) -> Bound:
    value = scope.operand(op.operands[0])
    return annotated(scope, value, scope.module.shardings.constraint(op, value.type, scope.builder.span, scope.manual))


def _unchanged(op: mlir.Operation, scope: Scope) -> Bound:
    return scope.bound(op.operands[0])


def _top_k(op: mlir.Operation, scope: Scope) -> list[Bound]:
    given = entries(op.attributes["mhlo.attributes"]) if "mhlo.attributes" in op.attributes else {}
    if "largest" in given and not int_of(given["largest"]):
        raise scope.refuse(op, "it asks for the smallest elements", help="take the largest of the negated ones")
    return scope.emit_all("top_k", scope.operand(op.operands[0]), k=scope.result_types(op)[0].shape[-1])


def _by_hand(op: mlir.Operation, scope: Scope) -> Bound:
    raise scope.refuse(
        op,
        f"@{_target(op)}: the program is partitioned by hand here",
        code="E709",
        help="import the program as it is outside of shard_map",
    )


_TARGETS: dict[str, Target] = {
    "Sharding": _sharding,
    "xla.sdy.FuncResultSharding": _sharding,
    "annotate_device_placement": _unchanged,
    "TopK": _top_k,
    "mhlo.topk": _top_k,
    "chlo.top_k": _top_k,
    "SPMDFullToShardShape": _by_hand,
    "SPMDShardToFullShape": _by_hand,
    "xla.sdy.GlobalToLocalShape": _by_hand,
    "xla.sdy.LocalToGlobalShape": _by_hand,
    **{f"lapack_{letter}potrf_ffi": potrf for letter in "sdcz"},
    **{f"lapack_{letter}trsm_ffi": trsm for letter in "sdcz"},
}
_HLO_FUNCTIONS = frozenset({"acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf_inv", "mulhi", "sinh"})
_EFFECTS = ("callback", "infeed", "outfeed", "Send", "Recv")


def _target(op: mlir.Operation) -> str:
    return text_of(op.attributes["call_target_name"])


@converts("custom_call")
def _custom_call(op: mlir.Operation, scope: Scope) -> Bound | list[Bound]:
    target = _target(op)
    known = _TARGETS.get(target)
    if known is not None:
        return known(op, scope)
    dialect, _, name = target.partition(".")
    if dialect in ("mhlo", "chlo"):
        if name == "erf":
            return scope.emit("erf", *scope.operands(op))
        if name in _HLO_FUNCTIONS:
            return elementwise(op, scope, name, scope.operands(op))
    if any(effect in target for effect in _EFFECTS):
        raise scope.refuse(
            op,
            f"@{target} runs code on the host",
            code="E704",
            help="leave out callbacks and debug prints, or compute in JAX what they compute",
        )
    raise scope.refuse(
        op,
        f"spmdc does not know what @{target} computes",
        code="E705",
        help="known are Sharding, TopK, and what JAX calls for Cholesky factors and triangular systems",
    )
