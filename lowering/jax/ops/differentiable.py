"""Loops that JAX can differentiate in reverse mode.

A loop with a known trip count is a scan, which keeps what the backward pass needs of each iteration. For any other
loop, nothing can be kept in arrays of static shapes: the backward pass recomputes the iterations before each one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir.loops import Counter, Loop
from ir.ops.creation import constant_value
from ir.program import Op, Region, Value, used_around
from ir.types import DType
from lowering.jax.names import tuple_text
from lowering.jax.ops.creation import scalar_text
from lowering.jax.writer import FunctionWriter, dtype_text


def differentiable_loop(w: FunctionWriter, op: Op) -> str:
    """The text of the tuple of a loop's results."""
    condition, body = op.regions
    loop = Loop(op.operands, condition, Region(body.params, tuple(_flat(body)), body.results), w.number)
    iterations = loop.trip_count()
    return _of_any_length(w, op) if iterations is None else _counted(w, op, loop, iterations)


def _flat(body: Region) -> Iterator[Op]:
    """The ops that run in each iteration, with those in checkpoints in place of the checkpoint."""
    for op in body.ops:
        yield from _flat(op.regions[0]) if op.name == "checkpoint" else (op,)


def _counted(w: FunctionWriter, op: Op, loop: Loop, iterations: int) -> str:
    """A scan that does not carry counters: each follows from the number of the iteration. Rows that the loop takes in
    order from a loop-invariant tensor are scanned, so that the backward pass writes gradients at their positions,
    instead of adding whole tensors of zeros in each iteration."""
    body, name = op.regions[1], op.results[0].name
    found = [None if p.shape else loop.counter(i) for i, p in enumerate(body.params)]
    carried = [i for i, counter in enumerate(found) if counter is None]
    step, turn, last = w.fresh(f"{name}_step"), w.fresh("turn"), w.fresh(f"{name}_last")
    rows = _rows(w, loop, iterations)
    parts = {row: w.fresh(row.operand.name) for row in rows.values()}
    seen = tuple_text([turn, *parts.values()]) if parts else turn
    with w.block(f"def {step}(carry, {seen if not parts else 'seen'}):"):
        if parts:
            w.line(f"{seen} = seen")
        names = [w.define(p) for p in body.params]
        if carried:
            w.line(f"{tuple_text(names[i] for i in carried)} = carry")
        for text, param, counter in zip(names, body.params, found, strict=True):
            if counter is not None:
                w.line(f"{text} = {w.cast(_count(turn, counter, param.dtype), set(w.varying(param)))}")
        for param, result, initial in zip(body.params, body.results, op.operands, strict=True):
            if param is result:
                w.assign(param, initial)
        w.instead.update(_in_place_of_rows(body, rows, parts))
        w.ops(body)
        w.line(f"return {tuple_text(_carried(w, body.results, body.params, carried))}, None")
    first = tuple_text(_carried(w, op.operands, body.params, carried))
    turns = [f"np.arange({iterations}, dtype=jnp.int32)", *(row.text(w, iterations) for row in parts)]
    w.line(f"{last}, _ = lax.scan({step}, {first}, {tuple_text(turns) if parts else turns[0]})")
    results: list[str] = []
    for i, (result, counter) in enumerate(zip(op.results, found, strict=True)):
        if counter is None:
            results.append(f"{last}[{carried.index(i)}]")
        else:
            number = scalar_text(counter.start + iterations * counter.step, result.dtype)
            results.append(w.cast(number, set(w.varying(result))))
    return w.returned(results)


@dataclass(frozen=True, slots=True)
class _Row:
    """The rows that are taken along the first dim of a tensor, one in each iteration."""

    operand: Value
    place: Counter

    def text(self, w: FunctionWriter, iterations: int) -> str:
        """The text of all rows, in the order of the iterations."""
        low, high = sorted((self.place.at(0), self.place.at(iterations - 1)))
        text = f"{w[self.operand]}[{low}:{high + 1}:{abs(self.place.step)}]"
        return text if self.place.step > 0 else f"lax.rev({text}, (0,))"


