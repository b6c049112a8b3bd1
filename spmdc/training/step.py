"""One step of training: a function of the weights, the optimizer's memory and a batch, partitioned as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from ir.diagnostics import Diagnostic, Diagnostics, error
from ir.program import Program, Result, Value
from ir.types import Array, TensorType, bf16, f16, f32, f64, s32
from lowering.jax.untyped import constrained, settings, spec_of
from spmdc.api import with_mesh
from spmdc.checkpointing import checkpointed
from spmdc.frontends.jax.jit import jit
from spmdc.frontends.jax.programs import as_jax
from spmdc.frontends.jax.shardings import with_devices
from spmdc.frontends.jax.weights import initial_values
from spmdc.training.config import Config, Optimizer

_ALONE = {"device": 1}
"""The mesh of a program without one."""

State = tuple[dict[str, jax.Array], Any]
"""The weights by name, and the state of the optimizer."""


class Trainer:
    """A program, and the update of its weights. A step reuses the memory of the state that it takes for the next one,
    including that of `first`, whose types and shapes remain available. `warnings` say what is recomputed if the
    gradient has a memory limit."""

    def __init__(self, program: Program, config: Config) -> None:
        _check(program)
        self.program = program
        self._loss = as_jax(program)
        has_mesh = bool(self._loss.mesh)
        with config.at("mesh"):
            self.mesh = with_devices(self._loss.mesh or _ALONE)
        self.warnings: tuple[Diagnostic, ...] = ()
        if config.memory_limit is not None:
            with config.at("memory_limit"):
                found = checkpointed(program if has_mesh else with_mesh(program, _ALONE), config.memory_limit,
                                     of=program.main.results[0].name, with_value=True)  # fmt: skip
            self._loss, self.warnings = as_jax(found.program), found.warnings(config.memory_limit)
        self._optimizer = optimizer_of(config)
        self._accumulate = config.accumulate
        weights = initial_values(program, config.seed, self.mesh if has_mesh else None)
        self.whole = whole = NamedSharding(self.mesh, spec_of())
        self.first: State = (weights, self._optimizer.init(weights))
        own: dict[str, Any] = {n: (array.sharding if has_mesh else whole) for n, array in weights.items()}
        self._split = config.optimizer.split
        with config.at("optimizer.split"):
            self._updated = {n: _split_over(self._split, own[n], array.shape) for n, array in weights.items()}
        self.shardings = (own, _of_memory(self._optimizer, self.first, self._updated, whole))
        placed = self.shardings
        self.step: Callable[[State, Mapping[str, Array]], tuple[State, dict[str, jax.Array]]] = jit(
            self.updated, mesh=self.mesh, in_shardings=(placed, None), out_shardings=(placed, whole), donate_argnums=0
        )
        self.measure: Callable[[Mapping[str, Any], Mapping[str, Array]], tuple[Any, dict[str, Any]]] = jit(
            self._measured, mesh=self.mesh, in_shardings=(own, None), out_shardings=whole
        )

    def loss(self, weights: Mapping[str, Any], batch: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The loss, and the other results by name."""
        results = self._loss(**weights, **batch)
        names = [r.name for r in self.program.main.results]
        values = dict(zip(names, results if len(names) > 1 else (results,), strict=True))
        return values.pop(names[0]), values

    def _measured(self, weights: Mapping[str, Any], batch: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The loss, and the metrics: without predictions, which are not used in training."""
        loss, values = self.loss(weights, batch)
        return loss, {name: value for name, value in values.items() if name != PREDICTED}

    def updated(self, state: State, batch: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
        """The function of a step, before it is partitioned. If a number is not finite, the state is left unchanged, so
        that it can be examined."""
        weights, memory = state
        loss, metrics, slopes = self._differentiated(weights, batch)
        weights, slopes = self._in_parts(weights), self._in_parts(slopes)
        norm = _norm(slopes)
        updates, remembered = self._optimizer.update(slopes, memory, weights)
        after = (optax.apply_updates(weights, updates), remembered)
        change = _norm(updates)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(norm) & jnp.isfinite(change)
        kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, (weights, memory))
        return kept, {"loss": loss, **metrics, "gradient_norm": norm, "update_norm": change}

    def _in_parts(self, of_weights: dict[str, Any]) -> dict[str, Any]:
        """The weights, or gradients, as they are updated: those that are replicated along the update's axis are split
        over it."""
        if not self._split:
            return of_weights
        return {n: constrained(array, self._updated[n]) for n, array in of_weights.items()}

    def _differentiated(self, weights: Any, batch: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        """The loss, the metrics and the gradient: means over the parts of the batch, computed one after the other. The
        gradients of 16-bit weights are added up in f32: what is added to a sum of many would be rounded away."""
        differentiate = jax.value_and_grad(self._measured, has_aux=True)
        if self._accumulate == 1:
            (loss, metrics), slopes = differentiate(weights, batch)
            return loss, metrics, slopes

        def add(total: Any, part: Mapping[str, Any]) -> tuple[Any, Any]:
            (loss, metrics), slopes = differentiate(weights, part)
            return jax.tree.map(jnp.add, total, slopes), (loss, metrics)

        nothing = jax.tree.map(lambda w: jnp.zeros_like(w, dtype=jnp.promote_types(w.dtype, jnp.float32)), weights)
        total, (losses, metrics) = jax.lax.scan(add, nothing, batch)
        mean = jax.tree.map(lambda x: jnp.mean(x, 0, dtype=jnp.float32), (losses, metrics))
        return *mean, jax.tree.map(lambda x, w: (x / self._accumulate).astype(w.dtype), total, weights)


def _wide(x: Any) -> Any:
    """An array in f32, unless its numbers are wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _norm(of_weights: Mapping[str, Any]) -> Any:
    """The norm over all weights. Squares and sums of 16-bit numbers are in f32: in f16, 65,504 is the largest."""
    return optax.tree.norm(jax.tree.map(_wide, of_weights))


def _clipped(most: float) -> optax.GradientTransformation:
    """Scales a gradient down to the norm `most`, if it is larger: as optax.clip_by_global_norm, which computes the norm
    in the types of the weights."""

    def scaled(slopes: Any, state: Any, weights: Any = None) -> tuple[Any, Any]:
        norm = _norm(slopes)
        smaller = jax.tree.map(lambda x: (_wide(x) / norm * most).astype(x.dtype), slopes)
        return jax.tree.map(lambda x, clipped: jnp.where(norm < most, x, clipped), slopes, smaller), state

    return optax.GradientTransformation(lambda weights: optax.EmptyState(), scaled)


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """The optimizer that the configuration describes."""
    own = config.optimizer
    rate, settings = schedule_of(own, config.steps), own.settings
    if own.name == "adafactor":
        step = optax.adafactor(
            rate,
            min_dim_size_to_factor=int(settings["factored_from"]),
            decay_rate=settings["decay"],
            clipping_threshold=settings["update_clip"] or None,
            momentum=settings["momentum"] or None,
        )
    elif own.name == "adam":
        step = optax.adam(rate, **settings)
    else:
        step = optax.sgd(rate, settings["momentum"] or None)
    return optax.chain(_clipped(config.clip), step) if config.clip else step


def schedule_of(own: Optimizer, steps: int) -> optax.Schedule:
    """The learning rate as a function of the step number."""
    if own.schedule == "square_root":
        return lambda n: own.rate / jnp.sqrt(jnp.maximum(n + 1, max(1, own.warmup)))
    if own.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0 if own.warmup else own.rate, own.rate, own.warmup, steps)
    return optax.linear_schedule(0.0 if own.warmup else own.rate, own.rate, own.warmup)


