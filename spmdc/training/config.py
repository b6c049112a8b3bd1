"""The TOML file that configures training. docs/training.md describes its fields."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ir.diagnostics import Span, SpmdcError
from ir.names import did_you_mean
from ir.toml_tables import TomlKind, TomlReader, last, nearest, read_toml, shown
from spmdc.byte_counts import BYTE_COUNTS, byte_count
from spmdc.training.cldr import KINDS, locale_names, why_not

PATHS = "paths are as seen from the folder of the configuration"
_KIND = TomlKind("training", "E606", "docs/training.md")
_TOP = ("program", "out", "steps", "seed", "clip", "accumulate", "memory_limit", "consts", "mesh", "data", "optimizer",
        "checkpoints", "translate")  # fmt: skip
_DATA = ("file", "locales", "kinds", "temperature", "held_out")
_CHECKPOINTS = ("every", "keep")
_TRANSLATE = ("program", "consts", "phrases")
_PARTS = ("b1", "b2", "momentum")
"""Optimizer settings that are decay rates: they must be less than 1."""
_WHOLE = ("factored_from",)
_MOST_STEPS = 2**31 - 1
"""Steps are counted as s32."""
_LARGEST = sys.float_info.max
_SHARED = ("name", "schedule", "rate", "warmup")
_PLACING = ("split",)

SETTINGS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "adafactor": {"decay": 0.8, "update_clip": 1.0, "momentum": 0.0, "factored_from": 128},
        "adam": {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
        "sgd": {"momentum": 0.0},
    }
)
"""The settings of each optimizer, with their defaults: adafactor as in GShard's appendix A.2."""
SCHEDULES = ("square_root", "cosine", "constant")


@dataclass(frozen=True)
class Data:
    """The phrases: from a `file`, or from Unicode's locales. `held_out` is the fraction that is not trained on."""

    file: str = ""
    locales: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    temperature: float = 5.0
    held_out: float = 0.1


@dataclass(frozen=True)
class Optimizer:
    """Its name, its own settings, how its rate changes, and the axis over which its memory and its work are split."""

    name: str = "adafactor"
    settings: Mapping[str, float] = field(default_factory=lambda: SETTINGS["adafactor"])
    schedule: str = "square_root"
    rate: float = 1.0
    warmup: int = 10_000
    split: str = ""


@dataclass(frozen=True)
class Translate:
    """How held-out phrases are translated at the end, and how many: by a `program` that searches for the likeliest
    English, or, without it, by the trained one, symbol by symbol."""

    program: Path | None = None
    consts: Mapping[str, float] = field(default_factory=dict[str, float])
    phrases: int = 512


