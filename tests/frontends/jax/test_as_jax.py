"""Programs as functions of JAX: called, differentiated, mapped, trained, and partitioned by their own annotations."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import spmdc
from ir.diagnostics import SpmdcError
from ir.manual import has_manual
from ir.program import Program, all_ops
from spmdc.verification.differences import differences

P: Any = PartitionSpec
SHIPPED = sorted((Path(spmdc.__file__).parent / "programs").glob("*.spmd"))
PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.spmd"))

_LAYER = """mesh (x=4, y=2)
def main(a: f32[9@x, 6], w: f32[6, 10@y], b.1: f32[10@y]) -> (h: f32[9@x, 10@y], loss: f32[]) {
  h: f32[9@x, 10@y] = layer(a, w, b.1)
  return h, sum(h * h)
}
def layer(a: f32[9, 6], w: f32[6, 10], b: f32[10]) -> (f32[9, 10]) {
  return tanh(einsum("ab,bc->ac", a, split(w, 1, y)) + b)
}
"""


def layer() -> tuple[Program, tuple[Any, ...]]:
    program = spmdc.parse(_LAYER, "layer.spmd")
    return program, spmdc.random_inputs(program)


def test_a_program_is_called_by_position_or_by_name_and_returns_results_by_name() -> None:
    program, (a, w, b) = layer()
    function = spmdc.as_jax(program)
    assert list(inspect.signature(function).parameters) == ["a", "w", "b_1"]
    assert dict(function.mesh) == {"x": 4, "y": 2}
    h, loss = spmdc.evaluate(program, a, w, b)
    found = function(a, b_1=b, w=w)
    np.testing.assert_allclose(found.h, h, rtol=1e-6)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-6)
    assert repr(function) == "<main(a, w, b_1) of main of 8 ops on mesh (x=4, y=2)>"


def test_of_one_result_the_array_is_returned() -> None:
    function = spmdc.as_jax(spmdc.parse("def main(a: f32[3]) -> (b: f32[3]) {\n  return a + a\n}\n"))
    assert function.mesh == {}
    np.testing.assert_array_equal(function(jnp.arange(3.0)), [0, 2, 4])


@pytest.mark.parametrize("path", [*SHIPPED, *PROGRAMS[::7]], ids=lambda path: path.stem)
def test_every_program_computes_what_it_does(path: Path) -> None:
    program = spmdc.load(path)
    if program.stage != "global" or has_manual(program) or len(program.meshes) != 1:
        pytest.skip("no function of JAX")
    inputs = spmdc.random_inputs(program)
    function = spmdc.as_jax(program)
    results = function(*inputs)
    found = results if isinstance(results, tuple) else (results,)
    apart = differences(program, found, spmdc.evaluate(program, *inputs))
    assert all(difference.is_rounding for difference in apart), apart


@pytest.mark.parametrize("path", [p for p in SHIPPED if p.stem != "moe_gather"], ids=lambda path: path.stem)
def test_shipped_programs_send_no_more_as_functions(path: Path) -> None:
    program = spmdc.load(path)
    function = spmdc.as_jax(program)
    imported = spmdc.from_jax(function, *spmdc.random_inputs(program), mesh=function.mesh)
    assert spmdc.partition(imported).received_bytes() <= spmdc.partition(program).received_bytes()


def test_gradients_are_those_of_the_program() -> None:
    program, (a, w, b) = layer()
    function = spmdc.as_jax(program)
    d_w, d_b = jax.grad(lambda w, b: function(a, w, b).loss, argnums=(0, 1))(w, b)
    expected = spmdc.evaluate(spmdc.gradient(program, ["w", "b.1"], "loss"), a, w, b)
    np.testing.assert_allclose(d_w, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_b, expected[1], rtol=1e-4, atol=1e-5)


def test_vmap_and_jit_take_it() -> None:
    program, (a, w, b) = layer()
    function = spmdc.as_jax(program)
    many = jnp.stack([a, 2 * a])
    losses = jax.jit(jax.vmap(lambda a: function(a, w, b).loss))(many)
    np.testing.assert_allclose(losses, [function(x, w, b).loss for x in many], rtol=1e-5)


def test_a_training_step_is_partitioned_as_the_program_says() -> None:
    program, (a, w, b) = layer()
    function = spmdc.as_jax(program)

    def step(weights: Any, momentum: Any, a: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda weights: function(a, **weights).loss)(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum, loss

    weights = {"w": w, "b_1": b}
    state = jax.tree.map(jnp.zeros_like, weights)
    fast = spmdc.jit(step, mesh=function.mesh)
    sent = fast.partitioned(weights, state, a).collectives()
    assert {c.kind for c in sent} == {"all_reduce"}
    for _ in range(3):
        got, expected = fast(weights, state, a), step(weights, state, a)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6), got, expected)
        weights, state, _ = expected
    assert tuple(fast(weights, state, a)[0]["w"].sharding.spec) == (None, "y")


def test_ops_come_from_the_lines_of_the_program() -> None:
    program, inputs = layer()
    imported = spmdc.from_jax(spmdc.as_jax(program), *inputs, mesh={"x": 4, "y": 2})
    computed = [op for op in all_ops(imported) if op.name in ("dot_general", "tanh", "multiply")]
    assert {str(op.span).rpartition(":")[0] for op in computed} == {"layer.spmd:4", "layer.spmd:7"}


def test_elements_of_64_bits_stay_so() -> None:
    program = spmdc.parse("def main(a: f64[3]) -> (b: f64[3]) {\n  return a / 3.0\n}\n")
    found = spmdc.as_jax(program)(np.arange(3.0))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.arange(3.0) / 3.0)


def test_another_mesh_or_arrays_that_do_not_fit_are_reported() -> None:
    program, (a, w, b) = layer()
    function = spmdc.as_jax(program)
    with pytest.raises(SpmdcError, match=r"E301.*mesh \(x=4, y=2\).*over \(x=8\)"):
        spmdc.jit(function, mesh={"x": 8})(a, w, b)
    with pytest.raises(SpmdcError, match=r"E501.*input 'w' is f32\[10\]"):
        function(a, b, b)
    with pytest.raises(TypeError, match="missing a required argument: 'b_1'"):
        function(a, w)


def test_what_has_no_function_says_why() -> None:
    program, _ = layer()
    with pytest.raises(SpmdcError, match=r"E406.*an SPMD program"):
        spmdc.as_jax(spmdc.partition(program).program)
    with pytest.raises(SpmdcError, match=r"E412.*manual regions"):
        spmdc.as_jax(spmdc.load(SHIPPED[0].with_name("moe_gather.spmd")))


def test_random_bits_are_jaxs_however_they_are_traced_and_stay_one_op_where_they_are_imported() -> None:
    program = spmdc.parse("""
        mesh (x=2)
        def main(a: f32[4@x, 3], key: u32[2]) -> (loss: f32[]) {
          return sum(where(uniform(key, f32[4, 3]) < 0.5, a * a, 0))
        }
        """)
    dropped, a, key = spmdc.as_jax(program), np.arange(12, dtype="f4").reshape(4, 3), jax.random.key(7)
    data = jax.random.key_data(key)
    kept = jax.random.uniform(key, (4, 3)) < 0.5
    expected = np.where(kept, a * a, 0).sum()
    keys = jax.numpy.stack([data, data + 1])
    for got in (dropped(a, data), jax.jit(dropped)(a, data), jax.vmap(dropped, (None, 0))(a, keys)[0],
                spmdc.jit(dropped, mesh=dropped.mesh)(a, data)):  # fmt: skip
        assert got == expected
    np.testing.assert_array_equal(jax.jit(jax.grad(dropped))(a, data), np.where(kept, 2 * a, 0))
    gradient = spmdc.gradient(program, ["a"])
    assert [op.name for op in all_ops(gradient) if op.name in ("random_bits", "xor", "while")] == ["random_bits"]
    np.testing.assert_array_equal(spmdc.partition(gradient).simulate(a, data)[0], np.where(kept, 2 * a, 0))


_AMBIGUOUS = """
mesh (d=4, m=2)
def main(x: f32[8@d, 16], w: f32[16, 32@m], v: f32[32@m, 16]) -> (y: f32[8@d, 16], s: f32[]) {
  y = dynamic_update_slice(matmul(relu(matmul(x, w)), v), zeros([1, 16]), 2, 0)
  return y, sum(y)
}
"""
"""JAX does not find the type of the second product, which is split along what it sums over."""


def _on(kind: AxisType) -> Any:
    return jax.make_mesh((4, 2), ("d", "m"), axis_types=(kind,) * 2)


@pytest.mark.parametrize(
    "text", [_AMBIGUOUS, _AMBIGUOUS.replace("relu(matmul(x, w))", "replicate(relu(matmul(x, w)))")]
)
@pytest.mark.parametrize("is_placed", [True, False])
def test_values_in_a_program_have_no_types_on_explicit_axes(text: str, is_placed: bool) -> None:
    """A mesh with Explicit axes sends what one with Auto axes sends, but for results: these have types."""
    program = spmdc.parse(text)
    function, inputs = spmdc.as_jax(program), spmdc.random_inputs(program, integers=True)
    wanted, sent = spmdc.evaluate(program, *inputs), list[int]()

    def loss(*arrays: Any) -> Any:
        return function(*arrays).s

    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = _on(kind)
        specs = (P("d"), P(None, "m"), P("m")) if is_placed else (P(),) * 3
        arrays = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(inputs, specs, strict=True)]
        step = spmdc.jit(jax.grad(loss, (1, 2)) if is_placed else loss, mesh=mesh)
        sent.append(step.partitioned(*arrays).received_bytes())
        found = spmdc.jit(lambda *a: function(*a), mesh=mesh)(*arrays)
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    assert sent[0] == sent[1]


def test_a_program_runs_in_jax_where_types_would_be_ambiguous() -> None:
    program = spmdc.parse(_AMBIGUOUS)
    function, inputs = spmdc.as_jax(program), spmdc.random_inputs(program, integers=True)
    mesh = _on(AxisType.Explicit)
    specs = (P("d"), P(None, "m"), P("m"))
    arrays = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(inputs, specs, strict=True)]
    with jax.set_mesh(mesh):
        for call in (function, jax.jit(lambda *a: function(*a))):
            for got, want in zip(call(*arrays), spmdc.evaluate(program, *inputs), strict=True):
                np.testing.assert_array_equal(got, want)
