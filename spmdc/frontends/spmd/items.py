"""Items, which expressions evaluate to while a program is expanded: a tensor, or something known at compile time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError, error
from ir.program import Value
from ir.types import DType, TensorType, size_problem

_MAX_CANDIDATES = 500


@dataclass(frozen=True, slots=True)
class Several:
    """The results of an expression with none or several."""

    values: tuple[Value, ...]


def one_or_several(values: tuple[Value, ...]) -> Value | Several:
    """The results of an op as an item."""
    return values[0] if len(values) == 1 else Several(values)


Number = int | float | bool
Item = Value | Number | str | DType | TensorType | Several | tuple["Item", ...]

Bound = dict[tuple[int, int], Item]
"""The items that names are bound to, by the line and column of each binding; for an unrolled loop, those of its first
iteration."""


class PoisonedError(Exception):
    """A value is used whose own error has been reported already. It is caught inside the package."""


class Faults:
    """Collects the errors of independent parts: `with faults:` around each part, `raise_all` after them."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self.poisoned = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> bool:
        if not isinstance(problem, SpmdcError | PoisonedError):
            return False
        self.add(problem)
        return True

    def add(self, problem: SpmdcError | PoisonedError) -> None:
        """Collects the diagnostics of an error."""
        if isinstance(problem, SpmdcError):
            self.diagnostics.extend(problem.diagnostics)
        else:
            self.poisoned = True

    @property
    def found(self) -> bool:
        return self.poisoned or bool(self.diagnostics)

    def raise_all(self) -> None:
        """Raises SpmdcError with all collected errors, or PoisonedError, if there were any."""
        if self.diagnostics:
            raise SpmdcError(self.diagnostics)
        if self.poisoned:
            raise PoisonedError


class _Poison:
    """The binding of a name whose value has errors."""


POISON = _Poison()


