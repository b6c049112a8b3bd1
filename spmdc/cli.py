"""The command line: what it runs, and its exit statuses.

Exit status 0 is success, 1 an error in the program (or its inputs), 2 wrong usage, 3 a bug in spmdc. A verb is a module
of `spmdc.commands`, imported when it is used: its `run` takes the arguments that the parser returns.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from ir.diagnostics import SpmdcError
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.parser import command_parser, usage_error
from spmdc.commands.shared.terminal import drop, write_error
from spmdc.files import unwritable

PROGRAM_ERROR, USAGE_ERROR, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

_LAST = {"run": "inputs", "check": "files", "fmt": "files", "machine": "name"}
"""The verbs that take an argument, or any number of files, after others, and the parser's name for it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. Errors are reported on stderr, with --json on stdout."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop(sys.stdout)
        return CLOSED_PIPE
    except OSError as problem:
        write_error(str(unwritable("to standard output", problem)))
        drop(sys.stdout)
        return PROGRAM_ERROR


def _open_streams() -> None:
    """Opens closed output again, stdout so that writing to it fails and stderr to nowhere, and replaces characters that
    the terminal lacks by their numbers."""
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _dispatch(arguments: list[str]) -> int:
    try:
        given = _parse(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE_ERROR
    except SpmdcError as problem:
        return _report(problem, Options(json="--json" in arguments), arguments)
    options = Options(**{name: given.pop(name) for name in Options.names() if name in given})
    return _guarded(given, options, arguments)


def _parse(arguments: list[str]) -> dict[str, Any]:
    """The arguments by name. The last ones may follow options, which argparse itself does not support."""
    parser = command_parser()
    namespace, rest = parser.parse_known_args(arguments)
    given = vars(namespace)
    last = _LAST.get(given["verb"], "")
    so_far = given.get(last)
    fits = isinstance(so_far, list) or (last in given and so_far is None and len(rest) == 1)
    if rest and (not fits or any(argument.startswith("-") for argument in rest)):
        raise usage_error(f"unknown argument: {' '.join(rest)}", f"{parser.prog} {given['verb']}")
    if rest:
        given[last] = [*so_far, *rest] if isinstance(so_far, list) else rest[0]
    return given


def _guarded(given: dict[str, object], options: Options, arguments: list[str]) -> int:
    """Runs the verb. This is the only place that catches exceptions of all kinds: those without a diagnostic are bugs.

    The operating system's errors for closed output are passed on: every other OSError has become a diagnostic.
    """
    try:
        command = importlib.import_module(f"spmdc.commands.{options.verb}")
        status: int = command.run(options, **given)
    except OSError:
        raise
    except Exception as problem:
        return _report(problem, options, arguments)
    return status


def _report(problem: Exception, options: Options, arguments: list[str]) -> int:
    # Imported late, like each verb and the versions, so that `spmdc --help` answers at once.
    from spmdc.commands.shared import failures

    return failures.report(problem, options, arguments)


if __name__ == "__main__":
    sys.exit(main())
