"""A training run: its steps, starting from the last checkpoint, with a log of each and a picture of all."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from ir.diagnostics import error
from ir.program import Program
from ir.records import strict_json
from spmdc.files import unreadable, unwritable, write_text
from spmdc.training.checkpoints import Checkpoint, checkpoint_files, newest_checkpoint, write_checkpoint
from spmdc.training.config import Config
from spmdc.training.course import CONST, PROGRAM, TEXT, differences
from spmdc.training.curves import curves
from spmdc.training.data import in_turn
from spmdc.training.decoder import Decoder, decoder_of
from spmdc.training.evaluation import HEADERS, Score, by_size, score_of, scores_of
from spmdc.training.fault import first_fault
from spmdc.training.feed import Feed
from spmdc.training.fingerprint import fingerprint_of, text_of
from spmdc.training.hosts import is_first, whole
from spmdc.training.lock import alone_in
from spmdc.training.step import HELD_OUT, State, Trainer
from spmdc.training.translate import Translation, can_translate, translate

Record = dict[str, Any]
_CALMER = "a lower rate, a longer warmup, or clip the gradient: another run, in another folder (out)"
_MEASURED = 8
"""The number of held-out batches whose loss is logged at each checkpoint."""


@dataclass
class Run:
    """A run of training, and its files: `log.jsonl`, `curves.svg` and `checkpoints` in a folder."""

    program: Program
    config: Config
    feed: Feed
    trainer: Trainer = field(init=False)
    decoder: Decoder | None = field(init=False)
    begun_at: int = field(init=False, default=0)
    records: list[Record] = field(init=False, default_factory=list[Record])

    def __post_init__(self) -> None:
        self.trainer = Trainer(self.program, self.config)
        self.decoder = decoder_of(self.config, self.program, self.trainer.mesh)

    @property
    def log(self) -> Path:
        return self.config.out / "log.jsonl"

    @property
    def picture(self) -> Path:
        return self.config.out / "curves.svg"

    @property
    def checkpoints(self) -> Path:
        return self.config.checkpoints

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no other run writes into the folder. Raises SpmdcError (E005) if one does."""
        with ExitStack() as stack:
            if is_first():
                with self.config.at("out"):
                    self._make_folder()
                    stack.enter_context(alone_in(self.config.out))
            yield

    def train(self, show: Callable[[Record], None]) -> State:
        """The state after all steps; `show` gets the record of each. Raises SpmdcError: E519 if the checkpoint is of
        another run, E520 if a loss or gradient is not finite, E005 if a file cannot be written."""
        with self.config.at("out"):
            self._make_folder()
        state, self.begun_at = self._state()
        self.records = self._earlier_records()
        _write(self.log, "".join(map(_line, self.records)))
        with self._opened_log() as log:
            for n in range(self.begun_at, self.config.steps):
                state, record = self._step(state, n)
                self._require_finite(record, state, n)
                is_kept = record["step"] % self.config.every == 0 or record["step"] == self.config.steps
                self._add(log, {**record, **(self._held_out_metrics(state) if is_kept else {})})
                show(record)
                if is_kept:
                    self.save(state, record["step"])
        return state

    def translate_held_out(self, state: State) -> list[Translation]:
        """The translations of held-out phrases, alternating between languages. They are written to `held_out.tsv`, and
        their scores by language to `languages.tsv` and `languages.svg`. None if there is no decoder, and the program
        does not predict symbols."""
        can = self.decoder is not None or can_translate(self.program)
        chosen = in_turn(self.feed.held_out)[: self.config.translate.phrases] if can else []
        found = translate(self.trainer, state, self.feed, chosen, self.decoder)
        if found:
            _write(self.held_out, "".join("\t".join(translation.cells()) + "\n" for translation in found))
            _write(self.languages, "".join("\t".join(row).replace(",", "") + "\n" for row in self.table(found)))
            _write(self.languages.with_suffix(".svg"), by_size(self.scores(found)))
        return found

    def scores(self, found: Sequence[Translation]) -> list[Score]:
        """The quality of translations, by language, those with most phrases first."""
        return scores_of(found, {name: len(rows) for name, rows in self.feed.trained.languages.items()})

    def score(self, found: Sequence[Translation]) -> Score:
        """The quality of all translations together."""
        return score_of(found, "all", len(self.feed.trained.phrases))

    def table(self, found: Sequence[Translation]) -> list[list[str]]:
        """The scores as a table: headers, a row for each language, and one for all."""
        return [list(HEADERS), *(score.cells() for score in [*self.scores(found), self.score(found)])]

    @property
    def languages(self) -> Path:
        return self.config.out / "languages.tsv"

    @property
    def held_out(self) -> Path:
        return self.config.out / "held_out.tsv"

    def save(self, state: State, step: int) -> None:
        """Writes a checkpoint and the picture."""
        arrays = {name: whole(array) for name, array in _named(state)}
        if is_first():
            write_checkpoint(self.checkpoints, Checkpoint(step, arrays, self._course()), self.config.keep)
        names = dict.fromkeys(name for record in self.records for name in record if name not in ("step", "seconds"))
        _write(self.picture, curves(self.records, list(names)))

    def _step(self, state: State, n: int) -> tuple[State, Record]:
        began = time.perf_counter()
        state, results = self.trainer.step(state, self.feed.at(n))
        names = ("loss", *(r.name for r in self.program.main.results[1:]), "gradient_norm", "update_norm")
        numbers = {name: np.asarray(results[name]).tolist() for name in names if name in results}
        return state, {"step": n + 1, **numbers, "seconds": round(time.perf_counter() - began, 4)}

    def _held_out_metrics(self, state: State) -> Record:
        """The loss on held-out phrases, and the metrics that are numbers."""
        found: dict[str, list[float]] = {}
        for batch in self.feed.held_out_batches(_MEASURED):
            loss, metrics = self.trainer.measure(state[0], batch)
            values = {"loss": loss, **metrics}
            for name in ("loss", *(r.name for r in self.program.main.results[1:])):
                if not np.shape(values.get(name, ())):
                    found.setdefault(f"{HELD_OUT}{name}", []).append(float(values[name]))
        return {name: math.fsum(values) / len(values) for name, values in found.items()}

    def _add(self, log: Any, record: Record) -> None:
        self.records.append(record)
        try:
            log.write(_line(record))
            log.flush()
        except OSError as problem:
            raise unwritable(self.log, problem) from None

    def _opened_log(self) -> IO[str]:
        path = self.log if is_first() else Path(os.devnull)
        try:
            return path.open("a", encoding="utf-8")
        except OSError as problem:
            raise unwritable(path, problem) from None

    def _make_folder(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise unwritable(self.checkpoints, problem, verb="make") from None

    def _state(self) -> tuple[State, int]:
        """The current state of the run: at the newest checkpoint, or at its beginning."""
        found = newest_checkpoint(self.checkpoints)
        if found is None:
            return jax.device_put(self.trainer.first, self.trainer.shardings), 0
        self._require_same(found)
        first, shape = jax.tree.flatten(self.trainer.first)
        names = [name for name, _ in _named(self.trainer.first)]
        arrays = [np.asarray(found.arrays[name]).astype(old.dtype) for name, old in zip(names, first, strict=True)]
        return jax.device_put(jax.tree.unflatten(shape, arrays), self.trainer.shardings), found.step

    def _require_same(self, found: Checkpoint) -> None:
        """Raises SpmdcError (E519) if the checkpoint is of a run with other settings."""
        path, own = checkpoint_files(self.checkpoints)[-1], json.loads(json.dumps(self._course()))
        other, notes = differences(own, found.course)
        if other:
            raise error("E519", f"{path} is of another run, which differs in {', '.join(other)}", notes=notes,
                        help="choose another folder (out), or continue the run as it was")  # fmt: skip
        if found.step > self.config.steps:
            raise error("E519", f"{path} is of step {found.step:,}, and the run has {self.config.steps:,} steps",
                        help="more steps, or another folder (out)")  # fmt: skip

    def _course(self) -> dict[str, Any]:
        """The settings that the numbers of the run depend on. The mesh is not one of them, so it may change."""
        arrays = {name: f"{array.dtype}{list(array.shape)}" for name, array in _named(self.trainer.first)}
        trained = self.feed.trained
        file = {"data.file": trained.fingerprint} if self.config.data.file else {}
        consts = {f"{CONST}{name}": value for name, value in self.config.consts.items()}
        program = {**consts, PROGRAM: self._fingerprint, TEXT: text_of(self.program)}
        return {**self.config.course(), **program, **file, **arrays, "phrases": len(trained.phrases)}

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self.program)

    def _earlier_records(self) -> list[Record]:
        """The records of the steps before the checkpoint. Later steps are run again."""
        if not self.begun_at or not self.log.exists():
            return []
        return [record for record in _records(self.log) if record["step"] <= self.begun_at]

    def curve_names(self) -> list[str]:
        """The names of the numbers in the last record."""
        last = self.records[-1] if self.records else {}
        return [name for name, value in last.items() if name not in ("step", "seconds") and not isinstance(value, list)]

    def _require_finite(self, record: Record, state: State, n: int) -> None:
        """Raises SpmdcError (E520) if the loss, its gradient or the update is not finite, with the op that caused it or
        the optimizer."""
        wrong = [name for name in ("loss", "gradient_norm", "update_norm") if not math.isfinite(record[name])]
        if not wrong:
            return
        self.save(state, n)
        path = checkpoint_files(self.checkpoints)[-1]
        kept = f"{path} has the weights before that step"
        what = f"the {wrong[0].replace('_', ' ')} is {record[wrong[0]]} in step {n + 1:,}"
        if wrong[0] == "update_norm":
            help = "a larger eps of adam, or a lower rate: another run, in another folder (out)"
            with self.config.at("optimizer"):
                message = f"{what}: the loss and the gradient are finite, and what the optimizer makes of them is not"
                raise error("E520", message, notes=[kept], help=help)
        weights = {name: whole(array) for name, array in state[0].items()}
        faults = ((first_fault(self.program, {**weights, **batch}), i) for i, batch in enumerate(self.feed.parts_of(n)))
        fault, part = next((found for found in faults if found[0] is not None), (None, 0))
        if fault is None:
            notes = [kept, self._kept_phrases(n, range(self.config.accumulate)), "evaluated op by op, the program has "
                     "no such number: the sums that devices make are others"]  # fmt: skip
            raise error("E520", what, notes=notes, help=_CALMER)
        where = " of the gradient" if fault.in_gradient else ""
        first = f"{fault.op.results[0].name} is the first {fault.makes}{where}"
        notes = [kept, self._kept_phrases(n, [part])]
        raise error("E520", f"{what}: {first}", fault.op.span, notes=notes, help=_CALMER)

    def _kept_phrases(self, n: int, parts: Sequence[int]) -> str:
        """Writes the phrases of one or of all batches of a step into a file that data.file takes, and returns a note of
        it."""
        path = self.config.out / "not_finite.tsv"
        rows = ((p.locale, p.source, p.target) for part in parts for p in self.feed.phrases_of(n, part))
        _write(path, "".join("\t".join(row) + "\n" for row in rows))
        many = self.config.accumulate
        if len(parts) > 1:
            return f"the phrases of its {many} batches are in {path}"
        which = f", batch {parts[0] + 1} of {many} in the step," if many > 1 else ""
        return f"the phrases of its batch{which} are in {path}"


def _write(path: Path, text: str) -> None:
    if is_first():
        write_text(path, text)


def _named(state: State) -> list[tuple[str, Any]]:
    """The arrays of a state, with their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return [(jax.tree_util.keystr(path), array) for path, array in leaves]


def _line(record: Record) -> str:
    """A record in the log, which is JSON: numbers that are not finite are strings."""
    return f"{json.dumps(strict_json(record), allow_nan=False)}\n"


def _numbers(value: Any) -> Any:
    """What `_line` wrote as a number, or as a list of them."""
    return list(map(_numbers, value)) if isinstance(value, list) else float(value) if isinstance(value, str) else value


def _records(log: Path) -> Iterator[Record]:
    """The records of a log, up to an invalid line: the last one may be incomplete. Raises SpmdcError (E005)."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise unreadable(log, problem, "move it away, and the log begins anew") from None
    for line in text.split("\n"):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                return
            yield {name: _numbers(value) for name, value in record.items()}
        except ValueError:
            return