def _rows(w: FunctionWriter, loop: Loop, iterations: int) -> dict[Op, _Row]:
    """The slices that take one row in each iteration, a different one each time."""
    made = {v for op in loop.body.ops for v in op.results}.union(loop.body.params)
    found: dict[Op, _Row] = {}
    for op in loop.body.ops if iterations else ():
        if op.name != "dynamic_slice" or op.operands[0] in made:
            continue
        operand, start, *_ = op.operands
        place = loop.counted(start, iterations) if op.result.shape == (1, *operand.shape[1:]) else None
        ends = (place.at(0), place.at(iterations - 1)) if place is not None else ()
        if place is not None and place.step and all(0 <= n < operand.shape[0] for n in ends):
            found[op] = _Row(operand, place)
    return found


def _in_place_of_rows(body: Region, rows: Mapping[Op, _Row], parts: Mapping[_Row, str]) -> dict[Op, str]:
    """The replacements of the slices, and of reshapes of these to one dim less: the row as it is scanned, of which JAX
    keeps no copy for the backward pass. Rows that are moved further are taken again (`passes.optimize.rows_again`)."""
    texts = {op: f"{parts[row]}[None]" for op, row in rows.items()}
    of = {op.result: row for op, row in rows.items()}
    for op in _flat(body):
        row = of.get(op.operands[0]) if op.name == "reshape" else None
        if row is not None and op.result.shape == row.operand.shape[1:]:
            texts[op] = parts[row]
    return texts


def _count(turn: str, counter: Counter, dtype: DType) -> str:
    text = f"{turn}.astype({dtype_text(dtype)})" if dtype.name != "s32" else turn
    text = text if counter.step == 1 else f"{scalar_text(counter.step, dtype)} * {text}"
    return text if counter.start == 0 else f"{scalar_text(counter.start, dtype)} + {text}"


def _carried(w: FunctionWriter, values: Sequence[Value], params: Sequence[Value], which: Sequence[int]) -> list[str]:
    return [w.vary(values[i], w.varying(params[i])) for i in which]


def _given_around(w: FunctionWriter, region: Region, moving: Sequence[Value], fixed: Sequence[Value]) -> None:
    """Writes the ops of a region, in a function of the carried values and of those that it uses from outside."""
    for values, source in ((moving, "moving"), (fixed, "fixed")):
        if values:
            w.line(f"{tuple_text(w.names(values))} = {source}")
    w.line(f"{tuple_text([w.define(p) for p in region.params])} = carry")
    w.ops(region)


def _of_any_length(w: FunctionWriter, op: Op) -> str:
    """The helper gets the values that the regions use from outside as arguments, because they are differentiated
    too."""
    condition, body = op.regions
    turning = w.varying(condition.results[0])
    around = used_around(op)
    moving = [v for v in around if v.dtype.is_continuous and constant_value(w.maker(v)) is None]
    fixed = [v for v in around if v not in moving]
    name = op.results[0].name
    test, step = w.fresh(f"{name}_goes_on"), w.fresh(f"{name}_step")
    with w.block(f"def {test}(carry, moving, fixed):"):
        _given_around(w, condition, moving, fixed)
        w.line(f"return {w[condition.results[0]]}")
    with w.block(f"def {step}(carry, moving, fixed):"):
        _given_around(w, body, moving, fixed)
        w.line(f"return {tuple_text(_carried(w, body.results, body.params, range(len(body.params))))}")
    first = tuple_text(_carried(w, op.operands, body.params, range(len(body.params))))
    seen = f"{tuple_text(w.vary(v, turning) for v in moving)}, {tuple_text(w.names(fixed))}"
    zero = w.cast("jnp.int32(0)", set(turning))
    text = f"{w.module.helper('loop_of_any_length')}({test}, {step}, {zero}, {first}, {seen})"
    return text if len(op.results) > 1 else f"{text}[0]"
