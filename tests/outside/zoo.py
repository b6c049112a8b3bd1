"""Models out of public packages, small, with random weights: what each computes, and what a training step of it is.

A model here is the package's own code. What is written below is how it is called, and a loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import blackjax
import diffrax
import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import jraph
import numpyro
import optax
import optimistix
from flax import nnx
from jax_md import energy, simulate, space
from numpyro import distributions as dist
from numpyro.infer.util import log_density


@dataclass(frozen=True)
class Model:
    """`forward(params, *data)` and `loss(params, *data)`; `batch` is the dim of each of the data for examples."""

    params: Any
    data: tuple[Any, ...]
    forward: Callable[..., Any]
    loss: Callable[..., Any]
    batch: tuple[int | None, ...]
    optimizer: Any = field(default_factory=lambda: optax.adam(1e-3))

    def step(self, params: Any, state: Any, *data: Any) -> tuple[Any, Any, Any]:
        """One step of training: the new weights, the state of the optimizer, and the loss before."""
        loss, gradient = jax.value_and_grad(self.loss)(params, *data)
        updates, state = self.optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss


MODELS: dict[str, Callable[[], Model]] = {}


def model(build: Callable[[], Model]) -> Callable[[], Model]:
    """Registers a model, built once."""
    cached = functools.cache(build)
    MODELS[build.__name__] = cached
    return cached


def key(n: int) -> Any:
    return jax.random.key(n)


def normal(n: int, *shape: int) -> Any:
    return jax.random.normal(key(n), shape)


def classes(n: int, count: int, *shape: int) -> Any:
    return jax.random.randint(key(n), shape, 0, count)


def crossed(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class _Block(nn.Module):
    """A layer of a Transformer, of flax's own parts."""

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=8, use_bias=False)(y, mask=mask)
        y = nn.gelu(nn.Dense(128)(nn.LayerNorm()(x)))
        return x + nn.Dense(32)(y)


class _Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(64, 32)
        x = embed(tokens)
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = _Block()(x, mask)
        return embed.attend(nn.LayerNorm()(x))


@model
def flax_transformer() -> Model:
    module = _Transformer()
    tokens = classes(1, 64, 16, 16)
    params = module.init(key(0), tokens)
    return Model(
        params, (tokens,), module.apply,
        lambda p, t: crossed(module.apply(p, t)[:, :-1], t[:, 1:]), (0,), optax.adamw(1e-3),
    )  # fmt: skip


@model
def flax_decoding_with_a_cache() -> Model:
    """Tokens one by one through attention with a cache of keys and values."""
    module = nn.MultiHeadDotProductAttention(num_heads=8, use_bias=False, decode=True)
    x = normal(1, 8, 12, 32)
    variables = module.init(key(0), x)

    def forward(params: Any, x: Any) -> Any:
        def one(cache: Any, token: Any) -> Any:
            y, changed = module.apply({"params": params, "cache": cache}, token[:, None], mutable=["cache"])
            return changed["cache"], y[:, 0]

        cache, y = jax.lax.scan(one, variables["cache"], x.swapaxes(0, 1))
        return y, cache

    return Model(
        variables["params"], (x,), forward, lambda p, x: jnp.square(forward(p, x)[0]).mean(), (0,), optax.lion(1e-3)
    )


@model
def nnx_mlp_with_batch_norm() -> Model:
    rngs = nnx.Rngs(0)
    wide, narrow = nnx.Linear(24, 64, use_bias=False, rngs=rngs), nnx.Linear(64, 16, rngs=rngs)
    module = nnx.Sequential(wide, nnx.BatchNorm(64, rngs=rngs), nnx.gelu, narrow)
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    x, labels = normal(1, 32, 24), classes(2, 16, 32)

    def forward(params: Any, x: Any, labels: Any) -> Any:
        return nnx.merge(graph, params, rest, copy=True)(x)

    return Model(
        params, (x, labels), forward, lambda p, x, y: crossed(forward(p, x, y), y), (0, 0), optax.sgd(0.1, 0.9)
    )


def _haiku(name: str, network: Callable[[], Any], images: Any, labels: Any, optimizer: Any) -> Model:
    function = hk.transform_with_state(lambda x: network()(x, is_training=True))
    params, state = function.init(key(0), images)

    def forward(params: Any, x: Any, labels: Any) -> Any:
        return function.apply(params, state, None, x)

    def loss(params: Any, x: Any, labels: Any) -> Any:
        return crossed(forward(params, x, labels)[0], labels)

    return Model(params, (images, labels), forward, loss, (0, 0), optimizer)


