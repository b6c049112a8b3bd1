"""Functions that a program calls on the host: Python, outside of what is compiled.

In a program such a function is an attribute, printed as its name. A program that is read from text calls what was
registered under that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.diagnostics import error
from ir.types import Array, TensorType

Callback = Callable[..., Any]
"""Takes numpy arrays; returns an array, or a sequence of as many as there are results, or, of none, anything."""

_REGISTERED: dict[str, Callback] = {}


@dataclass(frozen=True, eq=False, slots=True)
class HostFunction:
    """A function of the host by name. Without `function` it is what is registered under the name when it is called."""

    name: str
    function: Callback | None = None

    def __call__(self, *arrays: Any) -> Any:
        """What the function returns. Raises SpmdcError (E512) if nobody knows it; what it raises itself passes."""
        function = self.function or _REGISTERED.get(self.name)
        if function is None:
            raise error(
                "E512",
                f"the program calls {self.name} on the host, and no function is registered under that name",
                help=f'spmdc.register_callback("{self.name}", function)',
            )
        return function(*arrays)

    def results(self, arrays: Sequence[Array], types: Sequence[TensorType]) -> list[Array]:
        """What it returns, as arrays of these types. Raises SpmdcError: E512, or E513 if it returns something else."""
        found = self(*arrays)
        given: list[Any] = [] if not types else list(found) if isinstance(found, tuple | list) else [found]
        if len(given) != len(types):
            raise error("E513", f"{self.name} gave {len(given)} results, and the program takes {len(types)}")
        return [self._checked(np.asarray(x), type) for x, type in zip(given, types, strict=True)]

    def _checked(self, array: Array, type: TensorType) -> Array:
        if array.shape != type.shape or not np.can_cast(array.dtype, type.dtype.numpy, "same_kind"):
            raise error("E513", f"{self.name} gave {array.dtype}{list(array.shape)}, and the program takes {type}")
        return array.astype(type.dtype.numpy, copy=False)


def register_callback(name: str, function: Callback) -> None:
    """Makes `function` what programs call on the host as `name`, until another is registered.

    It takes the operands as numpy arrays. It returns an array of the type in the program, or a sequence of as many
    as there are results; of none, what it returns is ignored.
    """
    _REGISTERED[name] = function
