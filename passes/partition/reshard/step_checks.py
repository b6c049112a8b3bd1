"""Checks that a step of a reshard leads from one sharding to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ir.mesh import Axes, AxisRef, Mesh, merge_axes, positions_along
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard import steps, strided
from passes.partition.reshard.steps import AnySharding, Permute, ReduceScatter, Spread, Step
from passes.partition.reshard.strided_sharding import DigitRef, StridedSharding
from passes.sub_axes import SubAxes


@dataclass(frozen=True)
class StepChecks:
    """Checks of steps between shardings on one mesh."""

    mesh: Mesh
    sub_axes: SubAxes

    def fault(self, shape: Sequence[int], step: Step, before: AnySharding, after: AnySharding) -> str:
        """Why a step does not lead a tensor of that shape from `before` to `after`; empty if it does."""
        named = (value for f in fields(step) if isinstance(value := getattr(step, f.name), tuple))
        if any(len(set(parts)) < len(parts) for parts in map(self.sub_axes.primes.split, named)):
            return "an axis is named twice"
        match step:
            case strided.Strided() | strided.Rotate() | strided.Retile():
                ends, is_cut = ((step.before, before), (step.after, after)), not isinstance(step, strided.Retile)
                fits = all(self.is_tiling(shape, *end, is_cut=is_cut) for end in ends) and self.moves_digits(step)
                return "" if fits else "its digits, or what is pending, are others"
            case steps.Reorder(source, target):
                orders = getattr(before, "order", None), getattr(after, "order", None)
                return "" if orders == (source, target) and before.axes == after.axes else "it changes the device order"
            case Permute():
                return "" if self.changes_places(step, before, after) else "devices have other shards then"
            case _:
                reached = self.reached(step, before)
                return reached if isinstance(reached, str) else "" if is_same(reached, after) else "it leads elsewhere"

    def changes_places(self, step: Permute, before: AnySharding, after: AnySharding) -> bool:
        """Whether each device has the same shard in `after` as the device that it receives from has in `before`."""
        mesh, fine = self.mesh, self.sub_axes.primes.split
        if set(fine(step.target)) != set(fine(step.source)) or before.partial != after.partial:
            return False
        rest = tuple(a for a in self.sub_axes.primes.all if a not in fine(step.target))
        receiver = np.argsort(positions_along(mesh, (*rest, *step.target)), kind="stable")
        sender = np.argsort(positions_along(mesh, (*rest, *step.source)), kind="stable")
        return all(
            bool(np.array_equal(positions_along(mesh, there)[receiver], positions_along(mesh, here)[sender]))
            for here, there in zip(before.axes, after.axes, strict=True)
        )

    def is_tiling(self, shape: Sequence[int], digits: StridedSharding, sharding: AnySharding, *, is_cut: bool) -> bool:
        """Whether the shards of a tensor of that shape are those of the digits. If they are cut into digits, or are
        those of digits only, they have to be padded for that."""
        if not _is_possible(shape, digits):
            return False
        if (is_cut or isinstance(sharding, StridedSharding)) and not _is_padded(digits):
            return False
        if isinstance(sharding, StridedSharding):
            return sharding == digits
        fine = self.sub_axes.primes.split
        if tuple(map(fine, sharding.axes)) != tuple(map(fine, digits.axes)):
            return False
        return _pending(sharding) == _pending(digits) and sharding.local_shape(shape) == digits.local_shape()

    def moves_digits(self, step: strided.Strided | strided.Rotate | strided.Retile) -> bool:
        """Whether a step leads from its digits before to those after, and leaves all others where they are."""
        before, after = step.before, step.after
        match step:
            case strided.Strided():
                return _moves_axes(step)
            case strided.Rotate():
                return self.rotates(step)
            case strided.Retile():
                return (before.dims, before.partial) == (after.dims, after.partial)

    def rotates(self, step: strided.Rotate) -> bool:
        """Whether the axes get the places that the sources had, as by a permute, and go on to where they are wanted."""
        (before, after), n = (step.before, step.after), len(step.axes)
        if (step.target[:n], step.source[:n]) != (step.axes, step.sources) or not _alike(before, after):
            return False
        if not (after.places.keys() >= set(step.axes) and before.places.keys() >= set(step.sources)):
            return False
        left: dict[DigitRef, AxisRef | None] = {
            before.places[source]: a for a, source in zip(step.axes, step.sources, strict=True)
        }
        permuted = after.with_axes(dict.fromkeys(after.places[a] for a in step.axes)).with_axes(left)
        if set(permuted.places.values()) != set(before.places.values()):
            return False
        return self.changes_places(Permute(step.target, step.source), before, permuted)

    def reached(self, step: Step, before: AnySharding) -> AnySharding | str:
        """The sharding that a step without digits leads to, or why it cannot be taken. Digits are kept only if the step
        leaves all dims as they are."""
        fine = self.sub_axes.primes.split
        dims, partial = list(before.axes), dict(self.sub_axes.primes.split_partial(before.partial))
        named = [getattr(step, name, None) for name in ("dim", "source", "target")]
        if any(isinstance(dim, int) and not 0 <= dim < len(dims) for dim in named):
            return "the tensor has no such dim"
        fault = ""
        match step:
            case steps.Gather(dim, axes):
                fault = self.left(dims, dim, axes)
            case steps.Slice(dim, axes):
                fault = self.taken(before, axes)
                dims[dim] = (*dims[dim], *axes)
            case steps.AllToAll(axes, source, target):
                fault = self.left(dims, source, axes)
                dims[target] = (*dims[target], *axes)
            case steps.Reduce(axes, kind) | ReduceScatter(axes, kind):
                if any(partial.get(a) != kind for a in fine(axes)):
                    fault = f"no {kind} is pending over {self.spell(axes)}"
                partial = {a: pending for a, pending in partial.items() if a not in fine(axes)}
                if isinstance(step, ReduceScatter):
                    dims[step.dim] = (*dims[step.dim], *axes)
            case steps.MakePartial(axes, kind) | Spread(axes, kind):
                fault = self.left(dims, step.dim, axes) if isinstance(step, Spread) else self.taken(before, axes)
                partial |= dict.fromkeys(fine(axes), kind)
            case _:
                return "it is of another kind"
        if fault:
            return fault
        if not isinstance(before, StridedSharding):
            return ClosedSharding(tuple(dims), tuple(partial.items()), before.order)
        if tuple(dims) != before.axes:
            return "its dims are split into strided parts"
        return before.with_partial(tuple(partial.items()))

    def left(self, dims: list[Axes], dim: int, axes: Axes) -> str:
        """Takes axes from the end of those of a dim; why it cannot, or empty."""
        fine = self.sub_axes.primes.split
        have, gone = fine(dims[dim]), fine(axes)
        kept = len(have) - len(gone)
        dims[dim] = have[:kept]
        return "" if have[kept:] == gone else f"{self.spell(axes)} is not what splits dim {dim} last"

    def taken(self, before: AnySharding, axes: Axes) -> str:
        """Why axes are not free to split a dim, or to have a reduction pending over them; empty if they are."""
        is_used = _uses(before, axes)
        return f"{self.spell(axes)} splits a dim already, or a reduction over it is pending" if is_used else ""

    def spell(self, axes: Axes) -> str:
        return ", ".join(map(self.mesh.spell, axes))


def _is_possible(shape: Sequence[int], strided: StridedSharding) -> bool:
    """Whether the dims are at least as large as the tensor's, and each digit that is split as large as its axis."""
    if len(strided.dims) != len(shape) or len(strided.extents) != len(shape):
        return False
    digits = [digit for dim in strided.dims for digit in dim]
    fit = all(m >= n for n, m in zip(shape, strided.extents, strict=True))
    return fit and all(d.size > 0 and (d.axis is None or d.size == d.axis.size) for d in digits)


