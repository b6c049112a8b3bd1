"""Swaps the operands of a product whose result is only transposed, so that nothing is transposed.

    transpose(reduce_scatter(dot_general(a, b), dim=0), perm=[1, 0])
        ->  reduce_scatter(dot_general(b, a), dim=1)

JAX's gradients of weights are such transposes. XLA drops them by itself, but not behind a collective: there it computes
and stacks the gradients in another layout than the weights, and copies all of them for the optimizer. XLA's CPU backend
is left to itself, because its library multiplies in one order only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ir.dataflow import Uses, uses_of
from ir.ops import OPS
from ir.ops.contraction import is_matrix_product
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Attr, Op, Program, Region, Value, all_ops
from ir.types import TensorType


def swap_products(program: Program) -> tuple[Program, Mapping[Op, Op]]:
    """The program without transposes that only bring the dims of a product's second operand to the front, directly
    behind the product or behind elementwise ops and collectives; and the op of the given program for each of its ops,
    if there are such transposes. Sums may be rounded in another way."""
    uses, swapped = uses_of(program), dict[Op, Op | None]()
    for op in all_ops(program):
        chain = _chain(op, uses) if op.name == "transpose" else ()
        if chain:
            swapped.update(zip(chain, _swapped(chain, op), strict=True))
            swapped[op] = None
    if not swapped:
        return program, {}
    before: dict[Op, Op] = {}
    functions = {n: replace(f, body=_with_ops(f.body, swapped, before)) for n, f in program.functions.items()}
    return replace(program, functions=functions), before


def _with_ops(region: Region, swapped: Mapping[Op, Op | None], before: dict[Op, Op]) -> Region:
    """The region with some ops replaced, or dropped. `before` gets the op that each new one replaces."""
    found: list[Op] = []
    for op in region.ops:
        new = swapped.get(op, op)
        if new is not None and new.regions:
            new = replace(new, regions=tuple([_with_ops(inside, swapped, before) for inside in new.regions]))
        if new is not None:
            found.append(new)
            before[new] = op
    return Region(region.params, tuple(found), region.results)


def _chain(transpose: Op, uses: Uses) -> Sequence[Op]:
    """The product, and the ops that are between it and a transpose of the kind above, in order; none if it is not of
    that kind, or some of them have further uses."""
    found: list[Op] = []
    value = transpose.operands[0]
    while (maker := uses.makers.get(value)) is not None and uses.count(value) == 1:
        found.append(maker)
        if is_matrix_product(maker):
            return found[::-1] if ints_attr(transpose.attrs, "perm") == _order_if_swapped(maker) else ()
        if not _commutes(maker):
            break
        (value,) = maker.operands
    return ()


def _commutes(op: Op) -> bool:
    """Whether a transposed result is the result for a transposed operand, apart from the dims that the op names. It is
    not if the bits of an element become several elements, along a new dim."""
    if len(op.operands) != 1 or len(op.results) != 1 or op.operands[0].type.rank != op.result.type.rank:
        return False
    communication = OPS[op.name].communication
    return OPS[op.name].family == "elementwise" or (communication is not None and communication.rounds is None)


def _order_if_swapped(product: Op) -> tuple[int, ...]:
    """The dims of a product in the order in which the product of its operands in the other order has them."""
    (lhs, rhs), batch = product.operands, len(ints_attr(product.attrs, "lhs_batch"))
    first = lhs.type.rank - len(ints_attr(product.attrs, "lhs_contract"))
    rank = first + rhs.type.rank - len(ints_attr(product.attrs, "rhs_contract")) - batch
    return *range(batch), *range(first, rank), *range(batch, first)


def _swapped(chain: Sequence[Op], transpose: Op) -> Iterator[Op]:
    """The ops of a chain with the operands of its product swapped. The last one has the transpose's result."""
    perm = ints_attr(transpose.attrs, "perm")
    operands: tuple[Value, ...] = chain[0].operands[::-1]
    for op in chain:
        result = transpose.result if op is chain[-1] else _turned(op.result, perm)
        attrs = _of_swapped(op) if op is chain[0] else _with_dims(op, perm)
        yield replace(op, operands=operands, results=(result,), attrs=attrs)
        operands = (result,)


def _of_swapped(product: Op) -> Mapping[str, Attr]:
    attrs = dict(product.attrs)
    for what in ("batch", "contract"):
        attrs[f"lhs_{what}"], attrs[f"rhs_{what}"] = product.attrs[f"rhs_{what}"], product.attrs[f"lhs_{what}"]
    return attrs


def _with_dims(op: Op, perm: Sequence[int]) -> Mapping[str, Attr]:
    """The attributes of the op for a transposed operand."""
    communication = OPS[op.name].communication
    names = (communication.joined, communication.cut) if communication is not None else ()
    return {**op.attrs, **{name: perm.index(int_attr(op.attrs, name)) for name in names if name}}


def _turned(value: Value, perm: Sequence[int]) -> Value:
    def turned(type: TensorType) -> TensorType:
        return type.with_shape(tuple([type.shape[d] for d in perm]))

    return replace(value, type=turned(value.type), of=None if value.of is None else turned(value.of))
