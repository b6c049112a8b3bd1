"""Compiles a job with XLA for a number of devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spmdc.comparison.job import Compiled, Job, Spec
from spmdc.reports.device_memory import DeviceMemory

_spec: Any = PartitionSpec
_constrain: Any = jax.lax.with_sharding_constraint
_struct: Any = jax.ShapeDtypeStruct

REFUSALS = (jax.errors.JaxRuntimeError, NotImplementedError)
"""The exceptions if XLA does not compile a program."""


def compile_job(job: Job, names: dict[str, Any], devices: Sequence[jax.Device]) -> Compiled:
    """The optimised module of a job; `names` are those that its executed text defined. Raises REFUSALS."""
    compiled, seconds, has_whole_ends = executable_of(job, names, devices)
    return Compiled(str(compiled.as_text()), seconds, DeviceMemory.of(compiled), has_whole_ends)


def executable_of(
    job: Job, names: dict[str, Any], devices: Sequence[jax.Device]
) -> tuple[jax.stages.Compiled, float, bool]:
    """A job as compiled, the seconds of compiling, and whether free parameters and results are replicated: all are if
    XLA splits one unevenly. Raises REFUSALS."""
    shape, axes = [size for _, size in job.axes], [name for name, _ in job.axes]
    mesh = Mesh(np.array(devices, dtype=object)[list(job.devices)].reshape(shape), axes)
    count = len(job.params)
    names["annotated"] = lambda x, i: _inside(mesh, x, job.annotations[i])
    function = names[job.entry]

    def constrained(*arrays: Any) -> tuple[Any, ...]:
        inside = [_inside(mesh, x, spec) for x, spec in zip(arrays, job.inside[:count], strict=True)]
        return tuple(_inside(mesh, x, spec) for x, spec in zip(function(*inside), job.inside[count:], strict=True))

    def optimised(
        ends: Sequence[NamedSharding | None], *, has_whole_ends: bool
    ) -> tuple[jax.stages.Compiled, float, bool]:
        ins, outs = tuple(ends[:count]), tuple(ends[count:])
        jitted = jax.jit(constrained, in_shardings=ins, out_shardings=outs, keep_unused=True)
        structs = (_struct(shape, dtype) for shape, dtype in job.params)
        start = time.perf_counter()
        compiled = jitted.lower(*structs).compile()
        return compiled, time.perf_counter() - start, has_whole_ends

    wanted = [None if spec is None else _sharding(mesh, spec) for spec in job.ends]
    wide: AbstractContextManager[Any] = jax.enable_x64(True) if job.has_64_bits else nullcontext()
    with wide, np.errstate(over="ignore"):
        try:
            return optimised(wanted, has_whole_ends=False)
        except ValueError:
            if None not in wanted:
                raise
        whole = NamedSharding(mesh, _spec())
        return optimised([end or whole for end in wanted], has_whole_ends=True)


def _sharding(mesh: Mesh, spec: Spec) -> NamedSharding:
    dims = (PartitionSpec.UNCONSTRAINED if axes is None else axes or None for axes in spec)
    return NamedSharding(mesh, _spec(*dims))


def _inside(mesh: Mesh, x: Any, spec: Spec | None) -> Any:
    return x if spec is None else _constrain(x, _sharding(mesh, spec))
