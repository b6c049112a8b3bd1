"""Gradients of programs, against numbers and against JAX's of the same program unpartitioned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import Program, all_ops, walk
from lowering.jax import compile as compile_for_jax
from spmdc.frontends.spmd import print_program

_PROGRAMS = Path(spmdc.__file__).parent / "programs"

_LAYER = """mesh (x=4, y=2)
def main(a: f32[9@x, 6], w: f32[6, 10@y], b: f32[10@y], n: s32[9]) -> (h: f32[9@x, 10@y], loss: f32[], count: s32[]) {
  h: f32[9@x, 10@y] = layer(a, w, b)
  return h, sum(h * h), sum(n)
}
def layer(a: f32[9, 6], w: f32[6, 10], b: f32[10]) -> (f32[9, 10]) {
  return tanh(einsum("ab,bc->ac", a, split(w, 1, y)) + b)
}
"""


def numeric(program: Program, result: int, param: int, inputs: tuple[Any, ...], cotangent: Any) -> Any:
    """The gradient by central differences, in the precision of the program."""
    step = 1e-2
    found = np.zeros(inputs[param].shape)
    for place in np.ndindex(found.shape):
        ends: list[Any] = []
        for sign in (1, -1):
            moved = [np.array(x) for x in inputs]
            moved[param][place] += sign * step
            ends.append(np.sum(cotangent * spmdc.evaluate(program, *moved)[result].astype(np.float64)))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def test_gradients_are_the_slopes_and_are_sharded_as_the_parameters() -> None:
    program = spmdc.parse(_LAYER, "layer.spmd")
    gradient = spmdc.gradient(program, ["w", "b"])
    assert [(r.name, str(r.type)) for r in gradient.main.results] == [("d_w", "f32[6, 10]"), ("d_b", "f32[10]")]
    assert [r.sharding for r in gradient.main.results] == [p.sharding for p in program.main.params[1:3]]
    inputs = spmdc.random_inputs(program)
    got = spmdc.evaluate(gradient, *inputs)
    for i, d in zip((1, 2), got, strict=True):
        np.testing.assert_allclose(d, numeric(program, 1, i, inputs, 1.0), rtol=2e-2, atol=2e-2)
    for d, whole in zip(spmdc.partition(gradient).simulate(*inputs), got, strict=True):
        np.testing.assert_allclose(d, whole, rtol=1e-5, atol=1e-5)


def test_what_a_jax_function_takes_for_constant_its_program_does_too() -> None:
    """Also for the gradient of the gradient, and behind what has no derivative."""

    spec: Any = P

    def stopped(x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    def looped(x: Any) -> Any:
        return jax.lax.scan(lambda c, a: (c * stopped(a) + a, a), x[0], x)[0]

    def called(x: Any) -> Any:
        return (jax.pure_callback(np.sin, shape, stopped(x)) * x).sum()

    def clipped(x: Any) -> Any:
        return (x**2 * (x - stopped(x - jax.lax.round(x)))).sum()

    x, rows = np.arange(1, 9, dtype=np.float32) / 2, spec("x")
    shape = jax.eval_shape(lambda: x)
    for f in (looped, called, clipped):
        program = spmdc.from_jax(f, x, mesh={"x": 8}, in_shardings=(rows,))
        gradient = spmdc.gradient(program, ["x"], with_value=True)
        value, first = spmdc.partition(gradient).simulate(x)
        for ours, theirs in zip((value, first), jax.value_and_grad(f)(x), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        if f is not called:
            (second,) = spmdc.evaluate(spmdc.gradient(gradient, ["x"], of="d_x"), x, np.ones_like(x))
            np.testing.assert_allclose(second, jax.grad(lambda x, f=f: jax.grad(f)(x).sum())(x), rtol=1e-6)


def test_a_text_program_says_what_is_taken_for_constant() -> None:
    program = spmdc.parse("mesh (x=4)\ndef main(a: f32[6@x]) -> (y: f32[]) { return sum(stop_gradient(a) * a) }")
    a = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(spmdc.partition(spmdc.gradient(program, ["a"])).simulate(a)[0], a)


def test_the_gradient_of_a_tensor_takes_a_cotangent() -> None:
    program = spmdc.parse(_LAYER, "layer.spmd")
    gradient = spmdc.gradient(program, ["a"], of="h", with_value=True)
    assert [(p.name, p.type) for p in gradient.main.params][-1] == ("d_h", program.main.results[0].type)
    assert [r.name for r in gradient.main.results] == ["h", "d_a"]
    inputs = spmdc.random_inputs(gradient)
    h, d_a = spmdc.evaluate(gradient, *inputs)
    np.testing.assert_allclose(h, spmdc.evaluate(program, *inputs[:-1])[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d_a, numeric(program, 0, 0, inputs[:-1], inputs[-1]), rtol=2e-2, atol=2e-2)


def test_annotations_reach_the_gradient_and_places_are_the_programs() -> None:
    text = print_program(spmdc.gradient(spmdc.parse(_LAYER, "layer.spmd"), ["w"]))
    assert "f32[6, 10@y] = shard(" in text
    assert "# layer.spmd:7" in text
    assert ".py" not in text
    assert print_program(spmdc.parse(text, "gradient.spmd"), locations=False) == "".join(
        f"{line.partition('  #')[0].rstrip()}\n" for line in text.splitlines()
    )


def test_a_program_without_a_mesh_has_a_gradient() -> None:
    program = spmdc.parse("def main(a: f64[3]) -> (s: f64[]) {\n  return sum(a * a)\n}")
    gradient = spmdc.gradient(program, ["a"])
    assert gradient.main.results[0].type == program.main.params[0].type
    np.testing.assert_array_equal(spmdc.evaluate(gradient, np.arange(3.0))[0], [0.0, 2.0, 4.0])


def test_indices_of_extremes_have_no_gradient_and_what_they_choose_has() -> None:
    program = spmdc.parse("def main(a: f32[4]) -> (s: f32[]) { return sum(a * one_hot(argmax(a, dim=0), 4)) }")
    gradient = spmdc.gradient(program, ["a"])
    reductions = [op for op in all_ops(gradient) if op.name in ("reduce", "map")]
    assert [(op.attrs["kind"], op.span and op.span.line) for op in reductions] == [("argmax", 1)]
    (d_a,) = spmdc.evaluate(gradient, np.array([1, 7, 3, 7], "f4"))
    np.testing.assert_array_equal(d_a, [0, 1, 0, 0])


def test_a_loop_of_known_turns_is_one_in_the_gradient() -> None:
    text = """
        mesh (x=2)
        def main(a: f32[4@x], w: f32[3, 4]) -> (s: f32[]) {
          i, b = while(i = 2, b = a) cond { return i >= 0 } do {
            return i - 1, b * reshape(dynamic_slice(w, i, 0, sizes=[1, 4]), [4])
          }
          return sum(b)
        }
        """
    program = spmdc.parse(text)
    gradient = spmdc.gradient(program, ["a", "w"])
    loops = [op for op in all_ops(gradient) if op.name == "while"]
    assert [op.attrs["trip_count"] for op in loops] == [3, 3]
    a, w = np.arange(1, 5, dtype="f4"), np.arange(2, 14, dtype="f4").reshape(3, 4)
    d_a, d_w = spmdc.partition(gradient).simulate(a, w)
    np.testing.assert_array_equal(d_a, w.prod(0))
    np.testing.assert_array_equal(d_w, a * w.prod(0) / w)


def test_a_gradient_adds_no_whole_tensors_where_a_loop_takes_one_row_in_each_round() -> None:
    """Nor does it keep the rows, which are there: only what is computed of them."""
    program = spmdc.load(Path(__file__).parents[2] / "programs" / "loop_over_stacked_weights.spmd")
    gradient = spmdc.gradient(program, ["w", "v", "scales"], "total")
    loops = [op for op in all_ops(gradient) if op.name == "while"]
    assert [op.attrs["trip_count"] for op in loops] == [3, 3]
    added = [op.result.shape for op in walk(loops[1].regions[1]) if op.name == "add"]
    assert not {p.shape for p in program.main.params[1:]} & set(added)
    assert not {p.shape[1:] for p in program.main.params[1:]} & {v.shape[1:] for v in loops[0].results}


def layers(block: str) -> Program:
    return spmdc.parse(f"""
        const L = 8
        mesh (d=4)
        def main(x: f32[64@d, 16], w: f32[L, 16, 16] = normal(0.2), noise: u32[2]) -> (loss: f32[]) {{
          keys = bits(noise, u32[L, 2])
          y = loop l < L (h = x) {{
            a = {block} {{
              kept = uniform(keys[l], f32[64, 16]) < 0.9
              b = tanh(matmul(where(kept, h, 0), w[l]))
              return h + sin(b) * cos(b)
            }}
            return a
          }}
          return sum(y * y)
        }}
        """)


def test_a_gradient_keeps_what_goes_into_a_checkpoint_and_computes_the_rest_again() -> None:
    plain, again = spmdc.gradient(layers("case(0)")), spmdc.gradient(layers("checkpoint"))
    kept = [next(op for op in all_ops(g) if op.attrs.get("trip_count") == 8) for g in (plain, again)]
    stacked = [sum(v.type.nbytes for v in op.results if v.shape[:1] == (8,) and v.dtype.is_float) for op in kept]
    assert stacked[1] == 8 * 64 * 16 * 4 < stacked[0] / 3
    inputs = spmdc.random_inputs(plain)
    (expected,), (got,) = spmdc.evaluate(plain, *inputs), spmdc.evaluate(again, *inputs)
    partitioned = [spmdc.partition(g) for g in (plain, again)]
    for found in (got, partitioned[1].simulate(*inputs)[0]):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * float(np.abs(expected).max()))
    assert partitioned[1].received_bytes() == partitioned[0].received_bytes()
    assert partitioned[1].peak_bytes() < partitioned[0].peak_bytes() / 2


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_a_loop_of_unknown_turns_is_computed_again_on_the_way_back(turns: int) -> None:
    text = """
        mesh (x=2)
        def main(a: f32[4@x], w: f32[4], n: s32[]) -> (s: f32[]) {
          i, b = while(i = 0, b = a, trip_count=2) cond { return i < n } do { return i + 1, b * (w + b) }
          return sum(b)
        }
        """
    gradient = spmdc.gradient(spmdc.parse(text), ["a", "w"])
    a, w = np.array([1, -1, 0.5, 0], "f4"), np.array([0, 1, 0.5, 2], "f4")

    def plain(a: Any, w: Any) -> Any:
        b = a
        for _ in range(turns):
            b = b * (w + b)
        return b.sum()

    expected = jax.grad(plain, argnums=(0, 1))(a, w)
    for got in (
        spmdc.evaluate(gradient, a, w, np.int32(turns)),
        spmdc.partition(gradient).simulate(a, w, np.int32(turns)),
    ):
        for d, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(d, e, rtol=1e-6)


@pytest.mark.parametrize("recompute", [0, 1])
def test_the_gradient_of_36_layers_has_at_most_three_times_the_ops_of_the_model(recompute: int) -> None:
    """GShard's 600 billion weights. A gradient has the functions of a program written out where they are called, and so
    they count for the program too."""
    sizes = {"D": 2048, "LAYERS": 18, "M": 1024, "H": 8192, "DROPOUT": 10, "TIED": 0, "RECOMPUTE": recompute}
    program = spmdc.load(_PROGRAMS / "moe_transformer.spmd", sizes)

    def count(program: Program, name: str) -> int:
        ops = walk(program.functions[name].body)
        return len(ops) + sum(count(program, str(op.attrs["function"])) for op in ops if op.name == "call")

    gradient = spmdc.gradient(program, of="loss")
    assert count(gradient, gradient.entry) <= 3 * count(program, program.entry)


@pytest.mark.parametrize(("name", "wrt"), [("moe_layer", ["wi", "wo"]), ("transformer_block", None)])
def test_shipped_programs(name: str, wrt: list[str] | None) -> None:
    program = spmdc.load(_PROGRAMS / f"{name}.spmd")
    floats = [p.name for p in program.main.params if p.type.dtype.is_float]
    wrt = wrt or floats
    result = next(r for r in program.main.results if r.type.dtype.is_float)
    gradient = spmdc.gradient(program, wrt, of=result.name)
    inputs = spmdc.random_inputs(gradient)
    got = spmdc.partition(gradient).simulate(*inputs)
    positions = tuple(i for i, p in enumerate(program.main.params) if p.name in wrt)
    position = [r.name for r in program.main.results].index(result.name)
    run = compile_for_jax(program)

    def plain(*arrays: Any) -> Any:
        return (run(*arrays)[position] * inputs[-1]).sum()

    expected = jax.grad(plain, argnums=positions)(*inputs[: len(program.main.params)])
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-3, atol=2e-3 * float(np.abs(e).max()))


@pytest.mark.parametrize(
    ("code", "wrt", "of"),
    [
        ("E101", ["ww"], None),
        ("E101", ["w"], "lost"),
        ("E710", ["n"], None),
        ("E710", ["w"], "count"),
    ],
)
def test_what_has_no_gradient_is_reported(code: str, wrt: list[str], of: str | None) -> None:
    with pytest.raises(SpmdcError) as caught:
        spmdc.gradient(spmdc.parse(_LAYER), wrt, of)
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize(("type", "wanted"), [("s32", "zero"), ("c64", r"real\(r\)")])
def test_a_result_that_is_no_float_has_a_way_out(type: str, wanted: str) -> None:
    program = spmdc.parse(f"def main(a: f32[3]) -> (r: {type}[3]) {{ return {type}(a) }}")
    with pytest.raises(SpmdcError, match=f"E710.*\n(.*\n)*.*help: .*{wanted}"):
        spmdc.gradient(program, ["a"], "r")


def test_several_scalars_want_a_choice() -> None:
    text = "def main(a: f32[3]) -> (s: f32[], t: f32[]) {\n  return sum(a), max(a, dim=0)\n}"
    with pytest.raises(SpmdcError, match="several results"):
        spmdc.gradient(spmdc.parse(text), ["a"])


def test_an_spmd_program_has_none() -> None:
    partitioned = spmdc.partition(spmdc.parse(_LAYER)).program
    with pytest.raises(SpmdcError, match="E406"):
        spmdc.gradient(partitioned, ["w"])


def test_groups_and_barriers_hold_for_cotangents_too() -> None:
    text = """
        mesh (x=4, y=2)
        def main(a: f32[8@x, 4], b: f32[8, 4]) -> (s: f32[]) {
          p = shard(sin(a), group=3)
          q = shard(sin(b), group=3)
          r = shard(p * q, passes=forward)
          return sum(r * r)
        }
        """
    gradient = spmdc.gradient(spmdc.parse(text), ["a", "b"])
    hints = [(op.attrs["group"], op.attrs["passes"]) for op in all_ops(gradient) if op.name == "shard"]
    assert sorted(hints, key=str) == [(3, "both")] * 4 + [(None, "backward"), (None, "forward")]
    inputs = spmdc.random_inputs(gradient)
    whole = spmdc.evaluate(gradient, *inputs)
    for d, w in zip(spmdc.partition(gradient).simulate(*inputs), whole, strict=True):
        np.testing.assert_allclose(d, w, rtol=1e-5)


_OPAQUE = """mesh (x=2)
def main(a: f32[4, 3, 3], b: f32[4, 3, 3]) -> (s: f32[], t: f32[]) {
  i, u = while(i = 0, u = a) cond { return i < 2 } do { return i + 1, factor(u) }
  return sum(u * b), sum(a)
}
def factor(a: f32[4, 3, 3]) -> f32[4, 3, 3] {
  lu, pivots, info = opaque(a, target="lapack_sgetrf_ffi", types=[f32[4, 3, 3], s32[4, 3], s32[4]])
  return lu
}
"""


def test_what_depends_on_unknown_code_has_no_gradient() -> None:
    with pytest.raises(SpmdcError) as caught:
        spmdc.gradient(spmdc.parse(_OPAQUE, "lu.spmd"), ["b", "a"], of="s")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E710"
    assert diagnostic.span is not None
    assert diagnostic.span.line == 7
    assert "@lapack_sgetrf_ffi" in diagnostic.message


def test_what_depends_on_integers_of_unknown_code_has_no_gradient() -> None:
    """JAX asks for the derivative of every call that takes what changes."""
    text = _OPAQUE.replace("return lu", "return a * convert(info[0], dtype=f32)")
    with pytest.raises(SpmdcError, match="by way of @lapack_sgetrf_ffi"):
        spmdc.gradient(spmdc.parse(text), ["a"], of="s")


def test_unknown_code_around_what_is_differentiated_is_computed() -> None:
    program = spmdc.parse(_OPAQUE)
    b = np.ones((4, 3, 3), "f4")
    (d_a,) = spmdc.evaluate(spmdc.gradient(program, ["a"], of="t"), b, b)
    np.testing.assert_array_equal(d_a, b)
    gradient = spmdc.gradient(program, ["b"], of="s")
    assert any(op.name == "opaque" for op in all_ops(gradient))
