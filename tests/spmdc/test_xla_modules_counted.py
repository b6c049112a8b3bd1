"""Our count of what XLA's modules send, against one made from their groups, device by device."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hlo_texts import collectives_of_hlo
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lowering.jax import ensure_devices
from spmdc.reports.hlo_collectives import received_by_the_worst

Groups = list[list[int]]
_struct: Any = jax.ShapeDtypeStruct
_spec: Any = PartitionSpec
_DEVICES = 8
_BITS = {"pred": 8, "f16": 16, "f32": 32, "s32": 32, "u32": 32}
_AXIS = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")
_LINE = re.compile(
    r"^\s*(?:ROOT )?%[\w.\-]+ = (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\((.*)$"
)


def groups_of(line: str) -> Groups:
    """The devices of each group, spelled as a list, as an iota with a transposition, or by axes of a mesh."""
    listed = re.search(r"replica_groups=\{(\{[\d,{} ]*\})?\}", line)
    if listed is not None:
        found = [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1] or "")]
        return found or [list(range(_DEVICES))]
    iota = re.search(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)", line)
    if iota is not None:
        return [list(map(int, row)) for row in devices_of(iota[1])]
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?\)?)\))? \{([^}]*)\}", line)
    assert mesh is not None, line
    axes = [(name, int(size)) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])]
    whole = str([size for _, size in axes])
    ids = devices_of(f"{whole}<={mesh[2]}".replace(" ", "")) if mesh[2] else np.arange(_DEVICES)
    named = {name: (int(pre or 1), int(size or 0)) for name, pre, size in _AXIS.findall(mesh[3])}
    shape: list[int] = []
    along: list[int] = []
    for name, size in axes:
        before, taken = named.get(name, (1, 1))
        taken = taken or size
        along += [len(shape) + 1]
        shape += [before, taken, size // before // taken]
    order = [d for d in range(len(shape)) if d not in along] + along
    count = int(np.prod([shape[d] for d in along]))
    return [list(map(int, row)) for row in ids.reshape(shape).transpose(order).reshape(-1, count)]


def devices_of(text: str) -> npt.NDArray[np.int64]:
    """`[4,2]<=[2,4]T(1,0)`."""
    match = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert match is not None, text
    shape, source = ([int(n) for n in match[k].split(",")] for k in (1, 2))
    ids = np.arange(_DEVICES).reshape(source)
    if match[3]:
        ids = ids.transpose([int(n) for n in match[3].split(",")])
    return ids.reshape(shape)


def received(line: str) -> Iterator[tuple[int, float]]:
    """The bytes that each device has after the collective and another had before, for one line of a module."""
    match = _LINE.match(line)
    if match is None:
        return
    shape, kind, rest = match.groups()
    arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape)
    nbytes = sum(_BITS[t] // 8 * int(np.prod([int(n) for n in dims.split(",") if n], initial=1)) for t, dims in arrays)
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", rest)
        assert pairs is not None
        for source, target in re.findall(r"(\d+),(\d+)", pairs[1]):
            yield int(target), nbytes * (source != target)
        return
    for group in groups_of(rest):
        others = len(group) - 1
        share = {
            "all-gather": others * nbytes / len(group),
            "all-to-all": others * nbytes / len(group),
            "reduce-scatter": others * nbytes,
            "all-reduce": 2 * others * nbytes / len(group),
        }[kind]
        yield from ((device, share) for device in group)


def each_receives(text: str) -> npt.NDArray[np.float64]:
    """Bytes by device. No module here has loops."""
    found = np.zeros(_DEVICES)
    for line in text.splitlines():
        for device, nbytes in received(line):
            found[device] += nbytes
    return found


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "matmul": (lambda a, b: a @ b, 2),
    "added": (lambda a, b: a + b, 2),
    "transposed": (lambda a: a.T, 1),
    "summed": (lambda a: jnp.sum(a, 0)[None] + jnp.sum(a, 1)[:, None], 1),
    "reshaped": (lambda a: a.reshape(32, 128).T, 1),
    "rolled": (lambda a: jnp.roll(a, 3, 0) + a, 1),
    "flipped": (lambda a: a[::-1] * 2, 1),
}
_MESHES: dict[str, dict[str, int]] = {"8": {"x": 8}, "2x4": {"x": 2, "y": 4}, "2x2x2": {"x": 2, "y": 2, "z": 2}}


def specs(names: list[str]) -> list[PartitionSpec]:
    """Shardings of two dims that use each axis once."""
    every = [(), *((n,) for n in names), *itertools.permutations(names, 2)]
    return [
        _spec(first or None, second or None)
        for first, second in itertools.product(every, repeat=2)
        if not set(first) & set(second)
    ]


@pytest.mark.parametrize("mesh", _MESHES)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_bytes_of_a_module_are_those_that_its_groups_send(name: str, mesh: str) -> None:
    sizes = _MESHES[mesh]
    devices = np.array(ensure_devices(_DEVICES), dtype=object).reshape(tuple(sizes.values()))
    placed = Mesh(devices, tuple(sizes))
    function, count = _FUNCTIONS[name]
    rng = np.random.default_rng(len(name) + len(mesh))
    choices = specs(list(sizes))
    for _ in range(10):
        chosen = [NamedSharding(placed, choices[rng.integers(len(choices))]) for _ in range(count + 1)]
        struct = _struct((64, 64), jnp.float16 if rng.integers(2) else jnp.float32)
        jitted = jax.jit(function, in_shardings=tuple(chosen[:-1]), out_shardings=chosen[-1])
        text = str(jitted.lower(*[struct] * count).compile().as_text())
        found = collectives_of_hlo(text)
        scattered = sum(c.bytes for c in found if c.kind == "reduce_scatter")
        assert received_by_the_worst(found) + scattered == each_receives(text).max(), text
