"""Weights, and what an optimizer keeps of them, split over the axes of the batch to save memory, with no annotations
inside (ZeRO, FSDP). A step then has to send each weight twice, for the forward pass and the backward pass, and each
gradient once (Rajbhandari et al., "ZeRO", section 7.2.2), whatever dims a Transformer's weights are split along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lstm
import numpy as np
import pytest
import transformer
from harness import P, Run, partitioned

Model = tuple[Callable[..., Any], Any, Any]
"""A loss of parameters and data, and these."""

AXES = "x", "y"
DEVICES = 8


def scanned_transformer() -> Model:
    made = transformer.init(jax.random.key(0), vocabulary=64, width=32, heads=4, hidden=64, layers=3)
    params = {**made, "layers": jax.tree.map(lambda *each: jnp.stack(each), *made["layers"])}

    def layer(x: Any, weights: Any) -> Any:
        x = x + transformer.attention(weights, transformer.rms_norm(x, weights["norm1"]))
        hidden = jax.nn.gelu(transformer.rms_norm(x, weights["norm2"]) @ weights["up"])
        return x + hidden @ weights["down"], None

    def loss(params: Any, tokens: Any) -> Any:
        x, _ = jax.lax.scan(jax.checkpoint(layer), params["embedding"][tokens[:, :-1]], params["layers"])
        logits = jax.nn.log_softmax(transformer.rms_norm(x, params["norm"]) @ params["embedding"].T)
        return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))

    return loss, params, np.zeros((32, 17), np.int32)


def unrolled_transformer() -> Model:
    params = transformer.init(jax.random.key(0), vocabulary=64, width=32, heads=4, hidden=64, layers=2)
    return transformer.loss, params, np.zeros((32, 17), np.int32)


def recurrent() -> Model:
    """Its data are ordered by time first."""

    def loss(params: Any, sequences: Any) -> Any:
        return lstm.loss(params, sequences.swapaxes(0, 1))

    return loss, lstm.init(jax.random.key(0), 16, 32), np.zeros((64, 9, 16), np.float32)


def stored(weight: Any, first: bool) -> Any:
    """The spec of a weight split along the first or last dim that all devices can share. Small ones stay whole."""
    dims = [d for d, n in enumerate(weight.shape) if n % DEVICES == 0]
    if weight.size < 256 or not dims:
        return P()
    return P(*[None] * dims[0 if first else -1], AXES)


@pytest.mark.parametrize(
    ("model", "first"),
    [
        (scanned_transformer, True),
        (scanned_transformer, False),
        (unrolled_transformer, True),
        (unrolled_transformer, False),
        (recurrent, True),  # Not with the last dim: it carries zeros at first, which say nothing of the batch.
    ],
)
def test_a_step_sends_each_weight_twice_and_each_gradient_once(model: Callable[[], Model], first: bool) -> None:
    loss, params, data = model()
    specs = jax.tree.map(lambda weight: stored(weight, first), params)

    def step(params: Any, data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    program = partitioned(Run(step, (params, data), (specs, P(AXES)), (specs, P())), {"x": 2, "y": 4})
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert program.received_bytes() <= 3 * weights * (DEVICES - 1) // DEVICES
