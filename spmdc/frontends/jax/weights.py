"""The initial values of a program's weights, as JAX arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from ir.diagnostics import error, require
from ir.initializers import Initializer
from ir.program import Program, Value
from ir.sharding import Sharding
from ir.types import TensorType, f32
from lowering.jax.module import has_64_bits
from passes.partition.even_results import even_sharding, in_whole_axes
from spmdc.arguments import program_of
from spmdc.frontends.jax.shardings import MeshLike, mesh_of, named_sharding, with_devices

_FOR_ONE_RUN: dict[str, Any] = {"xla_backend_optimization_level": 2}
"""For XLA's CPU compiler. At its usual level, 3, it takes twice as long to compile a random draw, into code that is no
faster and gives the same bits."""


def initial_values(program: Program, seed: int = 0, mesh: MeshLike | None = None) -> dict[str, jax.Array]:
    """The initial values of the program's weights, by name.

    They depend on the seed and the weight's name, but not on the other weights or the sharding. With a mesh, of JAX's
    or sizes by name, each device computes its own shards of the weight's annotated sharding; a dim without even shards
    is unsplit. Raises SpmdcError: E301 if the program's mesh has other axes, E502 if there are too few devices, E601.
    """
    program = program_of(program)
    require(isinstance(seed, SupportsIndex), "a seed is an integer", seed)
    placed = None if mesh is None else with_devices(mesh)
    if mesh is not None and program.meshes and mesh_of(mesh).axes != program.mesh.axes:
        raise error("E301", f"the program is annotated for the mesh ({program.mesh}), and not for ({mesh_of(mesh)})",
                    help="load it with other consts, or hand in a mesh with these axes")  # fmt: skip
    platform = jax.default_backend() if placed is None else placed.devices.flat[0].platform
    options = _FOR_ONE_RUN if platform == "cpu" else None
    made: dict[object, Callable[[jax.Array], jax.Array]] = {}
    values: dict[str, jax.Array] = {}
    with jax.enable_x64(True) if has_64_bits(program) else nullcontext():
        root = jax.random.key(seed)
        for param in program.main.params:
            initializer = program.weights.get(param.name)
            if initializer is None:
                continue
            type = param.of or param.type
            sharding = None if placed is None else named_sharding(_even(param, program), placed)
            if not type.size:  # an empty array that jax.jit splits has shards of its whole shape, which numpy refuses
                values[param.name] = jax.device_put(np.empty(type.shape, type.dtype.numpy), sharding)
                continue
            kind = initializer, type, sharding
            if kind not in made:
                draw = partial(_drawn, initializer, type)
                made[kind] = jax.jit(draw, out_shardings=sharding, compiler_options=options)
            values[param.name] = made[kind](jax.random.fold_in(root, zlib.crc32(param.name.encode())))
    return values


def _even(param: Value, program: Program) -> Sharding:
    """The annotated sharding of a weight, as far as JAX's arrays can have it."""
    shape = (param.of or param.type).shape
    if param.sharding is None:
        return Sharding.replicate(program.mesh, len(shape))
    whole = in_whole_axes(param.sharding, shape)
    return even_sharding(whole, program.mesh, shape)


def _drawn(initializer: Initializer, type: TensorType, key: jax.Array) -> jax.Array:
    dtype, numbers = type.dtype.numpy, initializer.numbers
    if not initializer.distribution:
        return jnp.full(type.shape, numbers[0], dtype)
    computed = dtype if type.dtype.bits >= f32.bits else f32.numpy
    if initializer.distribution == "uniform":
        low, high = numbers
        return jax.random.uniform(key, type.shape, computed, low, high).astype(dtype)
    (stddev,) = numbers
    if initializer.distribution == "normal":
        return (stddev * jax.random.normal(key, type.shape, computed)).astype(dtype)
    return (stddev * jax.random.truncated_normal(key, -2, 2, type.shape, computed)).astype(dtype)
