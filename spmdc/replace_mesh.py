"""A program over a mesh of other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ir.diagnostics import Diagnostic, Diagnostics, error, require
from ir.manual import has_manual
from ir.mesh import AxisRef, Mesh
from ir.program import Function, Program, Result, Value
from ir.sharding import Sharding, sharding_faults
from ir.verify.program import mesh_diagnostics
from passes.rewrite import map_values


def replace_mesh(program: Program, mesh: Mesh | Mapping[str, int]) -> Program:
    """The program with its default mesh replaced; whole axes are found by name.

    Raises SpmdcError: E301 for an axis that the new mesh lacks, E303 for a part of an axis or for tensors on a mesh of
    their own, which have no counterpart on the new one, E601 if it is no mesh.
    """
    help = 'sizes by name: {"x": 4, "y": 2}; those of a mesh of JAX: mesh.shape'
    require(isinstance(mesh, Mesh | Mapping), "a mesh is expected", mesh, help)
    new = mesh if isinstance(mesh, Mesh) else Mesh(tuple(mesh.items()))
    _require_one_mesh(program)
    problems = Diagnostics()
    problems.extend(mesh_diagnostics((new,)))
    problems.raise_errors()
    if not program.meshes:
        return replace(program, meshes=(new,))

    missing: set[str] = set()

    def moved(value: Value | Result) -> Sharding | None:
        sharding = _moved(value.sharding, program.mesh, new) if value.sharding is not None else None
        problems.extend(_faults(value, sharding, program.mesh, new, missing) if sharding is not None else ())
        return sharding

    def result(function: Function, i: int) -> Result:
        return replace(function.results[i], sharding=moved(function.results[i]))

    over_new = map_values(program, lambda value: replace(value, sharding=moved(value)), result)
    problems.raise_errors()
    return replace(over_new, meshes=(new,))


def _require_one_mesh(program: Program) -> None:
    """Raises SpmdcError (E303) if parts of the program fit only its own meshes."""
    if len(program.meshes) > 1:
        names = ", ".join(m.name for m in program.meshes[1:])
        message = f"the program places tensors on meshes of their own ({names}), which do not fit another mesh"
        raise error("E303", message, help="change the mesh in the program itself")
    if has_manual(program):
        message = "the program has manual regions, in which the types are those of shards on its own mesh"
        help = "change the mesh in the program itself, for example by a const that -D overrides"
        raise error("E303", message, help=help)


def _moved(sharding: Sharding, old: Mesh, new: Mesh) -> Sharding:
    """The sharding over the new mesh. Axes that it lacks, and parts of axes, are unchanged."""

    def axis(ref: AxisRef) -> AxisRef:
        return new.axis(ref.name) if old.is_whole(ref) and ref.name in new.names else ref

    return sharding.with_axes(lambda axes: tuple(map(axis, axes)), new)


def _faults(value: Value | Result, sharding: Sharding, old: Mesh, new: Mesh, missing: set[str]) -> Iterator[Diagnostic]:
    """The errors in a value's sharding over the new mesh; axes that are missing are reported once, and collected."""
    whole = ",".join(f"{name}={size}" for name, size in (*new.axes, *((n, 1) for n in old.names if n not in new.names)))
    advice = f"the program's own mesh is ({old}): the new one, ({new}), needs its axes, as in {whole}"
    for _, problem in sharding_faults(sharding, value.type.shape):
        if "not in the mesh" not in problem:
            yield Diagnostic("E303", f"{value.name}: {problem}", value.span, help=advice)
        elif problem not in missing:
            missing.add(problem)
            yield Diagnostic("E301", f"{value.name}: {problem}", value.span, help=advice)
