"""Values that a module receives from the host while it runs, or sends to it, become additional arguments and results of
the program.

A run of the program takes the values for one run of the module, when it begins, and returns those that are sent, when
it ends. A value that is received after something was sent may be the host's answer to it, and is rejected, and so are
transfers in loops or choices.
"""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from ir.program import Value
from spmdc.frontends.stablehlo.attributes import flag
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("infeed", "recv")
def _taken(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Raises SpmdcError (E704)."""
    if _handed_before(op, scope):
        help = "take all that the host gives first, or call the host by io_callback"
        raise scope.refuse(op, "what the host gives here may answer what it was handed before", code="E704", help=help)
    name = op.name.partition(".")[2]
    return [scope.builder.param(name, type) for type in scope.result_types(op)]


@converts("outfeed", "send")
def _handed(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Raises SpmdcError (E704)."""
    name = op.name.partition(".")[2]
    _handed_before(op, scope).extend((name, value) for value in scope.operands(op))
    return []


def _handed_before(op: mlir.Operation, scope: Scope) -> list[tuple[str, Value]]:
    """What the program has sent to the host before. Raises SpmdcError (E704) if the op communicates with another
    program, or may not run exactly once."""
    if op.name.endswith((".send", ".recv")) and not flag(op, "is_host_transfer"):
        message = "it hands tensors to another program, or to one device alone, while this one runs"
        raise scope.refuse(op, message, code="E704", help="send between the devices of a program by collective_permute")
    if scope.handed is None:
        message = "it hands tensors to the host, or takes some, in a loop, a choice, a function or a manual region"
        help = "give what is fed in as an argument, and return what is fed out; or call the host by io_callback"
        raise scope.refuse(op, message, code="E704", help=help)
    return scope.handed
