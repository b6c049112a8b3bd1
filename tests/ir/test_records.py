"""Records that are made quickly are the dataclasses that they were."""

from __future__ import annotations

import copy
import inspect
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from ir.records import record


@record
class Point:
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Plain:
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list[str])


def test_arguments_and_defaults_are_those_of_the_dataclass() -> None:
    assert list(inspect.signature(Point).parameters) == list(inspect.signature(Plain).parameters)
    for made in (Point(1), Point(x=1), Point(1, 2, []), replace(Point(5), x=1), copy.copy(Point(1))):
        assert made == Point(1, y=2, names=[])
    assert repr(Point(1, 3)) == repr(Plain(1, 3)).replace("Plain", "Point")
    assert Point(1).names is not Point(1).names


@pytest.mark.parametrize(("args", "named"), [((), {}), ((1,), {"z": 2}), ((1,), {"x": 1}), ((1, 2, [], 4), {})])
def test_wrong_arguments_are_refused(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Point(*args, **named)


@record
class Remembering:
    x: int
    seen: object = field(default=None, init=False, repr=False)


def test_a_field_that_is_no_argument_begins_with_its_default() -> None:
    record = Remembering(1)
    object.__setattr__(record, "seen", "something")
    assert replace(record, x=2).seen is None
    assert copy.copy(record).seen is None
    assert repr(record) == "Remembering(x=1)"
    assert list(inspect.signature(Remembering).parameters) == ["x"]


def test_it_stays_frozen() -> None:
    point: Any = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2
