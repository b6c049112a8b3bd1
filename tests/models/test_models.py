"""Models written in JAX, imported with no change: equal to jax.jit, and no more bytes than under XLA's partitioner.

Each runs forward and as a training step, on three meshes, with its data, features and images split over the axes of
the mesh in the usual ways, and with nothing split.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
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


def with_adam(function: Any, params: Any, specs: Any, data: tuple[Any, ...], placed: tuple[Any, ...]) -> Run:
    state = mlp.adam_state(params)
    places = (specs, (specs, specs, P()))
    return Run(function, (params, state, *data), (*places, *placed), (*places, P()))


def ways(sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...], str | None]]:
    """How data and features are split: a name, the axes of the data, the axis of the features."""
    axes = tuple(sizes)
    yield "data", axes, None
    yield "features", (), axes[-1]
    if len(axes) > 1:
        yield "data and features", axes[:-1], axes[-1]
    yield "nothing", (), None


# The models: for each, runs by name, as (forward, step).

Runs = Iterator[tuple[str, Run, Run]]


@functools.cache
def _mlp() -> Any:
    return mlp.init(key(0), (24, 32, 64, 16)), normal(1, 16, 24), classes(2, 16, 16)


def mlp_runs(sizes: Mapping[str, int]) -> Runs:
    params, x, labels = _mlp()
    for name, d, m in ways(sizes):
        wide, narrow = {"w": P(None, m), "b": P(m)}, {"w": P(m, None), "b": P()}
        specs = [wide, narrow, wide] if m else whole(params)
        data = P(d) if d else P()
        forward = Run(mlp.forward, (params, x), (specs, data), data)
        yield name, forward, with_adam(mlp.step, params, specs, (x, labels), (data, data))


_train = transformer.train_step(mlp.adam)


@functools.cache
def _transformer() -> Any:
    sizes = {"vocabulary": 64, "width": 32, "heads": 8, "hidden": 64, "layers": 2}
    return transformer.init(key(0), **sizes), classes(1, 64, 8, 17), classes(1, 64, 8, 16)


def transformer_runs(sizes: Mapping[str, int]) -> Runs:
    params, tokens, shorter = _transformer()
    for name, d, m in ways(sizes):
        heads, features = P(None, m), P(m)
        layer = {
            "norm1": P(), "wq": heads, "wk": heads, "wv": heads, "wo": features,
            "norm2": P(), "up": P(None, m), "down": features,
        }  # fmt: skip
        split = {"embedding": P(m), "layers": [layer] * 2, "norm": P()}
        specs = split if m else whole(params)
        data = P(d) if d else P()
        forward = Run(transformer.forward, (params, shorter), (specs, data), data)
        yield name, forward, with_adam(_train, params, specs, (tokens,), (data,))


@functools.cache
def _convnet() -> Any:
    return convnet.init(key(0), (4, 8, 16), 10), normal(1, 8, 32, 32, 4), classes(2, 10, 8)


def convnet_runs(sizes: Mapping[str, int]) -> Runs:
    params, images, labels = _convnet()
    for name, d, m in ways(sizes):
        data = P(d) if d else P()
        stage = {"kernel": P(None, None, None, m), "scale": P(m), "shift": P(m)}
        specs = {"stages": [stage] * 2, "head": P(m)} if m else whole(params)
        forward = Run(convnet.forward, (params, images), (specs, data), data)
        yield name, forward, Run(convnet.step, (params, images, labels), (specs, data, data), (specs, P()))
        if m:
            rows, specs = P(d or None, m), whole(params)
            forward = Run(convnet.forward, (params, images), (specs, rows), data)
            step = Run(convnet.step, (params, images, labels), (specs, rows, data), (specs, P()))
            yield name.replace("features", "rows"), forward, step


@functools.cache
def _lstm() -> Any:
    return lstm.init(key(0), 16, 32), normal(1, 6, 8, 16)


def lstm_runs(sizes: Mapping[str, int]) -> Runs:
    params, sequence = _lstm()
    for name, d, m in ways(sizes):
        split = {"input": P(None, None, m), "recurrent": P(None, None, m), "bias": P(None, m), "head": P(m)}
        specs = split if m else whole(params)
        data = P(None, d) if d else P()
        forward = Run(lstm.forward, (params, sequence), (specs, data), data)
        yield name, forward, Run(lstm.step, (params, sequence), (specs, data), (specs, P()))


@functools.cache
def _unet() -> Any:
    return unet.init(key(0), (4, 8, 16)), normal(1, 8, 32, 32, 4), normal(2, 8, 32, 32, 4)


def unet_runs(sizes: Mapping[str, int]) -> Runs:
    params, images, targets = _unet()
    specs = whole(params)
    for name, d, m in ways(sizes):
        data = P(d or None, m)
        forward = Run(unet.forward, (params, images), (specs, data), data)
        step = Run(unet.step, (params, images, targets), (specs, data, data), (specs, P()))
        yield name.replace("features", "rows"), forward, step


@functools.cache
def _moe() -> Any:
    return moe.init(key(0), experts=8, width=16, hidden=32), normal(1, 16, 32, 16), normal(2, 16, 32, 16)


def moe_runs(sizes: Mapping[str, int]) -> Runs:
    params, inputs, targets = _moe()
    axes = tuple(sizes)
    for name, d, e in (("groups and experts", axes, axes), ("groups", axes, ()), ("nothing", (), ())):
        specs = {"wg": P(), "wi": P(e), "wo": P(e)} if e else whole(params)
        data = P(d) if d else P()
        layer, step = (functools.partial(f, axes=e) for f in (moe.layer, moe.step))
        forward = Run(moe.layer, (params, inputs), (specs, data), (data, P()), layer)
        yield name, forward, Run(moe.step, (params, inputs, targets), (specs, data, data), (specs, P()), step)


_MODELS = {
    "mlp": mlp_runs,
    "transformer": transformer_runs,
    "convnet": convnet_runs,
    "lstm": lstm_runs,
    "unet": unet_runs,
    "moe": moe_runs,
}
_CASES = [
    (model, mesh, way) for model, runs in _MODELS.items() for mesh, sizes in MESHES.items() for way, *_ in runs(sizes)
]


def _name(value: str) -> str:
    return value.replace(" ", "_")


@pytest.mark.parametrize("part", ["forward", "step"])
@pytest.mark.parametrize(("model", "mesh", "way"), _CASES, ids=_name)
def test_a_model_is_equal_to_jax_and_sends_no_more_than_xla(model: str, mesh: str, way: str, part: str) -> None:
    sizes = MESHES[mesh]
    forward, step = next(runs for name, *runs in _MODELS[model](sizes) if name == way)
    ours, _ = check(forward if part == "forward" else step, sizes)
    if way == "nothing":
        assert ours == 0


@pytest.mark.parametrize("model", _MODELS)
def test_a_training_step_on_devices_is_equal_to_jax(model: str) -> None:
    _, _, step = next(runs for runs in _MODELS[model](MESHES["2x4"]) if runs[0] not in ("data", "nothing"))
    check_on_devices(step, MESHES["2x4"])


@pytest.mark.soak
@pytest.mark.parametrize(("model", "mesh", "way"), _CASES, ids=_name)
def test_any_training_step_on_devices_is_equal_to_jax(model: str, mesh: str, way: str) -> None:
    sizes = MESHES[mesh]
    check_on_devices(next(step for name, _, step in _MODELS[model](sizes) if name == way), sizes)


def test_the_imported_layer_of_experts_is_partitioned_as_the_one_written_for_spmdc() -> None:
    written = spmdc.partition(spmdc.load(Path(spmdc.__file__).parent / "programs" / "moe_layer.spmd"))
    params = moe.init(key(0), experts=8, width=128, hidden=512)
    specs = {"wg": P(), "wi": P("x"), "wo": P("x")}
    layer = functools.partial(moe.layer, axes=("x",))
    run = Run(layer, (params, normal(1, 16, 64, 128)), (specs, P("x")), (P("x"), P()))
    imported = partitioned(run, {"x": 8})
    assert [(c.kind, c.bytes) for c in imported.collectives()] == [(c.kind, c.bytes) for c in written.collectives()]
    assert imported.warnings == ()
