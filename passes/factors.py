"""The two directions between the dims of a tensor and the factors of an op."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ir.mesh import Axes, AxisRef, DimAxes, axes_size
from ir.ops import FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op
from passes.signatures import signature_of


def factor_rule(op: Op) -> FactorRule | None:
    """The op's factor rule, or None for ops that hold regions or communicate."""
    return signature_of(op).rule


def other_rules(op: Op) -> tuple[FactorRule, ...]:
    """Other factor rules of an op, by which it can be split in other ways."""
    return signature_of(op).other_rules


def factors_of_dims(rule: FactorRule, tensor: TensorFactors, axes: Sequence[Axes]) -> dict[int, Axes]:
    """The axes of each factor, from those of a tensor's dims.

    In a dim of several factors the axes belong to the major factor until it is split completely, then to the next. Axes
    that cannot be attributed evenly are left out. Those of a factor that `moves_to` another become the minor axes of
    that one.
    """
    found: dict[int, Axes] = {}
    for factors, dim in zip(tensor, axes, strict=True):
        if not dim or not factors:
            continue
        if len(factors) == 1:
            moves_to = rule.factors[factors[0]].moves_to
            if moves_to is None:
                found[factors[0]] = dim
            else:
                found[moves_to] = (*found.get(moves_to, ()), *dim)
            continue
        rest = list(dim)
        for f in factors:
            size, mine = rule.factors[f].size, []
            while rest and size % rest[0].size == 0:
                size //= rest[0].size
                mine.append(rest.pop(0))
            if mine:
                found[f] = tuple(mine)
            if size > 1:
                break
    return found


def cuts_between_factors(rule: FactorRule, tensor: TensorFactors, axes: Sequence[Axes]) -> Iterator[tuple[str, int]]:
    """Where axes that split dims of several factors have to be cut (name, and product of the parts before), so that
    each factor can be split over as much of them as possible."""
    for factors, dim in zip(tensor, axes, strict=True):
        if not dim or len(factors) < 2:
            continue
        rest = list(dim)
        for f in factors:
            size = rule.factors[f].size
            while rest and size % rest[0].size == 0:
                size //= rest.pop(0).size
            if rest and (common := math.gcd(size, rest[0].size)) > 1:
                yield rest[0].name, rest[0].pre * common
            if size > 1:
                break


def dims_of_factors(rule: FactorRule, tensor: TensorFactors, axes: Mapping[int, Axes]) -> DimAxes | None:
    """The axes of each dim of a tensor when factors are split over `axes`; None if the shards are not boxes.

    A dim of several factors can only be split evenly, and in a minor factor only if the major ones are split
    completely.
    """
    dims: list[Axes] = []
    for factors in tensor:
        if len(factors) == 1:
            dims.append(axes.get(factors[0], ()))
            continue
        dim: list[AxisRef] = []
        complete = True
        for f in factors:
            mine = axes.get(f, ())
            size, parts = rule.factors[f].size, axes_size(mine)
            if mine and (not complete or size % parts):
                return None
            complete = complete and size == parts
            dim.extend(mine)
        dims.append(tuple(dim))
    return tuple(dims)
