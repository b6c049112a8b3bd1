"""How global arrays become shards and back, around the function that each device runs.

JAX requires that shards divide every dim, that a tensor is on its own mesh, and that tensors are provably equal on all
devices along axes that do not split them. So uneven dims are padded and sliced; a partial value gets a first dim for
its parts; shards in the order of another mesh are passed as a stack with one entry for each device; and a result that
JAX cannot prove equal is returned as a stack with one entry for each device. Its entries are equal, so each device
keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.diagnostics import InternalError
from ir.mesh import axes_size
from ir.ops.reduction import neutral_of
from ir.program import Result, Value
from ir.sharding import ReductionKind, Sharding, local_shape
from ir.types import DType, TensorType
from lowering.jax.axes import is_elsewhere
from lowering.jax.names import quoted, tuple_text
from lowering.jax.ops.creation import scalar_text
from lowering.jax.ops.elementwise import unpacked
from lowering.jax.ops.reduction import reduced
from lowering.jax.varying import boundary_axes
from lowering.jax.writer import ModuleWriter, dtype_text


@dataclass(frozen=True)
class Boundary:
    """How one parameter or result is sharded over the devices.

    `parts` has the number of tiles of each dim, after a first one for the parts of a partial value; `stack` has the
    axes of an additional dim in front of that. `spec` is the sharding of all these dims; `kept`, unless it is empty, is
    the sharding of a result without the stack, whose entries are equal.
    """

    whole: TensorType
    padded: tuple[int, ...]
    partial: ReductionKind | None
    parts: tuple[int, ...]
    stack: tuple[str, ...]
    spec: str
    kept: str = ""
    tiles: str = ""

    @property
    def leading(self) -> tuple[int, ...]:
        """The dims in front of the tensor's own, which have size 1 on each device."""
        return tuple(range(bool(self.stack) + (self.partial is not None)))


def boundary(module: ModuleWriter, value: Value | Result, varies: frozenset[str] = frozenset()) -> Boundary:
    """The boundary of a parameter, or of a result that varies over the axes `varies` according to JAX."""
    axes = module.spmd_axes
    whole = value.of or value.type
    sharding = value.sharding or Sharding.replicate(axes.default.mesh, whole.rank)
    local = local_shape(whole.shape, sharding.axes)
    if local != value.type.shape:
        raise InternalError(f"{value.name}: a shard of {whole} is {value.type}, and {local} by its sharding")
    split = [axes_size(dim) for dim in sharding.axes]
    padded = tuple(n * p for n, p in zip(local, split, strict=True))
    kind = sharding.partial[0][1] if sharding.partial else None
    pending = tuple(axis for axis, _ in sharding.partial)
    dims = [pending, *sharding.axes] if sharding.partial else list(sharding.axes)
    parts = tuple(axes_size(dim) for dim in dims)
    if is_elsewhere(sharding, axes.default.mesh):
        names = axes.of(sharding.mesh).axis_names(tuple(a for dim in dims for a in dim))
        sizes, ids = module.mesh_constants(sharding.mesh)
        order = tuple_text(f'"{n}"' for n in names)
        tiles = f"{module.helper('tile_of_device')}({sizes}, {ids}, {order}, DEVICE_IDS)"
        stack = axes.default.within(1, axes.default.mesh.size)
        return Boundary(whole, padded, kind, parts, stack, f"P({quoted(stack)})", tiles=tiles)
    unproven = varies - boundary_axes(sharding, axes)
    stack = tuple(n for n in axes.default.names if n in unproven)
    specs = [axes.axis_names(dim) for dim in dims]
    if not stack:
        return Boundary(whole, padded, kind, parts, stack, _spec(specs))
    return Boundary(whole, padded, kind, parts, stack, _spec([stack, *specs]), kept=_spec(specs))


def _spec(dims: Sequence[tuple[str, ...]]) -> str:
    while dims and not dims[-1]:
        dims = dims[:-1]
    return f"P({', '.join(quoted(d) if d else 'None' for d in dims)})"


def sharded(module: ModuleWriter, b: Boundary, name: str) -> list[str]:
    """Lines that convert the global array `name` to what the devices take."""
    steps: list[str] = []
    if b.padded != b.whole.shape:
        steps.append(f"{module.helper('pad_to')}({name}, {tuple_text(b.padded)})")
    if b.partial is not None:
        fill = scalar_text(neutral_of(b.partial, b.whole.dtype), unpacked(b.whole.dtype))
        steps.append(f"{module.helper('partial_parts')}({name}, {b.parts[0]}, {fill})")
    if b.tiles:
        steps.append(f"{module.helper('take_tiles')}({name}, {tuple_text(b.parts)}, {b.tiles})")
    return _lines(name, b.whole.dtype, steps)


def _lines(name: str, dtype: DType, steps: list[str]) -> list[str]:
    """A line for each step. Elements that XLA packs are unpacked in between."""
    if steps and unpacked(dtype) != dtype:
        steps = [f"{name}.astype({dtype_text(unpacked(dtype))})", *steps, f"{name}.astype({dtype_text(dtype)})"]
    return [f"{name} = {step}" for step in steps]


def gathered(module: ModuleWriter, b: Boundary, name: str) -> list[str]:
    """Lines that convert what the devices returned as `name` to the global array."""
    steps: list[str] = []
    if b.tiles:
        steps.append(f"{module.helper('join_tiles')}({name}, {tuple_text(b.parts)}, {b.tiles})")
    if b.partial is not None:
        steps.append(_combined(name, b.partial, unpacked(b.whole.dtype)))
    if b.padded != b.whole.shape:
        limits = ", ".join(":" if n == m else f":{n}" for n, m in zip(b.whole.shape, b.padded, strict=True))
        steps.append(f"{name}[{limits}]")
    return _lines(name, b.whole.dtype, steps)


def _combined(name: str, kind: ReductionKind, dtype: DType) -> str:
    """The reduction over the parts, which are on different devices.

    XLA has no such reduction for bits of integers, and its reduction for extremes of floats drops NaNs.
    """
    if kind in ("and", "or") and dtype.is_integer:
        return f"functools.reduce(lax.bitwise_{kind}, {name})"
    if kind in ("max", "min") and dtype.is_float:
        return f"functools.reduce(lax.{kind}, {name})"
    return reduced(name, kind, (0,), dtype)
