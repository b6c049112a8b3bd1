"""Loops and functions become checkpoints, and programs and gradients stay what they are to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.program import Op, Program, all_ops
from ir.spelling.printer import print_program
from ir.types import Array
from ir.verify.program import verify
from passes.optimize.checkpoints import blocks_of, checkpointed
from spmdc.frontends.spmd import parse

LAYERS = """mesh (d=4)
def layer(h: f32[8@d, 4], w: f32[4, 4]) -> (out: f32[8@d, 4]) { return h + tanh(matmul(relu(matmul(h, w)), w)) }
def main(x: f32[8@d, 4], w: f32[3, 4, 4] = normal(0.5)) -> (loss: f32[]) {
  a = loop l < 3 (h = x) { return layer(h, w[l]) }
  b = loop l < 2 (h = a) { k = loop m < 3 (k = h) { return k * sigmoid(matmul(k, w[m])) } return k + h }
  return sum(square(layer(b, w[0])))
}"""


def computed(program: Program) -> Sequence[Array]:
    return spmdc.evaluate(program, *spmdc.random_inputs(program))


def alike(a: Program, b: Program) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(computed(a), computed(b), strict=True))


def test_the_blocks_are_loops_and_functions_those_that_compute_most_first() -> None:
    blocks = blocks_of(parse(LAYERS))
    assert [block.name for block in blocks] == [
        "the loop of b at line 5", "the loop of a at line 4", "the loop of k.13 at line 5", "layer(…)"
    ]  # fmt: skip
    assert [block.kept for block in blocks] == sorted((block.kept for block in blocks), reverse=True)
    assert len(next(block for block in blocks if block.name == "layer(…)").ops) == 2


def test_a_loop_counts_outside_of_its_checkpoint_and_is_no_block_any_more() -> None:
    program = parse(LAYERS)
    loop = next(op for block in blocks_of(program) for op in block.ops if block.name.startswith("the loop of a"))
    made = checkpointed(program, [loop])
    body = next(op for op in all_ops(made) if op.results == loop.results).regions[1]
    assert {op.name for op in body.ops} == {"constant", "add", "checkpoint"}
    assert not any(block.name.startswith("the loop of a") for block in blocks_of(made))


def test_what_calls_the_host_is_no_block() -> None:
    def turns(x: jax.Array) -> jax.Array:
        def turn(_: int, h: jax.Array) -> jax.Array:
            jax.debug.print("{}", h)
            return jnp.sin(h)

        found: jax.Array = jax.lax.fori_loop(0, 3, turn, x)
        return found

    program = spmdc.from_jax(turns, jnp.ones(4))
    assert any(op.name == "while" for op in all_ops(program))
    assert blocks_of(program) == []


@pytest.mark.parametrize("chosen", [0b0001, 0b0010, 0b0100, 0b1000, 0b0110, 0b1111])
def test_programs_and_gradients_with_checkpoints_are_the_same_to_the_bit(chosen: int) -> None:
    program = parse(LAYERS)
    blocks = blocks_of(program)
    ops = [op for i, block in enumerate(blocks) if chosen >> i & 1 for op in block.ops]
    made = checkpointed(program, ops)
    assert verify(made) == []
    text = print_program(made)
    assert print_program(parse(text)) == text
    assert alike(program, made)
    assert alike(spmdc.gradient(program), spmdc.gradient(made))


BODIES = ("tanh(z)", "z * sigmoid(z)", "softmax(z)", "matmul(z, w)", "f(z, w)", "g(z, w) + z")


@settings(max_examples=examples(15))
@given(
    st.lists(st.tuples(st.sampled_from(BODIES), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_any_loops_and_functions_may_be_checkpoints(layers: list[tuple[str, int]], choice: list[bool]) -> None:
    lines: list[str] = []
    for i, (body, trips) in enumerate(layers):
        repeated = f"loop l < {trips} (z = z{i}) {{ return {body} }}" if trips else body.replace("z", f"z{i}")
        lines.append(f"z{i + 1} = {repeated}")
    program = parse(f"""mesh (d=2)
def f(z: f32[4@d, 3], w: f32[3, 3]) -> (r: f32[4@d, 3]) {{ return sin(matmul(z, w)) }}
def g(z: f32[4@d, 3], w: f32[3, 3]) -> (r: f32[4@d, 3]) {{ return loop k < 2 (z = z) {{ return f(z, w) }} }}
def main(z0: f32[4@d, 3], w: f32[3, 3] = normal(1)) -> (loss: f32[]) {{
  {chr(10).join(lines)}
  return sum(square(z{len(layers)}))
}}""")
    ops: list[Op] = [op for block, is_chosen in zip(blocks_of(program), choice, strict=False) if is_chosen
                     for op in block.ops]  # fmt: skip
    made = checkpointed(program, ops)
    assert verify(made) == []
    assert alike(program, made)
    assert alike(spmdc.gradient(program), spmdc.gradient(made))


def test_a_loop_whose_floats_all_say_how_it_counts_stays_as_it_is() -> None:
    program = parse("""def main(x: f32[4]) -> (n: s32[], y: f32[4]) {
  n, y = loop l < 3 (n = 0, y = x) { return n + convert(sum(y), s32), y }
  return n, y
}""")
    (loop,) = (op for op in all_ops(program) if op.name == "while")
    made = checkpointed(program, [loop])
    assert verify(made) == []
    assert "checkpoint" not in {op.name for op in all_ops(made)}
