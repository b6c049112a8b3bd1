"""`spmdc check`: finds errors in programs."""

from __future__ import annotations

from collections.abc import Sequence

import spmdc
from ir.diagnostics import Diagnostic, SpmdcError
from ir.program import Program, all_ops
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import is_partitioned, load_program
from spmdc.commands.shared.terminal import Stopwatch, print_json


def run(options: Options, *, files: Sequence[str]) -> int:
    """Parses and verifies each file, and propagates it, or checks it if it is a plan.

    The exit status is 1 if any has an error.
    """
    watch = Stopwatch()
    reports: list[dict[str, object]] = []
    problems: list[Diagnostic] = []
    for file in files:
        try:
            program = load_program(file, options, watch)
            _try_next(program, watch)
        except SpmdcError as found:
            problems.extend(found.diagnostics)
            reports.append({"file": file, "ok": False})
            continue
        ops = sum(1 for _ in all_ops(program))
        reports.append({"file": file, "ok": True, "ops": ops, "mesh": _mesh(program)})
        if not options.json:
            print(f"{file}: ok ({ops} {'op' if ops == 1 else 'ops'}, {_mesh(program)})")
    if options.json:
        print_json(options.verb, {"files": reports, "timings": watch.seconds}, problems)
    else:
        print_diagnostics(problems)
        if options.verbose:
            watch.print()
    if not problems:
        return 0
    return 2 if all(d.code == "E601" for d in problems) else 1


def _try_next(program: Program, watch: Stopwatch) -> None:
    """Checks the program as far as is possible without writing it. Raises SpmdcError."""
    if program.stage == "plan":
        with watch.step("plan"):
            spmdc.plan(program)
    elif program.meshes and not is_partitioned(program):
        with watch.step("propagate"):
            spmdc.propagate(program, weigh=False)


def _mesh(program: Program) -> str:
    return f"mesh {program.mesh}" if program.meshes and program.mesh.axes else "no mesh"
