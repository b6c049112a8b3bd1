"""Command lines of all kinds, most of them wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FILE = "p.spmd"
_VERBS = ("check", "fmt", "propagate", "plan", "partition", "why", "verify", "lower", "run", "grad", "explain")
_VALUES = (
    *(
        "0",
        "1",
        "2",
        "-1",
        "3",
        "8",
        "1000000",
        "2147483648",
        "99999999999999999999999",
        "1.5",
        "nan",
        "x",
        "",
        " ",
        "-",
    ),
    *("x=4,y=2", "x=4", "x=0,y=2", "x=-1", "x=4,x=2", "y=2,x=4", "d=8", "=", "x=", "x=1048577", "x=4,y=2,z=3", "x=é"),
    *("N=3", "N=", "N=-1", "N=99999999999999999999", "64MiB", "1", "0B", "-5", "1e9", "auto", "always", "never", "jax"),
    *(
        "simulate",
        "reference",
        "stablehlo",
        "hlo",
        "tpu-v3",
        "h",
        "g",
        "main.h",
        "all_reduce",
        "12",
        "out",
        "total",
        "a",
    ),
    *(
        "a,w",
        "a,a",
        "b,",
        "specialize,propagate,plan",
        "write",
        "plan,plan",
        "dot_general",
        "E201",
        "W001",
        "E999",
        "--",
    ),
    *(FILE, "missing.spmd", ".", "/dev/null", "b.npy", "a=b.npy", "\0", "p" * 300),
)
_OPTIONS = (
    *("--json", "--verbose", "--check", "--integers", "--stats", "--time-passes", "--unpartitioned", "--value"),
    *("--no-jax", "--help", "--version", "--nonsense", "-D", "-p", "--diff", "--explain", "--print-after", "--machine"),
    *("--memory-limit", "--windowed-einsum", "--mesh", "--devices", "--seed", "--examples", "--rules", "--emit"),
    *("--backend", "--wrt", "--of"),
)
_TAKES_A_VALUE = frozenset(_OPTIONS[_OPTIONS.index("-D") :]) - {"--diff", "--rules"}


def damaged_options(rng: np.random.Generator) -> list[str]:
    """The arguments of a command: a verb, mostly a file that exists, and up to four options with values."""

    def pick(choices: Sequence[str]) -> str:
        return choices[int(rng.integers(len(choices)))]

    verb = pick(_VERBS)
    arguments = [verb] if rng.integers(20) else []
    if verb not in ("explain", "verify") and rng.integers(12):
        arguments.append(FILE)
    if verb in ("why", "explain"):
        arguments.append(pick(_VALUES))
    if verb == "grad":
        arguments += ["--wrt", pick(("a", "a", "w", "a,w", "b", pick(_VALUES)))]
    for _ in range(int(rng.integers(4))):
        option = pick(_OPTIONS)
        arguments.append(option)
        if option in _TAKES_A_VALUE and rng.integers(12):
            arguments.append(pick(_VALUES))
    if rng.integers(8) == 0:
        arguments.append(pick(_VALUES))
    return arguments if arguments else [""]