def _is_padded(strided: StridedSharding) -> bool:
    """Whether the dims are multiples of what their digits make up."""
    parts = [math.prod(digit.size for digit in dim) for dim in strided.dims]
    return all(m % p == 0 for m, p in zip(strided.extents, parts, strict=True))


def _moves_axes(step: strided.Strided) -> bool:
    """Whether the axes enter or leave digits as the step's kind requires, and all others stay."""
    before, after, axes = step.before, step.after, set(step.axes)
    stay = [{a: at for a, at in digits.places.items() if a not in axes} for digits in (before, after)]
    held = tuple(axes <= digits.places.keys() for digits in (before, after))
    leads = {"all_gather": (True, False), "all_to_all": (True, True)}
    reduced = {(a, step.reduction) for a in axes} if step.kind == "reduce_scatter" else set[tuple[AxisRef, str]]()
    rest = tuple(p for p in before.partial if p not in reduced)
    same = _alike(before.with_partial(rest), after) and stay[0] == stay[1]
    return same and reduced <= set(before.partial) and held == leads.get(step.kind, (False, True))


def _alike(one: StridedSharding, other: StridedSharding) -> bool:
    """Whether dims are cut into digits of the same sizes, and the same is pending."""
    sizes = [[[digit.size for digit in dim] for dim in digits.dims] for digits in (one, other)]
    return sizes[0] == sizes[1] and one.extents == other.extents and set(one.partial) == set(other.partial)


def _uses(sharding: AnySharding, axes: Axes) -> bool:
    """Whether any of the axes splits a dim or has a reduction pending over it."""
    used = [*(a for dim in sharding.axes for a in dim), *(a for a, _ in sharding.partial)]
    return any(a.overlaps(b) for a in used for b in axes)


def is_same(one: AnySharding, other: AnySharding) -> bool:
    """Whether two shardings are equal, however their axes are cut into parts."""
    if isinstance(one, StridedSharding) and isinstance(other, StridedSharding):
        return (one.dims, one.extents, _pending(one)) == (other.dims, other.extents, _pending(other))
    if isinstance(one, StridedSharding) or isinstance(other, StridedSharding):
        return False
    dims = [tuple(map(merge_axes, sharding.axes)) for sharding in (one, other)]
    return one.order == other.order and dims[0] == dims[1] and _pending(one) == _pending(other)


def _pending(sharding: AnySharding) -> object:
    return {kind: merge_axes(sorted(a for a, k in sharding.partial if k == kind)) for _, kind in sharding.partial}
