"""What XLA's own partitioner makes of a program: the collectives in the module that it compiles.

The text of an optimised HLO module is read for collectives alone. Loops count as often as XLA says that they run, their
conditions once more, and both once where it does not say, unless it is known how often each instruction ran. Bytes are
those that a device receives, by the cost model that counts those of our own programs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
_SHAPE = re.compile(r"\b(pred|bf16|[sufc]\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_PARTITIONS = re.compile(r"num_partitions=(\d+)")


@dataclass(frozen=True, slots=True)
class XlaCollective:
    """One collective of a compiled module. `bytes` are those that a device receives in one execution."""

    kind: str
    name: str
    bytes: int
    count: int


def collectives_of_hlo(text: str) -> list[XlaCollective]:
    """The collectives that the entry of an optimised HLO module runs."""
    computations, entry = _computations(text)
    match = _PARTITIONS.search(text.partition("\n")[0])
    devices = int(match[1]) if match is not None else 1
    return list(_executed(computations, entry, 1, devices))


def received_in_hlo(text: str, runs: Mapping[str, int] | None = None) -> int:
    """Bytes that a device receives in one run of an optimised HLO module. `runs` says how often each instruction ran;
    without it, loops whose trips XLA does not know count once."""
    return sum(c.bytes * (c.count if runs is None else runs.get(c.name, 0)) for c in collectives_of_hlo(text))


def has_unknown_trips(text: str) -> bool:
    """Whether an optimised HLO module has a loop of which XLA does not say how often it runs."""
    instructions = (_INSTRUCTION.match(line) for line in text.splitlines())
    return any(found is not None and found[3] == "while" and _TRIPS.search(found[4]) is None for found in instructions)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    entry = ""
    lines: list[str] = []
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head is not None:
            lines = found[head[2]] = []
            entry = head[2] if head[1] else entry
        else:
            lines.append(line)
    if not entry:
        raise InternalError("the HLO module has no entry computation")
    return found, entry


def _executed(computations: dict[str, list[str]], name: str, count: int, devices: int) -> Iterator[XlaCollective]:
    for line in computations[name]:
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        result, shape, op, rest = instruction.groups()
        kind = _KINDS.get(op.removesuffix("-start"))
        if kind is not None:
            yield XlaCollective(kind, result, _bytes(kind, op, shape, rest, devices), count)
            continue
        trips = _TRIPS.search(rest) if op == "while" else None
        times = count * int(trips[1]) if trips is not None else count
        condition = _CONDITION.search(rest) if op == "while" else None
        if condition is not None:
            yield from _executed(computations, condition[1], times + count * (trips is not None), devices)
        branches = _BRANCHES.search(rest)
        called = _CALLED.findall(rest)
        called += [b.strip().lstrip("%") for b in branches[1].split(",")] if branches is not None else []
        for callee in called if op in ("while", "call", "conditional", "async-start") else ():
            yield from _executed(computations, callee, times, devices)


def _bytes(kind: str, op: str, shape: str, rest: str, devices: int) -> int:
    sizes = [_size(element, dims) for element, dims in _SHAPE.findall(shape)]
    if op.endswith("-start") and kind in ("all_gather", "collective_permute"):
        sizes = sizes[1:2]
    total = sum(sizes)
    group = _group(rest, devices)
    operand = {"all_gather": total // group, "reduce_scatter": total * group}.get(kind, total)
    return math.ceil(received_bytes(kind, group, operand))


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
