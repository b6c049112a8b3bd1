"""Functions that a program calls on the host: Python code outside the compiled program.

In a program such a function is an attribute, printed as its name. A program that is read from text calls the function
that is registered under that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.diagnostics import error, require
from ir.types import Array, TensorType

Callback = Callable[..., Any]
"""Takes numpy arrays. Returns one array, or a sequence of one for each result; without results the return value is
ignored."""

_REGISTERED: dict[str, Callback] = {}


@dataclass(frozen=True, eq=False, slots=True)
class HostFunction:
    """A host function by name. Without `function`, the one that is registered under the name is called."""

    name: str
    function: Callback | None = None

    def __call__(self, *arrays: Any) -> Any:
        """Calls the function. Raises SpmdcError (E512) if none is known by this name; exceptions of the function itself
        pass through."""
        function = self.function or _REGISTERED.get(self.name)
        if function is None:
            message = f"the program calls {self.name} on the host, and no function is registered under that name"
            raise error("E512", message, help=f'spmdc.register_callback("{self.name}", function)')
        return function(*arrays)

    def results(self, arrays: Sequence[Array], types: Sequence[TensorType]) -> list[Array]:
        """The function's results as arrays of these types. Raises SpmdcError: E512, or E513 if they do not match the
        types."""
        found = self(*arrays)
        given: list[Any] = [] if not types else list(found) if isinstance(found, tuple | list) else [found]
        if len(given) != len(types):
            raise error(
                "E513",
                f"{self.name} gave {len(given)} results, and the program takes {len(types)}",
                help=f"return {len(types)}",
            )
        return [self._checked(np.asarray(x), type) for x, type in zip(given, types, strict=True)]

    def _checked(self, array: Array, type: TensorType) -> Array:
        if array.shape != type.shape or not np.can_cast(array.dtype, type.dtype.numpy, "same_kind"):
            raise error(
                "E513",
                f"{self.name} gave {array.dtype}{list(array.shape)}, and the program takes {type}",
                help="return an array of that shape and element type",
            )
        return array.astype(type.dtype.numpy, copy=False)


def register_callback(name: str, function: Callback) -> None:
    """Registers `function` as the host function `name`, until another is registered.

    It takes the operands as numpy arrays. It returns an array of the type in the program, or a sequence of one for each
    result; without results, the return value is ignored. Raises SpmdcError (E601) for anything but a name and a
    function.
    """
    require(isinstance(name, str), "a host function is registered by name", name)
    require(callable(function), "a host function is a function", function)
    _REGISTERED[name] = function
