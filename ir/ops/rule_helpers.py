"""Building blocks of type rules and factor rules."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from ir.ops.declaration import DimFactors, Factor, FactorKind, FactorRule, TensorFactors, TypeRuleError
from ir.program import Attr, Op
from ir.sharding import ReductionKind
from ir.types import TensorType, pred


def pointwise(op: Op) -> FactorRule:
    """Every dim of every tensor of the result's rank is a parallel factor; tensors of rank 0 have no factors."""
    return _factor_a_dim(op.results[0].shape, (), tuple([v.type.rank for v in op.operands]), len(op.results))


def a_factor_a_dim(op: Op, sizes: Sequence[int], kinds: Mapping[int, FactorKind]) -> FactorRule:
    """One factor for each dim of every tensor of that rank; tensors of rank 0 have none. A factor is parallel unless
    `kinds` has another kind for the dim."""
    ranks = tuple([v.type.rank for v in op.operands])
    return _factor_a_dim(tuple(sizes), tuple(sorted(kinds.items())), ranks, len(op.results))


@functools.lru_cache(maxsize=2**14)
def _factor_a_dim(
    sizes: tuple[int, ...], kinds: tuple[tuple[int, FactorKind], ...], ranks: tuple[int, ...], results: int
) -> FactorRule:
    """One rule object for all equal ops: programs have thousands, of few shapes."""
    dims, kind_of = tuple((d,) for d in range(len(sizes))), dict(kinds)
    factors = tuple(Factor(n, kind_of.get(d, FactorKind.PARALLEL)) for d, n in enumerate(sizes))
    operands = tuple(dims if rank == len(sizes) else () for rank in ranks)
    return FactorRule(factors, operands, (dims,) * results)


def windows_along(op: Op, sizes: Sequence[int], dims: Sequence[int]) -> FactorRule:
    """One factor for each dim, which is a window along the dims in which elements move."""
    return a_factor_a_dim(op, sizes, dict.fromkeys(dims, FactorKind.WINDOW))


class Factors:
    """Collects the factors of a rule while the dims of its tensors are built."""

    def __init__(self) -> None:
        self.all: list[Factor] = []

    def new(
        self,
        size: int,
        kind: FactorKind = FactorKind.PARALLEL,
        reduction: ReductionKind | None = None,
        moves_to: int | None = None,
    ) -> DimFactors:
        """A dim with one new factor."""
        self.all.append(Factor(size, kind, reduction, moves_to))
        return (len(self.all) - 1,)

    def dims(
        self, sizes: Iterable[int], kind: FactorKind = FactorKind.PARALLEL, reduction: ReductionKind | None = None
    ) -> TensorFactors:
        """Dims of these sizes, each with a new factor."""
        return tuple([self.new(n, kind, reduction) for n in sizes])

    def rule(self, operands: Sequence[TensorFactors], results: Sequence[TensorFactors]) -> FactorRule:
        return FactorRule(tuple(self.all), tuple(operands), tuple(results))


def each_by_itself(op: Op) -> FactorRule:
    """Each operand has factors of its own, which it shares with the result at its position."""
    factors = Factors()
    tensors = [factors.dims(v.shape) for v in op.operands]
    return factors.rule(tensors, tensors)


def all_apart(op: Op, kind: FactorKind = FactorKind.NEED_REPLICATION) -> FactorRule:
    """Each dim of each tensor has a factor of its own, of that kind in operands. Those of results need replication."""
    factors = Factors()
    operands = [factors.dims(v.shape, kind) for v in op.operands]
    return factors.rule(operands, [factors.dims(v.shape, FactorKind.NEED_REPLICATION) for v in op.results])


def same_types(types: Sequence[TensorType]) -> TensorType:
    """The common type of all operands. Raises TypeRuleError if they differ."""
    first = types[0]
    for other in types[1:]:
        check_same_dtype(first, other)
        if other.shape != first.shape:
            raise TypeRuleError(
                f"the operands have different shapes, {first} and {other}", "use broadcast_in_dim to make them equal"
            )
    return first


def check_same_dtype(first: TensorType, other: TensorType) -> None:
    """Raises TypeRuleError if the element types of two operands differ."""
    if other.dtype != first.dtype:
        kinds = [0 if t.dtype == pred else 1 + t.dtype.is_continuous for t in (first, other)]
        wider = other.dtype if kinds[1] > kinds[0] else first.dtype
        raise TypeRuleError(
            f"the operands have different element types, {first.dtype} and {other.dtype}",
            f"convert one of them: convert(x, dtype={wider})",
        )


def int_attr(attrs: Mapping[str, Attr], name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int)
    return value


def ints_attr(attrs: Mapping[str, Attr], name: str) -> tuple[int, ...]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple([v for v in value if isinstance(v, int)])


def types_attr(attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
    """The attribute `types`: the types of the results."""
    value = attrs["types"]
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, TensorType))


def check_dim(dim: int, rank: int, what: str = "dim") -> int:
    """`dim` if it names one of `rank` dims. Raises TypeRuleError otherwise."""
    if not 0 <= dim < rank:
        valid = f"0 to {rank - 1}" if rank else "none, for the operand is a scalar"
        raise TypeRuleError(f"{what} {dim} is out of range: valid dims are {valid}")
    return dim


def check_dims(dims: Sequence[int], rank: int, what: str = "dim") -> tuple[int, ...]:
    """`dims` if they name different dims of `rank`. Raises TypeRuleError otherwise."""
    for d in dims:
        check_dim(d, rank, what)
    if len(set(dims)) != len(dims):
        raise TypeRuleError(f"{what} list {list(dims)} names a dim twice")
    return tuple(dims)
