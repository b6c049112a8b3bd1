"""A run of several processes, on one machine or on many, each with a part of the devices.

All compute the same step, and are given the same data, of which each puts what its devices take there. The first one
alone writes files and says how it goes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ir.diagnostics import SpmdcError, error
from ir.types import Array
from lowering.jax.running import HOST_DEVICES

_PLACE, _FOLDER = "SPMDC_PROCESS", "SPMDC_LAUNCHER"
"""The variables that tell a process of a launched run where the first one listens, its own number, and how many there
are; and the folder of what the launcher is to be told."""
_LOST = 75
"""The status of a process of a launched run that lost another: `leave_to_the_launcher`."""
_COMMAND = (sys.executable, "-m", "spmdc")
_ON = "the same command goes on from the last checkpoint, if there is one"
_PAUSE, _GRACE = 0.02, 5.0
"""Seconds between two looks at the processes, and those that the others have to end by themselves, once one failed."""


def is_launched() -> bool:
    """Whether this process is one of several that `launch` has started."""
    return _PLACE in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes files and says how it goes."""
    return int(jax.process_index()) == 0


def whole(array: Any) -> Array:
    """All of an array, wherever its parts are. All processes call it for the same arrays, one after the other."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def join(devices: int) -> None:
    """Makes this process one of those that `launch` has started, or of the cluster in which JAX finds itself: Slurm,
    Kubernetes, Open MPI, Cloud TPU. `devices` are those of all processes together, where they are a CPU's.

    Raises SpmdcError (E521) if there is no cluster, or the devices of all processes are not as many.
    """
    _silence_other_languages()
    if is_launched():
        address, number, count = os.environ[_PLACE].split(",")
        if devices % int(count):
            raise error("E521", f"{devices} devices cannot be shared by {count} processes",
                        help="as many processes as divide the mesh")  # fmt: skip
        threading.Thread(target=_end_with_the_launcher, daemon=True).start()
        config: Any = jax.config
        config.update("jax_num_cpu_devices", devices // int(count))
        jax.distributed.initialize(address, int(count), int(number))
    else:
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as problem:
            raise error("E521", f"JAX finds no cluster around this process: {problem}",
                        help="launch it with Slurm, Kubernetes, mpirun, or on a Cloud TPU; "
                        "--processes N starts N of them on this machine") from None  # fmt: skip
    if jax.device_count() != devices:
        raise error("E521", f"the mesh has {devices} devices, and the {jax.process_count()} processes together have "
                    f"{jax.device_count()}", help="sizes for all of them: [mesh] in the configuration")  # fmt: skip


def _silence_other_languages() -> None:
    """Leaves standard output to Python: Gloo, by which CPUs communicate, writes there whom it has found."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    sys.stdout.flush()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    sys.stdout = own


def launch(count: int, arguments: Sequence[str], goes_on: Callable[[], str]) -> int:
    """Starts processes of `spmdc` with these arguments on this machine, and returns the status of one that failed and
    has reported why: the first process, or the one that the others failed after. 0 if none failed. `goes_on` says what
    the same command does after a run that ended early.

    Raises SpmdcError (E521) if one is killed, or they lose one another; all have ended by then.
    """
    address = f"localhost:{_free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [_started(f"{address},{i},{count}", arguments, folder) for i in range(count)]
        try:
            failed = first_failure(children)
        except KeyboardInterrupt:
            print(f"\ninterrupted: {goes_on()}", file=sys.stderr)
            raise
        finally:
            for child in children:
                child.kill()
                child.wait()
        if failed is None:
            return 0
        number, status = failed
        if status < 0:
            what = f"process {number} of {count} was ended by signal {-status}, and the others were stopped"
            raise error("E521", what, help=goes_on())
        if status == _LOST:
            earliest = min(folder.glob("*.lost"), key=lambda path: path.stat().st_mtime_ns)
            raise error("E521", earliest.read_text(encoding="utf-8"), help=goes_on())
        first = children[0].returncode
        if first > 0 and first != _LOST:
            return first
        for stream, kind in ((sys.stdout, "out"), (sys.stderr, "err")):
            stream.write((folder / f"{number}.{kind}").read_text(encoding="utf-8", errors="replace"))
        return status


def _started(place: str, arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """A process; what others than the first say is kept in the folder."""
    command = [*_COMMAND, *arguments]
    flags = " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(HOST_DEVICES))
    environment = {**os.environ, _PLACE: place, _FOLDER: str(folder), "XLA_FLAGS": flags}
    number = _number(place)
    if number == 0:
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    with (folder / f"{number}.out").open("wb") as out, (folder / f"{number}.err").open("wb") as err:
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err)


def _number(place: str) -> int:
    return int(place.split(",")[1])


def _end_with_the_launcher() -> None:
    """Standard input ends when the process that launched this one does, whatever ended it."""
    os.read(sys.stdin.fileno(), 1)
    end_at_once(1)


def first_failure(children: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """The number and the status of the process that failed first, once all had time to end; None if none failed."""
    failed, until = None, float("inf")
    while time.monotonic() < until and any(child.poll() is None for child in children):
        if failed is None and (failed := _likeliest_cause(children)) is not None:
            until = time.monotonic() + (_GRACE if failed[1] > 0 else 0)
        time.sleep(_PAUSE)
    return failed if failed is not None and failed[1] != _LOST else _likeliest_cause(children)


def _likeliest_cause(children: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """Of the processes that have failed by now, the one that the others failed after; None if none has failed.

    A process that loses another says so or aborts, and may be seen to end in the same moment: a signal other than that
    of an abort comes from outside, and other errors are its own.
    """
    ended = [(number, status) for number, child in enumerate(children) if (status := child.poll())]
    return min(ended, key=lambda it: (_rank(it[1]), it[0]), default=None)


def _rank(status: int) -> int:
    if status == -signal.SIGABRT:
        return 3
    return 0 if status < 0 else 2 if status == _LOST else 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def lost(problem: Exception) -> SpmdcError:
    """The error that another process does not answer any more."""
    return error("E521", f"another process of the run has ended: {str(problem).splitlines()[0]}", help=_ON)


def leave_to_the_launcher(problem: SpmdcError) -> None:
    """Ends this process of a launched run, which lost another. The launcher sees which one ended, and reports that; if
    they all lost one another, it reports the problem that was the first."""
    path = Path(os.environ[_FOLDER]) / f"{_number(os.environ[_PLACE])}.lost"
    path.write_text(problem.diagnostics[0].message, encoding="utf-8")
    end_at_once(_LOST)


def end_at_once(status: int) -> None:
    """Ends this process without waiting for the others, which wait for it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
