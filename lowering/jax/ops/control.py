"""Emitters of loops, choices, checkpoints, calls and maps.

A loop's carried values must vary over the same axes in every iteration, so they are cast to these, and so are the
results of the branches of a choice.
"""

from __future__ import annotations

from ir.program import Op, Region
from lowering.jax.names import tuple_text
from lowering.jax.ops.differentiable import differentiable_loop
from lowering.jax.writer import FunctionWriter, emits


@emits("while")
def _while(w: FunctionWriter, op: Op) -> str:
    if w.module.is_differentiated and op.operands:
        return differentiable_loop(w, op)
    cond, body = op.regions
    name = op.results[0].name if op.results else "loop"
    test, step = w.fresh(f"{name}_goes_on"), w.fresh(f"{name}_step")
    with w.loop(), w.block(f"def {test}({_carry(w, cond)}):"):
        _region(w, cond, w.names)
    with w.loop(), w.block(f"def {step}({_carry(w, body)}):"):
        _region(w, body, lambda values: [w.vary(v, w.varying(p)) for v, p in zip(values, body.params, strict=True)])
    init = w.returned([w.vary(v, w.varying(p)) for v, p in zip(op.operands, body.params, strict=True)])
    return f"lax.while_loop({test}, {step}, {init})"


def _carry(w: FunctionWriter, region: Region) -> str:
    return w.define(region.params[0]) if len(region.params) == 1 else "carry"


def _region(w: FunctionWriter, region: Region, returned: object) -> None:
    assert callable(returned)
    if len(region.params) > 1:
        w.line(f"{', '.join([w.define(p) for p in region.params])} = carry")
    w.ops(region)
    w.line(f"return {w.returned(returned(region.results))}")


@emits("case")
def _case(w: FunctionWriter, op: Op) -> str:
    """Every index out of range takes the last branch, while `lax.switch` would clamp it.

    In a mapped function, whose elements may take different branches, all branches are computed.
    """
    name = op.results[0].name if op.results else "case"
    branches = [w.fresh(f"{name}_{i}") for i in range(len(op.regions))]
    for branch, region in zip(branches, op.regions, strict=True):
        with w.block(f"def {branch}():"):
            w.ops(region)
            pairs = zip(region.results, op.results, strict=True)
            w.line(f"return {w.returned([w.vary(v, w.varying(result)) for v, result in pairs])}")
    if len(branches) == 1:
        return f"{branches[0]}()"
    if w.is_mapped:
        results = ", ".join(f"{branch}()" for branch in branches)
        return f"{w.module.helper('chosen_result')}({w[op.operands[0]]}, [{results}])"
    index = w.module.helper("branch_index")
    return f"lax.switch({index}({w[op.operands[0]]}, {len(branches)}), {tuple_text(branches)})"


@emits("checkpoint")
def _checkpoint(w: FunctionWriter, op: Op) -> str:
    (region,) = op.regions
    name = w.fresh(f"{op.results[0].name if op.results else 'block'}_again")
    with w.block(f"def {name}():"):
        w.ops(region)
        w.line(f"return {w.returned(w.names(region.results))}")
    return f"jax.checkpoint({name})()" if w.module.is_differentiated else f"{name}()"


@emits("map")
def _map(w: FunctionWriter, op: Op) -> str:
    mapped = w.callee(op)
    for _ in op.results[0].shape:
        mapped = f"jax.vmap({mapped})"
    return f"{mapped}({', '.join(w.names(op.operands))})"


@emits("call")
def _call(w: FunctionWriter, op: Op) -> str:
    return f"{w.callee(op)}({', '.join(w.names(op.operands))})"
