"""The options of a call in MLIR's syntax: a dictionary of numbers, texts, arrays, lists and dictionaries.

MLIR's own parser aborts the process on some texts, such as lists that nest too deep, and a program's config may be any
text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Option: TypeAlias = "bool | str | np.generic | npt.NDArray[Any] | tuple[Option, ...] | dict[str, Option]"
"""Numbers and arrays are numpy's, with the element type that is written; lists are tuples."""

MOST_ELEMENTS = 1 << 20
"""The most elements that an array may have."""

_MOST_DEPTH = 64
_MOST_DIGITS = 400
_SHOWN = 60
_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<hex>0x[0-9A-Fa-f]+)(?![\w.])"
    r"|(?P<float>-?\d+\.\d*(?:[eE][+-]?\d+)?)|(?P<int>-?\d+)|(?P<word>[A-Za-z_][\w$.]*)|(?P<mark>\S))"
)
_SHAPE = re.compile(r"\s*<((?:\d+x)*)(\w+)>")
_ESCAPE = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))")
_ESCAPED = MappingProxyType({b"n": b"\n", b"t": b"\t"})
_NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        **{f"{sign}i{bits}": f"{'u' * (sign == 'u')}int{bits}" for sign in ("", "s", "u") for bits in (8, 16, 32, 64)},
        "f16": "float16",
        "f32": "float32",
        "f64": "float64",
        "i1": "bool",
    }
)
_T = TypeVar("_T")


class OptionsError(ValueError):
    """An error in the text."""


def parse_options(text: str) -> dict[str, Option]:
    """The options. Raises OptionsError."""
    reader = _Reader(text)
    reader.expect("{")
    options = reader.entries(0)
    if text[reader.position :].strip():
        raise reader.fault("the end")
    return options


