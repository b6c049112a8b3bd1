"""Records that programs hold by the ten thousand, and passes make anew."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quickly_made(cls: type[T]) -> type[T]:
    """The frozen dataclass with slots, made in half the time.

    The constructor of `dataclasses` asks for each field how an object sets its attributes, since the class itself
    refuses. This one, of the same arguments, has the slots at hand.
    """
    assert "__post_init__" not in cls.__dict__, cls
    known: dict[str, Any] = {"missing": MISSING}
    params: list[str] = []
    lines: list[str] = []
    slotted: Any = cls
    for field in fields(slotted):
        name = field.name
        assert field.init, field
        known[f"set_{name}"] = cls.__dict__[name].__set__
        known[f"default_{name}"], known[f"new_{name}"] = field.default, field.default_factory
        has_factory = field.default_factory is not MISSING
        is_needed = field.default is MISSING and not has_factory
        params.append(name if is_needed else f"{name}={'missing' if has_factory else f'default_{name}'}")
        value = f"new_{name}() if {name} is missing else {name}" if has_factory else name
        lines.append(f"    set_{name}(self, {value})")
    exec(f"def __init__(self, {', '.join(params)}):\n" + "\n".join(lines), known)
    made = known["__init__"]
    made.__qualname__, made.__annotations__ = cls.__init__.__qualname__, cls.__init__.__annotations__
    type.__setattr__(cls, "__init__", made)
    return cls
