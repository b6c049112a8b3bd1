"""A program over a mesh of other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ir.diagnostics import Diagnostic, Diagnostics, error
from ir.manual import has_manual
from ir.mesh import AxisRef, Mesh
from ir.program import Function, Program, Result, Value
from ir.sharding import Sharding, sharding_faults
from ir.verify.program import mesh_diagnostics
from passes.rewrite import map_values


def replace_mesh(program: Program, mesh: Mesh | Mapping[str, int]) -> Program:
    """The program with its default mesh replaced; whole axes are found by name.

    Raises SpmdcError: E301 for an axis that the new mesh lacks, E303 for a part of an axis or for tensors placed on
    a mesh of their own, which have no counterpart on the new one.
    """
    new = mesh if isinstance(mesh, Mesh) else Mesh(tuple(mesh.items()))
    if len(program.meshes) > 1:
        names = ", ".join(m.name for m in program.meshes[1:])
        raise error(
            "E303",
            f"the program places tensors on meshes of their own ({names}), which do not fit another mesh",
            help="change the mesh in the program itself",
        )
    if has_manual(program):
        raise error(
            "E303",
            "the program has manual regions, in which the types are those of shards on its own mesh",
            help="change the mesh in the program itself, for example by a const that -D overrides",
        )
    problems = Diagnostics()
    problems.extend(mesh_diagnostics((new,)))
    problems.raise_errors()
    if not program.meshes:
        return replace(program, meshes=(new,))
    old = program.mesh
    advice = f"the program's own mesh is ({old}): the new one, ({new}), needs its axes"

    def move(sharding: Sharding | None, value: Value | Result) -> Sharding | None:
        if sharding is None:
            return None

        def axis(ref: AxisRef) -> AxisRef:
            if not old.is_whole(ref) or ref.name not in new.names:
                return ref
            return new.axis(ref.name)

        moved = sharding.with_axes(lambda axes: tuple(map(axis, axes)), new)
        for _, problem in sharding_faults(moved, value.type.shape):
            code = "E301" if "not in the mesh" in problem else "E303"
            problems.add(Diagnostic(code, f"{value.name}: {problem}", value.span, help=advice))
        return moved

    def value(v: Value) -> Value:
        return replace(v, sharding=move(v.sharding, v))

    def result(function: Function, i: int) -> Result:
        r = function.results[i]
        return replace(r, sharding=move(r.sharding, r))

    moved = map_values(program, value, result)
    problems.raise_errors()
    return replace(moved, meshes=(new,))