@dataclass
class Scope:
    """Names and their items; inner blocks see outer ones. A `sealed` scope does not see the tensors around it."""

    parent: Scope | None = None
    items: dict[str, Item | _Poison] = field(default_factory=dict[str, Item | _Poison])
    incomplete: bool = False
    """Whether names are missing because their definitions have errors."""
    sealed: bool = False
    is_within_seal: bool = field(init=False)
    bound: Bound | None = None
    """Receives all bindings, here and in inner blocks, of names in `source`."""
    source: Source | None = None

    def __post_init__(self) -> None:
        if self.bound is None and self.parent is not None:
            self.bound, self.source = self.parent.bound, self.parent.source
        self.is_within_seal = self.sealed or (self.parent is not None and self.parent.is_within_seal)

    def find(self, name: str) -> Item | _Poison | None:
        """The item that `name` is bound to here; None if it is not bound."""
        scope: Scope | None = self
        while scope is not None:
            item = scope.items.get(name)
            if item is not None:
                return item
            scope = scope.parent
        return None

    def is_sealed_off(self, name: str) -> bool:
        """Whether `name` is bound to a tensor, or a list of some, outside a sealed scope."""
        scope: Scope | None = self
        sealed = False
        while scope is not None and name not in scope.items:
            sealed = sealed or scope.sealed
            scope = scope.parent
        return sealed and scope is not None and _holds_tensor(scope.items[name])

    def lookup(self, name: str) -> Item | None:
        """As `find`. Raises PoisonedError if the value has errors."""
        item = self.find(name)
        if isinstance(item, _Poison):
            raise PoisonedError
        return item

    def may_lack(self) -> bool:
        """Whether an unknown name may be one whose definition has errors."""
        return self.incomplete or (self.parent is not None and self.parent.may_lack())

    def names(self) -> Iterator[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.items
            scope = scope.parent

    def bind(self, name: str, item: Item, span: Span) -> None:
        """Binds a name. Raises SpmdcError (E102) if it is bound in this same scope."""
        if name in self.items and self.items[name] is not POISON:
            message = f"{name!r} is defined twice"
            raise error("E102", message, span, help="values are never reassigned: give the new value a name of its own")
        self.items[name] = item
        if self.bound is not None and span.source is self.source:
            self.bound.setdefault((span.line, span.column), item)

    def poison(self, name: str) -> None:
        self.items.setdefault(name, POISON)


def _holds_tensor(item: Item | _Poison) -> bool:
    return any(map(_holds_tensor, item)) if isinstance(item, tuple) else isinstance(item, Value | Several)


def describe(item: Item) -> str:
    """A description of the item, for a message."""
    match item:
        case Value():
            return f"a tensor {item.type}"
        case bool():
            return "true" if item else "false"
        case int() | float():
            return f"the number {item}"
        case str():
            return f"the text {item!r}"
        case DType():
            return f"the element type {item}"
        case TensorType():
            return f"the type {item}"
        case Several():
            return f"{len(item.values)} values"
        case _:
            return f"a list of {len(item)}"


def suggest(name: str, known: Iterable[str]) -> str:
    """A `did you mean` text for the help of an error, or nothing."""
    candidates = sorted({k for k in known if abs(len(k) - len(name)) <= 4})
    if len(candidates) > _MAX_CANDIDATES:
        candidates = [k for k in candidates if k[:1] == name[:1]][:_MAX_CANDIDATES]
    close = difflib.get_close_matches(name, candidates, n=2, cutoff=0.72)
    return f"did you mean {' or '.join(close)}" if close else ""


def expect_int(item: Item, span: Span, what: str) -> int:
    """The integer that an item is. Raises SpmdcError (E207) if it is not one."""
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    if isinstance(item, float) and item.is_integer():
        return int(item)
    help_text = "write an integer, or a const: const N = 8"
    if isinstance(item, Value):
        help_text = "what a tensor holds is known only when the program runs; a const is known before: const N = 8"
    elif isinstance(item, float):
        help_text = "`//` divides integers and rounds down"
    raise error("E207", f"{what} must be a compile-time integer, and is {describe(item)}", span, help=help_text)


def expect_size(item: Item, span: Span) -> int:
    """A dim's size. Raises SpmdcError (E205, E207)."""
    if isinstance(item, float) and not item.is_integer():
        raise error("E205", f"a dim's size must be an integer, and is {item}", span, help="`//` rounds down")
    size = expect_int(item, span, "a dim's size")
    if size < 0:
        help_text = "max(0, …) is never negative"
        raise error("E205", f"a dim's size must not be negative, and is {size}", span, help=help_text)
    return size


def expect_ints(item: Item, span: Span, what: str) -> tuple[int, ...]:
    """The integers of a list, or of one integer. Raises SpmdcError (E207)."""
    if isinstance(item, tuple):
        return tuple(expect_int(i, span, f"each of {what}") for i in item)
    return (expect_int(item, span, what),)


def expect_value(item: Item, span: Span, what: str) -> Value:
    """The tensor that an item is. Raises SpmdcError (E207) if it is not one."""
    if isinstance(item, Value):
        return item
    if isinstance(item, Several):
        raise error(
            "E203",
            f"{what} must be one tensor, and is {describe(item)}",
            span,
            help="name them first, a, b = f(x), and use one",
        )
    help_text = ""
    if isinstance(item, int | float):
        help_text = f"{as_tensor(item)} is a tensor of rank 0"
    elif isinstance(item, tuple):
        help_text = "a written type makes a tensor of a list: x: f32[2] = [1, 2]"
    elif isinstance(item, DType):
        help_text = f"{item}(x) converts x"
    elif isinstance(item, str):
        help_text = 'texts are arguments of calls that take them, as in einsum("ij->ji", x)'
    raise error("E207", f"{what} must be a tensor, and is {describe(item)}", span, help=help_text)


def as_tensor(number: float) -> str:
    """How a number is written as a tensor of rank 0."""
    dtype = "pred" if isinstance(number, bool) else "s32" if isinstance(number, int) else "f32"
    return f"{dtype}({str(number).lower()})"


def normal_dim(dim: int, rank: int, span: Span) -> int:
    """A dim counted from 0, where -1 is the last. Raises SpmdcError (E201)."""
    if -rank <= dim < rank:
        return dim % rank
    valid = f"0 to {rank - 1}, or -1 for the last" if rank else "none, for the operand is a scalar"
    raise error("E201", f"dim {dim} is out of range", span, help=f"valid dims are {valid}")


def check_type(type: TensorType, span: Span | None) -> TensorType:
    """The type itself. Raises SpmdcError (E205) if it is too large."""
    problem = size_problem(type)
    if problem:
        raise error("E205", problem, span, help="compute it in parts, which are tensors of their own")
    return type
