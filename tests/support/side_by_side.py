"""Several programs as one, which is partitioned and compiled faster than all of them separately."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.program import Function, Op, Program, Region, Result, Value, callee_of
from ir.types import DType
from spmdc.testing import programs, surroundings


def side_by_side(programs: Sequence[Program]) -> Program:
    """One program that calls each of these programs, which must have the same meshes, as functions.

    Parameters, results and functions get the number of their program: `x` of the first one becomes `p0_x`.
    """
    functions: dict[str, Function] = {}
    b = RegionBuilder()
    values: list[Value] = []
    results: list[Result] = []
    for n, program in enumerate(programs):
        prefix = f"p{n}_"
        for function in program.functions.values():
            name = prefix + function.name
            functions[name] = replace(function, name=name, body=_calling(function.body, prefix))
        params = [b.param(prefix + p.name, p.type, p.sharding) for p in program.main.params]
        types = [r.type for r in program.main.results]
        values += b.append("call", params, {"function": prefix + program.entry}, types=types)
        results += [replace(r, name=prefix + r.name) for r in program.main.results]
    return Program(programs[0].meshes, {**functions, "main": b.function("main", values, results)})


def _calling(region: Region, prefix: str) -> Region:
    """The region with renamed callees."""
    ops: list[Op] = []
    for op in region.ops:
        regions = tuple(_calling(r, prefix) for r in op.regions)
        callee = callee_of(op)
        attrs = op.attrs if callee is None else {**op.attrs, "function": prefix + callee}
        ops.append(replace(op, attrs=attrs, regions=regions))
    return replace(region, ops=tuple(ops))


@st.composite
def programs_side_by_side(
    draw: st.DrawFn,
    count: int,
    max_ops: int,
    dtypes: Sequence[DType] | None,
    *,
    max_devices: int,
    families: Sequence[str | None],
    anything: bool,
    functions: bool,
) -> list[Program]:
    """`count` programs drawn by `programs`, alternating between the families, all over the same meshes."""
    around = draw(surroundings(max_devices))
    return [
        draw(programs(max_ops, dtypes, family=f, anything=anything, functions=functions, around=around))
        for f in itertools.islice(itertools.cycle(families), count)
    ]
