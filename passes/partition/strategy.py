"""The decision for one op: how it is split, and by which mechanism it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.mesh import Axes, axes_size
from ir.ops import FactorKind, FactorRule
from ir.records import record
from ir.sharding import Partial
from passes.factors import dims_of_factors
from passes.partition.closed_sharding import ClosedSharding
from passes.sub_axes import SubAxes


@dataclass(frozen=True, slots=True)
class WindowedEinsum:
    """A loop in which the parts of a factor, one on each device along `axes`, rotate around those devices.

    `rotating` is the operand that consists of the parts. None means that the result consists of them: each device then
    adds to the part that passes. The other tensors have the factor unsplit along `axes`.
    """

    factor: int
    axes: Axes
    rotating: int | None

    @property
    def devices(self) -> int:
        return axes_size(self.axes)


ClosedShardings = tuple[tuple[ClosedSharding, ...], tuple[ClosedSharding, ...]]
"""The shardings of the operands, and those of the results."""


def shardings_under(
    rule: FactorRule, factors: Mapping[int, Axes], group: Sequence[int], pending: Partial, sub_axes: SubAxes
) -> ClosedShardings | None:
    """How tensors are sharded if these axes split the factors, and operands of the `group` have reductions `pending`;
    None if such shards are not boxes."""
    sides = [dims_of_factors(rule, tensor, factors) for tensor in (*rule.operands, *rule.results)]
    if None in sides:
        return None
    new = tuple((a, kind) for f, axes in factors.items() if (kind := rule.factors[f].reduction) for a in axes)
    partial = sub_axes.in_order((*pending, *new))
    dims = [side for side in sides if side is not None]
    count = len(rule.operands)
    operands = tuple([ClosedSharding(d, pending if i in group else ()) for i, d in enumerate(dims[:count])])
    return operands, tuple([ClosedSharding(d, partial) for d in dims[count:]])


def results_of_candidates(
    rule: FactorRule, factors: Mapping[int, Axes], to: int, results: Sequence[ClosedSharding]
) -> tuple[ClosedSharding, ...] | None:
    """How results are sharded if each device decides by the candidates of a part of their factor `to`: the axes that
    split factors with candidates become the minor axes of its dim. None if its parts would not be even."""
    axes = candidate_axes(rule, factors)
    tensor = rule.results[0]
    if not axes or (to,) not in tensor or rule.factors[to].kind is not FactorKind.PARALLEL:
        return None
    dim = tensor.index((to,))
    found = tuple([r.with_dim(dim, (*r.axes[dim], *axes)) for r in results])
    return None if rule.factors[to].size % axes_size(found[0].axes[dim]) else found


def candidate_axes(rule: FactorRule, factors: Mapping[int, Axes]) -> Axes:
    """The axes that split factors whose partial results only the op itself can combine."""
    return tuple([a for f, axes in sorted(factors.items()) if rule.factors[f].has_candidates for a in axes])


@record
class Strategy:
    """The shardings in which an op is computed. `factors` has the axes that split each factor.

    With `windowed`, the op is computed part by part. If a factor with candidates is split, all devices compare the
    candidates of all, or each those of a part of the factor `candidates_to`. `seconds` is the time of the op and of all
    data that is moved for it, `alone` that of the op only, which `sends` something itself if it exchanges boxes,
    candidates or parts. `excess` is the number of bytes beyond the memory limit.
    """

    factors: tuple[tuple[int, Axes], ...]
    operands: tuple[ClosedSharding, ...]
    results: tuple[ClosedSharding, ...]
    seconds: float
    windowed: WindowedEinsum | None = None
    excess: int = 0
    alone: float = 0.0
    sends: bool = False
    candidates_to: int | None = None
