"""Programs as StableHLO and HLO text: JAX lowers the generated module, and what one device runs becomes `@main`.

JAX wraps the function of the devices in `sdy.manual_computation` over global arrays. Its body is the SPMD program; it
is taken out, so that `@main` takes and returns shards and the collectives name groups of partitions. Partition p of a
module is position p of the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from typing import Any

import jax
from jax.interpreters.mlir import dtype_to_ir_type
from jax.sharding import AbstractMesh, PartitionSpec
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import func as _func
from jaxlib.mlir.dialects import sdy, stablehlo

from ir.mesh import Mesh
from ir.program import Program, Value
from ir.types import TensorType
from lowering.devices import check_countable
from lowering.jax.axes import is_elsewhere
from lowering.jax.module import has_64_bits, write_module
from lowering.jax.running import FEWEST_DEVICES, ask_for_cpu_devices, load
from lowering.jax.untyped import struct_of
from lowering.jax.versions import abstract_mesh, groups_as_lists, stablehlo_to_hlo

func: Any = _func
_PLATFORM = "cpu"
"""JAX lowers some ops in a platform-specific form; every reader knows the CPU's."""


def stablehlo_text(program: Program) -> str:
    """The program as a StableHLO module. An SPMD program's `@main` takes and returns the shards of one device."""
    return str(_module(program))


def hlo_text(program: Program) -> str:
    """The program as an HLO module, not optimised."""
    header, _, rest = stablehlo_to_hlo(stablehlo_text(program)).partition("\n")
    if program.stage == "spmd":
        header += f", num_partitions={program.mesh.size}"
    return f"{header}\n{rest}"


def _module(program: Program) -> Any:
    if program.stage == "spmd":
        check_countable(program.mesh, "listing the groups of")
    ask_for_cpu_devices(FEWEST_DEVICES)
    names = load(write_module(program, portable=True), program)
    wide: AbstractContextManager[Any] = jax.enable_x64(True) if has_64_bits(program) else nullcontext()
    with wide:
        module = _of_one_device(program, names) if program.stage == "global" else _of_many(program, names)
    with module.context:
        module.operation.attributes["sym_name"] = mlir.StringAttr.get(_name(program))
    module.operation.verify()
    return module


def _name(program: Program) -> str:
    return PurePath(program.source.name).stem if program.source is not None else program.entry


def _of_one_device(program: Program, names: Mapping[str, Any]) -> Any:
    whole = [struct_of(p.shape, p.dtype.numpy) for p in program.main.params]
    module = _lowered(names["compiled"], whole)
    with module.context:
        _name_params_and_results(_main(module), program)
    return module


def _of_many(program: Program, names: Mapping[str, Any]) -> Any:
    # JAX maps no function over a mesh without axes unless the mesh has devices.
    sizes: dict[str, int] = names["MESH_AXES"] or {"unsplit": 1}
    mesh = abstract_mesh(tuple(sizes.values()), tuple(sizes))
    module = _lowered(names["on_mesh"](mesh), _outer_arguments(program, names["IN_SPECS"], mesh))
    with module.context, mlir.Location.unknown():
        _unwrap(module, program)
        partitions = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(32), program.mesh.size)
        module.operation.attributes["mhlo.num_partitions"] = partitions
    return module


def _lowered(jitted: Any, arguments: Sequence[jax.ShapeDtypeStruct]) -> Any:
    keeping = jax.jit(jitted.__wrapped__, keep_unused=True)
    with groups_as_lists():
        return keeping.trace(*arguments).lower(lowering_platforms=(_PLATFORM,)).compiler_ir("stablehlo")


def _outer_arguments(program: Program, specs: Sequence[PartitionSpec], mesh: AbstractMesh) -> list[Any]:
    """The arguments of the function on the mesh: for each parameter, the shards of all devices side by side."""
    arguments: list[Any] = []
    for param, spec in zip(program.main.params, specs, strict=False):
        leading = _leading(param, program.mesh)
        shard = struct_of((*((1,) * leading), *param.shape), param.dtype.numpy)
        sizes = [math.prod(mesh.shape[a] for a in _axes(dim)) for dim in spec]
        sizes += [1] * (len(shard.shape) - len(sizes))
        shape = tuple(n * p for n, p in zip(shard.shape, sizes, strict=True))
        arguments.append(struct_of(shape, shard.dtype))
    return arguments


