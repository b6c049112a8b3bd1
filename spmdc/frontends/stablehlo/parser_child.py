"""A process that reads HLO and MLIR for another one, because XLA's and MLIR's parsers abort their process on some
texts.

It is run as a script, and imports little of spmdc; its arguments name functions of jaxlib. A request is a language and
a text or bytecode. The answer is a module in bytecode, which MLIR has read and verified.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pkgutil
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir as mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from spmdc.frontends.stablehlo.fatal_texts import fatal_text
from spmdc.isolation.server import RefusedError, serve

MOST_MEMORY = 4 << 30
"""Bytes of memory that reading a text may take."""

MOST_STACK = 2 << 20
"""Bytes of stack that reading a text may take: less than the stack of any process that then gets the module."""

HLO, MLIR, CHLO = b"h", b"m", b"c"
"""The languages. MLIR is text or bytecode; for CHLO, a module's CHLO ops are converted to StableHLO."""

SIMPLER = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
"""The passes that convert CHLO to StableHLO."""

VALID, INVALID = b"+", b"?"
"""The beginning of an answer. A module follows, or a JSON list of all errors that MLIR finds: each has a `message`, and
if its position is known the `file`, `line` and `column`, or the `name` of an op."""

BYTECODE = b"ML\xefR"
"""The beginning of MLIR bytecode."""

_FEW = 16
_DYNAMIC = (b"dynamic_", b"dimension_size", b"tensor<?")
_STATIC = "builtin.module(stablehlo-refine-shapes, func.func(stablehlo-canonicalize-dynamism))"
_PORTABLE = "vhlo."
_IN_OPS_OF_TODAY = (
    f"builtin.module(vhlo-to-version{{target={stablehlo.get_current_version()}}}, vhlo-legalize-to-stablehlo)"
)
_SAYS_SHARDING = "xla.sdy."
_FRONTEND = "mhlo.frontend_attributes"

Register = Callable[[mlir.DialectRegistry], None]

RefineShapes = Callable[..., bytes]
"""XLA's function that makes the shapes of a module in bytecode static. It raises an exception if one is not known."""


class _FatalError(Exception):
    """A construct for which jaxlib would abort a process."""


def most_seconds(size: int) -> float:
    """The processor time that reading a text of that many bytes may take: twenty times the usual."""
    return 3.0 + size / 200_000


def new_context(register_dialects: Register) -> mlir.Context:
    """A context with the dialects that XLA and JAX emit."""
    context = mlir.Context()
    registry = mlir.DialectRegistry()
    register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


def _set_bounds(size: int) -> None:
    for kind, bound in ((resource.RLIMIT_DATA, MOST_MEMORY), (resource.RLIMIT_STACK, MOST_STACK)):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, most_seconds(size))


def _read(
    register_dialects: Register, refine: RefineShapes, convert_hlo: Sequence[Callable[..., object]], asked: bytes
) -> bytes:
    language, text = asked[:1], asked[1:]
    with new_context(register_dialects) as context:
        context.enable_multithreading(False)
        try:
            if language == CHLO:
                return VALID + _in_simpler_ops(text)
            return VALID + _verified(_converted(convert_hlo if language == HLO else (), text), refine)
        except mlir.MLIRError as problem:
            found = [{"message": d.message, **_place(d.location)} for d in problem.error_diagnostics]
            return INVALID + json.dumps(found or [{"message": problem.message}]).encode()
        except _FatalError as problem:
            return INVALID + json.dumps([{"message": str(problem)}]).encode()
        except (RuntimeError, ValueError) as problem:
            raise RefusedError(str(problem)) from None


def _converted(functions: Sequence[Callable[..., object]], text: bytes) -> bytes:
    """The MLIR that the functions, one after another, convert a text to; the text if there are none."""
    if not functions:
        return text
    result: object = text.decode()
    for function in functions:
        result = function(result)
    assert isinstance(result, bytes)
    return result


def _verified(text: bytes, refine: RefineShapes) -> bytes:
    """The module in bytecode, in the ops of StableHLO if it is a portable artifact, with all shapes that follow from
    those of the arguments and from constants."""
    module = mlir.Module.parse(text)
    if any(op.operation.name.startswith(_PORTABLE) for op in module.body.operations):
        passmanager.PassManager.parse(_IN_OPS_OF_TODAY).run(module.operation)
    if any(word in text for word in _DYNAMIC):
        module = of_known_shapes(module, refine)
    if _SAYS_SHARDING.encode() in text:
        module.operation.walk(_read_what_frontends_say)
    if text.startswith(BYTECODE):
        _check_names(module)
    bytecode = _bytecode(module)
    mlir.Module.parse(bytecode)
    return bytecode


def of_known_shapes(module: mlir.Module, refine: RefineShapes) -> mlir.Module:
    """A copy of the module with static shapes in place of shape operands and open types, where they are known. If all
    are, `refine` has inlined its functions, which may be called with different sizes. The module itself, if it is
    inconsistent."""
    bytecode = _bytecode(module)
    with contextlib.suppress(Exception):  # XLA's own, and what Python makes of absl's.
        return mlir.Module.parse(refine(bytecode, enable_shape_assertions=True, enable_shardy=True))
    refined = mlir.Module.parse(bytecode)
    try:
        passmanager.PassManager.parse(_STATIC).run(refined.operation)
    except mlir.MLIRError:
        return module
    return refined


def _in_simpler_ops(text: bytes) -> bytes:
    module = mlir.Module.parse(text)
    passmanager.PassManager.parse(SIMPLER).run(module.operation)
    return _bytecode(module)


def _bytecode(module: mlir.Module) -> bytes:
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return bytecode.getvalue()


def _check_names(module: mlir.Module) -> None:
    """Raises _FatalError if the bytecode has a construct for which jaxlib aborts the process that accesses it. Text is
    checked by the requesting process, which knows its lines."""
    printed = module.operation.get_asm(
        binary=True, enable_debug_info=True, large_elements_limit=_FEW, large_resource_limit=_FEW
    )
    assert isinstance(printed, bytes)
    fatal = fatal_text(printed.decode(errors="replace"))
    if fatal is not None:
        raise _FatalError(fatal.message)


def _read_what_frontends_say(op: mlir.Operation) -> mlir.WalkResult:
    """Reads string attributes that the requesting process will read. Errors in them are not reported here."""
    given: Any = op.attributes.get(_FRONTEND, ())
    for named in given:
        if named.name.startswith(_SAYS_SHARDING) and isinstance(named.attr, mlir.StringAttr):
            with contextlib.suppress(mlir.MLIRError, UnicodeDecodeError):
                mlir.Attribute.parse(named.attr.value_bytes.decode())
    return mlir.WalkResult.ADVANCE


def _place(untyped: mlir.Location) -> dict[str, str | int]:
    """Diagnostics have locations without their kinds; attributes have them."""
    location = mlir.Location.from_attr(untyped.attr)
    if isinstance(location, mlir.NameLoc):
        return {"name": str(location.name_str)}
    if isinstance(location, mlir.FileLineColLoc):
        return {"file": location.filename, "line": location.start_line, "column": location.start_col}
    return {}


if __name__ == "__main__":
    stablehlo.register_stablehlo_passes()
    _register, _refine, *_convert = (pkgutil.resolve_name(name) for name in sys.argv[1:])
    serve(functools.partial(_read, _register, _refine, _convert), _set_bounds)
