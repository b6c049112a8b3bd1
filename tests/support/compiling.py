"""Compiles what tests run on devices with XLA's usual optimisations, but without those of LLVM: in a fraction of the
time.

With JAX 0.10, XLA's older emitter of loops generates LLVM's input. Tests of XLA's compiler itself are marked
`optimised`, and compiled as for users; so is everything that is measured, and everything that `make soak` runs. Modules
are written into shared contexts. Tests of training, in which many runs have the same step, compile equal modules once.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
from on_import import when_imported

_NOT_OPTIMISED: Mapping[str, str | int | bool] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
_WITH_THE_OLDER_EMITTER: Mapping[str, str | int | bool] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options that later versions do not have."""

_MEASURED = ("benchmarks", "outside")
"""The folders of tests whose times are compared with those of `jax.jit`."""

_REPEATING = ("training",)
"""The folders of tests that compile equal modules once. They must not look at locations within what is compiled."""

_optimises = False
_repeats = False
_cheap: dict[str, str | int | bool] = {}
"""The options of tests that are not `optimised`, once JAX is imported; none if the tests soak."""


def pytest_configure(config: pytest.Config) -> None:
    """Turns off LLVM's optimisations, unless the tests soak."""
    config.addinivalue_line("markers", "optimised: what runs on devices is compiled as it is for users")
    if config.getoption("--hypothesis-profile") != "soak":
        when_imported("jax._src.compiler", _compile_cheaply)
        when_imported("jax._src.interpreters.mlir", _share_contexts)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _optimises, _repeats
    _repeats = item.path.parent.name in _REPEATING
    _optimises = item.path.parent.name in _MEASURED or item.get_closest_marker("optimised") is not None


def compiling_alike() -> Mapping[str, str]:
    """The environment of a process that compiles as the test does, which has imported JAX."""
    given = os.environ.get("XLA_FLAGS", "").split()
    flags = [*given, *(f"--{name}={str(value).lower()}" for name, value in _cheap.items() if not _optimises)]
    # XLA takes a value that is not empty and does not begin with a dash for the name of a file.
    return {**os.environ, "XLA_FLAGS": " ".join(flags)}


def _compile_cheaply(compiler: Any) -> None:
    """Changes the default compiler options; those of a test itself take precedence."""
    from jax.version import __version_info__

    _cheap.update({**_NOT_OPTIMISED, **(_WITH_THE_OLDER_EMITTER if __version_info__ < (0, 11) else {})})
    options_for = compiler.get_compile_options

    @functools.wraps(options_for)
    def options(*args: Any, env_options_overrides: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        given = env_options_overrides or {}
        return options_for(*args, env_options_overrides=given if _optimises else {**_cheap, **given}, **kwargs)

    compiler.get_compile_options = options
    compiler.backend_compile_and_load = _each_once(compiler.backend_compile_and_load)


_KEPT = 100
"""The number of executables that are kept."""


def _each_once(compile: Any) -> Any:
    """The function of JAX that compiles a module. If the test `_repeats`, one that equals another but for its locations
    is not compiled again. Modules that call Python differ in what they call."""
    kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    @functools.wraps(compile)
    def compiled(backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Any) -> Any:
        if _optimises or host_callbacks or not _repeats:
            return compile(backend, module, devices, options, host_callbacks)
        text = module.operation.get_asm(enable_debug_info=False)
        key = backend, text, options.SerializeAsString(), tuple(devices)
        if key not in kept:
            kept[key] = compile(backend, module, devices, options, host_callbacks)
        kept.move_to_end(key)
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return kept[key]

    return compiled


_SHARED = 200
"""The number of modules that share an MLIR context, which keeps the types and attributes of all of them."""


def _share_contexts(mlir: Any) -> None:
    """JAX makes a context for each module, and loads all dialects into it, which is more work than most modules of
    tests. A module that is lowered while another one is being written gets its own context: in a shared one, MLIR would
    insert copies of it into the other."""
    make, modules = mlir.make_ir_context, itertools.count()

    @functools.lru_cache(maxsize=1)
    def shared(block: int) -> Any:
        return make()

    def context() -> Any:
        is_nested = mlir.ir.Context.current is not None
        return make() if _optimises or is_nested else shared(next(modules) // _SHARED)

    mlir.make_ir_context = context
