"""How an op is declared: attributes, a type rule, a factor rule, and where it is linear.

The factor rule is an einsum-like map from the dims of operands and results to named factors. Propagation and the
partitioning of all parallel and reduction factors are written once over it, as in Shardy over its `OpShardingRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, ParamSpec

from ir.literals import written
from ir.mesh import Axes, Mesh
from ir.ops.boxes import Round
from ir.program import Attr, Op, Stage
from ir.records import record
from ir.sharding import REDUCTION_KINDS, ReductionKind
from ir.types import TensorType

Given = ParamSpec("Given")
Types = Sequence[TensorType]
Attrs = Mapping[str, Attr]


class FactorKind(StrEnum):
    """What splitting a factor means."""

    PARALLEL = "parallel"
    REDUCTION = "reduction"
    WINDOW = "window"
    SCAN = "scan"
    NEED_REPLICATION = "need_replication"


@record
class Factor:
    """One factor of an op. `reduction` is the kind under which devices hold partial results when it is split.

    A reduction factor with `reduction` None has partial results that only the op itself can combine (top_k). For a
    factor that needs replication, `moves_to` is the index of the factor to which axes that split it should move.
    """

    size: int
    kind: FactorKind = FactorKind.PARALLEL
    reduction: ReductionKind | None = None
    moves_to: int | None = None

    @property
    def has_candidates(self) -> bool:
        """Whether the factor has partial results that only the op itself can combine."""
        return self.kind is FactorKind.REDUCTION and self.reduction is None


class ControlKind(StrEnum):
    """How an op runs its regions, or the function that it names."""

    LOOP = "loop"
    """Region 0 decides whether region 1 computes the next carried values. Both take the carried values; the last are
    the results."""
    CHOICE = "choice"
    """One of its regions returns the results. They see the values around them. Without an index there is only one
    region."""
    CALL = "call"
    """The function is called once, on the operands."""
    MAP = "map"
    """The function is called for each element of the operands."""
    MANUAL = "manual"
    """Its region runs on the operands' shards of each device."""


class InKernels(StrEnum):
    """The role of an op for a compiler that fuses ops into kernels, which are passes over memory."""

    GIVEN = "given"
    """The result exists before anything runs."""
    VIEW = "view"
    """The results share the memory of the operands."""
    TRANSPOSITION = "transposition"
    """The operand's elements in another order. It shares the operand's memory where products read or make it."""
    ELEMENTS = "elements"
    """Each element is computed separately, from few others."""
    SLICE = "slice"
    """Each element is an element of the first operand."""
    CONCATENATION = "concatenation"
    """Each element is an element of some operand."""
    DRAW = "draw"
    """Each element is drawn separately, which takes longer than reading it."""
    GATHER = "gather"
    """A separate pass that reads as much of its first operand as it returns."""
    SCAN = "scan"
    """Separate passes, over blocks and then over their totals."""
    PRODUCT = "product"
    """A sum of products. Its operands are computed on the way."""
    REDUCTION = "reduction"
    """A reduction. Its operands are computed on the way."""
    WINDOW = "window"
    """A reduction of windows. Its operands are computed on the way."""
    UPDATE = "update"
    """A part of the first operand is overwritten by values that are computed on the way."""


DimFactors = tuple[int, ...]
TensorFactors = tuple[DimFactors, ...]


@record
class FactorRule:
    """For each dim of each operand and result, the factors it consists of, major first, as indices into `factors`.

    A dim without factors (a broadcast dim of size 1, say) must not be split.
    """

    factors: tuple[Factor, ...]
    operands: tuple[TensorFactors, ...]
    results: tuple[TensorFactors, ...]

    def __str__(self) -> str:
        def dim(d: DimFactors) -> str:
            names = [factor_letter(f) for f in d]
            return names[0] if len(names) == 1 else f"({' '.join(names)})"

        def side(tensors: tuple[TensorFactors, ...]) -> str:
            return ", ".join(" ".join(dim(d) for d in t) for t in tensors)

        kinds = [
            f"{factor_letter(i)}: {f.kind.value}{f'({f.reduction})' if f.reduction else ''}"
            for i, f in enumerate(self.factors)
            if f.kind is not FactorKind.PARALLEL
        ]
        return f"{side(self.operands)} -> {side(self.results)}" + (f"  {{{', '.join(kinds)}}}" if kinds else "")


