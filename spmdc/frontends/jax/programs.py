"""Programs as functions of JAX arrays, which can be traced, differentiated, mapped and partitioned like any other."""

from __future__ import annotations

import ast
import inspect
from collections import namedtuple
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
from jax.sharding import auto_axes

from ir.diagnostics import error
from ir.manual import has_manual
from ir.program import Program, Result, Value
from lowering.jax.module import Written, has_64_bits, write_annotated
from lowering.jax.running import checked_arguments, load
from lowering.jax.untyped import spec_of
from lowering.jax.versions import ShardingTypeError
from lowering.jax.writer import Annotation
from spmdc.arguments import program_of
from spmdc.frontends.jax.annotations import annotated, current_mesh, is_importing
from spmdc.frontends.jax.draws import drawn_bits
from spmdc.frontends.jax.shardings import is_explicit


def as_jax(program: Program) -> JaxProgram:
    """The program as a function of JAX arrays, by position or by name. Several results are a named tuple.

    It can be traced like any function in JAX: `jax.grad`, `jax.vmap` and `jax.jit` accept it. `jax.jit` ignores its
    annotations; in `spmdc.jit` they apply, on the mesh of the program, which is its `mesh`, and a gradient applies them
    to cotangents. Raises SpmdcError: E406 for a plan or an SPMD program, E412 for one with manual regions; when it is
    called, E501 if arrays do not match, E301 if it is partitioned over another mesh.
    """
    program = program_of(program)
    if program.stage != "global":
        stage = "a plan" if program.stage == "plan" else "an SPMD program"
        raise error("E406", f"the program is {stage}", help="take the program that it came from")
    if has_manual(program):
        message = "the program has manual regions, which run on the devices of its mesh"
        help = "partition it, and take `to_jax` of that"
        raise error("E412", message, help=help)
    return JaxProgram(program)


class JaxProgram:
    """A function that computes the same as a program; see `as_jax`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        written, entry, annotations = write_annotated(program, differentiable=True)
        names = load(written.text, program)
        names["annotated"] = lambda x, i: self._annotated(x, annotations[i])
        names["drawn_bits"] = drawn_bits
        _show_own_lines(names, written, program)
        self._function = names[entry]
        self.__name__ = self.__qualname__ = program.entry
        self.__doc__ = self._function.__doc__
        self.__signature__ = inspect.signature(self._function)
        fields = [r.name for r in program.main.results]
        self._results: Any = namedtuple("Results", fields, rename=True) if len(fields) > 1 else None

    def __reduce__(self) -> tuple[object, ...]:
        """The generated module is neither pickled nor copied, but generated again."""
        return JaxProgram, (self.program,)

    def __repr__(self) -> str:
        return f"<{self.__name__}{self.__signature__} of {self.program.summary}>"

    @property
    def mesh(self) -> Mapping[str, int]:
        """The sizes of the axes of the program's mesh, as `spmdc.jit` takes them; empty if it has no mesh."""
        return dict(self.program.mesh.axes) if self.program.meshes else {}

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        given = self.__signature__.bind(*arrays, **named).args
        with jax.enable_x64(True) if has_64_bits(self.program) else nullcontext():
            results = self._computed(checked_arguments(self.program, given))
        return self._results(*results) if self._results is not None else results[0] if results else ()

    def _computed(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The results. On a mesh with Explicit axes, only they have the types that JAX finds: the types of values in
        between would be annotations that nobody wrote. Raises JAX's ShardingTypeError if it finds none in `spmdc.jit`,
        which then leaves all to the partitioner; elsewhere they are replicated."""
        mesh = jax.sharding.get_abstract_mesh()
        if not is_explicit(mesh):
            return self._placed_and_computed(*arrays)
        try:
            types = [x.sharding for x in jax.eval_shape(self._placed_and_computed, *arrays)]
        except ShardingTypeError:
            if is_importing():
                raise
            types = [spec_of()] * len(self.program.main.results)
        results: Sequence[Any] = auto_axes(self._placed_and_computed, out_sharding=types)(*arrays)
        return results

    def _placed_and_computed(self, *arrays: Any) -> list[Any]:
        ends = self.program.main
        placed = map(self._placed, ends.params, arrays)
        return list(map(self._placed, ends.results, self._function(*placed)))

    def _placed(self, end: Value | Result, x: Any) -> Any:
        return x if end.sharding is None else self._annotated(x, Annotation(end.sharding))

    def _annotated(self, x: Any, annotation: Annotation) -> Any:
        own, other = self.program.meshes[0], current_mesh()
        if other is not None and len(self.program.meshes) > 1:
            raise error("E301", "the program has several meshes, and functions are partitioned over one",
                        help="partition the program itself: spmdc.partition")  # fmt: skip
        if other is not None and other.axes != own.axes:
            message = f"the program is annotated for the mesh ({own}), and is partitioned over ({other})"
            help = "spmdc.jit(…, mesh=f.mesh), or load the program with other consts"
            raise error("E301", message, help=help)
        return annotated(x, annotation)


def _show_own_lines(names: dict[str, Any], written: Written, program: Program) -> None:
    """Recompiles the functions of a program, so that tracebacks, and JAX's locations, show the program's lines in place
    of those of the generated module."""
    places, name = written.span_of_line(), program.source.name if program.source is not None else ""
    for function in ast.parse(written.text).body:
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        spans = [places[line] for line in lines if line in places and places[line].source.name == name]
        if not isinstance(function, ast.FunctionDef) or not spans:
            continue
        before = spans[0]
        for line in lines:
            before = places[line] = places.get(line, before)
        for node in ast.walk(function):
            if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword):
                span = places[node.lineno]
                node.lineno, node.end_lineno = span.line, span.end_line
                node.col_offset, node.end_col_offset = span.column - 1, span.end_column - 1
        exec(compile(ast.Module([function], []), name, "exec"), names)
