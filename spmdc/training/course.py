"""What the numbers of a run depend on, by name: settings, and the types of weights and of what the optimizer remembers
of them. A run that another one is continued from has the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ir.toml_tables import shown

Course = Mapping[str, Any]

_WEIGHT = re.compile(r"\[0\]\['(.*)'\]")
_MOST = 8
"""How many weights are named."""


def differences(own: Course, was: Course) -> tuple[list[str], list[str]]:
    """What is other than it was: in short, and what it is and was, a line each. None if all is the same.

    The optimizer's memory is as its settings and the weights are, and so is no difference beside these.
    """
    other = [name for name in {**own, **was} if (name in own, own.get(name)) != (name in was, was.get(name))]
    weights = {name: match[1] for name in other if (match := _WEIGHT.fullmatch(name))}
    settings = _of_the_same_optimizer([name for name in other if not name.startswith("[")], own, was)
    short = list(settings)
    if weights:
        short.append(f"{'weight' if len(weights) == 1 else 'weights'} {_some(list(weights.values()))}")
    lines = [_line(name, own, was, shown) for name in settings]
    lines += [_line(name, own, was, str, weight) for name, weight in list(weights.items())[:_MOST]]
    if other and not short:
        return ["the memory of the optimizer"], ["another release of optax may remember other things"]
    return short, lines


def _of_the_same_optimizer(names: Sequence[str], own: Course, was: Course) -> list[str]:
    """Without the settings that one of two optimizers has, and the other has not."""
    if "optimizer.name" not in names:
        return list(names)
    return [name for name in names if not name.startswith("optimizer.") or (name in own and name in was)]


def _some(names: Sequence[str]) -> str:
    rest = [f"and {len(names) - _MOST} others"] if len(names) > _MOST else []
    return ", ".join([*names[:_MOST], *rest])


def _line(name: str, own: Course, was: Course, written: Any, title: str = "") -> str:
    now = f"is {written(own[name])}" if name in own else "is none any more"
    before = f"was {written(was[name])}" if name in was else "there was none"
    return f"{title or name} {now}, and {before}"
