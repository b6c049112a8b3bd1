"""How often a device runs each instruction of a module that XLA has compiled, from JAX's profiler."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

_finish: Any = jax.block_until_ready


def runs_of(hlo: str, call: Callable[[], Any]) -> Mapping[str, int]:
    """How often the call runs each instruction of the optimised module, on the device that runs it most often.

    The call is made twice, and only the second is measured. Raises AssertionError if it does not run the module.
    """
    profiler: Any = jax.profiler
    _finish(call())
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with profiler.trace(folder, profiler_options=options):
            _finish(call())
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = profiler.ProfileData.from_file(str(file))
    module = hlo.partition(",")[0].removeprefix("HloModule ")
    found: Counter[tuple[str, object]] = Counter()
    for event in (e for plane in profile.planes for line in plane.lines for e in line.events):
        said: dict[str, object] = dict(event.stats)
        if said.get("hlo_module") == module and "hlo_op" in said:
            found[str(said["hlo_op"]), said.get("device_ordinal")] += 1
    assert found, f"the call does not run {module}"
    runs: dict[str, int] = {}
    for (instruction, _), count in found.items():
        runs[instruction] = max(count, runs.get(instruction, 0))
    return runs
