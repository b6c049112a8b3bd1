"""The reference: numpy kernels that evaluate a global program, and simulate an SPMD program on any number of devices.

One set of kernels does both. In a simulation every array has the mesh as leading dims (`mesh_dims.py`), numpy's
broadcasting computes all devices at once, and a collective moves data along those dims.

The kernels compute what XLA's do on CPU, with two differences: subnormal floats are kept, where XLA flushes them to
zero, and sums of 16-bit floats are rounded once (`arrays.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ir.diagnostics import InternalError, error
from ir.program import Program, all_ops
from ir.sharding import Sharding
from ir.types import MAX_RANK, Array
from lowering.devices import check_countable
from lowering.inputs import check_inputs
from lowering.reference.interpreter import execute
from lowering.reference.mesh_dims import NO_DEVICES, grids_of
from lowering.reference.ops import KERNELS
from lowering.reference.poison import poison_of, zeros
from lowering.reference.shards import assemble, distribute

__all__ = ["KERNELS", "check_inputs", "evaluate", "simulate"]


def evaluate(program: Program, *arrays: npt.ArrayLike) -> tuple[Array, ...]:
    """The results of a global program, or of a plan, without partitioning. Raises SpmdcError E501 if the inputs do not
    match."""
    if program.stage == "spmd":
        raise InternalError("only a global program can be evaluated; an SPMD program is simulated")
    results = execute(program, check_inputs(program, arrays), NO_DEVICES, poison_of(0))
    return tuple(np.array(r, order="C") for r in results)


def simulate(program: Program, *arrays: npt.ArrayLike, poison: bool = True, seed: int = 0) -> tuple[Array, ...]:
    """The results of an SPMD program on its mesh's devices, all in this process. Takes and returns global arrays.

    If `poison`, padding of unevenly split inputs, and the results of `undefined`, are filled with NaN and extreme
    integers, or with numbers drawn with a `seed` other than 0; otherwise with zeros. Raises SpmdcError (E501, E304,
    E307, E505), and InternalError if devices that should agree on a result do not.
    """
    if program.stage != "spmd":
        raise InternalError("only an SPMD program can be simulated; a global program is evaluated")
    check_countable(program.mesh, "simulating")
    given = check_inputs(program, arrays)
    grids = grids_of(program)
    _check_rank(program, grids.default.rank)
    mesh = grids.default.mesh
    padding = poison_of(seed) if poison else zeros
    with np.errstate(all="ignore"):
        shards = [
            distribute(x, p.sharding or Sharding.replicate(mesh, x.ndim), grids, poison=padding)
            for p, x in zip(program.main.params, given, strict=True)
        ]
        for param, shard in zip(program.main.params, shards, strict=True):
            if shard.shape[grids.default.rank :] != param.shape:
                raise InternalError(f"parameter {param.name!r} is {param.type}, and its shards are not of that shape")
        outputs = execute(program, shards, grids, padding)
        return tuple(
            assemble(x, r.sharding or Sharding.replicate(mesh, r.type.rank), (r.of or r.type).shape, grids, r.name)
            for r, x in zip(program.main.results, outputs, strict=True)
        )


def _check_rank(program: Program, leading: int) -> None:
    values = (*program.main.params, *(v for op in all_ops(program) for v in op.results))
    rank = max((v.type.rank for v in values), default=0)
    if rank + leading > MAX_RANK:
        raise error(
            "E505",
            f"simulating {leading} axes, or parts of such, and tensors of {rank} dims takes more than {MAX_RANK} dims",
            help="run it on jax's devices, or simulate a mesh of fewer axes",
        )
