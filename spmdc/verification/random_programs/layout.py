"""How random programs (`spmdc.testing`) draw the ops that rearrange elements, and annotations."""

from __future__ import annotations

from hypothesis import strategies as st

from ir.mesh import prime_factors
from ir.program import Value
from ir.types import TensorType
from spmdc.verification.random_programs.shardings import DIMS
from spmdc.verification.random_programs.writer import Write, Writer, any_value


def broadcast(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank <= 2)
    rank = w.draw(st.integers(x.type.rank, 3))
    dims = sorted(w.draw(st.permutations(range(rank)))[: x.type.rank])
    shape = [w.draw(st.sampled_from(DIMS)) for _ in range(rank)]
    for n, d in zip(x.shape, dims, strict=True):
        shape[d] = n if n != 1 else shape[d]
    w.keep(w.b.op("broadcast_in_dim", x, shape=tuple(shape), dims=tuple(dims)), w.bounds[x])


def reshape(w: Writer) -> None:
    x = w.pick(any_value, filled=True)
    shape = [1]
    for p in w.draw(st.permutations(prime_factors(x.type.size))):
        if len(shape) < 3 and w.draw(st.booleans()):
            shape.append(p)
        else:
            shape[-1] *= p
    w.keep(w.b.op("reshape", x, shape=tuple(shape)), w.bounds[x])


def transpose(w: Writer) -> None:
    x = w.pick(any_value)
    w.keep(w.b.op("transpose", x, perm=tuple(w.draw(st.permutations(range(x.type.rank))))), w.bounds[x])


def slice_(w: Writer) -> None:
    x = w.pick(any_value, filled=True)
    start, limit, stride = [], [], []
    for n in x.shape:
        whole = w.draw(st.booleans())
        start.append(0 if whole else w.draw(st.integers(0, n - 1)))
        limit.append(n if whole else w.draw(st.integers(start[-1] + 1, n)))
        stride.append(w.draw(st.integers(1, 2)))
    w.keep(w.b.op("slice", x, start=tuple(start), limit=tuple(limit), stride=tuple(stride)), w.bounds[x])


def pad(w: Writer) -> None:
    x = w.pick(any_value)
    fill = w.constant(1, TensorType((), x.dtype))
    low = tuple(w.draw(st.integers(-1 if n > 2 else 0, 1)) for n in x.shape)
    high = tuple(w.draw(st.integers(-1 if n > 2 else 0, 2)) for n in x.shape)
    interior = tuple(w.draw(st.integers(0, 1)) for _ in x.shape)
    w.keep(w.b.op("pad", x, fill, low=low, high=high, interior=interior), w.bounds[x] + 1)


def reverse(w: Writer) -> None:
    """Some dims reversed."""
    x = w.pick(any_value)
    dims = tuple(d for d in range(x.type.rank) if w.draw(st.booleans()))
    w.keep(w.b.op("reverse", x, dims=dims), w.bounds[x])


def concatenate(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0)
    dim = w.draw(st.integers(0, x.type.rank - 1))
    y = w.pick(lambda v: v.type == x.type)
    w.keep(w.b.op("concatenate", x, y, dim=dim), max(w.bounds[x], w.bounds[y]))


def rotate(w: Writer) -> None:
    """Parts of a tensor along a dim in another order, some of them possibly twice or not at all."""
    x = w.pick(lambda v: v.type.rank > 0 and max(v.shape) > 1)
    dim = w.draw(st.sampled_from([d for d, n in enumerate(x.shape) if n > 1]))
    parts: list[Value] = []
    for _ in range(w.draw(st.integers(2, 3))):
        start = w.draw(st.integers(0, x.shape[dim] - 1))
        limit = w.draw(st.integers(start + 1, x.shape[dim]))
        starts, limits = ((*(0,) * dim, start), (*x.shape[:dim], limit))
        rest = x.shape[dim + 1 :]
        parts.append(w.b.op("slice", x, start=(*starts, *(0,) * len(rest)), limit=(*limits, *rest)))
    w.keep(w.b.op("concatenate", *parts, dim=dim), w.bounds[x])


def shard(w: Writer) -> None:
    x = w.pick(any_value)
    passes = w.draw(st.sampled_from(("both", "both", "forward", "backward", "none")))
    w.keep(w.b.op("shard", x, sharding=w.sharding(x.type), passes=passes), w.bounds[x])


def shard_alike(w: Writer) -> None:
    """Two tensors of one shape in a sharding group."""
    x = w.pick(any_value)
    group = int("1" + "".join(f"{n:03}" for n in x.type.shape))
    for v in (x, w.pick(lambda v: v.type.shape == x.type.shape)):
        w.keep(w.b.op("shard", v, sharding=w.sharding(v.type), group=group), w.bounds[v])


def barrier(w: Writer) -> None:
    x, y = w.pick(any_value), w.pick(any_value)
    for before, after in zip((x, y), w.b.multi("optimization_barrier", x, y), strict=True):
        w.keep(after, w.bounds[before])


WRITERS: tuple[Write, ...] = (
    broadcast, reshape, transpose, slice_, pad, reverse, concatenate, rotate, shard, shard_alike, barrier,
)  # fmt: skip
