"""How random programs (`spmdc.testing`) draw transforms and factorisations, of numbers for which they are exact.

Transforms of 1, 2 or 4 elements add, subtract and halve. Triangular matrices of -1, 0 and 1 with ones or twos on their
diagonal are the Cholesky factors of their squares, and solving with them divides only by ones and twos.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st

from ir.program import Value
from ir.types import TensorType, c64, f32, s32
from spmdc.verification.random_programs.writer import Write, Writer

_MOST_ROWS = 3
_MOST_DIMS = 3


def _cut(w: Writer, x: Value, sizes: tuple[int, ...]) -> Value:
    """The first elements of the last dims."""
    limit = (*x.shape[: x.type.rank - len(sizes)], *sizes)
    return w.b.op("slice", x, start=(0,) * x.type.rank, limit=limit) if limit != x.shape else x


def fft(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype in (f32, c64), filled=True)
    count = w.draw(st.integers(1, min(2, x.type.rank)))
    sizes = tuple(max(k for k in (1, 2, 4) if k <= n) for n in x.shape[-count:])
    if x.dtype == f32:
        kind, length = "RFFT", sizes
    else:
        kind = w.draw(st.sampled_from(["FFT", "IFFT", "IRFFT"]))
        last = max(k for k in (1, 2, 3) if k <= x.shape[-1]) if kind == "IRFFT" else sizes[-1]
        sizes = (*sizes[:-1], last)
        length = (*sizes[:-1], {1: 1, 2: 2, 3: 4}[last]) if kind == "IRFFT" else sizes
    found = w.b.op("fft", _cut(w, x, sizes), kind=kind, length=length)
    if kind in ("IFFT", "IRFFT"):
        found = w.b.op("multiply", found, w.constant(math.prod(length), found.type))
    w.keep(found, 4 * w.bounds[x] * math.prod(length))


def _triangle(w: Writer, x: Value, diagonal: int, *, lower: bool) -> tuple[Value, int]:
    """Square matrices with the signs of `x` on one side of a diagonal of that number, and their number of rows."""
    n = min(_MOST_ROWS, *x.shape[-2:])
    x = w.b.op("sign", _cut(w, x, (n, n)))
    places = x.type.with_dtype(s32)
    rows, columns = (w.b.op("iota", type=places, dim=x.type.rank - d) for d in (2, 1))
    inside = w.b.op("compare", rows, columns, direction="GT" if lower else "LT")
    on = w.b.op("compare", rows, columns, direction="EQ")
    rest = w.b.op("select", on, w.constant(diagonal, x.type), w.constant(0, x.type))
    return w.b.op("select", inside, x, rest), n


def _is_matrix(value: Value) -> bool:
    return value.type.rank >= 2 and value.dtype == f32


def cholesky(w: Writer) -> None:
    """The Cholesky factor of a square."""
    x = w.pick(_is_matrix, filled=True)
    factor, _ = _triangle(w, x, 2, lower=True)
    batch, last = tuple(range(x.type.rank - 2)), (x.type.rank - 1,)
    square = w.b.op(
        "dot_general", factor, factor, lhs_batch=batch, rhs_batch=batch, lhs_contract=last, rhs_contract=last
    )
    w.keep(w.b.op("cholesky", _placed(w, square), lower=w.draw(st.booleans())), 2)


def triangular_solve(w: Writer) -> None:
    x = w.pick(_is_matrix, filled=True)
    lower, left = w.draw(st.booleans()), w.draw(st.booleans())
    matrix, n = _triangle(w, x, 1, lower=lower)
    y = w.pick(lambda v: _is_matrix(v) and v.shape[:-2] == x.shape[:-2] and v.shape[-2 if left else -1] >= n)
    right = _cut(w, y, (n, y.shape[-1]) if left else (y.shape[-2], n))
    found = w.b.op(
        "triangular_solve",
        _placed(w, matrix),
        right,
        left_side=left,
        lower=lower,
        unit_diagonal=w.draw(st.booleans()),
        transpose=w.draw(st.sampled_from(["NO", "T", "C"])),
    )
    w.keep(found, w.bounds[y] * 2**n)


def opaque(w: Writer) -> None:
    """LAPACK's factors of matrices that are upper triangular already; few, because jax compiles a call for each
    shape."""
    x = w.pick(lambda v: _is_matrix(v) and v.type.rank <= _MOST_DIMS, filled=True)
    x = _cut(w, x, tuple(min(n, _MOST_ROWS) for n in x.shape))
    matrix, n = _triangle(w, x, 1, lower=False)
    batch = x.shape[:-2]
    letters = " ".join("abcdef"[: len(batch)])
    columns = (*range(len(batch)), len(batch) + 1, len(batch))
    factors, pivots, failed = w.b.multi(
        "opaque",
        _placed(w, matrix),
        target="lapack_sgetrf_ffi",
        types=(matrix.type, TensorType((*batch, n), s32), TensorType(batch, s32)),
        rule=f"{letters} i j -> {letters} k l, {letters} m, {letters}" if w.draw(st.booleans()) else "",
        operand_layouts=(columns,),
        result_layouts=(columns, tuple(range(len(batch) + 1)), tuple(range(len(batch)))),
    )
    for found, bound in ((factors, 1), (pivots, n), (failed, 1)):
        w.keep(found, bound)


def _placed(w: Writer, x: Value) -> Value:
    return w.b.op("shard", x, sharding=w.sharding(TensorType(x.shape, x.dtype))) if w.draw(st.booleans()) else x


WRITERS: tuple[Write, ...] = (fft, cholesky, triangular_solve, opaque)
"""For small integers only."""
