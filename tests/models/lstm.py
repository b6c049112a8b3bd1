"""A long short-term memory over a sequence by `lax.scan`, as one writes it in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def init(key: Any, inputs: int, width: int) -> dict[str, Any]:
    k = jax.random.split(key, 3)
    return {
        "input": jax.random.normal(k[0], (inputs, 4, width)) * inputs**-0.5,
        "recurrent": jax.random.normal(k[1], (width, 4, width)) * width**-0.5,
        "bias": jnp.zeros((4, width)),
        "head": jax.random.normal(k[2], (width, inputs)) * width**-0.5,
    }


def forward(params: Any, sequence: Any) -> Any:
    """`sequence` is [time, batch, features]; the result predicts the next features."""

    def cell(carry: Any, x: Any) -> Any:
        h, c = carry
        gates = jnp.einsum("bi,igh->bgh", x, params["input"]) + jnp.einsum("bk,kgh->bgh", h, params["recurrent"])
        i, f, g, o = jnp.moveaxis(gates + params["bias"], 1, 0)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((sequence.shape[1], params["bias"].shape[1]))
    _, states = jax.lax.scan(cell, (zeros, zeros), sequence)
    return states @ params["head"]


def loss(params: Any, sequence: Any) -> Any:
    return jnp.mean((forward(params, sequence[:-1]) - sequence[1:]) ** 2)


def step(params: Any, sequence: Any) -> Any:
    """One step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params, sequence)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
