"""Models written in JAX, imported with no change: equal to jax.jit, and no more bytes than under XLA's partitioner.

Each runs forward and as a training step, on three meshes, with its data, features and images split over the axes of
the mesh in the usual ways, and with nothing split.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import convnet
import jax
import lstm
import mlp
import moe
import pytest
import transformer
import unet
from harness import MESHES, P, Run, check, check_on_devices, partitioned

import spmdc


def whole(tree: Any) -> Any:
    """Every leaf on every device."""
    return jax.tree.map(lambda _: P(), tree)


@functools.cache
def key(n: int) -> Any:
    return jax.random.key(n)


def normal(n: int, *shape: int) -> Any:
    return jax.random.normal(key(n), shape)


def classes(n: int, count: int, *shape: int) -> Any:
    return jax.random.randint(key(n), shape, 0, count)


def initial(init: Callable[..., Any], *sizes: Any, **more: Any) -> Any:
    """A model's parameters, drawn in one module."""
    drawn: Any = jax.jit(lambda key: init(key, *sizes, **more))
    return drawn(key(0))


def with_adam(function: Any, params: Any, specs: Any, data: tuple[Any, ...], placed: tuple[Any, ...]) -> Run:
    state = mlp.adam_state(params)
    places = (specs, (specs, specs, P()))
    return Run(function, (params, state, *data), (*places, *placed), (*places, P()))


@dataclass(frozen=True)
class Way:
    """How a model is split: the axes of its data, and the axis of its features, or of the rows of its images."""

    name: str
    data: tuple[str, ...] = ()
    axis: str | None = None
    rows: bool = False
    experts: tuple[str, ...] = ()

    @property
    def batch(self) -> Any:
        return P(self.data) if self.data else P()

    @property
    def images(self) -> Any:
        return P(self.data or None, self.axis) if self.rows else self.batch


def features(sizes: Mapping[str, int]) -> Iterator[Way]:
    axes = tuple(sizes)
    yield Way("data", axes)
    yield Way("features", (), axes[-1])
    if len(axes) > 1:
        yield Way("data and features", axes[:-1], axes[-1])
    yield Way("nothing")


def rows(sizes: Mapping[str, int]) -> Iterator[Way]:
    for way in features(sizes):
        yield replace(way, name=way.name.replace("features", "rows"), rows=way.axis is not None)


def features_and_rows(sizes: Mapping[str, int]) -> Iterator[Way]:
    yield from dict.fromkeys((*features(sizes), *rows(sizes)))


def experts(sizes: Mapping[str, int]) -> Iterator[Way]:
    axes = tuple(sizes)
    yield Way("groups", axes)
    yield Way("groups and experts", axes, experts=axes)
    yield Way("nothing")


# The models: for each, its forward pass and its training step, split in a way.


@functools.cache
def _mlp() -> Any:
    return initial(mlp.init, (24, 32, 64, 16)), normal(1, 16, 24), classes(2, 16, 16)


def mlp_runs(way: Way) -> tuple[Run, Run]:
    params, x, labels = _mlp()
    m, data = way.axis, way.batch
    wide, narrow = {"w": P(None, m), "b": P(m)}, {"w": P(m, None), "b": P()}
    specs = [wide, narrow, wide] if m else whole(params)
    forward = Run(mlp.forward, (params, x), (specs, data), data)
    return forward, with_adam(mlp.step, params, specs, (x, labels), (data, data))


_train = transformer.train_step(mlp.adam)


@functools.cache
def _transformer() -> Any:
    sizes = {"vocabulary": 64, "width": 32, "heads": 8, "hidden": 64, "layers": 2}
    return initial(transformer.init, **sizes), classes(1, 64, 8, 17), classes(1, 64, 8, 16)


def transformer_runs(way: Way) -> tuple[Run, Run]:
    params, tokens, shorter = _transformer()
    m, data = way.axis, way.batch
    layer = {
        "norm1": P(), "wq": P(None, m), "wk": P(None, m), "wv": P(None, m), "wo": P(m),
        "norm2": P(), "up": P(None, m), "down": P(m),
    }  # fmt: skip
    split = {"embedding": P(m), "layers": [layer] * 2, "norm": P()}
    specs = split if m else whole(params)
    forward = Run(transformer.forward, (params, shorter), (specs, data), data)
    return forward, with_adam(_train, params, specs, (tokens,), (data,))


@functools.cache
def _convnet() -> Any:
    return initial(convnet.init, (4, 8, 16), 10), normal(1, 8, 32, 32, 4), classes(2, 10, 8)


def convnet_runs(way: Way) -> tuple[Run, Run]:
    params, images, labels = _convnet()
    m, data, placed = way.axis, way.batch, way.images
    stage = {"kernel": P(None, None, None, m), "scale": P(m), "shift": P(m)}
    specs = {"stages": [stage] * 2, "head": P(m)} if m and not way.rows else whole(params)
    forward = Run(convnet.forward, (params, images), (specs, placed), data)
    return forward, Run(convnet.step, (params, images, labels), (specs, placed, data), (specs, P()))


