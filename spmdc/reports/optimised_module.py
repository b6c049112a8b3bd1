"""An optimised HLO module, as XLA prints it: its computations, and how often its entry runs each instruction.

Loops run as often as XLA or the caller states, or as they themselves count up to a constant, as most of the TPU
compiler's do; their conditions run once more. Both count once if nothing says how often.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ir.diagnostics import InternalError

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_SHAPE = re.compile(r"\b(pred|bf16|[sufc]\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_RUN_ONCE = ("call", "conditional", "async-start", "fusion")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation; `rest` is the text after the op's name and a parenthesis."""

    name: str
    shape: str
    op: str
    rest: str
    operands: tuple[str, ...]

    @property
    def tensors(self) -> list[tuple[str, str]]:
        """The element type and sizes of each tensor among its results, as in ("f32", "8,128")."""
        return _SHAPE.findall(self.shape)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each tensor among its results."""
        elements = [math.prod(int(d) for d in dims.split(",") if d) for _, dims in self.tensors]
        return [n * bits_of(element) // 8 for n, (element, _) in zip(elements, self.tensors, strict=True)]

    @property
    def called(self) -> list[str]:
        """The computations that it runs, except the condition of a loop."""
        branches = _BRANCHES.search(self.rest)
        names = [b.strip().lstrip("%") for b in branches[1].split(",")] if branches is not None else []
        return _CALLED.findall(self.rest) + names

    @property
    def estimated_cycles(self) -> int:
        """The TPU compiler's estimate for one execution; 0 for instructions that are free or communicate, and for other
        compilers."""
        found = _CYCLES.search(self.rest)
        return 0 if found is None else int(found[1])

    @property
    def trips(self) -> int | None:
        """The trip count of a loop, if XLA states it."""
        found = _TRIPS.search(self.rest) if self.op == "while" else None
        return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class Computation:
    """The instructions of a computation by name, in order, and the users of each."""

    instructions: dict[str, Instruction] = field(default_factory=dict[str, Instruction])
    users: dict[str, list[Instruction]] = field(default_factory=dict[str, list[Instruction]])

    @property
    def last(self) -> Instruction:
        """The instruction that makes the result."""
        return next(reversed(self.instructions.values()))

    def maker(self, name: str) -> Instruction:
        """The instruction that makes a value, behind copies of it."""
        found = self.instructions[name]
        return self.maker(found.operands[0]) if found.op == "copy" else found

    def number(self, name: str) -> int | None:
        """An integer constant; None for other values."""
        found = self.maker(name)
        digits = found.rest.partition(")")[0]
        return int(digits) if found.op == "constant" and digits.lstrip("-").isdecimal() else None

    def carried(self, name: str) -> int | None:
        """Which value that a loop carries this is, in the loop's body or condition; None for other values."""
        found = self.maker(name)
        index = _INDEX.search(found.rest) if found.op == "get-tuple-element" else None
        is_carried = index is not None and self.maker(found.operands[0]).op == "parameter"
        return int(index[1]) if index is not None and is_carried else None

    def _add(self, instruction: Instruction) -> None:
        self.instructions[instruction.name] = instruction
        for operand in dict.fromkeys(instruction.operands):
            self.users.setdefault(operand, []).append(instruction)


@dataclass(frozen=True, slots=True)
class OptimisedModule:
    """A module that runs on `devices` devices."""

    computations: dict[str, Computation]
    entry: str
    devices: int

    def executed(
        self, trips: Callable[[Instruction], int | None] = lambda loop: None
    ) -> Iterator[tuple[Computation, Instruction, int]]:
        """Every instruction that the entry runs, its computation, and how often it runs. `trips` returns trip counts of
        loops that XLA does not state."""
        return self._executed(self.entry, 1, trips)

    def _executed(
        self, name: str, count: int, trips: Callable[[Instruction], int | None]
    ) -> Iterator[tuple[Computation, Instruction, int]]:
        computation = self.computations[name]
        for i in computation.instructions.values():
            yield computation, i, count
            if i.op != "while" and i.op not in _RUN_ONCE:
                continue
            known = self._trips(computation, i, trips) if i.op == "while" else None
            times = count if known is None else count * known
            condition = _CONDITION.search(i.rest) if i.op == "while" else None
            if condition is not None:
                yield from self._executed(condition[1], times + count * (known is not None), trips)
            for callee in i.called:
                yield from self._executed(callee, times, trips)

    def has_unknown_trips(self) -> bool:
        """Whether there is a loop of which nothing says how often it runs."""
        loops = ((c, i) for c in self.computations.values() for i in c.instructions.values() if i.op == "while")
        return any(self._trips(c, i, lambda loop: None) is None for c, i in loops)

    def _trips(self, around: Computation, loop: Instruction, trips: Callable[[Instruction], int | None]) -> int | None:
        """The trip count of a loop in that computation."""
        stated = loop.trips if loop.trips is not None else trips(loop)
        return stated if stated is not None else self._counted(around, loop)

    def _counted(self, around: Computation, loop: Instruction) -> int | None:
        """The trip count of a loop that counts from one constant to another one: `while (i < n) i += step`."""
        names = _CONDITION.search(loop.rest), _BODY.search(loop.rest)
        condition, body = (self.computations[name[1]] for name in names if name is not None)
        test, carried, given = condition.last, body.last, around.maker(loop.operands[0])
        index = condition.carried(test.operands[0]) if test.op == "compare" and "direction=LT" in test.rest else None
        if index is None or (carried.op, given.op) != ("tuple", "tuple"):
            return None
        counter = body.maker(carried.operands[index])
        if counter.op != "add" or body.carried(counter.operands[0]) != index:
            return None
        step, begin = body.number(counter.operands[1]), around.number(given.operands[index])
        end = condition.number(test.operands[1])
        if step is None or begin is None or end is None or step <= 0:
            return None
        return max(0, -((begin - end) // step))


def read_module(text: str) -> OptimisedModule:
    """The module of that text."""
    found: dict[str, Computation] = {}
    entry = ""
    computation = Computation()
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head is not None:
            computation = found[head[2]] = Computation()
            entry = head[2] if head[1] else entry
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction is not None:
            name, shape, op, rest = instruction.groups()
            computation._add(Instruction(name, shape, op, rest, tuple(_OPERAND.findall(_inside(rest)))))
    if not entry:
        raise InternalError("the HLO module has no entry computation")
    match = _PARTITIONS.search(text.partition("\n")[0])
    return OptimisedModule(found, entry, int(match[1]) if match is not None else 1)


def bits_of(element: str) -> int:
    """The bits of an element, by XLA's name of its type."""
    return 8 if element == "pred" else int(re.findall(r"\d+", element)[0])


def _inside(rest: str) -> str:
    """The text before the parenthesis that closes the operands."""
    depth = 0
    for i, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return rest[:i]
    return rest
