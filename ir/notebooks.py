"""How notebooks, prompts and Hypothesis display objects whose drawing code is in higher packages.

They call an object's `_repr_html_` or `_repr_pretty_`. Programs and shardings have these, and the code that draws them
registers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Drawer = TypeVar("_Drawer", bound=Callable[[Any], str])
_DRAWERS: dict[type, Callable[[Any], str]] = {}
_WRITERS: dict[type, Callable[[Any], str]] = {}


class Drawn:
    """Displayed in notebooks by the function that is registered for the class with `draws`."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        draw = _DRAWERS.get(type(self))
        return draw(self) if draw is not None else None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Called by IPython for its prompt, and by Hypothesis for an example on which a property fails."""
        write = _WRITERS.get(type(self), repr)
        printer.text(write(self))


def draws(kind: type[Drawn], *, at_prompts: bool = False) -> Callable[[_Drawer], _Drawer]:
    """Registers the decorated function, which returns HTML, or, `at_prompts`, the text that these show."""

    def register(draw: _Drawer) -> _Drawer:
        (_WRITERS if at_prompts else _DRAWERS)[kind] = draw
        return draw

    return register


class Lines(str, Drawn):
    """A text of several lines, which notebooks and prompts display as it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
