"""What a program computes, as a short text that can be compared: a checkpoint names the program that it is of."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence

from ir.ops.layout import is_annotation
from ir.program import Program, Region, Value


def fingerprint_of(program: Program) -> str:
    """A hash of the ops, the types and the initial values. Names, comments, the mesh and annotations do not change it,
    except in manual regions, whose types are those of shards."""
    told = hashlib.sha256()
    for function in program.functions.values():
        told.update(f"def {function.name}\n".encode())
        for line in _Listing().lines(function.body):
            told.update(f"{line}\n".encode())
    begun = [(param.name, str(program.weights.get(param.name))) for param in program.main.params]
    told.update(f"{begun} {[result.name for result in program.main.results]}".encode())
    return told.hexdigest()[:16]


class _Listing:
    """The ops of a function in lines, with numbers for names."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}
        self._next = itertools.count()

    def lines(self, region: Region) -> Iterator[str]:
        yield self._defined(region.params)
        for op in region.ops:
            if is_annotation(op):
                self._numbers[op.result] = self._numbers[op.operands[0]]
                continue
            attributes = sorted((name, str(value)) for name, value in op.attrs.items())
            yield f"{self._defined(op.results)} = {op.name}({self._used(op.operands)}) {attributes}"
            for inner in op.regions:
                yield "{"
                yield from self.lines(inner)
                yield "}"
        yield f"return {self._used(region.results)}"

    def _defined(self, values: Sequence[Value]) -> str:
        self._numbers.update(zip(values, self._next, strict=False))
        return ", ".join(f"{self._numbers[value]}: {value.type}" for value in values)

    def _used(self, values: Sequence[Value]) -> str:
        return ", ".join(str(self._numbers[value]) for value in values)
