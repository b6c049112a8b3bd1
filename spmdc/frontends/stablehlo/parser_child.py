"""A process that reads HLO and MLIR for another one: over some texts, XLA's parser and MLIR's end the process that they
run in.

It is run as a script and imports nothing of spmdc's; its arguments name functions of jaxlib's. Each request on stdin,
a length, a language and a text, is read in a fork of the process, which may end, and is answered on stdout by a length,
a status and what was made: a module in bytecode, which MLIR has read and verified. What the process has imported serves
all texts.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir as mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

MOST_MEMORY = 4 << 30
"""Bytes of memory that reading a text may take."""

MOST_STACK = 2 << 20
"""Bytes of its stack that reading a text may take: less than any process has that is then given the module."""

HLO, MLIR = b"h", b"m"
"""The languages. MLIR is text or bytecode."""

READ, INVALID, REFUSED, ENDED, STOPPED = b"+", b"?", b"-", b"!", b"~"
"""What became of a text: it was read, is no valid MLIR, was refused by XLA, ended the process, or was stopped at a
bound. What is not valid comes with JSON, a list of all that is wrong: a `message`, and where its place is known the
`file`, `line` and `column`, or the `name` of an op. The last three come with words that say why."""

_DYNAMIC = b"dynamic_"
_STATIC = "builtin.module(func.func(stablehlo-canonicalize-dynamism))"
_SAYS_SHARDING = "xla.sdy."
_FRONTEND = "mhlo.frontend_attributes"

Convert = Callable[[str], bytes]
Register = Callable[[mlir.DialectRegistry], None]


def most_seconds(size: int) -> float:
    """The processor time that reading a text of so many bytes may take: twenty times what it usually does."""
    return 3.0 + size / 200_000


def new_context(register_dialects: Register) -> mlir.Context:
    """A context that knows the dialects that XLA and JAX emit."""
    context = mlir.Context()
    registry = mlir.DialectRegistry()
    register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


def serve(register_dialects: Register, convert_hlo: Sequence[Callable[..., object]]) -> None:
    """Answers requests until there are no more."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What libraries print is no answer.
    stablehlo.register_stablehlo_passes()
    while size := requests.read(8):
        language, text = requests.read(1), requests.read(int.from_bytes(size))
        answer = _in_a_fork(register_dialects, convert_hlo if language == HLO else (), text)
        answers.write(len(answer).to_bytes(8) + answer)
        answers.flush()


def _in_a_fork(register_dialects: Register, convert: Sequence[Callable[..., object]], text: bytes) -> bytes:
    with tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as printed:
        process = os.fork()
        if process == 0:
            os.dup2(printed.fileno(), 2)
            try:
                _set_bounds(len(text))
                made.write(_read(register_dialects, convert, text))
                made.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code == 0:
            made.seek(0)
            return made.read()
        if code == -signal.SIGPROF:
            return STOPPED + b"it takes too much time"
        printed.seek(0)
        return ENDED + (printed.read() or (signal.strsignal(-code) or f"status {code}").encode())


def _set_bounds(size: int) -> None:
    for kind, bound in ((resource.RLIMIT_DATA, MOST_MEMORY), (resource.RLIMIT_STACK, MOST_STACK)):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, most_seconds(size))


def _read(register_dialects: Register, convert: Sequence[Callable[..., object]], text: bytes) -> bytes:
    with new_context(register_dialects) as context:
        context.enable_multithreading(False)
        try:
            return READ + _verified(_converted(convert, text))
        except mlir.MLIRError as problem:
            found = [{"message": d.message, **_place(d.location)} for d in problem.error_diagnostics]
            return INVALID + json.dumps(found or [{"message": problem.message}]).encode()
        except MemoryError:
            return STOPPED + f"it takes more than {MOST_MEMORY >> 30} GiB of memory".encode()
        except (RuntimeError, ValueError) as problem:
            return REFUSED + str(problem).encode()


def _converted(functions: Sequence[Callable[..., object]], text: bytes) -> bytes:
    """The MLIR that the functions, one after the other, make of a text; the text if there are none."""
    if not functions:
        return text
    result: object = text.decode()
    for function in functions:
        result = function(result)
    assert isinstance(result, bytes)
    return result


def _verified(text: bytes) -> bytes:
    """The module in bytecode, in which ops that take shapes as operands take none where these are constants."""
    module = mlir.Module.parse(text)
    if _DYNAMIC in text:
        with contextlib.suppress(mlir.MLIRError):
            passmanager.PassManager.parse(_STATIC).run(module.operation)
    if _SAYS_SHARDING.encode() in text:
        module.operation.walk(_read_what_frontends_say)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    mlir.Module.parse(bytecode.getvalue())
    return bytecode.getvalue()


def _read_what_frontends_say(op: mlir.Operation) -> mlir.WalkResult:
    """Reads the attributes that are texts in the module, as who asked for it will. What is wrong with one is not said
    here."""
    given: Any = op.attributes.get(_FRONTEND, ())
    for named in given:
        if named.name.startswith(_SAYS_SHARDING) and isinstance(named.attr, mlir.StringAttr):
            with contextlib.suppress(mlir.MLIRError):
                mlir.Attribute.parse(named.attr.value)
    return mlir.WalkResult.ADVANCE


def _place(untyped: mlir.Location) -> dict[str, str | int]:
    """Diagnostics carry locations without saying of what kind they are; attributes say it."""
    location = mlir.Location.from_attr(untyped.attr)
    if isinstance(location, mlir.NameLoc):
        return {"name": str(location.name_str)}
    if isinstance(location, mlir.FileLineColLoc):
        return {"file": location.filename, "line": location.start_line, "column": location.start_col}
    return {}


if __name__ == "__main__":
    _register, *_convert = (pkgutil.resolve_name(name) for name in sys.argv[1:])
    serve(_register, _convert)
