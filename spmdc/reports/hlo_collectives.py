"""The collectives in an optimised HLO module: the communication of a compiled program, whichever partitioner made it.

Loops count with XLA's trip counts, their conditions once more, and both once if the trip count is unknown, unless it is
known how often each instruction ran. Bytes are those that a device receives, by the cost model that is also used for
spmdc's programs. An all_reduce of which each device takes only its own part is a reduce_scatter on the backends that
have one, and counts as one. A TPU collective that runs beside other ops is fused with each of them, and counts once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ir.closure import reached
from ir.records import as_json
from ir.spelling.hlo_groups import MESH_GROUPS, device_ids_of, groups_on_mesh
from passes.cost.model import received_bytes
from spmdc.reports.optimised_module import Computation, Instruction, OptimisedModule

_KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "reduce-scatter": "reduce_scatter",
    "ragged-all-to-all": "all_to_all",
}
_INDEX = re.compile(r"index=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_CHAIN = re.compile(r'chain_id="(\d+)"')
"""The common id of the parts of one TPU collective, which are fused with the ops that it runs beside."""

_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_SAME_ELEMENTS = ("bitcast", "convert", "copy", "get-tuple-element", "reshape")


@dataclass(frozen=True, slots=True)
class XlaCollective:
    """One collective of a compiled module. `bytes` is what a device receives in one execution: every device, or for a
    permute the receivers in `pairs`. `group` has the devices of the first group of any other collective, which put
    `operand` bytes into it."""

    kind: str
    name: str
    bytes: int
    count: int
    operand: int
    group: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def receivers(self) -> frozenset[int] | None:
        """The devices that receive something; None if all do."""
        return frozenset(target for _, target in self.pairs) if self.kind == "collective_permute" else None

    def to_json(self) -> dict[str, object]:
        return as_json(self, "kind", "name", "bytes", "count")


def collectives_in(
    module: OptimisedModule, *, literally: bool = False, trips: Callable[[Instruction], int | None] = lambda loop: None
) -> list[XlaCollective]:
    """The collectives that the entry of an optimised module runs: as on backends with reduce_scatter, or `literally`
    those in its text. `trips` returns trip counts of loops that XLA does not state."""
    found: list[XlaCollective] = []
    chains: set[str] = set()
    for computation, i, count in module.executed(trips):
        kind = _KINDS.get(i.op.removesuffix("-start"))
        chain = _CHAIN.search(i.rest)
        is_begun = chain is not None and chain[1] in chains
        chains.update(chain.groups() if chain is not None else ())
        if kind is not None and not is_begun:
            found.extend(_collectives(module, computation, i, kind, count, scatters=not literally))
    return found


def is_asynchronous(collective: Instruction) -> bool:
    """Whether later ops do not wait for it."""
    return collective.op.endswith("-start") or _CHAIN.search(collective.rest) is not None


def received_by_the_worst(collectives: Iterable[XlaCollective]) -> int:
    """Bytes that the device with the most received bytes receives."""
    everyone, some = 0, Counter[int]()
    for c in collectives:
        if c.receivers is None:
            everyone += c.bytes * c.count
        for receiver in c.receivers or ():
            some[receiver] += c.bytes * c.count
    return everyone + max(some.values(), default=0)


def _collectives(
    module: OptimisedModule, computation: Computation, i: Instruction, kind: str, count: int, *, scatters: bool
) -> Iterator[XlaCollective]:
    """An instruction as one collective; an all_reduce of several tensors, some of which are scattered, as two.

    The result of one that only starts has its operands too, on some backends: those are counted instead.
    """
    sizes, group = i.sizes, _group(i.rest, module.devices)
    if i.op.endswith("-start"):
        sizes = [size for o in i.operands for size in computation.instructions[o].sizes]
    if kind == "collective_permute":
        listed = _PAIRS.search(i.rest)
        pairs = re.findall(r"(\d+),(\d+)", listed[1]) if listed is not None else []
        others = tuple((int(source), int(target)) for source, target in pairs if source != target)
        yield XlaCollective(kind, i.name, sum(sizes), count, sum(sizes), pairs=others)
        return
    if kind == "all_reduce" and scatters and not i.op.endswith("-start"):
        scattered = [
            size for k, size in enumerate(sizes) if _is_scattered(module.computations, computation, i, k, len(group))
        ]
        if scattered:
            yield _among("reduce_scatter", i.name, group, sum(scattered), count)
            rest = sum(sizes) - sum(scattered)
            if rest:
                yield _among(kind, i.name, group, rest, count)
            return
    operand = {"all_gather": sum(sizes) // len(group), "reduce_scatter": sum(sizes) * len(group)}
    given = sum(sizes) if i.op.endswith("-start") else operand.get(kind, sum(sizes))
    yield _among(kind, i.name, group, given, count)


def _among(kind: str, name: str, group: tuple[int, ...], operand: int, count: int) -> XlaCollective:
    nbytes = math.ceil(received_bytes(kind, len(group), operand))
    return XlaCollective(kind, name, nbytes, count, operand, group)


def _is_scattered(
    computations: dict[str, Computation], computation: Computation, reduced: Instruction, number: int, group: int
) -> bool:
    """Whether each device takes only its own part of a result of an all_reduce."""
    users = computation.users.get(reduced.name, [])
    if len(reduced.sizes) > 1:
        users = [u for u in users if (index := _INDEX.search(u.rest)) is None or int(index[1]) == number]
    parts = _Parts(computations, computation, frozenset())
    return group > 1 and parts.are_cut(reduced.name, users, reduced.sizes[number], group)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A computation in which the `given` parameters differ between devices: which values are cut into parts."""

    computations: dict[str, Computation]
    computation: Computation
    given: frozenset[str]

    def are_cut(self, name: str, users: Sequence[Instruction], nbytes: int, group: int) -> bool:
        """Whether each of the users of a value takes one part of `group`, at a position that differs between
        devices."""
        return bool(users) and all(self._is_cut(name, user, nbytes, group) for user in users)

    def _is_cut(self, name: str, user: Instruction, nbytes: int, group: int) -> bool:
        if user.op in _SAME_ELEMENTS:
            size = sum(user.sizes) if user.op == "convert" else nbytes
            return self.are_cut(user.name, self.computation.users.get(user.name, []), size, group)
        if user.op == "dynamic-slice":
            starts = user.operands[1:]
            return user.operands[0] == name and sum(user.sizes) * group == nbytes and any(map(self._differs, starts))
        if user.op != "fusion" or user.operands.count(name) != 1:
            return False
        (called,) = user.called
        inner = self.computations[called]
        params = {int(i.rest.partition(")")[0]): i.name for i in inner.instructions.values() if i.op == "parameter"}
        given = frozenset(params[k] for k, o in enumerate(user.operands) if o != name and self._differs(o))
        param = params[user.operands.index(name)]
        return _Parts(self.computations, inner, given).are_cut(param, inner.users.get(param, []), nbytes, group)

    def _differs(self, name: str) -> bool:
        """Whether a value depends on the device's own number."""
        instructions = self.computation.instructions
        names = reached([name], lambda n: instructions[n].operands if n in instructions else ())
        return any(n in self.given or (n in instructions and instructions[n].op == "partition-id") for n in names)


def _group(rest: str, devices: int) -> tuple[int, ...]:
    """The devices of the first of a collective's groups, in any of XLA's spellings."""
    listed = _LISTED_GROUPS.search(rest)
    if listed is not None:
        return tuple(map(int, listed[1].split(",")))
    iota = _IOTA_GROUPS.search(rest)
    if iota is not None:
        return device_ids_of(iota[3])[: int(iota[2])]
    mesh = MESH_GROUPS.search(rest)
    return tuple(range(devices)) if mesh is None else tuple(groups_on_mesh(*mesh.groups())[0].tolist())