@dataclass
class _Reader:
    text: str
    position: int = 0

    def fault(self, expected: str) -> OptionsError:
        rest = self.text[self.position :].strip()
        return OptionsError(f"expected {expected}, and {f'found {rest[:_SHOWN]!r}' if rest else 'the text ends'}")

    def take(self, *kinds: str) -> str | None:
        """Takes the next token if it is of one of these kinds."""
        found = _TOKEN.match(self.text, self.position)
        if found is None or found.lastgroup not in kinds:
            return None
        self.position = found.end()
        return found[found.lastgroup or 0]

    def accept(self, token: str) -> bool:
        before = self.position
        if self.take("mark", "word") == token:
            return True
        self.position = before
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.fault(repr(token))

    def listed(self, close: str, item: Callable[[], _T]) -> list[_T]:
        """Items separated by commas, up to the closing mark."""
        found: list[_T] = []
        if self.accept(close):
            return found
        found.append(item())
        while self.accept(","):
            found.append(item())
        self.expect(close)
        return found

    def entries(self, depth: int) -> dict[str, Option]:
        pairs = self.listed("}", lambda: self._entry(depth))
        options = dict(pairs)
        if len(options) < len(pairs):
            raise OptionsError("a name is given twice")
        return options

    def _entry(self, depth: int) -> tuple[str, Option]:
        quoted = self.take("string")
        name = _decoded(quoted) if quoted is not None else self.take("word")
        if name is None:
            raise self.fault("a name")
        if not self.accept("="):
            raise OptionsError(f"the option {name} has no value")
        return name, self.value(depth + 1)

    def value(self, depth: int) -> Option:
        if depth > _MOST_DEPTH:
            raise OptionsError(f"lists and dictionaries nest more than {_MOST_DEPTH} deep")
        quoted = self.take("string")
        if quoted is not None:
            return _decoded(quoted)
        if self.accept("["):
            return tuple(self.listed("]", lambda: self.value(depth + 1)))
        if self.accept("{"):
            return self.entries(depth)
        for word, read in (("dense", self._dense), ("array", self._array)):
            if self.accept(word):
                self.expect("<")
                return read()
        number = self._literal()
        if isinstance(number, bool):
            return number
        type = self._type() if self.accept(":") else "f64" if _is_float(number) else "i64"
        return _number(number, type)[()]

    def _literal(self) -> str | bool:
        for word in ("true", "false"):
            if self.accept(word):
                return word == "true"
        number = self.take("hex", "float", "int")
        if number is None:
            raise self.fault("a number, a text, a list, a dictionary, dense or array")
        if len(number) > _MOST_DIGITS:
            raise OptionsError(f"no type has the number {number[:_SHOWN]}…")
        return number

    def _type(self) -> str:
        name = self.take("word")
        if name is None:
            raise self.fault("a type")
        if name not in _NUMBERS:
            raise OptionsError(f"there are no numbers of type {name} here")
        return name

    def _array(self) -> Option:
        """`i64: 1, 2>`"""
        type = self._type()
        if self.accept(">"):
            return np.zeros(0, _NUMBERS[type])
        self.expect(":")
        return np.array([_number(x, type) for x in self.listed(">", self._literal)], _NUMBERS[type])

    def _dense(self) -> Option:
        """`[[1, 2], [3, 4]]> : tensor<2x2xi64>`, or a single number for all elements, or all their bytes in
        hexadecimal."""
        data = self.take("string")
        nested = None if data is not None or self.accept(">") else self._nested(0)
        if data is not None or nested is not None:
            self.expect(">")
        self.expect(":")
        self.expect("tensor")
        found = _SHAPE.match(self.text, self.position)
        if found is None or found[2] not in _NUMBERS:
            raise self.fault("a shape and a type of numbers, <2x3xi64>")
        self.position = found.end()
        shape = tuple(int(n[:18]) for n in found[1].split("x")[:-1])
        return _filled(data, nested, shape, found[2])

    def _nested(self, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise OptionsError(f"lists nest more than {_MOST_DEPTH} deep")
        return self.listed("]", lambda: self._nested(depth + 1)) if self.accept("[") else self._literal()


def _filled(data: str | None, nested: Any, shape: tuple[int, ...], type: str) -> npt.NDArray[Any]:
    """The array of that shape. Raises OptionsError."""
    size, dtype = math.prod(shape), np.dtype(_NUMBERS[type])
    if size > MOST_ELEMENTS:
        raise OptionsError(f"an array has {size:,} elements, and may have {MOST_ELEMENTS:,}")
    if data is not None:
        found = re.fullmatch(r'"0x((?:[0-9A-Fa-f]{2})+)"', data)
        if found is None or type == "i1" or len(found[1]) // 2 not in (dtype.itemsize, size * dtype.itemsize):
            raise OptionsError(f"the bytes {data[:_SHOWN]} are no array of {size:,} numbers of type {type}")
        array = np.frombuffer(bytes.fromhex(found[1]), dtype)
    elif nested is None:
        array = np.zeros(0, dtype)
    elif isinstance(nested, list):
        return _reshaped(nested, shape, type)
    else:
        array = _number(nested, type)
    if array.size not in (1, size):
        raise OptionsError(f"{array.size} numbers are no array of {size:,}")
    return np.broadcast_to(array.ravel(), (size,)).reshape(shape).copy()


def _reshaped(nested: list[Any], shape: tuple[int, ...], type: str) -> npt.NDArray[Any]:
    """The array with the elements of nested lists of that shape. Raises OptionsError."""
    rows, numbers = [nested], nested
    for n in shape:
        if any(not isinstance(row, list) or len(row) != n for row in rows):
            raise OptionsError(f"its lists do not have the shape {list(shape)}")
        numbers = [x for row in rows for x in row]
        rows = numbers
    if any(isinstance(x, list) for x in numbers):
        raise OptionsError(f"its lists do not have the shape {list(shape)}")
    return np.array([_number(x, type) for x in numbers], _NUMBERS[type]).reshape(shape)


def _is_float(number: str) -> bool:
    return "." in number


def _number(written: str | bool, type: str) -> npt.NDArray[Any]:
    """A number of a type. Integers of both signless ranges and floats as hexadecimal bits are accepted."""
    dtype = np.dtype(_NUMBERS[type])
    fault = OptionsError(f"{str(written).lower()} is no number of type {type}")
    if isinstance(written, bool) or dtype.kind == "b":
        if not isinstance(written, bool) or dtype.kind != "b":
            raise fault
        return np.array(written)
    if dtype.kind == "f" and not written.startswith("0x"):
        if not _is_float(written):
            raise fault
        with np.errstate(over="ignore"):
            return np.array(float(written), dtype)
    if _is_float(written):
        raise fault
    bits, value = 8 * dtype.itemsize, int(written, 0 if written.startswith("0x") else 10)
    least = 0 if type.startswith("u") or dtype.kind == "f" else -(1 << (bits - 1))
    most = (1 << (bits - type.startswith("s"))) - 1
    if not least <= value <= most:
        raise fault
    return np.array(value % (1 << bits), f"uint{bits}").view(dtype)


def _decoded(quoted: str) -> str:
    def byte(escape: re.Match[bytes]) -> bytes:
        return bytes.fromhex(escape[1].decode()) if escape[1] else _ESCAPED.get(escape[2], escape[2])

    try:
        return _ESCAPE.sub(byte, quoted[1:-1].encode()).decode()
    except UnicodeError:
        raise OptionsError(f"the text {quoted[:_SHOWN]} is not UTF-8") from None
