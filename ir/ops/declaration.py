"""How an op is declared: attributes, a type rule, a factor rule, and where it is linear.

The factor rule is an einsum-like map from the dims of operands and results to named factors. Propagation and the
partitioning of every parallel and reduction factor are written once over it, as Shardy does over its `OpShardingRule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, ParamSpec

from ir.mesh import Axes, Mesh
from ir.ops.boxes import Round
from ir.program import Attr, Op, Stage
from ir.records import quickly_made
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


@quickly_made
@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of an op. `reduction` is the kind under which devices hold partial results when it is split.

    A reduction factor with `reduction` None has partial results that only the op itself can combine (top_k).
    `moves_to` of a factor that needs replication is the factor, by index, to which axes that split it should move.
    """

    size: int
    kind: FactorKind = FactorKind.PARALLEL
    reduction: ReductionKind | None = None
    moves_to: int | None = None

    @property
    def has_candidates(self) -> bool:
        """Whether devices that hold some of it have results that only the op itself can combine."""
        return self.kind is FactorKind.REDUCTION and self.reduction is None


class ControlKind(StrEnum):
    """How an op runs its regions, or the function that it names."""

    LOOP = "loop"
    """Region 0 says whether region 1 makes the next carried values; both take them, and the last are the results."""
    CHOICE = "choice"
    """One of its regions, which see the values around them, returns the results; the only one, if there is no index."""
    CALL = "call"
    """The function, once, on the operands."""
    MAP = "map"
    """The function, for each element of the operands."""
    MANUAL = "manual"
    """Its region, on the shards that devices have of the operands."""


class InKernels(StrEnum):
    """What an op is to a compiler that makes kernels of ops: passes over memory that compute several."""

    GIVEN = "given"
    """The result is there before anything runs."""
    VIEW = "view"
    """The results are the memory of the operands."""
    TRANSPOSITION = "transposition"
    """The operand's elements in another order: its memory, where products read or make it."""
    ELEMENTS = "elements"
    """Each element is computed by itself, from few others."""
    SLICE = "slice"
    """Each element is one of the first operand's."""
    CONCATENATION = "concatenation"
    """Each element is one of some operand's."""
    DRAW = "draw"
    """Each element is drawn by itself, which takes longer than to read it."""
    GATHER = "gather"
    """A pass of its own that reads as much of its first operand as it returns."""
    SCAN = "scan"
    """Passes of its own, over blocks and then over these."""
    PRODUCT = "product"
    """A sum of products, of operands that are computed on the way."""
    REDUCTION = "reduction"
    """A reduction of operands that are computed on the way."""
    WINDOW = "window"
    """A reduction of the windows of such operands."""
    UPDATE = "update"
    """A part of the first operand is written over, by what is computed on the way."""


