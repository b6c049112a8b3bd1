"""The position of a device along mesh axes, extracted from its number.

JAX's `axis_index` extracts each position from XLA's partition number, which is unsigned, and converts it. On
accelerators the number is passed as the device's element of an iota that is split over all axes, which XLA makes of the
converted partition number: it is converted once, for all axes, and the ops that extract a position from it are
scheduled next to its uses. That affects which buffers the TPU compiler keeps on the chip where several are equally
useful: each number that is made or freed while a buffer is in use counts (docs/tpu.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.ops.collective import axes_attr, is_place_of_device
from ir.program import Function, walk
from lowering.jax.axes import MeshAxes, ProgramAxes
from lowering.jax.names import quoted, tuple_text


@dataclass(frozen=True)
class Position:
    """The position along these axes, major first: the bits `mask` of a device's number, after a shift right by
    `shift`."""

    axes: tuple[str, ...]
    shift: int
    mask: int

    @property
    def spec(self) -> str:
        """The sharding of all devices' positions in which each device has its own."""
        return f"P({quoted(self.axes)})"

    def cut(self, number: str) -> str:
        """The text that computes the position of the device with that number."""
        moved = f"lax.shift_right_logical({number}, np.int32({self.shift}))" if self.shift else number
        return f"lax.bitwise_and({moved}, np.int32({self.mask}))"


def positions_in(function: Function, axes: ProgramAxes) -> tuple[Position, ...]:
    """The positions that ops of a function use and that are bits of a device's number, each once."""
    asked = (axes_attr(op.attrs) for op in walk(function.body) if is_place_of_device(op))
    names = dict.fromkeys(axes.axis_names(refs) for refs in asked if axes.in_place(refs))
    return tuple(found for name in names for found in _position(name, axes.default))


def _position(names: tuple[str, ...], axes: MeshAxes) -> Iterator[Position]:
    """The position along these axes, if they are adjacent and begin and end at bits of the number."""
    if not names:
        return
    first = axes.names.index(names[0])
    after = axes.names[first + len(names) :]
    size, inner = (math.prod(axes.sizes[n] for n in of) for of in (names, after))
    if axes.names[first : first + len(names)] == names and size.bit_count() == inner.bit_count() == 1:
        yield Position(names, inner.bit_length() - 1, size - 1)


def positioned(positions: Sequence[Position], axes: MeshAxes) -> list[str]:
    """Text of the generated module: the sharding of positions over the devices, and a function that passes them to the
    devices.

    The only property that is not checked is that devices at one position get the same number.
    """
    cuts = tuple_text(p.cut("number") for p in positions)
    devices = math.prod(axes.sizes.values())
    make = f'''def positioned(mapped, mesh):
    """`mapped`, given in front of the shards the positions of each device along axes, cut out of its number."""
    def cut(number):
        return {cuts}

    own = jax.shard_map(cut, mesh=mesh, in_specs=P({quoted(axes.names)}), out_specs=POSITION_SPECS, check_vma=False)
    return lambda *shards: mapped(*own(jnp.arange({devices}, dtype=jnp.int32)), *shards)'''
    return [f"POSITION_SPECS = {tuple_text(p.spec for p in positions)}", make]
