"""How verbs that fail end: with errors, or with bugs."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence

from ir.diagnostics import Diagnostic, SpmdcError, painted, render
from spmdc import __version__
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.terminal import print_json, use_color, width_of, write_error

_PROGRAM_ERROR, _USAGE_ERROR, _BUG = 1, 2, 3
_OWN = ("ir", "lowering", "passes", "spmdc")


def report(problem: Exception, options: Options, arguments: Sequence[str]) -> int:
    """Reports an exception to the user and returns the exit status. Any exception other than SpmdcError is a bug."""
    if isinstance(problem, SpmdcError):
        return report_errors(problem.diagnostics, options)
    if isinstance(problem, MemoryError):
        reason = str(problem).rstrip(".") or "out of memory"
        help = "smaller consts (-D) or, where the devices are simulated, fewer of them"
        return report_errors([Diagnostic("E505", f"this machine has too little memory: {reason}", help=help)], options)
    missing = (problem.name or "").partition(".")[0] if isinstance(problem, ModuleNotFoundError) else ""
    if missing and missing not in _OWN:
        message, extra = f"{missing} is not installed for {sys.executable}", _extra_of(missing)
        help = f"pip install 'spmdc[{extra}]'" if extra else "pip install spmdc installs all that it needs"
        return report_errors([Diagnostic("E605", message, help=help)], options)
    return _report_bug(problem, options, arguments)


def _extra_of(package: str) -> str | None:
    """The first of spmdc's extras that contains a package."""
    # Imported late, as in `versions`: few commands end here, and it takes longer than everything else in this file.
    from importlib import metadata

    wanted = re.compile(rf"{re.escape(package)}\b.*\bextra == ['\"]([\w-]+)['\"]", re.IGNORECASE)
    found = (wanted.match(requirement) for requirement in metadata.requires("spmdc") or ())
    return next((match[1] for match in found if match), None)


def report_errors(diagnostics: Sequence[Diagnostic], options: Options) -> int:
    """Reports errors and returns the exit status: 2 if all are errors in the command line."""
    if options.json:
        print_json("errors", {}, diagnostics)
    else:
        print_diagnostics(diagnostics)
    return _USAGE_ERROR if all(d.code in ("E601", "E603") for d in diagnostics) else _PROGRAM_ERROR


def print_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Writes diagnostics to stderr, errors and warnings alike."""
    text = render(diagnostics, color=use_color(sys.stderr), width=width_of(sys.stderr))
    if text:
        write_error(text)


def versions() -> str:
    """The versions of spmdc and its dependencies, found without importing them."""
    from importlib import metadata

    parts = [f"spmdc {__version__}", f"python {platform.python_version()}"]
    for package in ("jax", "jaxlib", "numpy"):
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            parts.append(f"{package} missing")
    return ", ".join([*parts, platform.platform(terse=True)])


def _report_bug(problem: Exception, options: Options, arguments: Sequence[str]) -> int:
    command = shlex.join(["spmdc", *arguments])
    frames = traceback.extract_tb(problem.__traceback__)
    place = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"
    lines = traceback.format_exception_only(problem)[-1].strip().splitlines()
    text = "".join(traceback.format_exception(problem))
    path = _save(f"{command}\n{versions()}\n\n{text}")
    if options.json:
        bug = {"error": lines[0], "place": place, "command": command, "versions": versions(), "traceback": path}
        print_json("bug", {"bug": bug})
        return _BUG
    color = use_color(sys.stderr)
    title = f"spmdc has a bug: {lines[0]}"
    report = (
        f"{painted('error', 'error', color)}: {painted('bold', title, color)}",
        f"  --> {place}",
        "  = note: this is no fault of your program. Please report it, with the program and these lines:",
        f"      command:   {command}",
        f"      versions:  {versions()}",
        f"      traceback: {path}",
    )
    write_error("\n".join(report))
    return _BUG


def _save(text: str) -> str:
    """Writes the traceback to a file of its own and returns the path, or why it could not be written."""
    try:
        handle, path = tempfile.mkstemp(prefix="spmdc-bug-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as problem:
        return f"not saved ({problem.strerror})"
    return path


def _short(filename: str) -> str:
    """The path from the package's folder on."""
    parts = filename.split(os.sep)
    starts = [i for i, part in enumerate(parts) if part in ("ir", "passes", "lowering", "spmdc")]
    return os.sep.join(parts[starts[-1] :]) if starts else filename
