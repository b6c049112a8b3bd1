"""Runs a model's function under jax.jit, spmdc and XLA's partitioner with the same placements, and compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from hlo_texts import received_in_hlo
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from lowering.jax import ensure_devices
from spmdc.api import PartitionedProgram

P: Any = PartitionSpec
MESHES: Mapping[str, Mapping[str, int]] = {"8": {"x": 8}, "2x4": {"x": 2, "y": 4}, "2x2x2": {"x": 2, "y": 2, "z": 2}}


@dataclass(frozen=True, eq=False)
class Run:
    """A function with arguments, and where they and the results are placed: trees, or prefixes of trees, of specs.

    `annotated` is the function with its inner annotations for the mesh, if it has any.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    in_specs: Any
    out_specs: Any
    annotated: Callable[..., Any] | None = None


def partitioned(run: Run, sizes: Mapping[str, int]) -> PartitionedProgram:
    program = spmdc.from_jax(
        run.annotated or run.function,
        *run.args,
        mesh=dict(sizes),
        in_shardings=run.in_specs,
        out_shardings=run.out_specs,
    )
    return spmdc.partition(program)


def xla_bytes(run: Run, sizes: Mapping[str, int]) -> int:
    """Bytes that a device receives under XLA's own partitioner."""
    devices = np.array(ensure_devices(math.prod(sizes.values())), dtype=object)
    mesh = Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))

    def placed(specs: Any) -> Any:
        def is_leaf(spec: Any) -> bool:
            return isinstance(spec, PartitionSpec)

        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_leaf)

    function = run.annotated or run.function
    with jax.set_mesh(mesh):
        jitted = jax.jit(function, in_shardings=placed(run.in_specs), out_shardings=placed(run.out_specs))
        compiled: Any = jitted.lower(*run.args).compile()
    return received_in_hlo(compiled.as_text())


def check(run: Run, sizes: Mapping[str, int], *, rtol: float = 2e-4, share: float = 0.0) -> tuple[int, int]:
    """Asserts that spmdc computes what jax.jit does and receives no more bytes than XLA; gives both counts.

    Numbers may be off by `rtol` of the largest of their array, or of a `share` of the largest of all arrays: where one
    is a difference of others that are much larger, as some gradients are.
    """
    program = partitioned(run, sizes)
    leaves = [np.asarray(x) for x in jax.tree.leaves(run.args)]
    _assert_equal(run, program.simulate(*leaves), rtol, share)
    ours, theirs = program.received_bytes(), xla_bytes(run, sizes)
    assert ours <= theirs, f"{ours} bytes here, {theirs} under XLA"
    return ours, theirs


def check_on_devices(run: Run, sizes: Mapping[str, int], *, rtol: float = 2e-4, share: float = 0.0) -> None:
    """Asserts that spmdc.jit computes on JAX's devices what jax.jit does on one, as closely as `check` asks."""
    jitted: Any = spmdc.jit(
        run.annotated or run.function, mesh=dict(sizes), in_shardings=run.in_specs, out_shardings=run.out_specs
    )
    _assert_equal(run, [np.asarray(x) for x in jax.tree.leaves(jitted(*run.args))], rtol, share)


def _assert_equal(run: Run, results: Sequence[Any], rtol: float, share: float) -> None:
    expected = unpartitioned(run.function, run.args)
    largest = [float(np.max(np.abs(whole), initial=0.0)) for whole in expected]
    for index, (got, whole) in enumerate(zip(results, expected, strict=True)):
        assert (got.shape, got.dtype) == (whole.shape, whole.dtype), index
        scale = max(largest[index], share * max(largest)) or 1.0
        np.testing.assert_allclose(got, whole, rtol=rtol, atol=rtol * scale, err_msg=f"result {index}")


_KNOWN: dict[tuple[Callable[..., Any], int], tuple[Any, list[Any]]] = {}


def unpartitioned(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """The leaves of what jax.jit gives on one device, computed once for the same function and arguments."""
    key = (function, id(args[0]))
    if key not in _KNOWN:
        jitted: Any = jax.jit(function)
        _KNOWN[key] = args[0], [np.asarray(x) for x in jax.tree.leaves(jitted(*args))]
    return _KNOWN[key][1]
