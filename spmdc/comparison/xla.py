"""What XLA's own partitioner makes of a program: the collectives in the module that it compiles.

The text of an optimised HLO module is read for collectives alone. Loops count as often as XLA says that they run, their
conditions once more, and both once where it does not say, unless it is known how often each instruction ran. Bytes are
those that a device receives, by the cost model that counts those of our own programs. An all_reduce of which each
device takes only its own part is a reduce_scatter on the backends that have one, and counts as one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ir.diagnostics import InternalError
from passes.cost.model import received_bytes

_KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "reduce-scatter": "reduce_scatter",
    "ragged-all-to-all": "all_to_all",
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_SHAPE = re.compile(r"\b(pred|bf16|[sufc]\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INDEX = re.compile(r"index=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_RUN_ONCE = ("call", "conditional", "async-start", "fusion")
_SAME_ELEMENTS = ("bitcast", "convert", "copy", "get-tuple-element", "reshape")


@dataclass(frozen=True, slots=True)
class XlaCollective:
    """One collective of a compiled module. `bytes` are those that a device receives in one execution: every device,
    or the `receivers` of a permute."""

    kind: str
    name: str
    bytes: int
    count: int
    receivers: frozenset[int] | None = None

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "name": self.name, "bytes": self.bytes, "count": self.count}


def collectives_of_hlo(text: str, *, literally: bool = False) -> list[XlaCollective]:
    """The collectives that the entry of an optimised HLO module runs: on backends that scatter what they reduce, or
    `literally` those that are there."""
    computations, entry = _computations(text)
    match = _PARTITIONS.search(text.partition("\n")[0])
    devices = int(match[1]) if match is not None else 1
    return list(_executed(_Module(computations, devices, not literally), entry, 1))


def received_by_the_worst(collectives: Iterable[XlaCollective]) -> int:
    """Bytes that the device receives which receives most."""
    everyone, some = 0, Counter[int]()
    for c in collectives:
        if c.receivers is None:
            everyone += c.bytes * c.count
        for receiver in c.receivers or ():
            some[receiver] += c.bytes * c.count
    return everyone + max(some.values(), default=0)


def received_in_hlo(text: str, runs: Mapping[str, int] | None = None) -> int:
    """Bytes that the worst device receives in one run of an optimised HLO module. `runs` says how often each
    instruction ran; without it, loops whose trips XLA does not know count once."""
    found = collectives_of_hlo(text)
    return received_by_the_worst(found if runs is None else [replace(c, count=runs.get(c.name, 0)) for c in found])


def has_unknown_trips(text: str) -> bool:
    """Whether an optimised HLO module has a loop of which XLA does not say how often it runs."""
    instructions = (_INSTRUCTION.match(line) for line in text.splitlines())
    return any(found is not None and found[3] == "while" and _TRIPS.search(found[4]) is None for found in instructions)


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One line of a computation; `rest` is what follows the name of the op and a parenthesis."""

    name: str
    shape: str
    op: str
    rest: str
    operands: tuple[str, ...]

    @property
    def sizes(self) -> list[int]:
        """The bytes of each tensor that it makes."""
        return [_size(element, dims) for element, dims in _SHAPE.findall(self.shape)]


@dataclass(frozen=True, slots=True)
class _Computation:
    """The instructions of a computation by name, in order, and those that use each."""

    instructions: dict[str, _Instruction] = field(default_factory=dict[str, _Instruction])
    users: dict[str, list[_Instruction]] = field(default_factory=dict[str, list[_Instruction]])

    def add(self, instruction: _Instruction) -> None:
        self.instructions[instruction.name] = instruction
        for operand in dict.fromkeys(instruction.operands):
            self.users.setdefault(operand, []).append(instruction)


_Computations = dict[str, _Computation]


def _computations(text: str) -> tuple[_Computations, str]:
    found: _Computations = {}
    entry = ""
    computation = _Computation()
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head is not None:
            computation = found[head[2]] = _Computation()
            entry = head[2] if head[1] else entry
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction is not None:
            name, shape, op, rest = instruction.groups()
            computation.add(_Instruction(name, shape, op, rest, tuple(_OPERAND.findall(_inside(rest)))))
    if not entry:
        raise InternalError("the HLO module has no entry computation")
    return found, entry


def _inside(rest: str) -> str:
    """What stands before the parenthesis that closes the operands."""
    depth = 0
    for i, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return rest[:i]
    return rest


@dataclass(frozen=True, slots=True)
class _Module:
    """A module for so many devices, on a backend that scatters what it reduces or does not."""

    computations: _Computations
    devices: int
    scatters: bool


def _executed(module: _Module, name: str, count: int) -> Iterator[XlaCollective]:
    computation = module.computations[name]
    for i in computation.instructions.values():
        kind = _KINDS.get(i.op.removesuffix("-start"))
        if kind is not None:
            yield from _collectives(module, computation, i, kind, count)
            continue
        trips = _TRIPS.search(i.rest) if i.op == "while" else None
        times = count * int(trips[1]) if trips is not None else count
        condition = _CONDITION.search(i.rest) if i.op == "while" else None
        if condition is not None:
            yield from _executed(module, condition[1], times + count * (trips is not None))
        branches = _BRANCHES.search(i.rest)
        called = _CALLED.findall(i.rest)
        called += [b.strip().lstrip("%") for b in branches[1].split(",")] if branches is not None else []
        for callee in called if i.op == "while" or i.op in _RUN_ONCE else ():
            yield from _executed(module, callee, times)


