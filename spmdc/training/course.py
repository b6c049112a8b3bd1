"""The course of a run: all that its numbers depend on, by name. These are settings, the program, and the types of
weights and of the optimizer's memory. A run can only go on from a checkpoint of the same course."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ir.toml_tables import shown

Course = Mapping[str, Any]

PROGRAM, TEXT, CONST = "program", "text", "consts."
"""The fingerprints of what the program computes and of its text, and what a const's name follows. A const matters as
far as it changes the program."""
_WEIGHT = re.compile(r"\[0\]\['(.*)'\]")
_OTHER_OPS = "the program computes something else than when the checkpoint was written"
_MOST = 8
"""The number of weights that a message names."""


def differences(own: Course, was: Course) -> tuple[list[str], list[str]]:
    """What differs between two courses: the names, and a line for each with what it is and was. Empty if equal.

    A program is the same if it computes the same, or if its text and its consts are the same: another release may read
    other ops in the same text. The optimizer's memory follows from its settings and the weights. If one of these
    differs, it is left out. So is the program if its consts or weights differ, and all of that if the checkpoint is of
    an older release, which did not record the program.
    """
    other = [name for name in {**own, **was} if (name in own, own.get(name)) != (name in was, was.get(name))]
    is_same_text = was.get(TEXT) is not None and not any(name == TEXT or name.startswith(CONST) for name in other)
    if PROGRAM not in other or PROGRAM not in was or is_same_text:
        other = [name for name in other if name != PROGRAM and not name.startswith(CONST)]
    other = [name for name in other if name != TEXT]
    weights = {name: match[1] for name in other if (match := _WEIGHT.fullmatch(name))}
    follows = weights or any(name.startswith(CONST) for name in other)
    chosen = [name for name in other if not name.startswith("[") and not (name == PROGRAM and follows)]
    settings = _of_the_same_optimizer(chosen, own, was)
    short = list(settings)
    if weights:
        short.append(f"{'weight' if len(weights) == 1 else 'weights'} {_some(list(weights.values()))}")
    lines = [_OTHER_OPS if name == PROGRAM else _line(name, own, was, shown) for name in settings]
    lines += [_line(name, own, was, str, weight) for name, weight in list(weights.items())[:_MOST]]
    if other and not short:
        return ["the memory of the optimizer"], ["another release of optax may remember other things"]
    return short, lines


def _of_the_same_optimizer(names: Sequence[str], own: Course, was: Course) -> list[str]:
    """The names without the settings that only one of two optimizers has."""
    if "optimizer.name" not in names:
        return list(names)
    return [name for name in names if not name.startswith("optimizer.") or (name in own and name in was)]


def _some(names: Sequence[str]) -> str:
    rest = [f"and {len(names) - _MOST} others"] if len(names) > _MOST else []
    return ", ".join([*names[:_MOST], *rest])


def _line(name: str, own: Course, was: Course, written: Any, title: str = "") -> str:
    now = f"is {written(own[name])}" if name in own else "does not exist any more"
    before = f"was {written(was[name])}" if name in was else "there was none"
    return f"{title or name} {now}, and {before}"
