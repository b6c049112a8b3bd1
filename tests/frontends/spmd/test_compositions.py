"""Each composition equals what numpy, jax.numpy, jax.nn or jax.random compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ir.types import DTYPES
from ir.verify.program import check
from lowering.reference import evaluate
from spmdc.frontends.spmd import parse

Array = np.ndarray[Any, np.dtype[Any]]


def numbers(type: str, seed: int = 0) -> Array:
    """Numbers of a type such as f32[2, 3]: small ones of both signs."""
    name, _, sizes = type.rstrip("]").partition("[")
    shape = tuple(int(n) for n in sizes.split(",") if n.strip())
    rng = np.random.default_rng(seed)
    if name == "pred":
        return rng.random(shape) < 0.5
    if DTYPES[name].is_integer:
        low = 0 if name.startswith("u") else -9
        return rng.integers(low, 10, shape).astype(DTYPES[name].numpy)
    return rng.normal(size=shape).astype(DTYPES[name].numpy)


def outcome(expression: str, result: str, *arguments: tuple[str, Array]) -> Array:
    """What `expression` of the arguments a, b, … is, evaluated; `result` is its type."""
    names = "abcdef"[: len(arguments)]
    params = ", ".join(f"{n}: {t}" for n, (t, _) in zip(names, arguments, strict=True))
    program = parse(f"def main({params}) -> {result} {{ return {expression} }}")
    check(program)
    (value,) = evaluate(program, *(x for _, x in arguments))
    return value


ONE_OPERAND: list[tuple[str, str, str, Callable[[Any], Any]]] = [
    ("abs(a)", "f32[3, 4]", "f32[3, 4]", jnp.abs),
    ("all(a, dim=1)", "pred[3, 4]", "pred[3]", lambda a: a.all(1)),
    ("any(a)", "pred[3, 4]", "pred[]", lambda a: a.any()),
    ("arange(4)", "f32[1]", "s32[4]", lambda a: np.arange(4)),
    ("argmax(a)", "f32[3, 4]", "s32[]", lambda a: a.argmax()),
    ("argmax(a, dim=0)", "s32[5, 4]", "s32[4]", lambda a: a.argmax(0)),
    ("argmin(a, -1)", "f32[3, 4]", "s32[3]", lambda a: a.argmin(1)),
    ("broadcast(a, [2, 3, 4])", "f32[3, 1]", "f32[2, 3, 4]", lambda a: np.broadcast_to(a, (2, 3, 4))),
    ("clamp(-1, a, 2)", "s32[9]", "s32[9]", lambda a: a.clip(-1, 2)),
    ("clip(a, -0.5, 0.5)", "f32[9]", "f32[9]", lambda a: a.clip(-0.5, 0.5)),
    ("concatenate([a, a], 1)", "f32[2, 3]", "f32[2, 6]", lambda a: np.concatenate([a, a], 1)),
    ("concatenate(a, a, dim=0)", "f32[2, 3]", "f32[4, 3]", lambda a: np.concatenate([a, a], 0)),
    ("cos(a)", "f32[9]", "f32[9]", jnp.cos),
    ("cumsum(a, 1)", "s32[3, 5]", "s32[3, 5]", lambda a: a.cumsum(1)),
    ("cumsum(a, dim=0, exclusive=true)", "s32[5]", "s32[5]", lambda a: a.cumsum() - a),
    ("cumsum(a, dim=-1, reverse=true)", "s32[5]", "s32[5]", lambda a: a[::-1].cumsum()[::-1]),
    ("exp(a)", "f32[9]", "f32[9]", jnp.exp),
    ("expand_dims(a, 1)", "f32[2, 3]", "f32[2, 1, 3]", lambda a: a[:, None]),
    ("expand_dims(a, [0, -1])", "f32[2, 3]", "f32[1, 2, 3, 1]", lambda a: a[None, :, :, None]),
    ("expm1(a)", "f32[9]", "f32[9]", jnp.expm1),
    ("f16(a)", "s32[4]", "f16[4]", lambda a: a.astype(np.float16)),
    ("flip(a, [0, -1])", "f32[2, 3]", "f32[2, 3]", lambda a: a[::-1, ::-1]),
    ("full([2], 3, s32) + a", "s32[2]", "s32[2]", lambda a: a + 3),
    ("full_like(a, 7)", "s32[2]", "s32[2]", lambda a: np.full_like(a, 7)),
    ("gelu(a)", "f32[9]", "f32[9]", jax.nn.gelu),
    ("gelu(a, approximate=false)", "f32[9]", "f32[9]", lambda a: jax.nn.gelu(a, approximate=False)),
    ("layer_norm(a)", "f32[3, 8]", "f32[3, 8]", lambda a: jax.nn.standardize(a, epsilon=1e-6)),
    ("log(abs(a))", "f32[9]", "f32[9]", lambda a: jnp.log(abs(a))),
    ("log1p(abs(a))", "f32[9]", "f32[9]", lambda a: jnp.log1p(abs(a))),
    ("log_softmax(a)", "f32[3, 4]", "f32[3, 4]", jax.nn.log_softmax),
    ("log_softmax(a, 0)", "f32[3, 4]", "f32[3, 4]", lambda a: jax.nn.log_softmax(a, axis=0)),
    ("logsumexp(a, dim=0)", "f32[3, 4]", "f32[4]", lambda a: jax.nn.logsumexp(a, axis=0)),
    ("max(a)", "f32[3, 4]", "f32[]", np.max),
    ("max(a, dims=[0], keepdims=true)", "f32[3, 4]", "f32[1, 4]", lambda a: a.max(0, keepdims=True)),
    ("mean(a, dim=1)", "f32[3, 4]", "f32[3]", lambda a: a.mean(1)),
    ("mean(a)", "s32[5]", "f32[]", lambda a: a.mean()),
    ("min(a, 1)", "f32[3, 4]", "f32[3]", lambda a: a.min(1)),
    ("neg(a)", "s32[4]", "s32[4]", np.negative),
    ("one_hot(a, 5)", "s32[3, 4]", "f32[3, 4, 5]", lambda a: jax.nn.one_hot(a, 5)),
    ("one_hot(a, 5, s8)", "s32[7]", "s8[7, 5]", lambda a: jax.nn.one_hot(a, 5, dtype=jnp.int8)),
    ("pad(a, [[1, 2], [0, 1]])", "f32[2, 2]", "f32[5, 3]", lambda a: np.pad(a, [[1, 2], [0, 1]])),
    ("pad(a, 1, -5)", "s32[2, 2]", "s32[4, 4]", lambda a: np.pad(a, 1, constant_values=-5)),
    ("prod(a, dims=[0, 1])", "f32[3, 2]", "f32[]", np.prod),
    ("reciprocal(a)", "f32[3]", "f32[3]", lambda a: 1 / a),
    ("relu(a)", "f32[9]", "f32[9]", jax.nn.relu),
    ("relu(a)", "s32[9]", "s32[9]", jax.nn.relu),
    ("reshape(a, [3, -1])", "f32[2, 6]", "f32[3, 4]", lambda a: a.reshape(3, -1)),
    ("reshape(a, shape=[12])", "f32[2, 6]", "f32[12]", lambda a: a.reshape(12)),
    ("rms_norm(a)", "f32[3, 8]", "f32[3, 8]", lambda a: a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6)),
    ("round(a)", "f32[9]", "f32[9]", np.round),
    ("sigmoid(a)", "f32[9]", "f32[9]", jax.nn.sigmoid),
    ("silu(a)", "f32[9]", "f32[9]", jax.nn.silu),
    ("sin(a)", "f32[9]", "f32[9]", jnp.sin),
    ("softmax(a)", "f32[3, 4]", "f32[3, 4]", jax.nn.softmax),
    ("softmax(a * 1000.0, dim=0)", "f32[3, 4]", "f32[3, 4]", lambda a: jax.nn.softmax(a * 1000, axis=0)),
    ("softplus(a * 100.0)", "f32[9]", "f32[9]", lambda a: jax.nn.softplus(a * 100)),
    ("square(a)", "f32[9]", "f32[9]", np.square),
    ("squeeze(a)", "f32[1, 3, 1]", "f32[3]", np.squeeze),
    ("squeeze(a, 0)", "f32[1, 3, 1]", "f32[3, 1]", lambda a: a.squeeze(0)),
    ("stack([a, a], 1)", "f32[2, 3]", "f32[2, 2, 3]", lambda a: np.stack([a, a], 1)),
    ("stack([a, a], dim=-1)", "f32[2]", "f32[2, 2]", lambda a: np.stack([a, a], -1)),
    ("sum(a)", "f32[3, 4]", "f32[]", np.sum),
    ("sum(a, [0, 2])", "f32[3, 4, 2]", "f32[4]", lambda a: a.sum((0, 2))),
    ("sum(a)", "pred[9]", "s32[]", np.sum),
    ("swapaxes(a, 0, -1)", "f32[2, 3, 4]", "f32[4, 3, 2]", lambda a: a.swapaxes(0, 2)),
    ("tanh(a)", "f32[9]", "f32[9]", jnp.tanh),
    ("transpose(a)", "f32[2, 3, 4]", "f32[4, 3, 2]", np.transpose),
    ("transpose(a, [1, 0, 2])", "f32[2, 3, 4]", "f32[3, 2, 4]", lambda a: a.transpose(1, 0, 2)),
    ("tril(a)", "f32[3, 4]", "f32[3, 4]", np.tril),
    ("tril(a, 1)", "f32[2, 3, 4]", "f32[2, 3, 4]", lambda a: np.tril(a, 1)),
    ("variance(a, dim=0)", "f32[3, 4]", "f32[4]", lambda a: a.var(0)),
    ("zeros([2, 3]) + a", "f32[3]", "f32[2, 3]", lambda a: a + np.zeros((2, 3))),
    ("zeros(s32[2]) + a", "s32[2]", "s32[2]", lambda a: a),
    ("zeros_like(a) + ones_like(a) + ones(f32[2])", "f32[2]", "f32[2]", lambda a: 0 * a + 2),
]


@pytest.mark.parametrize(("expression", "argument", "result", "expected"), ONE_OPERAND)
def test_composition_equals_numpy_and_jax(
    expression: str, argument: str, result: str, expected: Callable[[Any], Any]
) -> None:
    a = numbers(argument)
    value = outcome(expression, result, (argument, a))
    np.testing.assert_allclose(value, np.asarray(expected(a)), rtol=2e-6, atol=2e-6)


TWO_OPERANDS: list[tuple[str, str, str, str, Callable[[Any, Any], Any]]] = [
    ("a + b", "f32[3, 1]", "f32[4]", "f32[3, 4]", lambda a, b: a + b),
    ("a // b", "s32[99]", "s32[99]", "s32[99]", lambda a, b: a // b),
    ("a // b", "f32[99]", "f32[99]", "f32[99]", lambda a, b: a // b),
    ("a % b", "s32[99]", "s32[99]", "s32[99]", lambda a, b: a % b),
    ("a % b", "f32[99]", "f32[99]", "f32[99]", lambda a, b: a % b),
    ("a ** 3 - 2 * b / 4", "f32[5]", "f32[5]", "f32[5]", lambda a, b: a**3 - 2 * b / 4),
    ("a < b", "f32[9]", "f32[9]", "pred[9]", lambda a, b: a < b),
    ("a >= 0.5 & ~(b != 1)", "f32[9]", "s32[9]", "pred[9]", lambda a, b: (a >= 0.5) & ~(b != 1)),
    ("a ^ b | a & b", "s32[9]", "s32[9]", "s32[9]", lambda a, b: (a ^ b) | (a & b)),
    ("maximum(a, b)", "f32[3, 1]", "f32[4]", "f32[3, 4]", np.maximum),
    ("minimum(a, 1) + b", "s32[4]", "s32[4]", "s32[4]", lambda a, b: np.minimum(a, 1) + b),
    ("pow(abs(a), b)", "f32[9]", "f32[9]", "f32[9]", lambda a, b: abs(a) ** b),
    ("where(a > 0, b, 0)", "f32[3, 1]", "s32[4]", "s32[3, 4]", lambda a, b: np.where(a > 0, b, 0)),
    ("matmul(a, b)", "f32[2, 3]", "f32[3, 4]", "f32[2, 4]", np.matmul),
    ("matmul(a, b)", "f32[3]", "f32[3, 4]", "f32[4]", np.matmul),
    ("matmul(a, b)", "f32[3]", "f32[3]", "f32[]", np.matmul),
    ("matmul(a, b)", "f32[5, 2, 3]", "f32[3]", "f32[5, 2]", np.matmul),
    ("matmul(a, b)", "f32[3]", "f32[5, 3, 4]", "f32[5, 4]", np.matmul),
    ("matmul(a, b)", "f32[2, 3]", "f32[5, 3, 4]", "f32[5, 2, 4]", np.matmul),
    ("matmul(a, b)", "f32[5, 1, 2, 3]", "f32[6, 3, 4]", "f32[5, 6, 2, 4]", np.matmul),
    ("layer_norm(a, b, b)", "f32[3, 8]", "f32[8]", "f32[3, 8]",
     lambda a, b: jax.nn.standardize(a, epsilon=1e-6) * b + b),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "left", "right", "result", "expected"), TWO_OPERANDS)
def test_composition_of_two_operands_equals_numpy(
    expression: str, left: str, right: str, result: str, expected: Callable[[Any, Any], Any]
) -> None:
    a, b = numbers(left, 1), numbers(right, 2)
    if b.dtype.kind == "i":
        b = np.where(b == 0, 3, b).astype(b.dtype)
    value = outcome(expression, result, (left, a), (right, b))
    np.testing.assert_allclose(value, np.asarray(expected(a, b)), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("GSM,ME->GSE", "f32[2, 3, 4]", "f32[4, 5]"),
        ("GSEC,GSM->EGCM", "f32[2, 3, 4, 5]", "f32[2, 3, 6]"),
        ("GSEC,GECM->GSM", "f32[2, 3, 4, 5]", "f32[2, 4, 5, 6]"),
        ("ij,jk", "f32[2, 3]", "f32[3, 4]"),
        ("zb, za", "f32[2, 3]", "f32[2, 4]"),
        ("i,j->ji", "f32[2]", "f32[3]"),
        ("ij,kl->", "f32[2, 3]", "f32[4, 5]"),
        ("ijx,jk->ik", "f32[2, 3, 7]", "f32[3, 4]"),
        ("ii,i->i", "f32[3, 3]", "f32[3]"),
        ("iij,jkk->ik", "f32[3, 3, 2]", "f32[2, 4, 4]"),
        (",i->i", "f32[]", "f32[3]"),
    ],
)
def test_einsum_of_two_operands_equals_numpy(equation: str, left: str, right: str) -> None:
    a, b = numbers(left, 1), numbers(right, 2)
    expected = np.einsum(equation.replace(" ", ""), a, b)
    result = f"f32[{', '.join(map(str, expected.shape))}]"
    value = outcome(f'einsum("{equation}", a, b)', result, (left, a), (right, b))
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "type"),
    [
        ("ij->ji", "f32[2, 3]"), ("ij->", "f32[2, 3]"), ("ii", "f32[4, 4]"), ("ii->i", "f32[4, 4]"),
        ("ijij->ij", "f32[2, 3, 2, 3]"), ("iii->i", "f32[3, 3, 3]"), ("cba", "f32[2, 3, 4]"),
        ("ijk->ki", "f32[2, 3, 4]"),
    ],
)  # fmt: skip
def test_einsum_of_one_operand_equals_numpy(equation: str, type: str) -> None:
    a = numbers(type)
    expected = np.einsum(equation, a)
    result = f"f32[{', '.join(map(str, expected.shape))}]"
    np.testing.assert_allclose(outcome(f'einsum("{equation}", a)', result, (type, a)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("softmax", jax.nn.softmax),
        ("log_softmax", jax.nn.log_softmax),
        ("layer_norm", lambda x: jax.nn.standardize(x.astype(np.float32), epsilon=1e-6)),
        ("sum", lambda x: x.astype(np.float32).sum()),
        ("mean", lambda x: x.astype(np.float32).mean()),
        ("logsumexp", lambda x: jax.nn.logsumexp(x.astype(np.float32))),
    ],
)
def test_sums_of_bf16_are_computed_in_f32(name: str, expected: Callable[[Any], Any]) -> None:
    a = numbers("bf16[64]")
    wanted = np.asarray(expected(a), np.float32)
    value = outcome(f"{name}(a)", f"bf16[{', '.join(map(str, wanted.shape))}]", ("bf16[64]", a))
    np.testing.assert_allclose(value.astype(np.float32), wanted, rtol=2e-2, atol=2e-2)


def _largest_first(row: Array) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (0 if np.isnan(row[i]) else 1, -row[i], i))


@pytest.mark.parametrize(
    "row",
    [
        [3.0, 1.0, 3.0, 2.0],
        [-np.inf, -np.inf, 0.0, -np.inf],
        [-np.inf] * 4,
        [np.nan, 1.0, np.nan, np.inf],
        [0.0, -0.0, 0.0, -0.0],
    ],
)
def test_top_k_takes_ties_and_infinities_in_order_and_each_once(row: list[float]) -> None:
    a = np.array([row, row[::-1]], np.float32)
    program = parse(
        "def main(a: f32[2, 4]) -> (values: f32[2, 3], places: s32[2, 3]) { v, p = top_k(a, 3)  return v, p }"
    )
    check(program)
    values, places = evaluate(program, a)
    order = np.array([_largest_first(r)[:3] for r in a])
    assert places.tolist() == order.tolist()
    np.testing.assert_array_equal(values, np.take_along_axis(a, order, 1))


def test_top_k_of_integers_along_another_dim_equals_jax() -> None:
    a = numbers("s32[6, 3]")
    a[:, 0] = np.iinfo(np.int32).min
    program = parse("def main(a: s32[6, 3]) -> (s32[4, 3], s32[4, 3]) { return top_k(a, 4, dim=0) }")
    values, places = evaluate(program, a)
    expected_values, expected_places = jax.lax.top_k(a.T, 4)
    np.testing.assert_array_equal(values, expected_values.T)
    np.testing.assert_array_equal(places, expected_places.T)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("seed", [0, 7, 123456789, -1])
def test_uniform_draws_the_bits_that_jax_draws(dtype: str, seed: int) -> None:
    value = outcome(f"uniform(key({seed}), {dtype}[5, 7])", f"{dtype}[5, 7]")
    expected = jax.random.uniform(jax.random.key(seed), (5, 7), dtype=DTYPES[dtype].numpy)
    np.testing.assert_array_equal(value, np.asarray(expected))


def test_uniform_between_bounds_is_that_of_jax_but_for_a_fused_multiply_add() -> None:
    value = outcome("uniform(a, [40], -2.0, 3.0)", "f32[40]", ("u32[2]", np.array([3, 9], np.uint32)))
    key = jax.random.wrap_key_data(jnp.array([3, 9], jnp.uint32))
    expected = np.asarray(jax.random.uniform(key, (40,), minval=-2.0, maxval=3.0))
    np.testing.assert_allclose(value, expected, rtol=0, atol=3e-7)


def test_key_of_a_tensor_is_the_key_of_its_number() -> None:
    value = outcome("key(a)", "u32[2]", ("s32[]", np.array(-5, np.int32)))
    np.testing.assert_array_equal(value, np.asarray(jax.random.key_data(jax.random.key(-5))))
