"""How a plan spells the strategies of its ops and the steps of its reshards.

A strategy names the factors of the op's rule that are split, and the axes that split them: `i=x, k=(y, z)`. If the
factors are those of another view of the op, a prefix names the view, `view 1: i=x`; a suffix says how parts rotate in a
windowed einsum, `i=x; windowed k over y, operand 0 rotates`, or `…, sums rotate`, or along which factor the candidates
of devices are scattered, `i=x; candidates to j`.

A step is its collective or local op, with its arguments, and the sharding that it leads to:
`all_gather 0 (y) -> [x, -]`. If the parts of a dim are strided, the digits of its indices are spelled, with the axes
that split them: `<4@x 2, 3 / 8 3>` has dims of 8 and 3, the major digit of the first split by x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ir.diagnostics import Span, error
from ir.mesh import Axes, AxisRef, Mesh, merge_axes
from ir.ops import FactorRule
from ir.ops.declaration import factor_letter, factor_of_letter
from ir.program import Op
from ir.sharding import REDUCTION_KINDS, Partial, ReductionKind
from ir.spelling.cursor import Cursor
from passes.factors import factor_rule, other_rules
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard import steps, strided
from passes.partition.reshard.steps import AnySharding, Step, Steps
from passes.partition.reshard.strided_sharding import Digit, StridedSharding
from passes.partition.strategy import Strategy, WindowedEinsum

IDENTITY = "identity"
"""The steps of a reshard to partial of a value whose elements are all the identity of the reduction: nothing is
done."""

_KINDS: Mapping[str, type[Any]] = {
    "all_gather": steps.Gather,
    "slice": steps.Slice,
    "all_to_all": steps.AllToAll,
    "collective_permute": steps.Permute,
    "all_reduce": steps.Reduce,
    "reduce_scatter": steps.ReduceScatter,
    "make_partial": steps.MakePartial,
    "spread": steps.Spread,
    "reorder": steps.Reorder,
    "strided": strided.Strided,
    "rotate": strided.Rotate,
    "retile": strided.Retile,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


# Writing.


def spell_strategy(mesh: Mesh, op: Op, rule: FactorRule, strategy: Strategy) -> str:
    """The strategy of an op under a rule; empty if nothing is split."""
    views = () if rule is factor_rule(op) else other_rules(op)
    view = f"view {views.index(rule) + 1}: " if rule in views else ""
    split = ", ".join([f"{factor_letter(f)}={_axes(mesh, axes)}" for f, axes in strategy.factors if axes])
    windowed = strategy.windowed
    if strategy.candidates_to is not None:
        return f"{view}{split}; candidates to {factor_letter(strategy.candidates_to)}"
    if windowed is None:
        return f"{view}{split}" if split else ""
    rotates = "sums rotate" if windowed.rotating is None else f"operand {windowed.rotating} rotates"
    rotation = f"windowed {factor_letter(windowed.factor)} over {_axes(mesh, windowed.axes)}, {rotates}"
    return f"{view}{split}; {rotation}" if split else f"{view}{rotation}"


def spell_steps(mesh: Mesh, taken: Steps) -> str:
    """The steps of a reshard, each with the sharding that it leads to."""
    return "; ".join(f"{spell_step(mesh, step)} -> {_spell_sharding(mesh, after)}" for step, after in taken)


def spell_step(mesh: Mesh, step: Step) -> str:
    """A step with its arguments, as in `all_gather 0 (y)`."""
    moves_digits = isinstance(step, strided.Strided | strided.Rotate)
    found = [_NAMES[type(step)]]
    for value in (getattr(step, f.name) for f in fields(step)):
        found.append(_field(mesh, value if moves_digits or not isinstance(value, tuple) else merge_axes(value)))
    return " ".join(found)


def _field(mesh: Mesh, value: object) -> str:
    match value:
        case tuple():
            return f"({', '.join(mesh.spell(a) for a in value)})"
        case StridedSharding():
            return _spell_sharding(mesh, value)
        case Mesh():
            return f"@{value.name}"
        case None:
            return "home"
        case _:
            return str(value)


def _axes(mesh: Mesh, axes: Axes) -> str:
    return mesh.spell(axes[0]) if len(axes) == 1 else f"({', '.join(map(mesh.spell, axes))})"


def _spell_sharding(mesh: Mesh, sharding: AnySharding) -> str:
    def digit(d: Digit) -> str:
        return f"{d.size}@{mesh.spell(d.axis)}" if d.axis is not None else str(d.size)

    pending = ", ".join(f"{kind} {mesh.spell(a)}" for a, kind in sharding.partial)
    if isinstance(sharding, StridedSharding):
        dims = ", ".join(" ".join(map(digit, dim)) for dim in sharding.dims)
        return f"<{dims} / {' '.join(map(str, sharding.extents))} / {pending}>"
    dims = ", ".join(" ".join(map(mesh.spell, axes)) or "-" for axes in sharding.axes)
    return f"[{dims}]{f'{{{pending}}}' if pending else ''}{f' on @{sharding.order.name}' if sharding.order else ''}"


# Reading.


@dataclass(frozen=True, slots=True)
class Spelled:
    """The meaning of a strategy's text: which view of the op it is for, the axes of each split factor, the windowed
    einsum, and the factor along which candidates are scattered."""

    view: int = 0
    factors: tuple[tuple[int, Axes], ...] = ()
    windowed: WindowedEinsum | None = None
    candidates_to: int | None = None

    def rule(self, op: Op) -> FactorRule | None:
        """The op's rule in that view; None if the op has no such view, or the view lacks some of these factors."""
        views = (factor_rule(op),) if not self.view else (None, *other_rules(op))
        rule = views[self.view] if self.view < len(views) else None
        named = [f for f, _ in self.factors] + [self.candidates_to or 0]
        last = max([*named, self.windowed.factor if self.windowed is not None else 0])
        return rule if rule is not None and (not self.factors or last < len(rule.factors)) else None