@model
def haiku_resnet() -> Model:
    def network() -> Any:
        return hk.nets.ResNet([1, 1, 1, 1], 8, bottleneck=False, channels_per_group=(8, 16, 32, 64),
                              use_projection=(True,) * 4)  # fmt: skip

    return _haiku("resnet", network, normal(1, 8, 32, 32, 3), classes(2, 8, 8), optax.sgd(0.1, 0.9, nesterov=True))


@model
def haiku_mobilenet() -> Model:
    def network() -> Any:
        return hk.nets.MobileNetV1(strides=(1, 2, 1, 2), channels=(16, 16, 32, 32), num_classes=8)

    return _haiku("mobilenet", network, normal(1, 8, 16, 16, 3), classes(2, 8, 8), optax.sgd(1e-3))


@model
def haiku_lstm() -> Model:
    def unroll(x: Any) -> Any:
        core = hk.DeepRNN([hk.LSTM(32), jax.nn.relu, hk.GRU(32), hk.Linear(8)])
        return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))[0]

    function = hk.without_apply_rng(hk.transform(unroll))
    x, targets = normal(1, 10, 16, 12), normal(2, 10, 16, 8)
    params = function.init(key(0), x)
    return Model(
        params, (x, targets), lambda p, x, t: function.apply(p, x),
        lambda p, x, t: optax.huber_loss(function.apply(p, x), t).mean(), (1, 1),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    )  # fmt: skip


@model
def equinox_vision() -> Model:
    """Patches by a convolution, attention, and a perceptron, mapped over the batch."""
    keys = jax.random.split(key(0), 4)
    parts = (
        eqx.nn.Conv2d(3, 32, 4, 4, key=keys[0]),
        eqx.nn.MultiheadAttention(4, 32, key=keys[1]),
        eqx.nn.LayerNorm(32),
        eqx.nn.MLP(32, 8, 64, 2, key=keys[2]),
    )
    params, static = eqx.partition(parts, eqx.is_inexact_array)
    images, labels = normal(1, 16, 3, 16, 16), classes(2, 8, 16)

    def forward(params: Any, images: Any, labels: Any) -> Any:
        patches, attention, norm, head = eqx.combine(params, static)

        def one(image: Any) -> Any:
            x = patches(image).reshape(32, -1).T
            x = x + attention(x, x, x)
            return head(jax.vmap(norm)(x).mean(0))

        return jax.vmap(one)(images)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return crossed(forward(params, images, labels), labels)

    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=16)
    return Model(params, (images, labels), forward, loss, (0, 0), optimizer)


@model
def diffrax_neural_ode() -> Model:
    slope = eqx.nn.MLP(4, 4, 32, 2, activation=jnp.tanh, key=key(0))
    params, static = eqx.partition(slope, eqx.is_inexact_array)
    starts, targets = normal(1, 16, 4), normal(2, 16, 5, 4)

    def forward(params: Any, starts: Any, targets: Any) -> Any:
        term = diffrax.ODETerm(lambda t, y, args: eqx.combine(params, static)(y))

        def one(y: Any) -> Any:
            return diffrax.diffeqsolve(
                term, diffrax.Tsit5(), 0.0, 1.0, None, y, saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 5)),
                stepsize_controller=diffrax.PIDController(1e-3, 1e-4), max_steps=16,
            ).ys  # fmt: skip

        return jax.vmap(one)(starts)

    return Model(params, (starts, targets), forward, lambda p, s, t: jnp.square(forward(p, s, t) - t).mean(), (0, 0))


