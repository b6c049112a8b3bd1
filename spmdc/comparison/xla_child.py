"""A process in which XLA compiles for `spmdc compare`, so that an abort or an endless loop of XLA affects nothing else.

It is run as a script, with JAX on the host's CPU; each job has as many devices as it requests.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
from typing import Any

import jax

from lowering.jax.topologies import parse_target, topology_devices
from spmdc.comparison.job import Job
from spmdc.comparison.xla_compile import REFUSALS, compile_job
from spmdc.isolation.server import RefusedError, serve


def compiled(asked: bytes) -> bytes:
    """A pickled job compiled by XLA, pickled. Raises RefusedError with XLA's message if that fails."""
    job: Job = pickle.loads(asked)
    signal.setitimer(signal.ITIMER_PROF, job.most_seconds)
    config: Any = jax.config
    if job.target == "cpu":
        config.update("jax_num_cpu_devices", len(job.devices))
    names: dict[str, Any] = {"__name__": "compared"}
    exec(compile(job.source, "<the compared program>", "exec"), names)
    try:
        return pickle.dumps(compile_job(job, names, _devices(job.target)))
    except REFUSALS as problem:
        raise RefusedError(str(problem)) from None


def _devices(target: str) -> list[jax.Device]:
    tpus = parse_target(target)
    return jax.devices("cpu") if tpus is None else topology_devices(tpus)


def _offer_to_be_ended(_: int) -> None:
    """Makes this process the first that the system ends when memory is short."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


if __name__ == "__main__":
    serve(compiled, _offer_to_be_ended)