def _collectives(
    module: _Module, computation: _Computation, i: _Instruction, kind: str, count: int
) -> Iterator[XlaCollective]:
    """An instruction as one collective; an all_reduce of several tensors, some of which are scattered, as two."""
    sizes, group = i.sizes, _group(i.rest, module.devices)
    if i.op.endswith("-start") and kind in ("all_gather", "collective_permute"):
        sizes = sizes[1:2]
    if kind == "collective_permute":
        listed = _PAIRS.search(i.rest)
        pairs = re.findall(r"(\d+),(\d+)", listed[1]) if listed is not None else []
        receivers = frozenset(int(target) for source, target in pairs if source != target)
        yield XlaCollective(kind, i.name, _received(kind, group, sum(sizes)), count, receivers)
        return
    if kind == "all_reduce" and module.scatters and not i.op.endswith("-start"):
        scattered = [
            size for k, size in enumerate(sizes) if _is_scattered(module.computations, computation, i, k, group)
        ]
        if scattered:
            yield XlaCollective("reduce_scatter", i.name, _received("reduce_scatter", group, sum(scattered)), count)
            rest = sum(sizes) - sum(scattered)
            if rest:
                yield XlaCollective(kind, i.name, _received(kind, group, rest), count)
            return
    operand = {"all_gather": sum(sizes) // group, "reduce_scatter": sum(sizes) * group}.get(kind, sum(sizes))
    yield XlaCollective(kind, i.name, _received(kind, group, operand), count)


def _received(kind: str, group: int, operand: int) -> int:
    return math.ceil(received_bytes(kind, group, operand))


def _is_scattered(
    computations: _Computations, computation: _Computation, reduced: _Instruction, number: int, group: int
) -> bool:
    """Whether each device takes only its own part of a result of an all_reduce."""
    users = computation.users.get(reduced.name, [])
    if len(reduced.sizes) > 1:
        users = [u for u in users if (index := _INDEX.search(u.rest)) is None or int(index[1]) == number]
    parts = _Parts(computations, computation, frozenset())
    return group > 1 and parts.are_cut(reduced.name, users, reduced.sizes[number], group)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of a computation in which the `given` parameters differ between devices: who cuts parts out of what."""

    computations: _Computations
    computation: _Computation
    given: frozenset[str]

    def are_cut(self, name: str, users: Sequence[_Instruction], nbytes: int, group: int) -> bool:
        """Whether each of the users of a value takes one part of `group`, at a place that differs between devices."""
        return bool(users) and all(self._is_cut(name, user, nbytes, group) for user in users)

    def _is_cut(self, name: str, user: _Instruction, nbytes: int, group: int) -> bool:
        if user.op in _SAME_ELEMENTS:
            size = sum(user.sizes) if user.op == "convert" else nbytes
            return self.are_cut(user.name, self.computation.users.get(user.name, []), size, group)
        if user.op == "dynamic-slice":
            starts = user.operands[1:]
            return user.operands[0] == name and sum(user.sizes) * group == nbytes and any(map(self._differs, starts))
        called = _CALLED.search(user.rest)
        if user.op != "fusion" or called is None or user.operands.count(name) != 1:
            return False
        inner = self.computations[called[1]]
        params = {int(i.rest.partition(")")[0]): i.name for i in inner.instructions.values() if i.op == "parameter"}
        given = frozenset(params[k] for k, o in enumerate(user.operands) if o != name and self._differs(o))
        param = params[user.operands.index(name)]
        return _Parts(self.computations, inner, given).are_cut(param, inner.users.get(param, []), nbytes, group)

    def _differs(self, name: str) -> bool:
        """Whether a value is computed from the device's own number."""
        pending, seen = [name], {name}
        while pending:
            current = pending.pop()
            instruction = self.computation.instructions.get(current)
            if current in self.given or (instruction is not None and instruction.op == "partition-id"):
                return True
            found = instruction.operands if instruction is not None else ()
            pending.extend(o for o in found if o not in seen)
            seen.update(found)
        return False


def _size(element: str, dims: str) -> int:
    bits = 8 if element == "pred" else int(re.findall(r"\d+", element)[0])
    return math.prod(int(d) for d in dims.split(",") if d) * bits // 8


def _group(rest: str, devices: int) -> int:
    """The size of a collective's groups, in any of XLA's spellings."""
    listed = _LISTED_GROUPS.search(rest)
    if listed is not None:
        return len(listed[1].split(","))
    iota = _IOTA_GROUPS.search(rest)
    if iota is not None:
        return int(iota[2])
    mesh = _MESH_GROUPS.search(rest)
    if mesh is None:
        return devices
    axes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
    parts = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", mesh[2])
    return math.prod(int(size or axes[name]) for name, size in parts)
