"""What a program computes, as a short text that can be compared: a checkpoint names the program that it is of."""

from __future__ import annotations

import hashlib

from ir.host import HostFunction
from ir.ops.layout import is_annotation
from ir.program import Attr, Op, Program, Region, Value, callee_of, callees_first


def fingerprint_of(program: Program) -> str:
    """A hash of what main's results are computed by, of types and of initial values. What no result depends on, the
    order of lines and of functions, names inside, comments, the mesh and annotations do not change it; in manual
    regions the mesh does, as types there are those of shards.

    Each value's hash is made of its op's and of its operands' hashes, so that the time is linear in the program.
    """
    bodies: dict[str, str] = {}
    for function in callees_first(program):
        bodies[function.name] = _Hashes(bodies).of_region(function.body)
    begun = [(param.name, str(program.weights.get(param.name))) for param in program.main.params]
    return _hash(bodies[program.entry], begun, [result.name for result in program.main.results])[:16]


def text_of(program: Program) -> str | None:
    """A hash of the text that a program was read from, with the files that it includes, wherever they are. None if it
    was read from no text."""
    if program.source is None or program.source.text is None:
        return None
    return _hash(program.source.text, [source.text for source in program.included])[:16]


class _Hashes:
    """The hashes of the values in a function, where `bodies` are those of the functions that it calls."""

    def __init__(self, bodies: dict[str, str]) -> None:
        self._bodies = bodies
        self._values: dict[Value, str] = {}

    def of_region(self, region: Region, depth: int = 0) -> str:
        """The hash of what a region returns. A parameter is told from those around it by its number, and by how deep
        the region is nested. An op without results is there for its effect, and such ops have an order."""
        for number, param in enumerate(region.params):
            self._values[param] = _hash("parameter", depth, number, param.type)
        effects: list[str] = []
        for op in region.ops:
            if is_annotation(op):
                self._values[op.result] = self._values[op.operands[0]]
                continue
            whole = self._of_op(op, depth)
            self._values.update((value, _hash(whole, i)) for i, value in enumerate(op.results))
            effects.extend([] if op.results else [whole])
        params = [str(param.type) for param in region.params]
        return _hash(params, [self._values[value] for value in region.results], effects)

    def _of_op(self, op: Op, depth: int) -> str:
        function = callee_of(op)
        attributes = {**op.attrs, "function": self._bodies[function]} if function is not None else op.attrs
        written = [(name, _written(attributes[name])) for name in sorted(attributes)]
        operands = [self._values[value] for value in op.operands]
        inside = [self.of_region(region, depth + 1) for region in op.regions]
        return _hash(op.name, written, operands, inside, [str(value.type) for value in op.results])


def _written(value: Attr) -> str:
    """An attribute in full. A function on the host is its name: where it is in memory differs between processes."""
    return value.name if isinstance(value, HostFunction) else str(value)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr([str(part) for part in parts]).encode()).hexdigest()