_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"


def factor_letter(i: int) -> str:
    """The letter of a rule's factor of that index."""
    return _LETTERS[i] if i < len(_LETTERS) else f"f{i}"


def factor_of_letter(letter: str) -> int | None:
    """The index of the factor with that letter."""
    if letter[1:].isdecimal() and letter[0] == "f":
        return int(letter[1:])
    return _LETTERS.index(letter) if len(letter) == 1 and letter in _LETTERS else None


@record
class Linearity:
    """A group of operands in which, taken together, the op commutes with these reductions.

    If every operand of the group is partial over an axis, and no other operand is, the op applied to the parts
    makes parts of its result: add in (0, 1), multiply in (0,) and in (1,), select in its two branches.
    """

    kinds: tuple[ReductionKind, ...]
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """Reductions that an op commutes with in some operand but does not declare, and why not."""

    kinds: tuple[ReductionKind, ...]
    why: str


MONOTONE = Unclaimed(("max", "min"), "monotone in that operand: reducing it first costs the same")
PRODUCTS = Unclaimed(("prod",), "products are hardly ever pending")
BITWISE = Unclaimed(("and", "or"), "bits by themselves: reducing the operand first costs the same")

AttrKind = Literal[
    "int",
    "ints",
    "float",
    "bool",
    "word",
    "text",
    "dtype",
    "type",
    "types",
    "axes",
    "value",
    "order",
    "function",
    "host",
    "pairs",
]
"""How the language reads and writes an attribute: `word` is a bare word, `text` one in quotes, `types` a list of types,
`axes` mesh axes `(x, y:(1)2)`, `value` a number or nested list, `order` axes of a named mesh, `function` the name of a
function, `host` that of a host function, `ints` a list `[0, 1]`."""

OF_MESHES = ("axes", "order")
"""The kinds of attributes that name mesh axes."""


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute. `choices` has the words allowed. An attribute with a default is not printed when it has that
    value."""

    name: str
    kind: AttrKind
    default: Attr = None
    required: bool = True
    choices: tuple[str, ...] = ()
    doc: str = ""


STRATEGY = AttrDef("strategy", "text", default="", required=False, doc="how a plan computes the op on shards")
"""An attribute of every op in a plan: `Op.strategy`."""

CAUSE = AttrDef("cause", "text", default="", required=False, doc="what needs the result of an op of a plan")
"""An attribute of the ops in a plan, above all of reshards: `Op.cause`."""


class TypeRuleError(Exception):
    """An error in the operands or attributes of an op, with a message and help for the user."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


@dataclass(frozen=True, slots=True)
class Communication:
    """What devices send in a collective.

    `received` returns the bytes that a device receives, with the usual bandwidth-optimal algorithms, from the number of
    devices in a group (more than one) and the bytes that each puts in. `messages` returns the number of messages in
    such a group that depend on one another. If an attribute named `cut` gives a dim, its parts go to different devices,
    and if one named `joined` does, its parts come from different devices. If it `replicates`, all devices of a group
    get the same result. `rounds` returns who sends to whom, where not all do. Reports print `kind` in place of the op's
    name. `joins_itself` says that backends join several into one themselves.
    """

    received: Callable[[int, int], float]
    messages: Callable[[int], float]
    cut: str = ""
    joined: str = ""
    replicates: bool = False
    rounds: Callable[[Attrs], Sequence[Round]] | None = None
    kind: str = ""
    joins_itself: bool = False


