"""Annotations: Shardy's constraints, and the custom calls for them in JAX and HLO."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from ir.diagnostics import SpmdcError
from ir.program import Value
from ir.sharding import Sharding, sharding_faults
from lowering.jax.writer import Annotation
from spmdc.frontends.stablehlo.annotation_text import CALL_TARGET, decode
from spmdc.frontends.stablehlo.attributes import int_of, text_of
from spmdc.frontends.stablehlo.ops.control import inlined
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


def annotated(scope: Scope, value: Value, sharding: Sharding | None) -> Value:
    """The annotated value. A sharding with open dims only, or that of a scalar, has no effect."""
    if sharding is None or not (any(sharding.used_axes()) or any(not d.open for d in sharding.dims)):
        return value
    return scope.builder.op("shard", value, name=value.name, sharding=sharding)


@converts("sdy.sharding_constraint", "sdy.reshard", "sdy.all_gather", "sdy.all_reduce", "sdy.all_slice",
          "sdy.all_to_all", "sdy.collective_permute", "sdy.reduce_scatter", "sdy.replicated_to_unreduced",
          "sdy.sharded_to_unreduced")  # fmt: skip
def _constraint(op: mlir.Operation, scope: Scope) -> Value:
    """Shardy's constraints, and its collectives, which specify the new sharding of a tensor."""
    (operand,), given = scope.operands(op), op.attributes
    text = str(given["sharding"] if "sharding" in given else given["out_sharding"])
    return annotated(scope, operand, scope.module.shardings.shardy(text, operand.type.rank, scope.builder.span))


def annotation(op: mlir.Operation, scope: Scope) -> Value:
    """An annotation of spmdc's own, from a custom call."""
    (operand,) = scope.operands(op)
    try:
        said = decode(text_of(op.attributes["backend_config"]))
    except SpmdcError:
        raise
    except (KeyError, TypeError, ValueError):
        raise scope.refuse(op, f"its backend_config is no sharding for @{CALL_TARGET}", code="E309",
                           help="annotate with spmdc.split, spmdc.replicate or spmdc.shard") from None  # fmt: skip
    faults = sharding_faults(said.sharding, operand.shape)
    if faults:
        code, message = faults[0]
        raise scope.refuse(op, message, code=code, help=f"the mesh is ({said.sharding.mesh})")
    sharding = scope.module.shardings.adopt(said.sharding)
    if said == Annotation(said.sharding):
        return annotated(scope, operand, sharding)
    return scope.builder.op(
        "shard", operand, name=operand.name, sharding=sharding, group=said.group, passes=said.passes
    )


@converts("sdy.sharding_group")
def _group(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Adds the tensor to a sharding group; later ops use the result of the annotation in its place."""
    (operand,) = scope.operands(op)
    scope.values[op.operands[0]] = grouped(op, scope, operand, int_of(op.attributes["group_id"]))
    return []


def grouped(op: mlir.Operation, scope: Scope, value: Value, group: int) -> Value:
    """The value as a member of a sharding group. Raises SpmdcError (E303) if shapes differ."""
    meshes = scope.module.shardings.meshes
    if not meshes:
        return value
    shape = scope.module.group_shapes.setdefault(group, value.shape)
    if shape != value.shape:
        raise scope.refuse(op, f"a tensor of shape {value.shape} is in a sharding group of tensors of {shape}",
                           code="E303", help="tensors of one group have one shape")  # fmt: skip
    return scope.builder.op(
        "shard", value, name=value.name, sharding=Sharding.unknown(meshes[0], value.type.rank), group=group
    )


@converts("sdy.named_computation", "mhlo.fusion")
def _inlined(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The region's ops, inlined."""
    return list(inlined(op.regions[0].blocks[0], scope, scope.operands(op)))


_DIRECTIONS = ("none", "forward", "backward", "both")
"""Shardy's directions, by their numbers."""


@converts("sdy.propagation_barrier")
def _barrier(op: mlir.Operation, scope: Scope) -> Value:
    """A barrier: shardings do not propagate between operand and result, or only in one direction."""
    (operand,) = scope.operands(op)
    return barrier(scope, operand, int_of(op.attributes["allowed_direction"]))


def barrier(scope: Scope, operand: Value, direction: int) -> Value:
    """The value after a barrier that lets shardings propagate in one of Shardy's directions."""
    meshes, passes = scope.module.shardings.meshes, _DIRECTIONS[direction % len(_DIRECTIONS)]
    if not meshes:
        return operand
    unknown = Sharding.unknown(meshes[0], operand.type.rank)
    return scope.builder.op("shard", operand, name=operand.name, sharding=unknown, passes=passes)
