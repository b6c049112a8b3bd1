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

    An SPMD program becomes a `jax.shard_map` over its mesh with the collectives of `jax.lax`; a global program
    plain `jax.lax`, its sharding annotations left out. Raises SpmdcError (E306, E307) if the mesh is missing, or cut in
    ways that have no common refinement.
    """
    # Imported late, as what every function here calls: jax takes long to load.
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
    """The program as an HLO module, as XLA prints it before any optimisation; what `stablehlo_text` says holds here."""
    from lowering.jax.stablehlo import hlo_text as text

    return text(program)


def compile(
    program: Program, devices: Sequence[jax.Device] | None = None, *, donate: Sequence[int] = ()
) -> Callable[..., tuple[jax.Array, ...]]:
    """The program as a callable on global arrays, numpy's or jax's; it returns a tuple of jax arrays.

    `devices` are indexed by the mesh's device ids; without them, `ensure_devices` finds as many as the mesh has. A
    global program runs on jax's default device. The memory of arrays at positions `donate` is used for the results
    where they are jax arrays that are already sharded as the program takes them; a position of which no result can take
    the memory is warned of (UserWarning). Raises SpmdcError (E502, E503) if there are too few devices; the callable
    does for inputs that do not fit (E501), and for an array that is donated and given twice (E514).
    """
    from lowering.jax.running import compile_donating, compile_program

    return compile_donating(program, devices, donate) if donate else compile_program(program, devices)


def compile_in_one(program: Program) -> Callable[..., tuple[jax.Array, ...]]:
    """The program as `compile` makes it, on the first devices, with what cuts arrays into shards and joins them in the
    same module. Arrays begin as a whole on every device. It is for programs that run once: LLVM, which takes a good
    part of the time, does not optimise it."""
    from lowering.jax.running import compile_in_one

    return compile_in_one(program)


def ensure_devices(n: int) -> list[jax.Device]:
    """`n` devices: of jax's default platform if it has as many, else of the host's CPU, asked for if jax is not yet up.

    Raises SpmdcError: E503 if jax is already in use with fewer, E502 if there are not as many.
    """
    from lowering.jax.running import ensure_devices as ensure

    return ensure(n)
