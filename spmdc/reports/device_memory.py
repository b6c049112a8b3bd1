"""The memory that a compiled module takes on each device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on each device: of arguments, results, results that reuse the memory of arguments, temporaries, and the
    code."""

    arguments: int
    results: int
    aliased: int
    temporaries: int
    code: int

    @staticmethod
    def of(compiled: Any) -> DeviceMemory:
        """The memory of a `jax.stages.Compiled`, according to its compiler."""
        found = compiled.memory_analysis()
        return DeviceMemory(
            arguments=found.argument_size_in_bytes,
            results=found.output_size_in_bytes,
            aliased=found.alias_size_in_bytes,
            temporaries=found.temp_size_in_bytes,
            code=found.generated_code_size_in_bytes,
        )

    @property
    def total(self) -> int:
        """The total bytes that exist at the same time."""
        return self.arguments + self.results - self.aliased + self.temporaries + self.code

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in (*self.__slots__, "total")}
