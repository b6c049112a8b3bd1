"""Where the arguments of the outside models are placed on each mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from harness import MESHES, P, Run
from zoo import Model

PARTS = ("forward", "step")


def runs(model: Model, mesh: str) -> Mapping[str, Run]:
    """On one axis the data is split; on two, the data over one and weights over the other; on three, both over all."""
    sizes = MESHES[mesh]
    axes = tuple(sizes)
    over = {1: (), 2: axes[1:], 3: axes}[len(axes)]
    batch = axes if len(axes) != 2 else axes[:1]
    count = 1
    for axis in over:
        count *= sizes[axis]

    def weights(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: _split(leaf, over, count) if over else P(), tree)

    state = model.optimizer.init(model.params)
    data: Sequence[Any] = [P() if d is None else P(*(None,) * d, batch) for d in model.batch]
    places = weights(model.params), weights(state)
    results = jax.tree.map(lambda _: P(), jax.eval_shape(model.forward, model.params, *model.data))
    forward = Run(model.forward, (model.params, *model.data), (places[0], *data), results)
    return {
        "forward": forward,
        "step": Run(model.step, (model.params, state, *model.data), (*places, *data), (*places, P())),
    }


def _split(leaf: Any, axes: tuple[str, ...], size: int) -> Any:
    """The first dim that the axes divide, split over them; whole where there is none, or little to split."""
    for dim, n in enumerate(leaf.shape):
        if n % size == 0 and leaf.size >= 128:
            return P(*(None,) * dim, axes)
    return P()
