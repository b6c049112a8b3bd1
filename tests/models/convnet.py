"""A convolutional classifier with batch norm and max pooling, as one writes it in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def init(key: Any, channels: tuple[int, ...], classes: int) -> dict[str, Any]:
    keys = jax.random.split(key, len(channels))
    stages = [
        {
            "kernel": jax.random.normal(k, (3, 3, m, n)) * (9 * m) ** -0.5,
            "scale": jnp.ones(n),
            "shift": jnp.zeros(n),
        }
        for k, m, n in zip(keys[:-1], channels[:-1], channels[1:], strict=True)
    ]
    return {"stages": stages, "head": jax.random.normal(keys[-1], (channels[-1], classes)) * 0.1}


def conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.var(x, axis=(0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def forward(params: Any, images: Any) -> Any:
    x = images
    for stage in params["stages"]:
        x = jax.nn.relu(batch_norm(conv(x, stage["kernel"]), stage["scale"], stage["shift"]))
        x = max_pool(x)
    return jnp.mean(x, axis=(1, 2)) @ params["head"]


def loss(params: Any, images: Any, labels: Any) -> Any:
    logits = jax.nn.log_softmax(forward(params, images))
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, logits.shape[-1]) * logits, axis=-1))


def step(params: Any, images: Any, labels: Any) -> Any:
    """One step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params, images, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
