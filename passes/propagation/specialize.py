"""Copies functions that are called with different shardings, once for each of them.

How a function's values should be split depends on its callers. Here every call first gets a copy of its callee, and
propagation runs over all copies; those whose parameters and results are then sharded equally are merged again. So a
function that is always called in the same way remains one function, and no unnecessary copy is kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ir.builder import Names
from ir.closure import reached
from ir.ops.control import is_call, mapped_functions
from ir.program import Function, Op, Program, all_ops, callee_of, walk
from passes.propagation.manual_contexts import one_context_each
from passes.propagation.propagate import Boundary, boundaries
from passes.rewrite import copy_function, rename_callees

_MIN_ROOM = 5_000
_GROWTH = 4
"""The ops that copies may have in total, for each op of the program, while propagation finds what calls need. When the
limit is reached, the remaining calls share a copy."""


def specialize(program: Program) -> Program:
    """The program with a copy of a function for each way in which its parameters and results are sharded.

    The first keeps the function's name; the others are called `name.1`, `name.2`, … and follow it. Raises SpmdcError
    (E307) if annotations cut an axis in ways that clash.
    """
    program = one_context_each(program)
    if not any(count > 1 for count in _calls(program).values()):
        return program
    copies = _Copies(program)
    copies.make()
    return copies.merged(boundaries(replace(program, functions=copies.functions)))


def _calls(program: Program) -> Counter[str]:
    """The number of calls of each function."""
    return Counter(str(callee_of(op)) for op in all_ops(program) if is_call(op))


@dataclass(eq=False)
class _Copies:
    """The program's functions and their copies, and the original of each."""

    program: Program
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    original: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.place = {name: i for i, name in enumerate(self.program.functions)}

    def make(self) -> None:
        """Copies the callees call by call, callers first, up to the limit."""
        names = Names(set(self.program.functions))
        self.functions = dict(self.program.functions)
        self.original = {name: name for name in self.functions}
        sizes = {f.name: 1 + sum(1 for _ in walk(f.body)) for f in self.program.functions.values()}
        free = set(self.functions) - {self.program.entry, *mapped_functions(self.program)}
        room = max(_MIN_ROOM, _GROWTH * sum(sizes.values()))
        pending = deque([self.program.entry])
        while pending:
            caller = self.functions[pending.popleft()]
            targets: dict[Op, str] = {}
            for op in _calls_in(caller):
                callee = str(op.attrs["function"])
                if callee in free:
                    free.remove(callee)
                    pending.append(callee)
                elif sizes[callee] < room:
                    room -= sizes[callee]
                    targets[op] = names.fresh(callee)
                    self._copy(callee, targets[op])
                    pending.append(targets[op])
            if targets:
                self.functions[caller.name] = rename_callees(caller, targets)

    def _copy(self, name: str, copy: str) -> None:
        self.functions[copy] = copy_function(self.program.functions[name], copy)
        self.original[copy] = name

    def merged(self, boundaries: Mapping[str, Boundary]) -> Program:
        """The program with copies of a function that are sharded equally merged into one."""
        first: dict[tuple[str, Boundary], str] = {}
        for name, original in self.original.items():
            first.setdefault((original, boundaries[name]), name)
        same = {name: first[original, boundaries[name]] for name, original in self.original.items()}
        kept = self._reached(same)
        names = Names(set(self.program.functions))
        final = {name: name if name in self.program.functions else names.fresh(self.original[name]) for name in kept}
        functions: dict[str, Function] = {}
        for name in sorted(kept, key=lambda name: self.place[self.original[name]]):
            function = self.functions[name]
            targets = {op: final[same[str(op.attrs["function"])]] for op in _calls_in(function)}
            functions[final[name]] = replace(rename_callees(function, targets), name=final[name])
        return replace(self.program, functions=functions)

    def _reached(self, same: Mapping[str, str]) -> list[str]:
        """The functions that are still called, and those that the program never called, in order of copying."""
        uncalled = set(self.program.functions) - _calls(self.program).keys()

        def called(name: str) -> list[str]:
            return [same[str(op.attrs["function"])] for op in _calls_in(self.functions[name])]

        kept = set(reached((*uncalled, *mapped_functions(self.program)), called))
        return [name for name in self.original if name in kept]


def _calls_in(function: Function) -> Iterator[Op]:
    return (op for op in walk(function.body) if is_call(op))
