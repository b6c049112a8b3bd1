"""What is decided for one op: how it is split, and by which mechanism it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.mesh import Axes, axes_size
from ir.ops import FactorRule
from ir.records import quickly_made
from passes.factors import dims_of_factors
from passes.partition.closed_sharding import ClosedSharding, Partial
from passes.sub_axes import SubAxes


@dataclass(frozen=True, slots=True)
class WindowedEinsum:
    """The parts of a factor, one on each device along `axes`, go around those devices.

    `rotating` is the operand that consists of them; None means that the result does: then each device adds to the part
    that passes. The other tensors have the factor unsplit along `axes`.
    """

    factor: int
    axes: Axes
    rotating: int | None

    @property
    def devices(self) -> int:
        return axes_size(self.axes)


ClosedShardings = tuple[tuple[ClosedSharding, ...], tuple[ClosedSharding, ...]]
"""Those of the operands, and those of the results."""


def shardings_under(
    rule: FactorRule, factors: Mapping[int, Axes], group: Sequence[int], pending: Partial, sub_axes: SubAxes
) -> ClosedShardings | None:
    """How tensors are sharded if these axes split the factors, and operands of the `group` have reductions `pending`;
    None if such shards are no boxes."""
    sides = [dims_of_factors(rule, tensor, factors) for tensor in (*rule.operands, *rule.results)]
    if None in sides:
        return None
    new = tuple((a, kind) for f, axes in factors.items() if (kind := rule.factors[f].reduction) for a in axes)
    partial = tuple(sorted((*pending, *new), key=lambda part: sub_axes.rank[part[0]]))
    dims = [side for side in sides if side is not None]
    count = len(rule.operands)
    operands = tuple([ClosedSharding(d, pending if i in group else ()) for i, d in enumerate(dims[:count])])
    return operands, tuple([ClosedSharding(d, partial) for d in dims[count:]])


@quickly_made
@dataclass(frozen=True, slots=True)
class Strategy:
    """The shardings an op is computed in. `factors` has the axes that split each factor.

    With `windowed`, the op is computed part by part. `seconds` are those of the op and of all that is moved for it,
    `alone` those of the op, which `sends` something itself if it exchanges boxes, candidates or parts. `excess` is by
    how many bytes it goes beyond the memory limit.
    """

    factors: tuple[tuple[int, Axes], ...]
    operands: tuple[ClosedSharding, ...]
    results: tuple[ClosedSharding, ...]
    seconds: float
    windowed: WindowedEinsum | None = None
    excess: int = 0
    alone: float = 0.0
    sends: bool = False
