"""JAX's transformations of functions of `spmdc.jit`, outside, inside and nested, against the plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from jax.sharding import Mesh, PartitionSpec

import spmdc
from ir.diagnostics import SpmdcError
from lowering.jax import ensure_devices

P: Any = PartitionSpec
psum: Any = jax.lax.psum
axis_size: Any = jax.lax.axis_size
series: Any = jet
SIZES = {"x": 4, "y": 2}
X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
BATCH = np.stack([X, X + 1, X - 1])


def product(a: Any) -> Any:
    return jnp.sin(a) @ a.T


def energy(a: Any) -> Any:
    return jnp.sum(product(a) ** 2)


def sine(a: Any) -> Any:
    return jnp.sin(a) * 1.5


@jax.custom_jvp
def seven(a: Any) -> Any:
    return jnp.sin(a)


seven.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0] * 7))


def jitted(function: Callable[..., Any]) -> Any:
    return spmdc.jit(function, mesh=SIZES, in_shardings=(P("x"),))


def agree(got: Any, expected: Any) -> None:
    structure: Any = jax.tree.structure
    assert structure(got) == structure(expected)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (g.shape, g.dtype, g.weak_type) == (e.shape, e.dtype, e.weak_type)
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)


def scanned(step: Any) -> Callable[[Any], Any]:
    return lambda a: jnp.sum(jax.lax.scan(lambda c, _: (step(c), None), a, None, length=3)[0])


OUTSIDE: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], Any]] = {
    "jvp": (product, lambda f: lambda a: jax.jvp(f, (a,), (a,)), X),
    "jacfwd": (sine, jax.jacfwd, X[:2]),
    "jacrev": (sine, jax.jacrev, X[:2]),
    "hessian": (lambda a: jnp.sum(jnp.sin(a) ** 3), jax.hessian, X[0, :3]),
    "linearize": (product, lambda f: lambda a: jax.linearize(f, a)[1](a), X),
    "jet": (product, lambda f: lambda a: series(f, (a,), ([a, a * 2, a],)), X),
    "jit of jet": (sine, lambda f: jax.jit(lambda a: series(f, (a,), ([a, a],))), X),
    "linear_transpose": (lambda a: a @ X.T, lambda f: lambda a: jax.linear_transpose(f, a)(a @ X.T), X),
    "jvp of grad": (lambda a: jnp.sum(jnp.sin(a) ** 2), lambda f: lambda a: jax.jvp(jax.grad(f), (a,), (a,)), X),
    "grad of jvp": (energy, lambda f: jax.grad(lambda a: jax.jvp(f, (a,), (a,))[1]), X),
    "grad of grad of grad": (
        lambda a: jnp.sum(jnp.sin(a)),
        lambda f: jax.grad(lambda a: jnp.sum(jax.grad(lambda b: jnp.sum(jax.grad(f)(b)))(a))),
        X,
    ),
    "grad of jit": (energy, lambda f: jax.grad(jax.jit(f)), X),
    "jit of grad": (energy, lambda f: jax.jit(jax.grad(f)), X),
    "grad of vmap": (lambda a: jnp.sum(jnp.sin(a) ** 2), lambda f: jax.grad(lambda b: jnp.sum(jax.vmap(f)(b))), BATCH),
    "vmap of grad": (energy, lambda f: jax.vmap(jax.grad(f)), BATCH),
    "jvp of vmap": (product, lambda f: lambda b: jax.jvp(jax.vmap(f), (b,), (b,)), BATCH),
    "vmap of another dim": (product, lambda f: jax.vmap(f, in_axes=1, out_axes=1), BATCH.swapaxes(0, 1)),
    "vmap of vmap": (product, lambda f: jax.vmap(jax.vmap(f)), np.stack([BATCH, BATCH])),
    "grad of scan": (sine, lambda f: jax.grad(scanned(f)), X),
    "cond": (sine, lambda f: jax.jit(lambda a: jax.lax.cond(jnp.sum(a) > 0, f, lambda a: a, a)), X),
    "checkpoint": (
        energy, lambda f: jax.grad(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)), X
    ),
    "stop_gradient inside": (
        lambda a: jnp.sum(jax.lax.stop_gradient(jnp.sin(a)) * a),
        lambda f: lambda a: (jax.grad(f)(a), jax.jvp(f, (a,), (a,))),
        X,
    ),
    "custom_jvp inside": (lambda a: jnp.sum(seven(a)), lambda f: lambda a: (jax.grad(f)(a), jax.jacfwd(f)(a)), X),
    "eval_shape": (product, lambda f: lambda a: jnp.zeros(jax.eval_shape(f, a).shape), X),
}  # fmt: skip


@pytest.mark.parametrize("what", OUTSIDE)
def test_a_transformation_outside(what: str) -> None:
    function, transform, argument = OUTSIDE[what]
    agree(transform(jitted(function))(argument), jax.jit(transform(function))(argument))


def test_a_gradient_partitions_no_more_than_its_two_passes() -> None:
    function = jitted(energy)
    jax.grad(function)(X)
    (specialisation,) = function.specialisations
    forward, linear = specialisation.part.linearised((0,))
    backward = linear.transposed((len(linear.avals) - 1,), (0,))
    made = ["partitioned" in vars(part) for part in (specialisation.part, forward, linear, backward)]
    assert made == [False, True, False, True]
    assert (specialisation.part.linearised.cache_info().misses, linear.transposed.cache_info().misses) == (1, 1)


def test_tangents_of_numbers_are_as_weakly_typed_as_they_are() -> None:
    half = jnp.asarray(np.arange(30).reshape(5, 6) % 4, jnp.bfloat16)

    def scaled(a: Any, c: Any) -> Any:
        return jnp.sum(a * c)

    function = spmdc.jit(scaled, mesh=SIZES)
    agree(jax.grad(function, argnums=(0, 1))(half, 2.0), jax.grad(scaled, argnums=(0, 1))(half, 2.0))
    agree(jax.jvp(function, (half, 2.0), (half, 1.0)), jax.jvp(scaled, (half, 2.0), (half, 1.0)))


def test_a_gradient_through_drawn_numbers_that_are_drawn_again() -> None:
    @jax.checkpoint
    def dropped(a: Any, key: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.5, a.shape), jnp.sin(a), 0) ** 2

    def loss(a: Any, key: Any) -> Any:
        first, second = jax.random.split(key)
        return jnp.sum(dropped(dropped(a, first), second))

    key = jax.random.key(3)
    agree(jax.grad(spmdc.jit(loss, mesh=SIZES))(X, key), jax.grad(loss)(X, key))


def test_a_call_inside_of_another_is_part_of_its_program() -> None:
    inner = jitted(product)
    outer = spmdc.jit(lambda a: inner(a) + 1, mesh=SIZES)
    agree(outer(X), product(X) + 1)
    assert outer.partitioned(X).program.main.params[0].shape == (2, 6)
    assert not inner.specialisations[0].part.__dict__.get("partitioned")
    step = spmdc.jit(lambda b: jax.vmap(jax.grad(jitted(energy)))(b), mesh=SIZES)
    agree(step(BATCH), jax.vmap(jax.grad(energy))(BATCH))


@pytest.mark.parametrize("spmdc_first", [True, False])
def test_what_jax_has_traced_before_is_right_inside_and_outside(spmdc_first: bool) -> None:
    inner = jitted(product)
    traced = jax.jit(lambda a: inner(a) + 1)
    calls = [spmdc.jit(traced, mesh=SIZES), traced]
    for call in calls if spmdc_first else calls[::-1]:
        agree(call(X), product(X) + 1)


def test_a_call_inside_of_another_over_another_mesh_is_refused() -> None:
    inner = spmdc.jit(product, mesh={"z": 2})
    with pytest.raises(SpmdcError, match="E301"):
        spmdc.jit(lambda a: inner(a), mesh=SIZES)(X)
    with (
        jax.set_mesh(Mesh(np.array(ensure_devices(8)), ("x",))),
        pytest.raises(SpmdcError, match="E301"),
    ):
        inner(X)


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
W = np.arange(1, 4, dtype=np.float32)

CLOSURES: dict[str, Callable[[Wrap], Any]] = {
    "grad": lambda wrap: jax.grad(lambda w: jnp.sum(wrap(lambda a: a * w)(X)))(2.0),
    "hessian": lambda wrap: jax.hessian(lambda w: jnp.sum(wrap(lambda a: a * jnp.sin(w))(X)))(2.0),
    "vmap": lambda wrap: jax.vmap(lambda w: wrap(lambda a: a * w)(X))(W),
    "vmap of grad by both": lambda wrap: jax.vmap(
        jax.grad(lambda w, a: jnp.sum(wrap(lambda b: b * w**2)(a)), argnums=(0, 1)), in_axes=(0, None)
    )(W, X),
    "jit": lambda wrap: jax.jit(lambda i: wrap(lambda a: a[i])(X))(1),
    "scan": lambda wrap: jax.lax.scan(lambda c, w: (c + 1, wrap(lambda a: a * w + c)(X)), 0, W)[1],
    "keys": lambda wrap: jax.vmap(lambda k: wrap(lambda a: a + jax.random.normal(k, (6,)))(X))(
        jax.random.split(jax.random.key(0), 2)
    ),
    "one in another": lambda wrap: jax.grad(
        lambda w: jnp.sum(wrap(lambda x: wrap(lambda a: a * w + x)(x * 2))(X))
    )(2.0),
    "an axis with a name": lambda wrap: jax.vmap(
        lambda w: wrap(lambda a: a * w * axis_size("b"))(X), axis_name="b"
    )(W),
}  # fmt: skip


@pytest.mark.parametrize("what", CLOSURES)
def test_values_of_a_transformation_around_may_be_closed_over(what: str) -> None:
    with jax.checking_leaks():
        agree(CLOSURES[what](jitted), CLOSURES[what](jax.jit))


def test_what_closes_over_values_of_a_transformation_is_not_compiled_ahead_of_time() -> None:
    def loss(w: Any) -> Any:
        spmdc.jit(lambda a: a * w, mesh=SIZES).lower(X).compile()
        return w

    with pytest.raises(SpmdcError) as caught:
        jax.grad(loss)(1.0)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E711"
    assert diagnostic.help


def test_a_function_of_scalars_serves_as_that_of_a_reduction() -> None:
    def both(a: Any, b: Any) -> Any:
        return a * b + a + b

    counts = jnp.arange(12.0).reshape(3, 4)
    for wrap in (lambda f: f, jax.jit):
        found = wrap(lambda a: jax.lax.reduce(a, np.float32(0), spmdc.jit(both, mesh=SIZES), (0,)))(counts)
        agree(found, jax.lax.reduce(counts, np.float32(0), both, (0,)))


def test_a_mesh_of_the_context_serves_jit_and_grad() -> None:
    mesh = Mesh(np.array(ensure_devices(8)).reshape(4, 2), ("x", "y"))
    function = spmdc.jit(energy, in_shardings=(P("x"),))
    with jax.set_mesh(mesh):
        agree(jax.jit(lambda a: function(a) + 1)(X), energy(X) + 1)
        agree(jax.grad(function)(X), jax.grad(energy)(X))


@pytest.mark.parametrize("devices", [slice(None, None, -1), slice(2, 6)])
def test_devices_in_any_order_under_jit_and_grad(devices: slice) -> None:
    chosen = np.array(ensure_devices(8))[devices]
    function = spmdc.jit(energy, mesh=Mesh(chosen, ("x",)), in_shardings=(P("x"),))
    agree(jax.jit(lambda a: function(a) + 1)(X), energy(X) + 1)
    agree(jax.jit(jax.grad(function))(X), jax.grad(energy)(X))


def test_shard_map_inside_over_a_mesh_with_devices_or_that_of_the_call() -> None:
    mesh = Mesh(np.array(ensure_devices(8)).reshape(4, 2), ("x", "y"))
    for given in (mesh, None):
        options: Any = {"in_specs": P("x"), "out_specs": P()} | ({"mesh": mesh} if given is not None else {})
        summed = jax.shard_map(lambda a: psum(jnp.sin(a), "x"), **options)
        function = spmdc.jit(lambda a, summed=summed: jnp.sum(summed(a) ** 2), mesh=SIZES)

        def plain(a: Any) -> Any:
            return jnp.sum(jnp.sum(jnp.sin(a).reshape(4, 2, 6), 0) ** 2)

        argument = jnp.asarray(np.concatenate([X, X[:3]]))
        agree(function(argument), plain(argument))
        agree(jax.grad(function)(argument), jax.grad(plain)(argument))
        agree(jax.jvp(function, (argument,), (argument,)), jax.jvp(plain, (argument,), (argument,)))


def test_results_that_do_not_depend_on_a_batch_have_none() -> None:
    def several(a: Any, b: Any) -> Any:
        return a * 2, jnp.ones(3), b + 1, jnp.zeros(())

    axes: Any = (0, None, None, None)
    ours, theirs = (
        jax.vmap(f, in_axes=(0, None), out_axes=axes)
        for f in (spmdc.jit(several, mesh=SIZES, in_shardings=P("x")), jax.jit(several))
    )
    agree(ours(BATCH, X), theirs(BATCH, X))
    agree(jax.jit(ours)(BATCH, X), theirs(BATCH, X))
    with pytest.raises(ValueError, match="got axis spec None but output was batched"):
        jax.vmap(spmdc.jit(several, mesh=SIZES), in_axes=(0, None), out_axes=None)(BATCH, X)


def test_annotations_go_through_custom_derivatives_checkpoints_and_loops() -> None:
    @jax.custom_vjp
    def step(a: Any) -> Any:
        return spmdc.split(jnp.sin(a), 0, "x")

    step.defvjp(
        lambda a: (spmdc.replicate(jnp.sin(a)), spmdc.split(a, 1, "y")), lambda a, c: (spmdc.split(c * 7, 0, "x"),)
    )
    loss = jax.checkpoint(scanned(step))
    for transform in (jax.grad, lambda f: jax.vmap(jax.grad(f))):
        argument = X if transform is jax.grad else BATCH
        expected = transform(loss)(argument)
        agree(spmdc.jit(transform(loss), mesh=SIZES)(argument), expected)
        agree(transform(spmdc.jit(loss, mesh=SIZES))(argument), expected)


@pytest.mark.parametrize("placement", [P("x"), P(None, "x"), P("y", "x")])
@pytest.mark.parametrize(
    ("window", "stride", "padding"), [(2, 1, "VALID"), (3, 1, "SAME"), (3, 2, "SAME"), (2, 2, "VALID")]
)
def test_the_gradient_of_a_pooling_adds_up_what_windows_that_overlap_select(
    window: int, stride: int, padding: str, placement: Any
) -> None:
    """XLA's partitioner, with which `jax.jit` splits this, is wrong where the stride is 1."""

    def slope(a: Any) -> Any:
        pooled = jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (window, window), (stride, stride), padding)
        return jnp.sum(pooled * jnp.arange(pooled.size, dtype=a.dtype).reshape(pooled.shape))

    images = np.random.default_rng(0).permutation(64).reshape(8, 8).astype(np.float32)
    found = spmdc.jit(jax.grad(slope), mesh=SIZES, in_shardings=(placement,))(images)
    np.testing.assert_array_equal(found, jax.grad(slope)(images))
