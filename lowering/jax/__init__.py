"""Programs as JAX: a readable Python module for each, and its compilation for CPU, GPU and TPU.

Importing this package does not import jax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ir.program import Program

if TYPE_CHECKING:
    import jax


def jax_source(program: Program) -> str:
    """A self-contained Python module that runs the program: `main(*global_arrays)` returns a tuple of global arrays.

    An SPMD program becomes a `jax.shard_map` over its mesh with the collectives of `jax.lax`; a global program plain
    `jax.lax`, without sharding annotations. Raises SpmdcError (E306, E307) if the mesh is missing, or its axes are cut
    without a common refinement.
    """
    # Imported late in all functions here, because jax takes long to load.
    from lowering.jax.module import write_module

    return write_module(program)


def stablehlo_text(program: Program) -> str:
    """The program as a StableHLO module, for other tools.

    `@main` of an SPMD program takes and returns the shards of one device; its collectives name groups of partitions,
    where partition p is position p of the mesh. A global program loses its sharding annotations.
    """
    from lowering.jax.stablehlo import stablehlo_text as text

    return text(program)


def hlo_text(program: Program) -> str:
    """The program as an HLO module, as XLA prints it before any optimisation; see `stablehlo_text` for its contents."""
    from lowering.jax.stablehlo import hlo_text as text

    return text(program)


def compile(
    program: Program, devices: Sequence[jax.Device] | None = None, *, donate: Sequence[int] = ()
) -> Callable[..., tuple[jax.Array, ...]]:
    """The program as a callable on global arrays, numpy's or jax's; it returns a tuple of jax arrays.

    `devices` are indexed by the mesh's device ids; without them, `ensure_devices` finds as many as the mesh has. A
    global program runs on jax's default device. The memory of arrays at positions `donate` is reused for results if
    they are jax arrays that are already sharded as the program takes them; a position whose memory no result can use
    causes a UserWarning. Raises SpmdcError (E502, E503) if there are too few devices; the callable raises it for inputs
    that do not match (E501), and for a donated array that is passed twice (E514).
    """
    from lowering.jax.running import compile_donating, compile_program

    return compile_donating(program, devices, donate) if donate else compile_program(program, devices)


def compile_in_one(program: Program) -> Callable[..., tuple[jax.Array, ...]]:
    """The program as a callable like that of `compile`, on the first devices, with cutting arrays into shards and
    joining them in the same module. Each device begins with whole arrays. It is for programs that run once: LLVM, which
    takes much of the time, does not optimise it."""
    from lowering.jax.running import compile_in_one

    return compile_in_one(program)


def ensure_devices(n: int) -> list[jax.Device]:
    """`n` devices: of jax's default platform if it has that many, else of the host's CPU, requested if jax is not yet
    initialised.

    Raises SpmdcError: E503 if jax is already initialised with fewer, E502 if that many do not exist.
    """
    from lowering.jax.running import ensure_devices as ensure

    return ensure(n)
