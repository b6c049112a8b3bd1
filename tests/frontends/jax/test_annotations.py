"""GShard's annotations in JAX functions: what they say, where they survive, and that they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import spmdc
from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.program import Program, walk
from ir.sharding import DimSharding, Sharding
from lowering.jax.writer import Annotation
from spmdc.frontends.jax.annotations import annotating
from spmdc.frontends.stablehlo.annotation_text import decode, encode

P: Any = PartitionSpec
_MESH = Mesh((("x", 4), ("y", 2)))


def annotated(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    """The types of all that is annotated in the function as imported."""
    program = spmdc.from_jax(function, *(jnp.zeros(s) for s in shapes), mesh=_MESH)
    return [str(op.result.sharding and spell(op.result.sharding)) for op in all_ops(program) if op.name == "shard"]


def all_ops(program: Program) -> list[Any]:
    return [op for f in program.functions.values() for op in walk(f.body)]


def spell(sharding: Sharding) -> str:
    def dim(d: DimSharding) -> str:
        return "?" if d.open else "".join(sharding.mesh.spell(a) for a in d.axes) or "_"

    return " ".join(map(dim, sharding.dims))


@pytest.mark.parametrize(
    ("expected", "annotate"),
    [
        ("_ _", lambda a: spmdc.replicate(a)),
        ("x _", lambda a: spmdc.split(a, 0, 4)),
        ("_ y", lambda a: spmdc.split(a, -1, 2)),
        ("xy _", lambda a: spmdc.split(a, 0, 8)),
        ("yx _", lambda a: spmdc.split(a, 0, "y", "x")),
        ("x y", lambda a: spmdc.shard(a, P("x", "y"))),
        ("_ ?", lambda a: spmdc.shard(a, P(None, P.UNCONSTRAINED))),
        ("x y", lambda a: spmdc.shard(a, "{devices=[4,2]<=[8]}")),
        ("_ x:(1)2", lambda a: spmdc.shard(a, '#sdy.sharding<@mesh, [{}, {"x":(1)2}]>')),
        ("x y", lambda a: spmdc.shard(a, [[0, 1], [2, 3], [4, 5], [6, 7]])),
    ],
)
def test_what_each_way_of_saying_it_means(expected: str, annotate: Callable[[Any], Any]) -> None:
    assert annotated(annotate, (8, 6)) == [expected]


def test_a_gradient_puts_the_annotation_on_the_cotangent() -> None:
    found = annotated(jax.grad(lambda a: jnp.sum(spmdc.split(a * a, 0, "x") ** 2)), (8, 6))
    assert found == ["x _", "x _"]


def test_vmap_leaves_the_new_dim_open() -> None:
    assert annotated(jax.vmap(lambda a: spmdc.split(a, 0, "x")), (3, 8, 6)) == ["? x _"]
    assert annotated(jax.vmap(lambda a: spmdc.split(a, 1, "y"), in_axes=2), (8, 6, 3)) == ["_ y ?"]
    twice = jax.vmap(jax.vmap(lambda a: spmdc.split(a, 0, "x")), in_axes=1)
    assert annotated(twice, (5, 3, 8)) == ["? ? x"]


def test_vmap_splits_the_new_dim_over_the_axes_that_it_names() -> None:
    split = jax.vmap(lambda a: spmdc.split(a, 0, "x"), in_axes=1, spmd_axis_name="y")
    assert annotated(split, (8, 4, 6)) == ["x y _"]
    assert annotated(jax.vmap(spmdc.replicate, spmd_axis_name=("x", "y")), (8, 6)) == ["xy _"]
    with pytest.raises(SpmdcError, match="axis 'x' is used twice") as caught:
        annotated(jax.vmap(lambda a: spmdc.split(a, 0, "x"), spmd_axis_name="x"), (4, 8))
    assert "spmd_axis_name" in caught.value.diagnostics[0].help


def test_annotations_inside_scan_stay_in_the_loop() -> None:
    def steps(a: Any) -> Any:
        return jax.lax.scan(lambda c, _: (spmdc.split(jnp.tanh(c), 0, "x"), None), a, None, length=3)[0]

    assert annotated(steps, (8, 6)) == ["x _"]
    assert annotated(jax.grad(lambda a: jnp.sum(steps(a))), (8, 6)) == ["x _", "x _"]


def test_a_function_that_jax_has_already_traced_is_annotated_for_the_mesh_at_work() -> None:
    inner = jax.jit(lambda a: spmdc.split(a, 0, "x") + 1)
    apply: Any = inner
    np.testing.assert_array_equal(inner(jnp.zeros((8, 6))), np.ones((8, 6)))
    assert annotated(lambda a: apply(a), (8, 6)) == ["x _"]
    other = spmdc.from_jax(lambda a: apply(a), jnp.zeros((8, 6)), mesh={"x": 2})
    assert [op.result.sharding.mesh.size for op in all_ops(other) if op.name == "shard"] == [2]


def test_outside_of_spmdc_annotations_have_no_effect() -> None:
    a = jnp.arange(6.0)
    functions: list[Any] = [lambda a: spmdc.split(a, 0, 4), lambda a: spmdc.shard(a, P("nowhere")), spmdc.replicate]
    for function in functions:
        np.testing.assert_array_equal(function(a), a)
        jitted: Any = jax.jit(function)
        np.testing.assert_array_equal(jitted(a), a)


@pytest.mark.parametrize(
    ("code", "annotate"),
    [
        ("E303", lambda a: spmdc.split(a, 2, "x")),
        ("E301", lambda a: spmdc.split(a, 0, "z")),
        ("E302", lambda a: spmdc.split(a, 0, "x", "x")),
        ("E305", lambda a: spmdc.split(a, 0, 3)),
        ("E203", lambda a: spmdc.split(a, 0)),
        ("E203", lambda a: spmdc.split(a, 0, 2, 4)),
        ("E303", lambda a: spmdc.shard(a, P("x", None, "y"))),
        ("E309", lambda a: spmdc.shard(a, 7)),
    ],
)
def test_an_annotation_that_does_not_fit_is_reported_where_it_stands(code: str, annotate: Callable[[Any], Any]) -> None:
    with annotating(_MESH), pytest.raises(SpmdcError) as caught:
        annotate(jnp.zeros((8, 6)))
    assert caught.value.diagnostics[0].code == code


def test_a_sharding_survives_its_custom_call() -> None:
    mesh = Mesh((("a", 4), ("b", 6)), tuple(reversed(range(24))), "m1")
    sharding = Sharding(
        mesh,
        (DimSharding((AxisRef("b", 1, 2),), open=True, priority=2), DimSharding()),
        ((AxisRef("a", 1, 4), "max"),),
        (AxisRef("b", 2, 3),),
    )
    for annotation in (Annotation(sharding), Annotation(sharding, group=3), Annotation(sharding, passes="forward")):
        assert decode(encode(annotation)) == annotation