@dataclass(frozen=True, slots=True)
class OwnPadding:
    """How an op pads its first operand itself: as `pad` does with this `value`, along these `dims` only.

    Its attributes padding_low and padding_high have the elements added before and behind each dim, and the attribute
    named `dilation` the distance between elements. If `value` is None, the padding is not a number.
    """

    dims: Callable[[Op], Sequence[int]]
    value: Callable[[Op], float | int | bool | None]
    dilation: str


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups that an op computes separately. The attribute `name` has their number. They divide a dim of each operand,
    and are a `factor` of the op's rule."""

    name: str
    count: int
    dims: tuple[int, ...]
    factor: int


InferRule = Callable[[Types, Attrs], Types]
FactorsRule = Callable[[Op], FactorRule]
Terms = Callable[[Op, Sequence[float]], float]


def largest(op: Op, bounds: Sequence[float]) -> float:
    """The bound of terms of an op that passes on those of its operands."""
    return max(bounds, default=0.0)


def updated(op: Op, bounds: Sequence[float]) -> float:
    """The bound of terms of an op that adds any elements of its last operand to those of another."""
    return max(bounds, default=0.0) * (1 + op.operands[-1].type.size)


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op's declaration.

    `operands` and `regions` are their numbers; None means any number of operands, or one or more regions. `control`
    says how the op runs its regions, or a function. `infer` returns the result types or raises TypeRuleError. `flops`
    counts the arithmetic of an op whose cost is not one operation for each element of its results. `communication`
    describes what a collective sends. `meaning` is a canonical form of attributes that can say the same in several
    ways, or that can differ though they are equal. An op that accesses only a part of a tensor reads and writes as many
    bytes as the operand or result at the position `copied` has; a result may take the memory of operands `in_place`. If
    an op `passes_each`, each result is the operand at its position. From the number `taken_along` on, operands can be
    dropped together with the results at their positions. `differs` says for each result of an op of an SPMD program
    along which axes devices get different results from equal operands.

    `spreading` is another view of an op, along which axes propagate and by which it can be split; by the views in
    `splitting` it can be split only. Factors of all tensors are batch factors, unless the op `has_no_batch`; axes
    propagate last through an op that `spreads_last`.

    The results of an op that `is_symmetric` are the same if its two operands are swapped, to the bit but for the
    payload of a NaN; those of complex numbers may be rounded in another way.

    If a result is `made_anywhere`, a device can compute any part of it from whole operands, and, if the op
    `keeps_dims`, from the same part of its operand. `terms` bounds the sum of the magnitudes of the terms that make up
    an element of the results, given those of the operands; the default for an op that is linear in sums is the largest
    of these. `unclaimed` has reductions that the op commutes with, but that `linear` leaves out. An op that
    `moves_along` dims computes nothing, and needs elements of other devices along split dims only.

    `padding` is how an op pads its first operand itself, and `groups` describes the groups that it computes separately,
    if any.

    `in_kernels` is the op's role in fusion; the default for an elementwise op is `elements`. An op that `is_dear` takes
    longer for an element than usual arithmetic. Ops without a role run by themselves.
    """

    name: str
    family: str
    operands: int | None
    infer: InferRule
    factors: FactorsRule | None
    attrs: tuple[AttrDef, ...] = ()
    linear: tuple[Linearity, ...] | Callable[[Op], tuple[Linearity, ...]] = ()
    stages: tuple[Stage, ...] = ("global", "plan", "spmd")
    regions: int | None = 0
    doc: str = ""
    flops: Callable[[Op], int] | None = None
    communication: Communication | None = None
    meaning: Callable[[Attrs], object] | None = None
    spreading: Callable[[Op], FactorRule | None] | None = None
    splitting: Callable[[Op], FactorRule | None] | None = None
    has_no_batch: bool = False
    spreads_last: bool = False
    made_anywhere: bool = False
    keeps_dims: bool = False
    moves_along: bool = False
    terms: Terms | None = None
    unclaimed: tuple[Unclaimed, ...] = ()
    copied: int | None = None
    in_place: tuple[int, ...] = ()
    taken_along: Callable[[Op], int] | None = None
    control: ControlKind | None = None
    passes_each: bool = False
    differs: Callable[[Op, Mesh], Sequence[Axes]] | None = None
    padding: OwnPadding | None = None
    groups: Callable[[Op], Groups | None] | None = None
    in_kernels: InKernels | None = None
    is_dear: bool = False
    is_symmetric: bool = False
    role: InKernels | None = field(init=False, default=None)
    """The op's role in fusion; None if it runs by itself."""
    names_axes: bool = field(init=False, default=False)
    """Whether any attribute names mesh axes."""
    _numbers: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        is_elementwise = self.in_kernels is None and self.family == "elementwise"
        object.__setattr__(self, "role", InKernels.ELEMENTS if is_elementwise else self.in_kernels)
        object.__setattr__(self, "names_axes", any(a.kind in OF_MESHES for a in self.attrs))
        object.__setattr__(self, "_numbers", tuple(a.name for a in self.attrs if a.kind in ("value", "float")))

    def __str__(self) -> str:
        """How the op is called: `cumsum(x, dim, [reverse])`."""
        operands = ["…"] if self.operands is None else ["x", "y", "z", *"uvw"][: self.operands]
        attrs = [a.name if a.required else f"[{a.name}]" for a in self.attrs]
        return f"{self.name}({', '.join([*operands, *attrs])})"

    def attr(self, name: str) -> AttrDef | None:
        return next((a for a in self.attrs if a.name == name), None)

    @property
    def is_typed_by_contents(self) -> bool:
        """Whether the result types are those that a region or a function returns, which `ir.verify.program` checks."""
        return self.control not in (None, ControlKind.LOOP)

    @property
    def has_strategy(self) -> bool:
        """Whether a plan says by which of its factors the op is split. Other ops are computed as what they run, or pass
        on."""
        return self.factors is not None and not self.passes_each

    def means(self, attrs: Attrs) -> object:
        """The canonical meaning of attributes: equal for ops that do the same, and for no others."""
        return (frozenset(attrs.items()), self.numbers(attrs)) if self.meaning is None else self.meaning(attrs)

    def numbers(self, attrs: Attrs) -> tuple[str, ...]:
        """The numbers among the attributes as they are written: 0.0 and -0.0 are equal numbers, but different
        constants."""
        return tuple([written(attrs.get(name)) for name in self._numbers]) if self._numbers else ()

    def sources(self, op: Op) -> tuple[int, ...]:
        """The operands whose elements make up the results, if the op only moves elements: it then commutes with any
        reduction of them."""
        return next((linear.group for linear in self.linearity(op) if linear.kinds == REDUCTION_KINDS), ())

    def bound_of_terms(self, op: Op, bounds: Sequence[float]) -> float:
        """A bound on the sum of the magnitudes of all terms that the op, and those that made its operands, add up."""
        if self.terms is not None:
            return self.terms(op, bounds)
        return max(bounds, default=0.0) if any("sum" in linear.kinds for linear in self.linearity(op)) else 0.0

    def linearity(self, op: Op) -> tuple[Linearity, ...]:
        return self.linear if isinstance(self.linear, tuple) else self.linear(op)


OPS: dict[str, OpDef] = {}
"""Every op, by name."""

COLLECTIVES: set[str] = set()
"""The ops that communicate."""

CONTROLS: dict[str, ControlKind] = {}
"""How ops with regions, or a function, run these."""


def _declaring(opdef_of: Callable[Given, OpDef]) -> Callable[Given, None]:
    def declare(*args: Given.args, **fields: Given.kwargs) -> None:
        opdef = opdef_of(*args, **fields)
        assert opdef.name not in OPS, opdef.name
        OPS[opdef.name] = opdef
        if opdef.communication is not None:
            COLLECTIVES.add(opdef.name)
        if opdef.control is not None:
            CONTROLS[opdef.name] = opdef.control

    return declare


declare = _declaring(OpDef)
"""Registers an op, given as the fields of its `OpDef`. Each op is declared once."""
