"""Factor rules in text form: `... i j, ... j k -> ... i k {j: reduction(sum)}`.

Each tensor is a list of dims, each dim a factor, or several in brackets, major first. `...` stands for the same leading
dims wherever it occurs. Braces specify a factor's kind, as `FactorRule` prints it, and the size of one that is not a
dim by itself: `{i: need_replication, k: reduction(max), n=4}`. A factor without a kind is parallel if some operand and
every result has it, and needs replication otherwise, because what the call does along it is not known. The notation is
that of Shardy's `OpShardingRule`, and of einops.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.ops.declaration import Factor, FactorKind, FactorRule, TensorFactors, TypeRuleError
from ir.sharding import REDUCTION_KINDS, ReductionKind

_TOKEN = re.compile(r"\s*(->|\.\.\.|[^\W\d]\w*|\d+|[(){},:=])", re.ASCII)
_HELP = 'as in "... i j, ... j k -> ... i k {j: reduction(sum)}"'
ELLIPSIS = "..."

Dim = tuple[str, ...]
Tensor = tuple[Dim, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stated:
    """What braces specify for a factor."""

    kind: FactorKind | None = None
    reduction: ReductionKind | None = None
    size: int | None = None


@dataclass(frozen=True)
class RuleText:
    """A factor rule in terms of the names of its factors."""

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    stated: tuple[tuple[str, Stated], ...] = ()


def factors_of(text: str, operands: Sequence[Shape], results: Sequence[Shape]) -> FactorRule:
    """The rule for tensors of these shapes. Raises TypeRuleError if the text is no rule, or does not fit the shapes."""
    rule = _with_leading_dims(parse_rule(text), (*operands, *results))
    shapes = (*operands, *results)
    tensors = (*rule.operands, *rule.results)
    for i, (tensor, shape) in enumerate(zip(tensors, shapes, strict=False)):
        if len(tensor) != len(shape):
            what = f"operand {i}" if i < len(operands) else f"result {i - len(operands)}"
            raise TypeRuleError(f"{what} has {len(shape)} dims, and {len(tensor)} in the rule {text!r}", _HELP)
    if (len(rule.operands), len(rule.results)) != (len(operands), len(results)):
        counts = f"{len(rule.operands)} operands and {len(rule.results)} results"
        raise TypeRuleError(
            f"the rule {text!r} is of {counts}, and there are {len(operands)} and {len(results)}", _HELP
        )
    sizes = _sizes(rule, shapes, text)
    names = list(sizes)
    stated = dict(rule.stated)

    def numbered(sides: tuple[Tensor, ...]) -> tuple[TensorFactors, ...]:
        return tuple(tuple(tuple(names.index(f) for f in dim) for dim in tensor) for tensor in sides)

    factors = tuple(_factor(rule, stated.get(name, Stated()), name, sizes[name]) for name in names)
    return FactorRule(factors, numbered(rule.operands), numbered(rule.results))


@functools.lru_cache(maxsize=256)
def parse_rule(text: str) -> RuleText:
    """The rule that a text spells. Raises TypeRuleError."""
    return _Parser(text).rule()


def _factor(rule: RuleText, stated: Stated, name: str, size: int) -> Factor:
    if stated.kind is not None:
        return Factor(size, stated.kind, stated.reduction)
    is_given = any(_mentions(t, name) for t in rule.operands)
    is_parallel = is_given and all(_mentions(t, name) for t in rule.results)
    return Factor(size, FactorKind.PARALLEL if is_parallel else FactorKind.NEED_REPLICATION)


def _mentions(tensor: Tensor, name: str) -> bool:
    return any(name in dim for dim in tensor)


def _with_leading_dims(rule: RuleText, shapes: Sequence[Shape]) -> RuleText:
    """The rule with names in place of `...`: as many as the first tensor with `...` has dims left over."""
    tensors = (*rule.operands, *rule.results)
    spare = [len(s) - len(t) + 1 for t, s in zip(tensors, shapes, strict=False) if (ELLIPSIS,) in t]
    names = tuple((f"{ELLIPSIS}{i}",) for i in range(max(spare[0], 0) if spare else 0))

    def spelt(tensor: Tensor) -> Tensor:
        return tuple(d for dim in tensor for d in (names if dim == (ELLIPSIS,) else (dim,)))

    return RuleText(tuple(map(spelt, rule.operands)), tuple(map(spelt, rule.results)), rule.stated)


def _sizes(rule: RuleText, shapes: Sequence[Shape], text: str) -> dict[str, int]:
    """The size of each factor, in the order in which the rule names them. Raises TypeRuleError."""
    tensors = (*rule.operands, *rule.results)
    dims = [
        (dim, n) for tensor, shape in zip(tensors, shapes, strict=True) for dim, n in zip(tensor, shape, strict=True)
    ]
    known = {name: stated.size for name, stated in rule.stated if stated.size is not None}
    for dim, n in dims:
        if len(dim) == 1 and known.setdefault(dim[0], n) != n:
            raise TypeRuleError(f"factor {dim[0]} of the rule {text!r} is {known[dim[0]]}, and {n} elsewhere", _HELP)
    for dim, n in dims:
        unknown = [f for f in dim if f not in known]
        product = functools.reduce(lambda size, f: size * known.get(f, 1), dim, 1)
        if len(unknown) == 1 and product and n % product == 0:
            known[unknown[0]] = n // product
        elif unknown:
            raise TypeRuleError(
                f"the rule {text!r} does not say how large {unknown[0]} is", f"behind it: {{{unknown[0]}=4}}"
            )
        elif product != n:
            raise TypeRuleError(f"({' '.join(dim)}) of the rule {text!r} is {product}, and the dim is {n}", _HELP)
    return {f: known[f] for dim, _ in dims for f in dim}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._split())
        self.at = 0

    def _split(self) -> Iterator[str]:
        at = 0
        while self.text[at:].strip():
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise self._wrong(f"{self.text[at:].strip()[:10]!r} stands in it")
            yield match[1]
            at = match.end()

    def _wrong(self, why: str) -> TypeRuleError:
        return TypeRuleError(f"{self.text!r} is no factor rule: {why}", _HELP)

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._next()
        if (wanted and token != wanted) or not token:
            raise self._wrong(f"{wanted or 'more'!r} is missing{f' before {token!r}' if token else ' at its end'}")
        self.at += 1
        return token

    def _name(self) -> str:
        token = self._take()
        if not token.isidentifier():
            raise self._wrong(f"{token!r} stands where a factor's name should")
        return token

    def rule(self) -> RuleText:
        operands = self._side()
        self._take("->")
        results = self._side()
        stated: dict[str, Stated] = {}
        if self._next() == "{":
            self._take("{")
            while self._next() != "}":
                name = self._name()
                if name in stated or not any(_mentions(t, name) for t in (*operands, *results)):
                    raise self._wrong(
                        f"the braces name {name!r}, which {'they do twice' if name in stated else 'no tensor has'}"
                    )
                stated[name] = self._stated(name, operands, results)
                if self._next() != "}":
                    self._take(",")
            self._take("}")
        if self._next():
            raise self._wrong(f"{self._next()!r} stands behind it")
        return RuleText(operands, results, tuple(stated.items()))

    def _side(self) -> tuple[Tensor, ...]:
        if self._next() in ("->", ""):
            return ((),) if self._next() == "" else ()
        tensors = [self._tensor()]
        while self._next() == ",":
            self._take(",")
            tensors.append(self._tensor())
        return tuple(tensors)

    def _tensor(self) -> Tensor:
        dims: list[Dim] = []
        while self._next() not in (",", "->", "{", ""):
            if self._next() == ELLIPSIS:
                dims.append((self._take(),))
            elif self._next() == "(":
                self._take("(")
                inside: list[str] = []
                while self._next() != ")":
                    inside.append(self._name())
                self._take(")")
                dims.append(tuple(inside))
            else:
                dims.append((self._name(),))
        named = [f for dim in dims for f in dim]
        if len(set(named)) != len(named):
            raise self._wrong("a tensor has the same factor twice")
        return tuple(dims)

    def _stated(self, name: str, operands: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> Stated:
        if self._next() == "=":
            self._take("=")
            size = self._take()
            if not size.isdigit():
                raise self._wrong(f"the size of {name} is {size!r}")
            return Stated(size=int(size))
        self._take(":")
        word = self._take()
        given, made = (any(_mentions(t, name) for t in side) for side in (operands, results))
        if word == "need_replication":
            return Stated(FactorKind.NEED_REPLICATION)
        if word == "parallel":
            if not (given and made):
                raise self._wrong(f"{name} is parallel, and {'no result' if given else 'no operand'} has it")
            return Stated(FactorKind.PARALLEL)
        if word != "reduction":
            raise self._wrong(f"{name} is {word!r}, and may be parallel, need_replication, or reduction(sum)")
        self._take("(")
        kind = next((k for k in REDUCTION_KINDS if k == self._next()), None)
        if kind is None or made:
            raise self._wrong(
                f"the results have {name}, which is reduced"
                if made
                else f"{name} is reduced by {self._next()!r}, and may be by {', '.join(REDUCTION_KINDS)}"
            )
        self._take()
        self._take(")")
        return Stated(FactorKind.REDUCTION, kind)
