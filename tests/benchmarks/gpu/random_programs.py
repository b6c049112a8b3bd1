"""Random programs on one GPU: XLA's kernels for it compute what the reference computes.

`make soak-gpu` runs programs of all families for five minutes, or for as many seconds as SECONDS says, and prints those
that differ or are refused, as small as they can be made. XLA may end a process instead, or the GPU may run nothing
more: each block of programs has a process of its own, and is run again program by program to print the one on which it
ended. Programs that replace elements by a scatter are left out, since a GPU may write two boxes into one place in any
order.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))

from side_by_side import programs_side_by_side, side_by_side

from ir.program import Program, all_ops
from ir.types import DTYPES, DType
from spmdc.frontends.spmd import print_program
from spmdc.testing import FAMILIES, NotEquivalentError, check_equivalence

_MODULES, _IN_A_MODULE, _OPS = 5, 20, 6
_SHORT = [*(DTYPES[t] for t in ("s32", "f32", "bf16", "u8", "c64")), *(t for t in DTYPES.values() if t.is_short)]
_BROKEN = "CUDA_ERROR"
_QUIETLY: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


def is_of_one_order(program: Program) -> bool:
    """Whether no element is written twice by a scatter."""
    return not any(op.name == "scatter" and op.attrs["kind"] == "replace" for op in all_ops(program))


def block(seed: int, last: Path, *, one_by_one: bool) -> int:
    """Runs some modules of programs; the number of those that fail. `last` is the file for what runs next."""
    failed = 0
    dtypes: Sequence[DType] | None = [t for t in _SHORT if t.has_zero and t.bits > 2] if seed % 4 > 1 else None
    anything = seed % 2 == 1

    @seeded(seed)
    @settings(max_examples=_MODULES, phases=(Phase.generate,), **_QUIETLY)
    @given(_drawn(dtypes, anything=anything), st.integers(0, 1000))
    def run(drawn: list[Program], inputs: int) -> None:
        nonlocal failed
        kept = [program for program in drawn if is_of_one_order(program)]
        if not kept or (not one_by_one and _fits(side_by_side(kept), inputs, last, anything=anything)):
            return
        failed += sum(not _fits(program, inputs, last, anything=anything, tell=True) for program in kept)

    run()
    return failed


def _drawn(dtypes: Sequence[DType] | None, *, anything: bool) -> st.SearchStrategy[list[Program]]:
    families = (None, *FAMILIES)
    return programs_side_by_side(
        _IN_A_MODULE, _OPS, dtypes, max_devices=1, families=families, anything=anything, functions=False
    )


def _fits(program: Program, inputs: int, last: Path, *, anything: bool, tell: bool = False) -> bool:
    """Whether the GPU computes what the reference does. If not, the smallest such program is printed to `tell` it."""
    last.write_text(print_program(program, locations=False), encoding="utf-8")
    try:
        check_equivalence(program, jax=True, seed=inputs, anything=anything, shrink=tell)
    except jax.errors.JaxRuntimeError as broken:
        _end(broken)
    except NotEquivalentError as found:
        if _BROKEN in str(found):
            _end(found)
        if tell:
            print(found, flush=True)
        return False
    return True


def _end(reason: Exception) -> NoReturn:
    """Ends the process as XLA does: nothing more runs on its GPU."""
    print(str(reason).partition("\n")[0], flush=True)
    os.abort()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=300, help="for how long blocks are started")
    options.add_argument("--seed", type=int, default=0, help="of the first block")
    options.add_argument("--block", type=Path, help="run one block, with this file for what runs next")
    options.add_argument("--one-by-one", action="store_true", help="do not put programs into modules")
    asked = options.parse_args()
    if asked.block is not None:
        sys.exit(min(block(asked.seed, asked.block, one_by_one=asked.one_by_one), 100))
    end, failed = time.monotonic() + asked.seconds, 0
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder) / "last.spmd"
        for seed in itertools.count(asked.seed):
            if time.monotonic() > end:
                break
            command = [sys.executable, __file__, f"--seed={seed}", f"--block={last}"]
            status = subprocess.run(command, check=False).returncode
            if status < 0:
                # A GPU says where it failed only if it is waited for after each kernel.
                again = [*command, "--one-by-one"]
                subprocess.run(again, check=False, env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"})
                print(f"the process ended with signal {-status} on\n{last.read_text(encoding='utf-8')}", flush=True)
            failed += 1 if status < 0 else status
    print(f"blocks {asked.seed} to {seed}: {failed} programs differ, are refused, or end the process")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
