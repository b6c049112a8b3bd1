"""`einsum("GSM,ME->GSE", a, b)`: one or two operands, any letters, as numpy.einsum reads them.

Letters repeated within an operand take its diagonal; letters that only one operand has, and the result lacks, are
summed first; the rest is one dot_general and a transpose.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.diagnostics import SpmdcError, error
from ir.program import Value
from ir.types import pred
from spmdc.frontends.spmd.items import check_type
from spmdc.frontends.spmd.library.declare import declare
from spmdc.frontends.spmd.library.emitter import Emitter


def _einsum(e: Emitter, equation: str, a: Value, b: Value | None = None) -> Value:
    """Einstein summation over the letters of an equation; without `->`, the result has the single letters, sorted."""
    operands = [a] if b is None else [a, b]
    inputs, output = _parse(e, equation, operands)
    sizes = _sizes(e, inputs, operands)
    terms = [_diagonal(e, x, letters) for x, letters in zip(operands, inputs, strict=True)]
    if len(terms) == 1:
        result, letters = _sum_away(e, *terms[0], kept=output)
    else:
        (left, left_letters), (right, right_letters) = terms
        left, left_letters = _sum_away(e, left, left_letters, kept=output + right_letters)
        right, right_letters = _sum_away(e, right, right_letters, kept=output + left_letters)
        result, letters = _multiply(e, left, left_letters, right, right_letters, output)
    check_type(result.type.with_shape(tuple(sizes[c] for c in output)), e.span)
    perm = tuple(letters.index(c) for c in output)
    return result if perm == tuple(range(len(perm))) else e.op("transpose", result, perm=perm)


declare("einsum", _einsum)


def _fault(e: Emitter, message: str) -> SpmdcError:
    return error("E206", message, e.span, help='einsum("GSM,ME->GSE", a, b): a letter for each dim')


def _parse(e: Emitter, equation: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    text = "".join(equation.split())
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    for term in (*inputs, output):
        for c in term:
            if not (c.isascii() and c.isalpha()):
                raise _fault(e, f"{c!r} is no letter that an einsum string may have")
    if len(inputs) != len(operands):
        raise _fault(e, f"the string has {len(inputs)} operands, and {len(operands)} are given")
    for x, term in zip(operands, inputs, strict=True):
        if len(term) != x.type.rank:
            raise _fault(e, f"{term!r} has {len(term)} letters, and its operand {x.type} has {x.type.rank} dims")
    if not arrow:
        output = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    for c in output:
        if c not in left:
            raise _fault(e, f"the result has the letter {c!r}, which no operand has")
        if output.count(c) > 1:
            raise _fault(e, f"the result has the letter {c!r} twice")
    return inputs, output


def _sizes(e: Emitter, inputs: Sequence[str], operands: Sequence[Value]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for x, term in zip(operands, inputs, strict=True):
        for c, n in zip(term, x.shape, strict=True):
            if sizes.setdefault(c, n) != n:
                shown = " and ".join(str(o.type) for o in operands)
                raise _fault(e, f"the letter {c!r} stands for sizes {sizes[c]} and {n} in {shown}")
    return sizes


def _diagonal(e: Emitter, x: Value, letters: str) -> tuple[Value, str]:
    """Handles repeated letters, one by one: elements off the diagonal become 0, and the second dim is summed."""
    while len(set(letters)) < len(letters):
        second = next(i for i, c in enumerate(letters) if c in letters[:i])
        first = letters.index(letters[second])
        on = e.compare(e.iota_like(x, first), e.iota_like(x, second), "EQ")
        x = _sum(e, e.select(on, x, False if x.dtype == pred else 0), (second,))
        letters = letters[:second] + letters[second + 1 :]
    return x, letters


def _sum(e: Emitter, x: Value, dims: tuple[int, ...]) -> Value:
    if x.dtype == pred:
        return e.reduce(x, dims, "or")
    wide = e.convert(x, x.dtype.computed)
    return e.convert(e.reduce(wide, dims, "sum"), x.dtype)


def _sum_away(e: Emitter, x: Value, letters: str, kept: str) -> tuple[Value, str]:
    dims = tuple(i for i, c in enumerate(letters) if c not in kept)
    return (_sum(e, x, dims) if dims else x), "".join(c for c in letters if c in kept)


def _multiply(e: Emitter, a: Value, left: str, b: Value, right: str, output: str) -> tuple[Value, str]:
    """The product, with the letters of its dims: batch, then those of a only, then those of b only."""
    if a.dtype != b.dtype:
        message = f"einsum: the operands have different element types, {a.dtype} and {b.dtype}"
        raise error("E201", message, e.span, help=f"convert one of them: convert(x, dtype={a.dtype})")
    batch = [c for c in left if c in right and c in output]
    summed = [c for c in left if c in right and c not in output]
    result = e.op(
        "dot_general",
        a,
        b,
        lhs_batch=tuple(left.index(c) for c in batch),
        rhs_batch=tuple(right.index(c) for c in batch),
        lhs_contract=tuple(left.index(c) for c in summed),
        rhs_contract=tuple(right.index(c) for c in summed),
    )
    free = [c for c in left if c not in right] + [c for c in right if c not in left]
    return result, "".join(batch + free)
