"""A multilayer perceptron and its training step with Adam, as one writes them in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def init(key: Any, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    keys = jax.random.split(key, len(widths) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)}
        for k, m, n in zip(keys, widths[:-1], widths[1:], strict=True)
    ]


def forward(params: Any, x: Any) -> Any:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params: Any, x: Any, labels: Any) -> Any:
    logits = jax.nn.log_softmax(forward(params, x))
    return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], axis=-1))


def adam(params: Any, grads: Any, state: Any, rate: float = 1e-3, b1: float = 0.9, b2: float = 0.999) -> Any:
    """Adam (Kingma and Ba, Algorithm 1)."""
    m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, grads)
    scale = rate * jnp.sqrt(1 - b2**t) / (1 - b1**t)
    params = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, (m, v, t)


def adam_state(params: Any) -> Any:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return zeros, zeros, jnp.zeros((), jnp.float32)


def step(params: Any, state: Any, x: Any, labels: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, x, labels)
    params, state = adam(params, grads, state)
    return params, state, value
