"""Twelve models that other people wrote, forward and as a training step: equal to jax.jit, no more bytes than XLA.

Run with `make models`, which installs their packages: the extra `models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import pytest
from harness import MESHES, P, Run, check, check_on_devices
from zoo import MODELS, Model

SHARE = 1e-2
"""Gradients behind normalisations are small differences of numbers of the size of the weights."""


def split(leaf: Any, axes: tuple[str, ...], size: int) -> Any:
    """The first dim that the axes divide, split over them; whole where there is none, or little to split."""
    for dim, n in enumerate(leaf.shape):
        if n % size == 0 and leaf.size >= 128:
            return P(*(None,) * dim, axes)
    return P()


def runs(model: Model, mesh: str) -> tuple[Run, Run]:
    """On one axis the data is split; on two, the data over one and weights over the other; on three, both over all."""
    sizes = MESHES[mesh]
    axes = tuple(sizes)
    over = {1: (), 2: axes[1:], 3: axes}[len(axes)]
    batch = axes if len(axes) != 2 else axes[:1]
    count = 1
    for axis in over:
        count *= sizes[axis]

    def weights(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: split(leaf, over, count) if over else P(), tree)

    state = model.optimizer.init(model.params)
    data: Sequence[Any] = [P() if d is None else P(*(None,) * d, batch) for d in model.batch]
    places = weights(model.params), weights(state)
    results = jax.tree.map(lambda _: P(), jax.eval_shape(model.forward, model.params, *model.data))
    forward = Run(model.forward, (model.params, *model.data), (places[0], *data), results)
    return forward, Run(model.step, (model.params, state, *model.data), (*places, *data), (*places, P()))


@pytest.mark.parametrize("part", ["forward", "step"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_equal_to_jax_and_sends_no_more_than_xla(name: str, mesh: str, part: str) -> None:
    run = runs(MODELS[name](), mesh)[part == "step"]
    ours, theirs = check(run, MESHES[mesh], share=SHARE)
    print(f"{name} {mesh} {part}: {ours} bytes, {theirs} under XLA")


@pytest.mark.parametrize("part", ["forward", "step"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_devices_is_equal_to_jax(name: str, mesh: str, part: str) -> None:
    check_on_devices(runs(MODELS[name](), mesh)[part == "step"], MESHES[mesh], share=SHARE)