def _split_over(axis: str, sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """A weight's sharding with an additional axis, over the first dim that has even shards then. It is unchanged if it
    is split over the axis already, or has no such dim. Raises SpmdcError (E606) if the mesh has no such axis."""
    sizes = sharding.mesh.shape
    if axis and axis not in sizes:
        raise error("E606", f"optimizer.split is {axis}, and the mesh has no axis of this name",
                    help=f"there are {', '.join(sizes)}")  # fmt: skip
    spec = [_axes(entry) for entry in sharding.spec] + [()] * (len(shape) - len(sharding.spec))
    if not axis or any(axis in axes for axes in spec):
        return sharding
    for dim, (size, axes) in enumerate(zip(shape, spec, strict=True)):
        if size and size % (sizes[axis] * math.prod(sizes[a] for a in axes)) == 0:
            return NamedSharding(sharding.mesh, spec_of(*spec[:dim], (*axes, axis), *spec[dim + 1 :]))
    return sharding


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _of_memory(optimizer: Any, state: State, own: Mapping[str, NamedSharding], whole: NamedSharding) -> Any:
    """The sharding of the optimizer's state: state of a weight's shape is sharded as the weight, and state of its rows
    and columns as the corresponding dims."""
    weights, memory = state

    def placed(remembered: Any, weight: Any, sharding: NamedSharding) -> NamedSharding:
        return NamedSharding(sharding.mesh, spec_of(*_entries(remembered.shape, weight.shape, sharding)))

    return optax.tree.map_params(optimizer, placed, memory, weights, dict(own), transform_non_params=lambda _: whole)


def _entries(shape: tuple[int, ...], of: tuple[int, ...], sharding: NamedSharding) -> list[Any]:
    """The axes of each dim, which is matched with the next dim of the same size of the weight; none if there is
    none."""
    spec = list(sharding.spec) + [None] * (len(of) - len(sharding.spec))
    entries: list[Any] = []
    dims = iter(zip(of, spec, strict=True))
    for size in shape:
        entry = next((axes for n, axes in dims if n == size), False)
        if entry is False:
            return []
        entries.append(entry)
    return entries


def _check(program: Program) -> None:
    """Raises SpmdcError (E606) if there are no weights that can be trained, no loss, or results that are wrong."""
    if not program.weights:
        raise error("E606", "the program has no weights: no parameter of main has an initializer", program.main.span,
                    help='a weight is written so: "w: f32[64, 8] = normal(0.02)"')  # fmt: skip
    problems = Diagnostics()
    results = program.main.results
    if not results or results[0].type.shape or not results[0].type.dtype.is_float:
        what = f"{results[0].name} is {results[0].type}" if results else "there is none"
        span = results[0].span if results else program.main.span
        problems.add(Diagnostic("E606", f"the first result of main is the loss, a float scalar, and {what}", span,
                                help="return the loss first; further results are metrics"))  # fmt: skip
    params = {param.name: param for param in program.main.params}
    trainable = (bf16, f16, f32, *([f64] if settings.jax_enable_x64 else []))
    for weight in map(params.__getitem__, program.weights):
        if weight.dtype not in trainable:
            what = f"the weight {weight.name} is {weight.type}, and weights are bf16, f16 or f32"
            help = "an f32, converted where it is used; f64 takes the environment variable JAX_ENABLE_X64=1"
            problems.add(Diagnostic("E606", what, weight.span, help=help))
    for metric in results[1:]:
        if metric.name in RESERVED or metric.name.startswith(HELD_OUT):
            what = f"a metric is called {metric.name}, which the log calls something of its own"
            problems.add(Diagnostic("E606", what, metric.span, help="rename it"))
    for metric in results[1:]:
        if metric.type.dtype.is_complex:
            what = f"the metric {metric.name} is {metric.type}, and the log has no complex numbers"
            problems.add(Diagnostic("E606", what, metric.span, help="return its real and its imaginary part"))
    for result in results:
        problems.extend(_mispredicted(result, params) if result.name == PREDICTED else ())
    problems.raise_errors()


def _mispredicted(result: Result, params: Mapping[str, Value]) -> list[Diagnostic]:
    """The error that the likeliest next symbols are not those behind the symbols of an input."""
    read = params.get("tokens", params.get("target"))
    if read is None:
        what = f"{PREDICTED} is the symbols of target or tokens, and the program takes neither"
        return [Diagnostic("E606", what, result.span, help="rename it, if it is a metric")]
    *batch, length = read.type.shape or (1,)
    wanted = TensorType((*batch, length - 1), s32)
    if result.type == wanted:
        return []
    what = f"{PREDICTED} is {wanted} for {read.name}: {read.type}, and not {result.type}"
    return [Diagnostic("E606", what, result.span, help="the likeliest symbol after each but the last")]


PREDICTED = "predicted"
"""The result that is no metric; see spmdc/training/translate.py."""
RESERVED = ("step", "seconds", "loss", "gradient_norm", "update_norm")
HELD_OUT = "held_out_"
"""The fields of a log line besides the metrics, and what the names of those of held-out phrases begin with."""