def _leading(param: Value, mesh: Mesh) -> int:
    """The dims of size 1 that JAX's boundary puts in front of a shard."""
    sharding = param.sharding
    return 0 if sharding is None else bool(sharding.partial) + is_elsewhere(sharding, mesh)


def _axes(dim: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if dim is None else (dim,) if isinstance(dim, str) else dim


def _unwrap(module: Any, program: Program) -> None:
    """Makes the manual computation's body, on shards, the main function, and removes the global function and the
    mesh."""
    operations = list(module.body.operations)
    outer = _main(module)
    arguments, (*steps, closing) = _device_code(outer)
    params, results = program.main.params, program.main.results
    types = [_tensor_type(p.type) for p in params], [_tensor_type(r.type) for r in results]
    with mlir.InsertionPoint(outer):
        main = func.FuncOp("device_main", types)
    block = main.add_entry_block()
    with mlir.InsertionPoint(block):
        for inner, whole in arguments:
            is_param = isinstance(whole, mlir.BlockArgument)
            inner.replace_all_uses_with(_reshaped(block.arguments[whole.arg_number], inner.type) if is_param else whole)
        for op in steps:
            block.append(op.operation)
        func.ReturnOp([_reshaped(v, t) for v, t in zip(closing.operation.operands, types[1], strict=True)])
    meshes = [op for op in operations if isinstance(op, sdy.MeshOp)]
    for unneeded in (outer, *meshes):
        unneeded.operation.erase()
    module.operation.walk(_without_sharding)
    main.attributes["sym_name"] = mlir.StringAttr.get("main")
    _name_params_and_results(main, program)


def _without_sharding(op: mlir.Operation) -> mlir.WalkResult:
    """Removes JAX's sharding of host calls, which says that each device makes them itself, as is the case here."""
    if "sdy.sharding" in op.attributes:
        del op.attributes["sdy.sharding"]
    return mlir.WalkResult.ADVANCE


def _device_code(outer: Any) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """The ops that one device runs, with each value that they take from the function around, and its argument there.

    On a mesh of one device JAX does not write a manual computation: the ops are those of the function itself.
    """
    operations = list(outer.entry_block.operations)
    manual = next((op for op in operations if op.operation.name == "sdy.manual_computation"), None)
    if manual is None:
        return [(a, a) for a in outer.entry_block.arguments], operations
    body = manual.operation.regions[0].blocks[0]
    constants = operations[: operations.index(manual)]
    return list(zip(body.arguments, manual.operation.operands, strict=True)), [*constants, *body.operations]


def _name_params_and_results(main: Any, program: Program) -> None:
    everywhere = {"mhlo.sharding": "{replicated}"}
    main.attributes["arg_attrs"] = _texts(
        {"jax.arg_info": p.name, **(everywhere if _is_everywhere(p, program) else {})} for p in program.main.params
    )
    main.attributes["res_attrs"] = _texts({"jax.result_info": r.name} for r in program.main.results)


def _is_everywhere(param: Value, program: Program) -> bool:
    """Whether all devices of an SPMD program are given the same. A branch by such a parameter is the same on all."""
    sharding = param.sharding
    return program.stage == "spmd" and sharding is not None and not any(sharding.axes) and not sharding.partial


def _main(module: Any) -> Any:
    return next(op for op in module.body.operations if op.operation.name == "func.func" and op.name.value == "main")


def _tensor_type(type: TensorType) -> Any:
    return mlir.RankedTensorType.get(type.shape, dtype_to_ir_type(type.dtype.numpy))


def _reshaped(value: Any, type: Any) -> Any:
    """The value without, or with, the dims of size 1 that JAX's boundary puts in front."""
    return value if value.type == type else stablehlo.reshape(type, value)


def _texts(each: Iterable[Mapping[str, str]]) -> Any:
    """The attributes of parameters or results."""
    attributes = ({key: mlir.StringAttr.get(text) for key, text in given.items()} for given in each)
    return mlir.ArrayAttr.get([mlir.DictAttr.get({**given}) for given in attributes])
