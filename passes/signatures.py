"""What follows from the name, the attributes and the types of an op: found out once for all ops that have the same.

Most ops of a large program do to other tensors what an op before them did: layers are alike. Passes ask for the factor
rule of an op, and for what it is linear in, again and again; its signature knows, and is handed on to copies of it.
"""

from __future__ import annotations

from functools import cached_property

from ir.ops import OPS, FactorRule, Linearity
from ir.program import Op


class Signature:
    """The facts about ops of one name, of the same attributes and types. Two ops may have one or equal ones."""

    def __init__(self, op: Op) -> None:
        self._op = Op(op.name, op.operands, op.results, op.attrs)
        """One without what it says of itself: none of these knows its signature, and so keeps it alive."""
        self.opdef = OPS[op.name]
        rule = self.opdef.factors
        self.rule: FactorRule | None = rule(self._op) if rule is not None else None
        """None for ops that hold regions or communicate."""

    @cached_property
    def spreading(self) -> tuple[FactorRule, ...]:
        """Other views along which axes spread from tensor to tensor."""
        view = self.opdef.spreading
        rule = view(self._op) if view is not None else None
        return (rule,) if rule is not None else ()

    @cached_property
    def other_rules(self) -> tuple[FactorRule, ...]:
        """Other views, by which the op can be split in other ways."""
        view = self.opdef.splitting
        rule = view(self._op) if view is not None else None
        return self.spreading if rule is None else tuple(dict.fromkeys((*self.spreading, rule)))

    @cached_property
    def has_candidates(self) -> bool:
        """Whether only the op itself can combine partial results of some factor."""
        rules = self.other_rules if self.rule is None else (self.rule, *self.other_rules)
        return any(f.has_candidates for rule in rules for f in rule.factors)

    @cached_property
    def linearity(self) -> tuple[Linearity, ...]:
        """What the op commutes with."""
        return self.opdef.linearity(self._op)

    @cached_property
    def commuting(self) -> frozenset[int]:
        """The operands that it is linear in, each at least together with others."""
        return frozenset([position for linear in self.linearity for position in linear.group])

    @cached_property
    def leaves_a_sum(self) -> bool:
        """Whether devices have parts of a sum where some factor is split."""
        return self.rule is not None and any(f.reduction == "sum" for f in self.rule.factors)


def signature_of(op: Op) -> Signature:
    """The signature of an op: its own, unless it shares one."""
    found = op.signature
    return found if isinstance(found, Signature) else _known(op, Signature(op))


def hand_on_signature(op: Op, copy: Op) -> None:
    """What is known of an op is known of a copy, which has other values of the same types."""
    if op.signature is not None:
        object.__setattr__(copy, "signature", op.signature)


class Signatures:
    """Those of the ops of a program: ops that do the same share one."""

    def __init__(self) -> None:
        self._found: dict[object, Signature] = {}

    def of(self, op: Op) -> Signature:
        """The signature of an op without regions. One that it has, or the first of its kind has, is shared."""
        types = tuple([v.type for v in (*op.operands, *op.results)])
        key = op.name, len(op.operands), tuple(op.attrs.items()), OPS[op.name].numbers(op.attrs), types
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = signature_of(op)
        return found if found is op.signature else _known(op, found)


def _known(op: Op, signature: Signature) -> Signature:
    object.__setattr__(op, "signature", signature)
    return signature
