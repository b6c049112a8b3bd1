"""Every SPMD program that a test runs on devices executes what `collectives()` reports, and nothing else.

The first run of each program reads the module that XLA has optimised for it. What may differ is what XLA saves: it
computes equal collectives once, folds those of constants, and joins some of one kind. So of each kind there are at most
as many, of at most as many bytes, as the program says. XLA's CPU sends 16-bit floats as 32 bits.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ir.ops.collective import COLLECTIVES, axes_attr
from ir.program import Program, all_ops
from lowering.jax.axes import ProgramAxes
from passes.reductions import write_reductions
from spmdc.reports import collectives_of
from spmdc.xla import collectives_of_hlo


def assert_executed(program: Program, hlo: str) -> None:
    """Asserts that an optimised module communicates no more than the SPMD program that it is made of.

    If a loop's trips are not known, one turn is compared. Programs are left out, as only tests write them, with
    collectives along the axes of a mesh of another device order than JAX's: each has a permute before and behind it.
    """
    program = write_reductions(program)
    axes = ProgramAxes(program)
    if not all(axes.in_place(axes_attr(op.attrs)) for op in all_ops(program) if "axes" in op.attrs):
        return
    reported = collectives_of(program)
    trips_are_known = all(c.count is not None for c in reported)
    wide = {
        _kind(op.name) for op in all_ops(program) if op.name in COLLECTIVES and _is_widened(op.operands[0].dtype.name)
    }
    ours, theirs = Counter[str](), Counter[str]()
    bytes_of_ours, bytes_of_theirs = Counter[str](), Counter[str]()
    for c in reported:
        count = c.count if trips_are_known and c.count is not None else 1
        ours[c.kind] += count
        bytes_of_ours[c.kind] += count * c.bytes * (2 if c.kind in wide else 1)
    for x in collectives_of_hlo(hlo):
        count = x.count if trips_are_known else 1
        theirs[x.kind] += count
        bytes_of_theirs[x.kind] += count * x.bytes
    assert theirs <= ours, f"executed {dict(theirs)}, reported {dict(ours)}"
    assert bytes_of_theirs <= bytes_of_ours, f"executed {dict(bytes_of_theirs)} bytes, reported {dict(bytes_of_ours)}"


def _kind(name: str) -> str:
    return "collective_permute" if name == "box_permute" else name


def _is_widened(dtype: str) -> bool:
    return dtype in ("bf16", "f16")


class Checked:
    """A jitted function on a mesh that is checked when it first runs. Part of another function it is not compiled."""

    def __init__(self, jitted: Any, program: Program) -> None:
        self._jitted = jitted
        self._program = program
        self.is_checked = False

    def __call__(self, *shards: Any) -> Any:
        import jax

        if not self.is_checked and not any(isinstance(a, jax.core.Tracer) for a in shards):
            assert_executed(self._program, self._jitted.lower(*shards).compile().as_text())
            self.is_checked = True
        return self._jitted(*shards)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)


def checking(compile: Callable[..., Any]) -> Callable[..., Any]:
    """`lowering.jax.compile`, of which what it gives is checked."""

    @functools.wraps(compile)
    def checked(program: Program, devices: Sequence[Any] | None = None, **options: Any) -> Any:
        executable = compile(program, devices, **options)
        if program.stage == "spmd":
            on_mesh = executable.module["on_mesh"]
            executable.module["on_mesh"] = functools.cache(lambda *at: Checked(on_mesh(*at), program))
        return executable

    return checked
