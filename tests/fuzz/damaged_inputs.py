"""Looks for texts over which spmdc fails: programs of each language, damaged, read, partitioned and run.

Each text is judged in a fork of its own for every few hundred, which may die, and has bounds of time and memory. What
is found is written to files, one for each fault, and the figures are printed.

    python tests/fuzz/damaged_inputs.py spmd|propagated|plan|partitioned|hlo|mlir|bytecode|machine [--count 1000]
        [--seed 0] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from damage import damage
from judge import Verdict, encoded, judge
from other_inputs import damaged_bytecode
from seeds import seeds

KINDS = ("spmd", "propagated", "plan", "partitioned", "hlo", "mlir", "bytecode", "machine")
LANGUAGE = {"propagated": "spmd", "plan": "spmd", "partitioned": "spmd", "machine": "toml"}
_CHUNK = 200
_MOST_MEMORY = 4 << 30


def damaged(kind: str, seed: int) -> str:
    """The damaged text of a seed."""
    texts = seeds(kind)
    rng = np.random.default_rng((seed, sum(map(ord, kind))))
    if kind == "bytecode":
        return damaged_bytecode(rng, texts[int(rng.integers(len(texts)))], texts)
    return damage(rng, texts[int(rng.integers(len(texts)))], texts, LANGUAGE.get(kind, kind))


def judged(kind: str, numbers: Sequence[int], *, run: bool = True) -> Iterator[tuple[int, Verdict, float]]:
    """The verdict on each text, and its seconds, judged in forks. A text over which the fork ends is faulty."""
    left = list(numbers)
    while left:
        chunk, left = left[:_CHUNK], left[_CHUNK:]
        with tempfile.TemporaryFile("w+") as answers:
            process = os.fork()
            if process == 0:
                _judge_all(kind, chunk, answers.fileno(), run)
            _, status = os.waitpid(process, 0)
            answers.seek(0)
            done = [json.loads(line) for line in answers]
        for number, outcome, fault, details, seconds in done:
            yield number, Verdict(outcome, fault, details), seconds
        if len(done) < len(chunk):
            code = os.waitstatus_to_exitcode(status)
            yield chunk[len(done)], Verdict("faulty", f"the process ended with {code}"), 0.0
            left[:0] = chunk[len(done) + 1 :]


def _judge_all(kind: str, numbers: Sequence[int], answers: int, run: bool) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, resource.RLIM_INFINITY))
        for number in numbers:
            start = time.process_time()
            signal.alarm(120)
            verdict = judge(damaged(kind, number), LANGUAGE.get(kind, kind), run=run)
            answer = (number, verdict.outcome, verdict.fault, verdict.details, time.process_time() - start)
            os.write(answers, f"{json.dumps(answer)}\n".encode())
    finally:
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("found"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    outcomes, faults, slowest = Counter[str](), Counter[str](), (0.0, 0)
    for number, verdict, seconds in judged(given.kind, range(given.seed, given.seed + given.count)):
        outcomes[verdict.outcome] += 1
        slowest = max(slowest, (seconds, number))
        if verdict.fault:
            faults[verdict.fault] += 1
            if faults[verdict.fault] == 1:
                name = re.sub(r"[^\w]+", "_", verdict.fault)[:80]
                text = damaged(given.kind, number)
                language = LANGUAGE.get(given.kind, given.kind)
                (given.out / f"{name}.{language}").write_bytes(encoded(text, language))
                (given.out / f"{name}.txt").write_text(verdict.details, errors="backslashreplace")
                print(f"{given.kind} {number}: {verdict.fault}", flush=True)
    print(f"{given.kind}, seeds {given.seed} to {given.seed + given.count - 1}: {dict(outcomes.most_common())}")
    print(f"slowest: {slowest[0]:.1f} s of seed {slowest[1]}; faults: {dict(faults)}")


if __name__ == "__main__":
    main()
