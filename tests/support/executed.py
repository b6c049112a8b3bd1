"""Checks that every SPMD program that a test runs on devices executes exactly the collectives that `collectives()`
reports.

The first run of each program reads its module as optimised by XLA. For each kind, as many collectives must be executed
as reported, with as many bytes, except where XLA joins all_reduces: the bytes are then the same in fewer collectives.
Collectives that send nothing, with no elements or along axes of one device, do not count. XLA's CPU backend sends
16-bit floats as 32 bits, and each element that shares a byte as a whole one: collectives of such elements may send
correspondingly more. Programs that are drawn at random compute equal or unused values, which XLA may detect: they must
not execute more than is reported.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from hlo_texts import collectives_of_hlo
from on_import import when_imported

from ir.ops.collective import axes_attr, communication_of
from ir.program import Op, Program, all_ops
from lowering.jax.axes import ProgramAxes
from passes.cost.machine import TPU_V3
from passes.cost.model import collective_bytes
from passes.reductions import write_reductions
from spmdc.reports.collectives import executions_of


def assert_executed(program: Program, hlo: str, *, exactly: bool = True) -> None:
    """Asserts that an optimised module communicates as the SPMD program that it was compiled from reports; or, unless
    `exactly`, no more.

    If a loop's trip count is unknown, one iteration is compared. A loop that never runs may be in the module, and
    counts once, because XLA does not detect all such loops. Programs with collectives along the axes of a mesh in
    another device order than JAX's, which only tests write, are skipped: each such collective has a permute before and
    after it.
    """
    program = write_reductions(program, TPU_V3)
    axes = ProgramAxes(program)
    if not all(axes.in_place(axes_attr(op.attrs)) for op in all_ops(program) if "axes" in op.attrs):
        return
    reported = list(executions_of(program))
    trips_are_known = all(runs.count is not None for _, runs in reported)
    ours, fewest, least, most = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for op, runs in reported:
        kind = communication_of(op.name).kind or op.name
        count = (runs.count or 1) if trips_are_known else runs.each_once
        nbytes, surely = collective_bytes(op), 0 if runs.count == 0 else count
        ours[kind] += count if nbytes else 0
        fewest[kind] += surely if nbytes else 0
        least[kind] += surely * nbytes
        most[kind] += count * nbytes * _widening(op)
    theirs, received = Counter[str](), Counter[str]()
    for x in collectives_of_hlo(hlo, literally=True):
        count = x.count if trips_are_known else 1
        theirs[x.kind] += count if x.bytes else 0
        received[x.kind] += count * x.bytes
    separate = [k for k in {*ours, *theirs} if k != "all_reduce"]
    assert theirs <= ours, f"executed {dict(theirs)}, reported {dict(ours)}"
    assert received <= most, f"executed {dict(received)} bytes, reported {dict(least)}"
    if not exactly:
        return
    assert all(theirs[k] >= fewest[k] for k in separate), f"executed {dict(theirs)}, reported {dict(ours)}"
    joined = fewest - theirs  # Byte counts are rounded up, so the one of a joined op is less by under one byte each.
    assert least - joined <= received, f"executed {dict(received)} bytes, reported {dict(least)}"


def _widening(op: Op) -> int:
    """The factor by which XLA's CPU backend may send more: it sums floats in up to 32 bits, and unpacks elements that
    share bytes."""
    dtype = op.operands[0].dtype
    if dtype.is_float and dtype.bits < 32:
        adds = op.name in ("all_reduce", "reduce_scatter")
        return 32 // dtype.bits if adds or not dtype.is_short else 8 // dtype.bits
    return max(1, 8 // dtype.bits) if dtype.is_integer else 1


class Checked:
    """A jitted function on a mesh that is checked when it first runs. It is not checked as a part of another
    function."""

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


def _check_programs(running: Any) -> None:
    """Checks the results of `to_jax`, and random programs, which run together with the cutting of their arguments."""
    compile_program = running.compile_program

    @functools.wraps(compile_program)
    def checked(program: Program, *arguments: Any, **options: Any) -> Any:
        executable = compile_program(program, *arguments, **options)
        if program.stage == "spmd":
            on_mesh = executable.module["on_mesh"]
            executable.module["on_mesh"] = functools.cache(lambda *at: Checked(on_mesh(*at), program))
        return executable

    running.compile_program = checked
    compiled = running.InOne.compiled

    @functools.wraps(compiled)
    def checked_in_one(self: Any, *arrays: Any) -> Any:
        found = compiled(self, *arrays)
        assert_executed(self.run.program, found.as_text(), exactly=False)
        return found

    running.InOne.compiled = checked_in_one


def _check_functions(execution: Any) -> None:
    """Checks what functions of `spmdc.jit` run."""
    compiled = execution.Execution.compiled.func

    @functools.wraps(compiled)
    def checked(self: Any) -> Any:
        found = compiled(self)
        assert_executed(self._executable.program, found.as_text())
        return found

    execution.Execution.compiled = functools.cached_property(checked)
    execution.Execution.compiled.__set_name__(execution.Execution, "compiled")


def check_what_runs() -> None:
    """Installs the checks for everything that runs on devices. The modules that run it must not be imported yet."""
    when_imported("lowering.jax.running", _check_programs)
    when_imported("spmdc.frontends.jax.execution", _check_functions)