def read_strategy(meshes: Sequence[Mesh], text: str, span: Span | None) -> Spelled:
    """The strategy of an op of a plan. Raises SpmdcError (E309)."""
    return _Reader(text, "the strategy", span, meshes, _STRATEGY_HELP).strategy() if text else Spelled()


def read_steps(meshes: Sequence[Mesh], text: str, span: Span | None) -> Steps:
    """The steps of a reshard. Raises SpmdcError (E309)."""
    return () if text == IDENTITY else _Reader(text, "the steps", span, meshes, STEPS_HELP).steps()


_STRATEGY_HELP = 'a strategy has an axis, or several, for each factor that is split: strategy="i=x, j=(y, z)"'
STEPS_HELP = "without steps=, a reshard has those that take least time"


class _Reader:
    """Reads one text."""

    def __init__(self, text: str, what: str, span: Span | None, meshes: Sequence[Mesh], help: str) -> None:
        self.cursor = Cursor(text, what, span, help=help)
        self.mesh_axes = dict(meshes[0].axes)
        self.meshes = {mesh.name: mesh for mesh in meshes}

    def strategy(self) -> Spelled:
        cursor, view = self.cursor, 0
        if cursor.accept("view"):
            view = cursor.integer()
            cursor.expect(":")
        windowed, factors, candidates_to = self.windowed(), list[tuple[int, Axes]](), None
        while windowed is None:
            factor = self.factor()
            cursor.expect("=")
            factors.append((factor, self.axes()))
            if not cursor.accept(","):
                if cursor.accept(";"):
                    windowed, candidates_to = self.windowed(), self.candidates_to()
                break
        cursor.end()
        return Spelled(view, tuple(sorted(factors)), windowed, candidates_to)

    def factor(self) -> int:
        letter = self.cursor.word()
        factor = factor_of_letter(letter) if letter is not None else None
        if factor is None:
            raise self.cursor.fault("the letter of a factor")
        return factor

    def candidates_to(self) -> int | None:
        if not self.cursor.accept("candidates"):
            return None
        self.cursor.expect("to")
        return self.factor()

    def windowed(self) -> WindowedEinsum | None:
        cursor = self.cursor
        if not cursor.accept("windowed"):
            return None
        factor = self.factor()
        cursor.expect("over")
        axes = self.axes()
        cursor.expect(",")
        if cursor.accept("sums"):
            cursor.expect("rotate")
            return WindowedEinsum(factor, axes, None)
        cursor.expect("operand")
        rotating = cursor.integer()
        cursor.expect("rotates")
        return WindowedEinsum(factor, axes, rotating)

    def steps(self) -> Steps:
        found: list[tuple[Step, AnySharding]] = []
        while not found or self.cursor.accept(";"):
            kind = _KINDS[self.word(*_KINDS)]
            step: Step = kind(*(_READERS[str(f.type)](self) for f in fields(kind)))
            self.cursor.expect("->")
            found.append((step, self.closed_sharding()))
        self.cursor.end()
        return tuple(found)

    def closed_sharding(self) -> AnySharding:
        cursor = self.cursor
        if not cursor.accept("["):
            return self.strided()
        dims = tuple([self.dim() for _ in cursor.until("]")])
        partial: Partial = ()
        if cursor.accept("{"):
            partial = self.partial()
            cursor.expect("}")
        return ClosedSharding(dims, partial, self.mesh() if cursor.accept("on") else None)

    def dim(self) -> Axes:
        if self.cursor.accept("-"):
            return ()
        axes: list[AxisRef] = []
        while not axes or self.is_next(str.isidentifier):
            axes.append(self.axis())
        return tuple(axes)

    def partial(self) -> Partial:
        pending = [(self.reduction(), self.axis())]
        while self.cursor.accept(","):
            pending.append((self.reduction(), self.axis()))
        return tuple((axis, kind) for kind, axis in pending)

    def strided(self) -> StridedSharding:
        cursor = self.cursor
        cursor.expect("<")
        dims: list[tuple[Digit, ...]] = [self.digits()]
        while cursor.accept(","):
            dims.append(self.digits())
        cursor.expect("/")
        extents: list[int] = []
        while not cursor.accept("/"):
            extents.append(cursor.integer())
        if cursor.accept(">"):
            return StridedSharding(tuple(dims), tuple(extents))
        partial = self.partial()
        cursor.expect(">")
        return StridedSharding(tuple(dims), tuple(extents), partial)

    def digits(self) -> tuple[Digit, ...]:
        found: list[Digit] = []
        while self.is_next(str.isdigit):
            size = self.cursor.integer()
            found.append(Digit(size, self.axis() if self.cursor.accept("@") else None))
        return tuple(found)

    def is_next(self, holds: Callable[[str], bool]) -> bool:
        return holds(self.cursor.text[self.cursor.position :].lstrip()[:1] or " ")

    def mesh(self) -> Mesh | None:
        if self.cursor.accept("home"):
            return None
        self.cursor.expect("@")
        name = next((name for name in self.meshes if name and self.cursor.accept(name)), "")
        return self.meshes[name] if name in self.meshes else self.meshes[self.word(*self.meshes)]

    def reduction(self) -> ReductionKind:
        word = self.word(*REDUCTION_KINDS)
        return next(kind for kind in REDUCTION_KINDS if kind == word)

    def axes(self) -> Axes:
        if not self.cursor.accept("("):
            return (self.axis(),)
        return tuple([self.axis() for _ in self.cursor.until(")")])

    def axis(self) -> AxisRef:
        name = self.cursor.word()
        if name is None:
            raise self.cursor.fault("a mesh axis")
        if name not in self.mesh_axes:
            message = f"{self.cursor.what} name{'s' if self.cursor.what == 'the strategy' else ''} an axis {name!r}"
            axes = ", ".join(self.mesh_axes)
            raise error("E301", f"{message}, which the mesh does not have", self.cursor.span, help=f"it has {axes}")
        size = self.mesh_axes[name]
        if not self.cursor.accept(":"):
            return AxisRef(name, 1, size)
        axis = AxisRef(name, *self.cursor.part())
        if not axis.is_part_of(size):
            message = f"{name}:({axis.pre}){axis.size} is no part of axis {name!r} of size {size}"
            message = f"{self.cursor.what}: {message}"
            raise error("E303", message, self.cursor.span, help="p and s of a part (p)s divide it")
        return axis

    def word(self, *words: str) -> str:
        found = next((word for word in words if self.cursor.accept(word)), None)
        if found is None:
            raise self.cursor.fault(f"one of {', '.join(words)}")
        return found


_READERS: Mapping[str, Callable[[_Reader], object]] = {
    "int": lambda reader: reader.cursor.integer(),
    "Axes": _Reader.axes,
    "ReductionKind": _Reader.reduction,
    "StridedKind": lambda reader: reader.word("all_gather", "all_to_all", "reduce_scatter", "slice"),
    "Mesh | None": _Reader.mesh,
    "StridedSharding": _Reader.strided,
}
"""The readers of a step's fields, by type."""
