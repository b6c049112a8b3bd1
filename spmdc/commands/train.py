"""`spmdc train`: trains a program as a file says, from where the last run got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ir.diagnostics import error
from spmdc.commands.shared.failures import print_diagnostics, report
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Table, finish
from spmdc.commands.shared.terminal import Stopwatch, interruptible

if TYPE_CHECKING:
    from spmdc.training.run import Run
    from spmdc.training.translate import Translation

_MOST_EXAMPLES = 12


def run(options: Options, *, config: str, out: str | None, processes: int | None, cluster: bool) -> int:
    """Trains, and prints how it went. Raises SpmdcError: E605 without packages that this takes, E606, E519, E520; E521
    if one of several processes ends."""
    for package in ("optax", "babel", "sacrebleu"):
        if find_spec(package) is None:
            raise error("E605", f"training needs the package {package}", help="pip install 'spmdc[train]'")
    # Imported late, as these packages may not be there.
    from spmdc.training.config import read_config
    from spmdc.training.hosts import is_launched, launch

    if processes is not None and not is_launched():
        words = [["--out", out] if out is not None else [], ["--json"] * options.json, ["--wide"] * options.wide]
        checkpoints = read_config(Path(config), Path(out) if out is not None else None).checkpoints
        return launch(processes, ["train", config, *chain.from_iterable(words)], partial(_goes_on, checkpoints))
    return _as_one_of_several(options, config, out) if cluster or is_launched() else _train(options, config, out)


def _as_one_of_several(options: Options, config: str, out: str | None) -> int:
    """The others may be waiting for this process, so it waits for none of them if it fails. That a launched one has
    lost another is for the launcher to report."""
    from jax.errors import JaxRuntimeError

    from spmdc.training.hosts import end_at_once, is_launched, leave_to_the_launcher, lost

    try:
        return _train(options, config, out, is_alone=False)
    except JaxRuntimeError as problem:
        missing = lost(problem)
        if is_launched():
            leave_to_the_launcher(missing)
        found: Exception = missing
    except Exception as problem:
        found = problem
    status = report(found, options, ["train", config])
    end_at_once(status)
    return status


def _train(options: Options, config: str, out: str | None, *, is_alone: bool = True) -> int:
    from spmdc.training.config import read_config
    from spmdc.training.feed import feed_of
    from spmdc.training.hosts import is_first, is_launched, join
    from spmdc.training.programs import trained_program
    from spmdc.training.run import Run

    watch = Stopwatch()
    settings = read_config(Path(config), Path(out) if out is not None else None)
    with watch.step("parse"):
        program = trained_program(settings)
    with watch.step("data"):
        feed = feed_of(program, settings)
    if not is_alone:
        join(program.meshes[0].size if program.meshes else 1)
    with watch.step("plan"):
        training = Run(program, settings, feed)
    if is_first() and not options.json:
        print_diagnostics(training.trainer.warnings)
    says_so = is_first() and not is_launched()
    with training.alone(), interruptible(partial(_interrupted, training.checkpoints) if says_so else None):
        with watch.step("train", settings.steps) as advance:
            state = training.train(lambda record: advance(f"train, loss {record['loss']:.4g}", _live(record)))
        with watch.step("translate"):
            said = training.translate_held_out(state)
    if not is_first():
        return 0
    shown = [Table((), _rows(training, said)), *([_by_language(training, said), _examples(said)] if said else [])]
    warnings = training.trainer.warnings if options.json else ()
    return finish(options, watch, shown, _figures(training, said), warnings)


def _interrupted(checkpoints: Path) -> str:
    return f"interrupted: {_goes_on(checkpoints)}"


def _goes_on(checkpoints: Path) -> str:
    """What the same command does after a run that ended early."""
    from spmdc.training.checkpoints import checkpoint_files

    files = checkpoint_files(checkpoints)
    kept = f"goes on from {files[-1]}" if files else "begins anew, as there is no checkpoint yet"
    return f"the same command {kept}"


def _figures(training: Run, said: Sequence[Translation]) -> dict[str, Any]:
    return {
        "begun_at": training.begun_at,
        "steps": training.config.steps,
        "phrases": len(training.feed.trained.phrases),
        "languages": len(training.feed.trained.languages),
        "last": _last(training) or None,
        "held_out": _held_out(training, said) if said else None,
        **_places(training),
    }


def _held_out(training: Run, said: Sequence[Translation]) -> dict[str, Any]:
    whole = training.score(said)
    return {
        "phrases": len(said), "right": whole.right, "chrf": whole.chrf, "bleu": whole.bleu,
        "languages": [asdict(score) for score in training.scores(said)], "file": str(training.held_out),
    }  # fmt: skip


def _places(training: Run) -> dict[str, str]:
    return {name: str(getattr(training, name)) for name in ("log", "picture", "checkpoints")}


def _by_language(training: Run, said: Sequence[Translation]) -> Table:
    """All of them, or those with most phrases and those with fewest."""
    headers, *rows = training.table(said)
    if len(rows) > 2 * _MOST_EXAMPLES:
        rows = [*rows[:_MOST_EXAMPLES], ["…", *[""] * (len(headers) - 1)], *rows[-_MOST_EXAMPLES:]]
    return Table(headers, rows, right=range(1, len(headers)))


def _examples(said: Sequence[Translation]) -> Table:
    shown = said[:_MOST_EXAMPLES]
    rows: list[list[str]] = []
    for translation in shown:
        language, text, wanted, translated = translation.cells()
        rows.append([language, text, translated, "" if translation.is_right else wanted])
    return Table(("language", "held out", "said", "wanted"), rows)


def _course(training: Run, name: str) -> list[str]:
    """What a number was first and last."""
    known = [record for record in training.records if name in record]
    ends = [f"{record[name]:.6g} in step {record['step']:,}" for record in (known[0], known[-1])]
    return [name, ", ".join(ends)]


def _live(record: Mapping[str, Any]) -> str:
    """The other numbers of a step, in one line."""
    from spmdc.training.curves import range_of

    shown: list[str] = []
    for name, value in record.items():
        if name in ("step", "seconds", "loss") or value == []:
            continue
        found = range_of(value)
        low, _, high = (f"{n:.4g}" for n in found) if found is not None else ("not finite",) * 3
        shown.append(f"{name} {low}" + (f" to {high}" if high != low else ""))
    return ", ".join(shown)


def _last(training: Run) -> Mapping[str, Any]:
    return training.records[-1] if training.records else {}


def _spread(name: str, values: Sequence[Any]) -> list[str]:
    """Of a metric that is a tensor, such as the load of each expert, what there is between its ends."""
    flat = np.ravel(values)
    return [name, f"{flat.min():.3g} to {flat.max():.3g}, mean {flat.mean():.3g}"]


def _rows(training: Run, said: Sequence[Translation]) -> list[list[str]]:
    corpus, begun = training.feed.trained, training.begun_at
    rows = [["data", f"{len(corpus.phrases):,} phrases of {len(corpus.languages)} languages"]]
    rows += [["continued", f"from step {begun:,}"]] if begun else []
    rows += [_course(training, name) for name in training.curve_names()]
    rows += [_spread(name, value) for name, value in _last(training).items() if isinstance(value, list) and value]
    if said:
        right = f"{sum(t.is_right for t in said):,} of {len(said):,}"
        rows += [
            ["held out", f"{right} phrases are right, in {training.held_out}, and by language in {training.languages}"]
        ]
    return [*rows, *map(list, _places(training).items())]