DimFactors = tuple[int, ...]
TensorFactors = tuple[DimFactors, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
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
    """What a rule's factor of that index is called."""
    return _LETTERS[i] if i < len(_LETTERS) else f"f{i}"


def factor_of_letter(letter: str) -> int | None:
    """The index of the factor that is called so."""
    if letter[1:].isdecimal() and letter[0] == "f":
        return int(letter[1:])
    return _LETTERS.index(letter) if len(letter) == 1 and letter in _LETTERS else None


@quickly_made
@dataclass(frozen=True, slots=True)
class Linearity:
    """The op commutes with these reductions in the operands of `group`, taken together.

    If every operand of the group is partial over an axis, and no other operand is, the op applied to the parts
    makes parts of its result: add in (0, 1), multiply in (0,) and in (1,), select in its two branches.
    """

    kinds: tuple[ReductionKind, ...]
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """Kinds of reductions that an op commutes with in some operand, and does not claim, and why not."""

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
"""How the language reads and writes an attribute: `word` a bare word, `text` one in quotes, `types` a list of them,
`axes` mesh axes `(x, y:(1)2)`, `value` a number or nested list, `order` axes of a named mesh, `function` a function's
name, `host` that of one on the host, `ints` a list `[0, 1]`."""

OF_MESHES = ("axes", "order")
"""The kinds of attributes that name axes of a mesh."""


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute. `choices` are the words allowed. An attribute with a default is left out when it has it."""

    name: str
    kind: AttrKind
    default: Attr = None
    required: bool = True
    choices: tuple[str, ...] = ()
    doc: str = ""


STRATEGY = AttrDef("strategy", "text", default="", required=False, doc="how a plan computes the op on shards")
"""What every op can say in a plan; `Op.strategy`."""

CAUSE = AttrDef("cause", "text", default="", required=False, doc="what needs the result of an op of a plan")
"""What the ops of a plan, reshards above all, can say; `Op.cause`."""


class TypeRuleError(Exception):
    """Operands or attributes that an op does not accept: the message for the user, and help."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


@dataclass(frozen=True, slots=True)
class Communication:
    """What devices send in a collective.

    `received` are the bytes that a device receives, with the usual bandwidth-optimal algorithms, in a group of so many
    devices (more than one) of which each puts in so many; `messages` is how many messages of such a group wait for one
    another. Parts of a dim go to different devices if an attribute, `cut`, says which, and parts of a dim come from
    different ones if `joined` does. All devices of a group get the same if it `replicates`. `rounds` are who
    sends to whom, where those are not all. Reports say `kind` for the op's own name.
    `joins_itself` is what backends send as one of themselves.
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
    """How an op pads its first operand: as `pad` does with this `value`, along these `dims` only.

    Its attributes padding_low and padding_high are what is added before and behind each of them, and the one that is
    named `dilation` how far elements are moved apart. If `value` is None, no number is what it pads with.
    """

    dims: Callable[[Op], Sequence[int]]
    value: Callable[[Op], float | int | bool | None]
    dilation: str


@dataclass(frozen=True, slots=True)
class Groups:
    """Several groups that an op computes by themselves, as many as the attribute `name` says. They divide a dim of each
    operand, and are a `factor` of the op's rule."""

    name: str
    count: int
    dims: tuple[int, ...]
    factor: int


InferRule = Callable[[Types, Attrs], Types]
FactorsRule = Callable[[Op], FactorRule]
Terms = Callable[[Op, Sequence[float]], float]


def largest(op: Op, bounds: Sequence[float]) -> float:
    """The terms of an op that passes on those of its operands."""
    return max(bounds, default=0.0)


def updated(op: Op, bounds: Sequence[float]) -> float:
    """The terms of an op that adds any elements of its last operand to those of another."""
    return max(bounds, default=0.0) * (1 + op.operands[-1].type.size)


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op's declaration.

    `operands` is how many there are, or None for any number; `regions` likewise, of which None means one or more.
    `control` says how it runs those, or a function. `infer` returns the result types or raises TypeRuleError. `flops`
    counts the arithmetic of an op whose cost is not one operation for each element of its results. `communication` is
    what a collective sends. `meaning` is what attributes say that can say it in several ways, or do not where they are
    equal. `touched` are the bytes that an op reads and writes, of an op that has to do with parts of tensors only; a
    result may take the place of operands `in_place`. Each result of an op that `passes_each` is the operand of its
    place. Operands from the number `taken_along` on, and the results at their places, can be left out together.
    `differs` says for each result of an op of an SPMD program along which axes devices have others, though they have
    the same operands.

    `spreading` is another view of an op, along which axes spread from tensor to tensor and by which it can be split;
    `splitting` is one by which it can be split only. Factors that all tensors have are batch factors, unless the op
    `has_no_batch`; axes spread last through one that `spreads_last`.

    A device can make any part of a result that is `made_anywhere` from whole operands, and, if the op `keeps_dims`,
    from the same part of its operand. `terms` limits the sum of the magnitudes of the terms that make up an element of
    the results, given that of the operands; an op that is linear in sums passes on the largest, if it does not say.
    `unclaimed` is what `linear` leaves out, though it holds. An op that `moves_along` dims computes nothing, and needs
    elements of other devices along dims that are split only.

    `padding` is how an op pads its first operand itself, and `groups` are those that it computes by themselves, if it
    has several.

    `in_kernels` is what it is where ops are fused; an elementwise op computes `elements` if it does not say. An op that
    `is_dear` takes longer for an element than the usual arithmetic. Ops that say nothing run by themselves.
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
    touched: Callable[[Op], int] | None = None
    in_place: tuple[int, ...] = ()
    taken_along: Callable[[Op], int] | None = None
    control: ControlKind | None = None
    passes_each: bool = False
    differs: Callable[[Op, Mesh], Sequence[Axes]] | None = None
    padding: OwnPadding | None = None
    groups: Callable[[Op], Groups | None] | None = None
    in_kernels: InKernels | None = None
    is_dear: bool = False
    role: InKernels | None = field(init=False, default=None)
    """What the op is where ops are fused; None if it runs by itself."""
    names_axes: bool = field(init=False, default=False)
    """Whether attributes name axes of a mesh."""
    _numbers: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        is_elementwise = self.in_kernels is None and self.family == "elementwise"
        object.__setattr__(self, "role", InKernels.ELEMENTS if is_elementwise else self.in_kernels)
        object.__setattr__(self, "names_axes", any(a.kind in OF_MESHES for a in self.attrs))
        object.__setattr__(self, "_numbers", tuple(a.name for a in self.attrs if a.kind in ("value", "float")))

    def attr(self, name: str) -> AttrDef | None:
        return next((a for a in self.attrs if a.name == name), None)

    @property
    def is_typed_by_contents(self) -> bool:
        """Whether the results have the types of what a region or a function returns, as `ir.verify.program` checks."""
        return self.control not in (None, ControlKind.LOOP)

    @property
    def has_strategy(self) -> bool:
        """Whether a plan says by which of its factors it is split. Others are computed as what they run, or pass on."""
        return self.factors is not None and not self.passes_each

    def means(self, attrs: Attrs) -> object:
        """What the attributes say: equal for ops that do the same, and for no others."""
        return (tuple(attrs.items()), self.numbers(attrs)) if self.meaning is None else self.meaning(attrs)

    def numbers(self, attrs: Attrs) -> tuple[str, ...]:
        """How the attributes that are numbers are written: 0.0 and -0.0 are equal, and not the same."""
        return tuple([repr(attrs.get(name)) for name in self._numbers]) if self._numbers else ()

    def sources(self, op: Op) -> tuple[int, ...]:
        """The operands that all elements of the results are elements of, if that is all the op does: it then commutes
        with any reduction of them."""
        return next((linear.group for linear in self.linearity(op) if linear.kinds == REDUCTION_KINDS), ())

    def bound_of_terms(self, op: Op, bounds: Sequence[float]) -> float:
        """A limit on the sum of the magnitudes of all terms that the op, and those it got its operands from, add up."""
        if self.terms is not None:
            return self.terms(op, bounds)
        return max(bounds, default=0.0) if any("sum" in linear.kinds for linear in self.linearity(op)) else 0.0

    def linearity(self, op: Op) -> tuple[Linearity, ...]:
        return self.linear if isinstance(self.linear, tuple) else self.linear(op)


OPS: dict[str, OpDef] = {}
"""Every op, by name."""

COLLECTIVES: set[str] = set()
"""The ops in which devices send something."""

CONTROLS: dict[str, ControlKind] = {}
"""How the ops that have regions, or a function, run these."""


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
