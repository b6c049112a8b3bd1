"""A causal Transformer language model with rotary embeddings, as one writes it in JAX."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


def init(key: Any, *, vocabulary: int, width: int, heads: int, hidden: int, layers: int) -> dict[str, Any]:
    def matrix(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape) * shape[0] ** -0.5

    def layer(key: Any) -> dict[str, Any]:
        k = jax.random.split(key, 6)
        return {
            "norm1": jnp.ones(width),
            "wq": matrix(k[0], width, heads, width // heads),
            "wk": matrix(k[1], width, heads, width // heads),
            "wv": matrix(k[2], width, heads, width // heads),
            "wo": matrix(k[3], heads, width // heads, width),
            "norm2": jnp.ones(width),
            "up": matrix(k[4], width, hidden),
            "down": matrix(k[5], hidden, width),
        }

    keys = jax.random.split(key, layers + 1)
    return {
        "embedding": jax.random.normal(keys[-1], (vocabulary, width)) * 0.1,
        "layers": [layer(k) for k in keys[:-1]],
        "norm": jnp.ones(width),
    }


def rms_norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def rotary(x: Any) -> Any:
    """Rotates pairs of features by angles that grow with the position (RoFormer)."""
    length, half = x.shape[1], x.shape[-1] // 2
    frequencies = 10000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(length)[:, None] * frequencies
    cos, sin = jnp.cos(angles)[None, :, None, :], jnp.sin(angles)[None, :, None, :]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def attention(layer: Any, x: Any) -> Any:
    q = rotary(jnp.einsum("btm,mhd->bthd", x, layer["wq"]))
    k = rotary(jnp.einsum("btm,mhd->bthd", x, layer["wk"]))
    v = jnp.einsum("btm,mhd->bthd", x, layer["wv"])
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bthd,hdm->btm", jnp.einsum("bhts,bshd->bthd", weights, v), layer["wo"])


def forward(params: Any, tokens: Any) -> Any:
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        x = x + attention(layer, rms_norm(x, layer["norm1"]))
        x = x + jax.nn.gelu(rms_norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"]
    return rms_norm(x, params["norm"]) @ params["embedding"].T


def loss(params: Any, tokens: Any) -> Any:
    logits = jax.nn.log_softmax(forward(params, tokens[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))


def step(adam: Any, params: Any, state: Any, tokens: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, tokens)
    params, state = adam(params, grads, state)
    return params, state, value


def train_step(adam: Any) -> Any:
    return functools.partial(step, adam)
