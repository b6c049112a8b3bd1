"""What is damaged besides programs as text: machine files, and bytecode, here a text of characters below 256."""

from __future__ import annotations

import functools
import io
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxlib.mlir import ir as mlir

import spmdc
from ir.program import Program
from passes.cost.machine import Machine
from spmdc.frontends.stablehlo.mlir_modules import new_context

_MACHINES = Path(spmdc.__file__).parents[1] / "passes" / "cost" / "machines"
_OWN = """name = "own"
[device]
flops = 61e12
rates = { bf16 = 123e12, s8 = 1e12 }
memory_bandwidth = 450e9
memory = 17179869184
turn = 2e-6
asynchronous = true
clock = 940e6
[[network]]
name = "x"
size = 4
kind = "ring"
bandwidth = 41e9
latency = 1e-7
[[network]]
name = "y"
kind = "KIND"
bandwidth = 1e9
latency = 1e-5
[[measured]]
kind = "all_gather"
group = 4
bytes = [4096, 1048576]
seconds = [2e-5, 1e-4]
"""
_LINKS = "[device]\nflops = 1e12\nmemory_bandwidth = 1e9\nmemory = 1e9\n[link]\nbandwidth = 1e9\nlatency = 1e-6\n"
_PROGRAM = """mesh (x=4, y=2)

def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (r: f32[8, 8], s: f32[8]) {
  c = matmul(a, b)
  _, d = while(i = 0, v = c, trip_count=3) cond { return i < 3 } do { return i + 1, tanh(matmul(v, b)) }
  return replicate(d), sum(c[1:] * 2, dim=0)
}
"""


def machine_files() -> tuple[str, ...]:
    shipped = tuple(path.read_text() for path in sorted(_MACHINES.glob("*.toml")))
    return (*shipped, *(_OWN.replace("KIND", kind) for kind in ("ring", "line", "switch")), f'name = "l"\n{_LINKS}')


def bytecode_of(text: str) -> str:
    """The bytecode of a module, a character for each byte."""
    with new_context():
        bytecode = io.BytesIO()
        mlir.Module.parse(text).operation.write_bytecode(bytecode)
    return bytecode.getvalue().decode("latin-1")


def damaged_bytecode(rng: np.random.Generator, text: str, others: Sequence[str]) -> str:
    """With one to four faults: bytes that are others, doubled or gone, the end cut off, or that of another module."""
    data = bytearray(text.encode("latin-1"))
    for _ in range(int(rng.choice((1, 1, 1, 2, 4)))):
        at = int(rng.integers(4, len(data)))
        length = int(rng.choice((1, 1, 2, 8)))
        match int(rng.integers(8)):
            case 0:
                del data[at : at + length]
            case 1:
                data[at:at] = data[at : at + length]
            case 2:
                data[at] ^= 1 << int(rng.integers(8))
            case 3:
                data[at] = int(rng.choice((0, 1, 127, 128, 254, 255)))
            case 4:
                other = others[int(rng.integers(len(others)))].encode("latin-1")
                data[at:] = other[min(at, len(other) - 1) :]
            case 5:
                data[at] = (data[at] + int(rng.choice((1, 2, 4, 254, 255)))) % 256
            case _:
                letters = [i for i in range(4, len(data)) if chr(data[i]).isalnum()]
                data[letters[int(rng.integers(len(letters)))]] = int(rng.choice((0x20, 0x31, 0x41, 0x92, 0xFF)))
    return data.decode("latin-1")


@functools.cache
def _program() -> Program:
    return spmdc.parse(_PROGRAM)


def judged_machine(text: str) -> str:
    """What becomes of a program on the machine of a file. Raises SpmdcError if the file is refused, and ValueError if
    what comes out is no cost."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged.toml")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        machine = Machine.load(path)
    try:
        partitioned = spmdc.partition(_program(), machine=machine)
    except spmdc.SpmdcError as refused:
        return f"does not take the mesh {refused.diagnostics[0].code}"
    cost = partitioned.cost()
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (cost.seconds, partitioned.peak_bytes())):
        raise ValueError(f"it takes {cost.seconds} seconds")
    json.dumps(cost.to_json(), allow_nan=False)
    return "partitioned"