@model
def jraph_graph_network() -> Model:
    nodes, edges, labels = normal(1, 48, 16), normal(2, 96, 8), normal(3, 48, 16)
    senders, receivers = classes(4, 48, 96), classes(5, 48, 96)
    sizes = jnp.array([48]), jnp.array([96])

    def network(nodes: Any, edges: Any, senders: Any, receivers: Any) -> Any:
        graph = jraph.GraphsTuple(nodes, edges, receivers, senders, None, *sizes)

        def linear(n: int) -> Any:
            return jraph.concatenated_args(hk.nets.MLP([32, n]))

        once = jraph.InteractionNetwork(linear(8), linear(16), include_sent_messages_in_node_update=True)
        graph = once(once(graph))
        return graph.nodes, graph.edges

    function = hk.without_apply_rng(hk.transform(network))
    data = (nodes, edges, senders, receivers)
    params = function.init(key(0), *data)

    def loss(params: Any, nodes: Any, edges: Any, senders: Any, receivers: Any, labels: Any) -> Any:
        return jnp.square(function.apply(params, nodes, edges, senders, receivers)[0] - labels).mean()

    def forward(params: Any, nodes: Any, edges: Any, senders: Any, receivers: Any, labels: Any) -> Any:
        return function.apply(params, nodes, edges, senders, receivers)

    return Model(params, (*data, labels), forward, loss, (0,) * 5)


@model
def blackjax_hamiltonian() -> Model:
    """Steps of Hamiltonian Monte Carlo on the posterior of a logistic regression, its data split."""
    x, y = normal(1, 64, 8), classes(2, 2, 64)

    def log_posterior(w: Any, x: Any, y: Any) -> Any:
        return -optax.sigmoid_binary_cross_entropy(x @ w, y).sum() - jnp.square(w).sum() / 2

    def forward(w: Any, x: Any, y: Any) -> Any:
        kernel = blackjax.hmc(lambda w: log_posterior(w, x, y), 1e-2, jnp.ones(8), 5)

        def one(state: Any, k: Any) -> Any:
            state, info = kernel.step(k, state)
            return state, info.acceptance_rate

        state, rates = jax.lax.scan(one, kernel.init(w), jax.random.split(key(7), 6))
        return state.position, rates

    return Model(normal(0, 8), (x, y), forward, lambda w, x, y: -log_posterior(w, x, y), (0, 0), optax.yogi(1e-2))


@model
def optimistix_least_squares() -> Model:
    """A fit by Levenberg and Marquardt, differentiated as the implicit function that it is."""
    x = normal(1, 64, 3)
    targets = jnp.tanh(x @ jnp.array([1.0, -2.0, 0.5]))

    def forward(start: Any, x: Any, targets: Any) -> Any:
        solver = optimistix.LevenbergMarquardt(1e-4, 1e-4)
        return optimistix.least_squares(
            lambda w, _: jnp.tanh(x @ w) - targets, solver, start, max_steps=16, throw=False
        ).value

    return Model(normal(0, 3) / 8, (x, targets), forward, lambda w, x, y: jnp.square(forward(w, x, y)).sum(), (0, 0))


@model
def numpyro_regression() -> Model:
    x, y = normal(1, 32, 8), normal(2, 32)

    def regression(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([8]))
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        df = numpyro.sample("df", dist.Gamma(3.0, 0.1))
        with numpyro.plate("data", 32):
            numpyro.sample("y", dist.StudentT(df, x @ w, scale), obs=y)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return -log_density(regression, (x, y), {}, jax.tree.map(jnp.exp, params))[0]

    params = {"w": normal(3, 8), "scale": jnp.float32(0.1), "df": jnp.float32(1.0)}
    return Model(params, (x, y), loss, loss, (0, 0), optax.adabelief(1e-3))


@model
def jax_md_lennard_jones() -> Model:
    """Molecular dynamics at constant energy; what is learnt are the depth and width of the potential."""
    displacement, shift = space.periodic(8.0)
    positions = jax.random.uniform(key(0), (32, 3)) * 8.0

    def energies(params: Any, positions: Any) -> Any:
        pair = energy.soft_sphere_pair(displacement, sigma=params["sigma"], epsilon=params["epsilon"])
        return pair(positions)

    def forward(params: Any, positions: Any) -> Any:
        start, move = simulate.nve(functools.partial(energies, params), shift, 1e-3)
        state = start(key(1), positions, kT=0.1)
        state = jax.lax.fori_loop(0, 5, lambda _, s: move(s), state)
        return state.position, state.velocity

    def loss(params: Any, positions: Any) -> Any:
        return jnp.square(forward(params, positions)[0]).mean()

    return Model({"sigma": jnp.float32(1.5), "epsilon": jnp.float32(1.0)}, (positions,), forward, loss, (0,))


WAYS: Mapping[str, Mapping[str, int]] = {"8": {"x": 8}, "2x4": {"x": 2, "y": 4}, "2x2x2": {"x": 2, "y": 2, "z": 2}}
