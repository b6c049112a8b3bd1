"""How a gather or a scatter addresses boxes of its operand, in a common form.

A gather reads the boxes that a scatter writes. What StableHLO calls `offset_dims` for a gather and `update_window_dims`
for a scatter, and so on, are the same thing; factor rules, kernels and the partitioner use this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from ir.ops.declaration import Attrs, TypeRuleError
from ir.ops.rule_helpers import check_dims, int_attr, ints_attr
from ir.program import Attr, Op
from ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Spelling:
    """The names of the attributes: `window` has the dims of the slices that count within a box, `dropped` the operand
    dims of box size 1 that slices lack, `batching` the operand dims that go in step with the index dims
    `indices_batching`, and `addressed` the operand dim of each component of an index vector."""

    window: str
    dropped: str
    batching: str
    indices_batching: str
    addressed: str


GATHER = Spelling(
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "indices_batching_dims", "start_index_map"
)
SCATTER = Spelling(
    "update_window_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims",
)


@dataclass(frozen=True, slots=True)
class Addressing:
    """Boxes of an operand. "Slices" are what a gather reads and what a scatter's updates are.

    `sizes` has the size of a box in each operand dim. `window` pairs operand dims with the slices dims that count
    within a box. `batch` pairs the dims of indices, except that of index vectors, with slices dims. `shared` pairs
    operand dims with the index dim that they go in step with. `addressed` has the operand dim of each component of an
    index vector, which is along `vector_dim`; None if each index is a vector of one component.
    """

    sizes: tuple[int, ...]
    window: tuple[tuple[int, int], ...]
    batch: tuple[tuple[int, int], ...]
    shared: tuple[tuple[int, int], ...]
    addressed: tuple[int, ...]
    vector_dim: int | None

    def is_whole(self, dim: int, shape: Sequence[int]) -> bool:
        """Whether boxes have all of that operand dim, so that the slices have it too."""
        return self.sizes[dim] == shape[dim] and any(dim == d for d, _ in self.window)


def addressing(spelling: Spelling, attrs: Attrs, sizes: tuple[int, ...], indices_rank: int) -> Addressing:
    """The addressing that valid attributes describe."""
    vector = int_attr(attrs, "index_vector_dim")
    dropped, batching = ints_attr(attrs, spelling.dropped), ints_attr(attrs, spelling.batching)
    window, walked = ints_attr(attrs, spelling.window), ints_attr(attrs, spelling.indices_batching)
    kept = [d for d in range(len(sizes)) if d not in dropped and d not in batching]
    scanned = [d for d in range(indices_rank) if d != vector]
    others = [d for d in range(len(scanned) + len(window)) if d not in window]
    return Addressing(
        sizes,
        tuple(zip(kept, window, strict=True)),
        tuple(zip(scanned, others, strict=True)),
        tuple(zip(batching, walked, strict=True)),
        ints_attr(attrs, spelling.addressed),
        vector if vector < indices_rank else None,
    )


def reading(attrs: Attrs, sizes: tuple[int, ...]) -> dict[str, Attr]:
    """The attributes of the gather that reads the boxes, of these sizes, which a scatter with these attributes
    writes."""
    named = {read: attrs[written] for read, written in zip(astuple(GATHER), astuple(SCATTER), strict=True)}
    return {**named, "index_vector_dim": attrs["index_vector_dim"], "slice_sizes": sizes}


def gather_addressing(op: Op) -> Addressing:
    return addressing(GATHER, op.attrs, ints_attr(op.attrs, "slice_sizes"), op.operands[1].type.rank)


def scatter_addressing(op: Op) -> Addressing:
    operand, indices, updates = op.operands
    return addressing(SCATTER, op.attrs, box_sizes(op.attrs, operand.type, updates.shape), indices.type.rank)


def box_sizes(attrs: Attrs, operand: TensorType, updates: Sequence[int]) -> tuple[int, ...]:
    """The size, in each operand dim, of the boxes that a scatter's updates fill."""
    dropped = (*ints_attr(attrs, SCATTER.dropped), *ints_attr(attrs, SCATTER.batching))
    window = iter(ints_attr(attrs, SCATTER.window))
    return tuple(1 if d in dropped else updates[next(window)] for d in range(operand.rank))


def check_addressing(spelling: Spelling, attrs: Attrs, operand: TensorType, indices: TensorType) -> None:
    """Raises TypeRuleError if the dimension numbers are inconsistent, or do not fit the operands."""
    s = spelling
    window, dropped = ints_attr(attrs, s.window), ints_attr(attrs, s.dropped)
    batching, walked = ints_attr(attrs, s.batching), ints_attr(attrs, s.indices_batching)
    addressed, vector = ints_attr(attrs, s.addressed), int_attr(attrs, "index_vector_dim")
    if not indices.dtype.is_integer:
        raise TypeRuleError(f"the indices must be integers, and are {indices}")
    if not 0 <= vector <= indices.rank:
        raise TypeRuleError(f"index_vector_dim is {vector}: it must be from 0 to {indices.rank}, the rank of {indices}")
    check_dims((*dropped, *batching), operand.rank, f"{s.dropped} and {s.batching}: dim")
    check_dims((*addressed, *batching), operand.rank, f"{s.addressed} and {s.batching}: dim")
    if len(window) + len(dropped) + len(batching) != operand.rank:
        raise TypeRuleError(
            f"each of the {operand.rank} dims of {operand} must be counted by one of {s.window}, or be listed in "
            f"{s.dropped} or {s.batching}: those have {len(window)}, {len(dropped)} and {len(batching)}"
        )
    slices_rank = len(window) + indices.rank - (vector < indices.rank)
    check_dims(window, slices_rank, f"{s.window}: dim")
    if list(window) != sorted(window):
        raise TypeRuleError(f"{s.window}={list(window)} must be in ascending order")
    components = indices.shape[vector] if vector < indices.rank else 1
    if len(addressed) != components:
        raise TypeRuleError(
            f"{s.addressed} names {len(addressed)} dims, and index vectors have {components} components: "
            f"{indices} with index_vector_dim={vector}"
        )
    _check_batching(s, operand, indices, batching, walked, vector)


def _check_batching(
    s: Spelling, operand: TensorType, indices: TensorType, batching: Sequence[int], walked: Sequence[int], vector: int
) -> None:
    check_dims(walked, indices.rank, f"{s.indices_batching}: dim")
    if len(walked) != len(batching):
        raise TypeRuleError(f"{s.batching} and {s.indices_batching} must have as many dims as one another")
    if vector in walked:
        raise TypeRuleError(f"{s.indices_batching}={list(walked)} must not name the dim of index vectors, {vector}")
    for d, i in zip(batching, walked, strict=True):
        if operand.shape[d] != indices.shape[i]:
            raise TypeRuleError(
                f"dim {d} of {operand} and dim {i} of {indices} are walked together and must have the same size"
            )
