"""How notebooks display objects whose drawing code is in higher packages.

IPython calls an object's `_repr_html_`. Programs and shardings have one, and the code that draws them registers
itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Drawer = TypeVar("_Drawer", bound=Callable[[Any], str])
_DRAWERS: dict[type, Callable[[Any], str]] = {}


class Drawn:
    """Displayed in notebooks by the function that is registered for the class with `draws`."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        draw = _DRAWERS.get(type(self))
        return draw(self) if draw is not None else None


def draws(kind: type[Drawn]) -> Callable[[_Drawer], _Drawer]:
    """Registers the decorated function, which returns HTML."""

    def register(draw: _Drawer) -> _Drawer:
        _DRAWERS[kind] = draw
        return draw

    return register


class Lines(str, Drawn):
    """A text of several lines, which notebooks and prompts display as it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