@functools.cache
def _lstm() -> Any:
    return initial(lstm.init, 16, 32), normal(1, 6, 8, 16)


def lstm_runs(way: Way) -> tuple[Run, Run]:
    params, sequence = _lstm()
    m = way.axis
    split = {"input": P(None, None, m), "recurrent": P(None, None, m), "bias": P(None, m), "head": P(m)}
    specs = split if m else whole(params)
    data = P(None, way.data) if way.data else P()
    forward = Run(lstm.forward, (params, sequence), (specs, data), data)
    return forward, Run(lstm.step, (params, sequence), (specs, data), (specs, P()))


@functools.cache
def _unet() -> Any:
    return initial(unet.init, (4, 8, 16)), normal(1, 8, 32, 32, 4), normal(2, 8, 32, 32, 4)


def unet_runs(way: Way) -> tuple[Run, Run]:
    params, images, targets = _unet()
    specs, placed = whole(params), way.images
    forward = Run(unet.forward, (params, images), (specs, placed), placed)
    return forward, Run(unet.step, (params, images, targets), (specs, placed, placed), (specs, P()))


@functools.cache
def _moe() -> Any:
    return initial(moe.init, experts=8, width=16, hidden=32), normal(1, 16, 32, 16), normal(2, 16, 32, 16)


def moe_runs(way: Way) -> tuple[Run, Run]:
    params, inputs, targets = _moe()
    specs = {"wg": P(), "wi": P(way.experts), "wo": P(way.experts)} if way.experts else whole(params)
    data = way.batch
    layer, step = (functools.partial(f, axes=way.experts) for f in (moe.layer, moe.step))
    forward = Run(moe.layer, (params, inputs), (specs, data), (data, P()), layer)
    return forward, Run(moe.step, (params, inputs, targets), (specs, data, data), (specs, P()), step)


MODELS: Mapping[str, tuple[Callable[[Mapping[str, int]], Iterator[Way]], Callable[[Way], tuple[Run, Run]]]] = {
    "mlp": (features, mlp_runs),
    "transformer": (features, transformer_runs),
    "convnet": (features_and_rows, convnet_runs),
    "lstm": (features, lstm_runs),
    "unet": (rows, unet_runs),
    "moe": (experts, moe_runs),
}
_CASES = [
    pytest.param(model, mesh, way, id=f"{model}-{mesh}-{way.name}".replace(" ", "_"))
    for model, (ways, _) in MODELS.items()
    for mesh, sizes in MESHES.items()
    for way in ways(sizes)
]


@pytest.mark.parametrize(("model", "mesh", "way"), _CASES)
def test_a_training_step_is_equal_to_jax_and_sends_no_more_than_xla(model: str, mesh: str, way: Way) -> None:
    ours, _ = check(MODELS[model][1](way)[1], MESHES[mesh])
    if way.name == "nothing":
        assert ours == 0


@pytest.mark.parametrize(
    ("model", "mesh", "way"),
    [
        case if case.values[1] == "2x4" else pytest.param(*case.values, id=case.id, marks=pytest.mark.soak)
        for case in _CASES
    ],
)
def test_a_forward_pass_is_equal_to_jax_and_sends_no_more_than_xla(model: str, mesh: str, way: Way) -> None:
    """On one mesh in each run; a training step has it in it."""
    ours, _ = check(MODELS[model][1](way)[0], MESHES[mesh])
    if way.name == "nothing":
        assert ours == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_training_step_on_devices_is_equal_to_jax(model: str) -> None:
    ways, runs = MODELS[model]
    _, step = runs(list(ways(MESHES["2x4"]))[-2])
    check_on_devices(step, MESHES["2x4"])


@pytest.mark.soak
@pytest.mark.parametrize(("model", "mesh", "way"), _CASES)
def test_any_training_step_on_devices_is_equal_to_jax(model: str, mesh: str, way: Way) -> None:
    check_on_devices(MODELS[model][1](way)[1], MESHES[mesh])


def test_the_imported_layer_of_experts_is_partitioned_as_the_one_written_for_spmdc() -> None:
    written = spmdc.partition(spmdc.load(Path(spmdc.__file__).parent / "programs" / "moe_layer.spmd"))
    params = initial(moe.init, experts=8, width=128, hidden=512)
    specs = {"wg": P(), "wi": P("x"), "wo": P("x")}
    layer = functools.partial(moe.layer, axes=("x",))
    run = Run(layer, (params, normal(1, 16, 64, 128)), (specs, P("x")), (P("x"), P()))
    imported = partitioned(run, {"x": 8})
    found, expected = (sorted((c.kind, c.bytes) for c in q.collectives()) for q in (imported, written))
    assert found == expected
    assert imported.warnings == ()