@dataclass(frozen=True)
class Config:
    """The configuration of training; in the file, paths are relative to its folder. `memory_limit` is the bytes of a
    device that the gradient may take."""

    program: Path
    out: Path
    steps: int
    seed: int = 0
    clip: float = 0.0
    accumulate: int = 1
    memory_limit: int | None = None
    consts: Mapping[str, float] = field(default_factory=dict[str, float])
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    every: int = 100
    keep: int = 3
    translate: Translate = Translate()
    places: Mapping[str, Span] = field(default_factory=dict[str, Span], repr=False, compare=False)
    """The span of each field in the file."""

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.out / "checkpoints"

    @contextmanager
    def at(self, path: str, why: str = "") -> Iterator[None]:
        """A context in which an error without a span gets that of this field of the file, or of the nearest table
        around it. An error in a program gets a note with that span, if there is a `why`."""
        try:
            yield
        except SpmdcError as problem:
            span = nearest(self.places, path)
            note = (f"{why}: {span.source.name}:{span.line}",) if why and span is not None else ()
            found = [replace(d, notes=(*d.notes, *note)) if d.span else replace(d, span=span)
                     for d in problem.diagnostics]  # fmt: skip
            raise SpmdcError(found) from None

    def course(self) -> dict[str, Any]:
        """The settings that the course of a run depends on, besides the program: if one changes, it is a different
        run."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("seed", "clip", "accumulate")}
        own = self.optimizer
        fields |= {f"optimizer.{name}": getattr(own, name) for name in _SHARED}
        fields |= {f"optimizer.{name}": value for name, value in own.settings.items()}
        fields |= {f"data.{name}": value for name, value in asdict(self.data).items()}
        return fields | ({"steps": self.steps} if own.schedule == "cosine" else {})


def read_config(path: Path, out: Path | None = None) -> Config:
    """The configuration in a file; `out` overrides its own. Raises SpmdcError (E005, E606) with all errors in it."""
    read, table = read_toml(path, _KIND)
    read.known("", table, _TOP)
    folder, fields = path.parent, _Fields(read)
    steps = fields.counted("steps", read.whole("steps", table))
    checkpoints = _table(read, table, "checkpoints", _CHECKPOINTS)
    config = Config(
        program=folder / fields.path("program", table),
        out=out or folder / fields.path("out", table),
        steps=steps,
        seed=fields.integer("seed", table, 0, zero=True),
        clip=fields.number("clip", table, 0.0),
        accumulate=fields.integer("accumulate", table, 1),
        memory_limit=fields.bytes("memory_limit", table),
        consts=fields.consts("consts", table),
        mesh=fields.integers("mesh", table),
        data=_data(fields, _table(read, table, "data", _DATA), folder),
        optimizer=_optimizer(fields, table, steps),
        every=fields.integer("checkpoints.every", checkpoints, 100),
        keep=fields.integer("checkpoints.keep", checkpoints, 3),
        translate=_translate(fields, _table(read, table, "translate", _TRANSLATE), folder),
        places={name: place for name, place in read.places.items() if name != "out" or out is None},
    )
    read.found.raise_errors()
    return config


def _table(read: TomlReader, table: Mapping[str, Any], name: str, known: Sequence[str]) -> Mapping[str, Any]:
    return read.table(name, table[name], known) if name in table else {}


def _data(fields: _Fields, table: Mapping[str, Any], folder: Path) -> Data:
    read = fields.read
    file = fields.path("data.file", table) if "file" in table else ""
    for name in ("locales", "kinds"):
        if file and name in table:
            read.wrong(f"data.{name}", f"{name} are Unicode's, and the phrases are a file's", "leave out one")
    return Data(
        file=str(folder / file) if file else "",
        locales=fields.names("data.locales", table, locale_names, why_not),
        kinds=fields.names("data.kinds", table, lambda: tuple(KINDS)),
        temperature=read.positive("data.temperature", table) if "temperature" in table else 5.0,
        held_out=fields.number("data.held_out", table, 0.1, below=1),
    )


def _translate(fields: _Fields, table: Mapping[str, Any], folder: Path) -> Translate:
    if "consts" in table and "program" not in table:
        fields.read.wrong("translate.consts", "consts are those of a program that translates, and there is none",
                          "name it: translate.program; [consts] are those of the trained program")  # fmt: skip
    return Translate(
        program=folder / fields.path("translate.program", table) if "program" in table else None,
        consts=fields.consts("translate.consts", table),
        phrases=fields.integer("translate.phrases", table, 512, zero=True),
    )


def _optimizer(fields: _Fields, whole: Mapping[str, Any], steps: int) -> Optimizer:
    read = fields.read
    every_setting = tuple(dict.fromkeys(name for settings in SETTINGS.values() for name in settings))
    table = _table(read, whole, "optimizer", (*_SHARED, *_PLACING, *every_setting))
    name = read.choice("optimizer.name", table, tuple(SETTINGS)) if "name" in table else "adafactor"
    own = SETTINGS.get(name, {})
    for setting in every_setting:
        if name and setting in table and setting not in own:
            owners = " and ".join(n for n, settings in SETTINGS.items() if setting in settings)
            read.wrong(f"optimizer.{setting}", f"{setting} is a setting of {owners}, and the optimizer is {name}",
                       f"{name} has {', '.join(own)}")  # fmt: skip
    settings = {setting: _setting(fields, table, setting, default) for setting, default in own.items()}
    schedule = read.choice("optimizer.schedule", table, SCHEDULES) if "schedule" in table else "square_root"
    is_paper = schedule == "square_root"
    rate = read.positive("optimizer.rate", table) if not is_paper or "rate" in table else 1.0
    warmup = fields.integer("optimizer.warmup", table, 10_000 if is_paper else 0, zero=True)
    fields.counted("optimizer.warmup", warmup)
    if schedule == "cosine" and warmup >= steps:
        read.wrong("optimizer.warmup", f"the rate grows for {warmup:,} steps, and there are {steps:,}",
                   "a shorter warmup, or more steps")  # fmt: skip
    split = fields.name("optimizer.split", table) if "split" in table else ""
    return Optimizer(name, settings, schedule, rate, warmup, split)


def _setting(fields: _Fields, table: Mapping[str, Any], name: str, default: float) -> float:
    path = f"optimizer.{name}"
    if name in _WHOLE:
        return fields.integer(path, table, int(default), zero=True)
    return fields.number(path, table, default, below=1 if name in _PARTS else None)


class _Fields:
    """Optional fields, with their defaults."""

    def __init__(self, read: TomlReader) -> None:
        self.read = read

    def number(self, path: str, table: Mapping[str, Any], otherwise: float, *, below: float | None = None) -> float:
        return self.read.positive(path, table, zero=True, below=below) if last(path) in table else otherwise

    def integer(self, path: str, table: Mapping[str, Any], otherwise: int, *, zero: bool = False) -> int:
        return self.read.whole(path, table, zero=zero) if last(path) in table else otherwise

    def bytes(self, path: str, table: Mapping[str, Any]) -> int | None:
        """A number of bytes, which may have a unit; None if it is missing."""
        value = table.get(last(path))
        if value is None:
            return None
        is_written = isinstance(value, str | int) and not isinstance(value, bool)
        count = byte_count(str(value)) if is_written else None
        if not count:
            self.read.wrong(path, f"{last(path)} is a number of bytes above 0, and not {shown(value)}",
                            f"such as {BYTE_COUNTS}; those with a unit in quotes")  # fmt: skip
        return count

    def integers(self, path: str, whole: Mapping[str, Any]) -> dict[str, int]:
        table = self._any(path, whole)
        return {key: self.integer(f"{path}.{key}", table, 0) for key in table}

    def consts(self, path: str, whole: Mapping[str, Any]) -> dict[str, float]:
        """Numbers, as they are: the program says which are integers."""
        table = self._any(path, whole)
        for key, value in table.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
                self.read.wrong(f"{path}.{key}", f"{key} is a number, and not {shown(value)}",
                                f"from {-_LARGEST:.2g} to {_LARGEST:.2g}")  # fmt: skip
        return dict(table)

    def _any(self, path: str, whole: Mapping[str, Any]) -> Mapping[str, Any]:
        """A table whose keys are not known beforehand."""
        table = whole.get(last(path), {})
        return self.read.table(path, table, tuple(table) if isinstance(table, dict) else ())

    def counted(self, path: str, steps: int) -> int:
        if steps > _MOST_STEPS:
            self.read.wrong(path, f"{last(path)} is at most {_MOST_STEPS:,} steps, and not {steps:,}")
        return steps

    def path(self, path: str, table: Mapping[str, Any]) -> str:
        value = self.read.present(path, table)
        if value is not None and not (isinstance(value, str) and value):
            self.read.wrong(path, f"{last(path)} is a path, and not {shown(value)}")
        return str(value or "")

    def name(self, path: str, table: Mapping[str, Any]) -> str:
        value = table[last(path)]
        if not (isinstance(value, str) and value):
            self.read.wrong(path, f"{last(path)} is the name of an axis of the mesh, and not {shown(value)}")
        return str(value)

    def names(
        self, path: str, table: Mapping[str, Any], known: Callable[[], Sequence[str]],
        why_not: Callable[[str], tuple[str, str]] = lambda name: ("", ""),
    ) -> tuple[str, ...]:  # fmt: skip
        """A list of known names. `why_not` returns a reason, and help, for some unknown ones."""
        value = table.get(last(path), [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            self.read.wrong(path, f"{last(path)} is a list of names, and not {shown(value)}")
            return ()
        for name, times in Counter(value).items():
            if times > 1:
                self.read.wrong(path, f"{name!r} is listed {times} times among the {last(path)}", "list it once")
            if name in known():
                continue
            reason, help = why_not(name)
            if reason:
                self.read.wrong(path, f"{name!r} is not among the {last(path)}: {reason}", help)
            else:
                first = known()[:12]
                others = f"there are {', '.join(first)} and {len(known()) - len(first)} others"
                help = did_you_mean(name, known(), cutoff=0.5) or others
                self.read.wrong(path, f"there are no {last(path)} called {name!r}", help)
        return tuple(value)
