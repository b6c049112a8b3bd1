"""Facts that follow from the name, attributes and types of an op, found once for all ops that have the same.

Most ops of a large program repeat what an earlier op did to other tensors, because layers are alike. Passes need the
factor rule of an op, and what it is linear in, again and again. An op's signature caches both, and is passed on to
copies of the op.
"""

from __future__ import annotations

from functools import cached_property

from ir.ops import OPS, FactorRule, Linearity
from ir.program import Op


class Signature:
    """Facts about ops with the same name, attributes and types. Equal ops may share a signature, or have equal ones."""

    def __init__(self, op: Op) -> None:
        self.op = Op(op.name, op.operands, op.results, op.attrs)
        """A representative op without a signature of its own, so that it does not keep this signature alive."""
        self.opdef = OPS[op.name]
        rule = self.opdef.factors
        self.rule: FactorRule | None = rule(self.op) if rule is not None else None
        """None for ops that have regions or communicate."""
        self.is_shared = False
        """Whether several ops are known to have it."""

    @cached_property
    def spreading(self) -> tuple[FactorRule, ...]:
        """Other views, along which axes propagate from tensor to tensor."""
        view = self.opdef.spreading
        rule = view(self.op) if view is not None else None
        return (rule,) if rule is not None else ()

    @cached_property
    def other_rules(self) -> tuple[FactorRule, ...]:
        """Other views, by which the op can be split in other ways."""
        view = self.opdef.splitting
        rule = view(self.op) if view is not None else None
        return self.spreading if rule is None else tuple(dict.fromkeys((*self.spreading, rule)))

    @cached_property
    def has_candidates(self) -> bool:
        """Whether some factor has partial results that only the op itself can combine."""
        rules = self.other_rules if self.rule is None else (self.rule, *self.other_rules)
        return any(f.has_candidates for rule in rules for f in rule.factors)

    @cached_property
    def linearity(self) -> tuple[Linearity, ...]:
        """The groups of operands in which the op is linear."""
        return self.opdef.linearity(self.op)

    @cached_property
    def commuting(self) -> frozenset[int]:
        """The operands that the op is linear in, by themselves or together with others."""
        return frozenset([position for linear in self.linearity for position in linear.group])

    @cached_property
    def leaves_a_sum(self) -> bool:
        """Whether devices have partial sums if some factor is split."""
        return self.rule is not None and any(f.reduction == "sum" for f in self.rule.factors)


def signature_of(op: Op) -> Signature:
    """The signature of an op: its own, unless it shares one."""
    found = op.signature
    return found if isinstance(found, Signature) else _known(op, Signature(op))


def hand_on_signature(op: Op, copy: Op) -> None:
    """Gives a copy of an op, with other values of the same types, the op's signature."""
    if op.signature is not None:
        object.__setattr__(copy, "signature", op.signature)


class Signatures:
    """The signatures of a program's ops: equal ops share one."""

    def __init__(self) -> None:
        self._found: dict[object, Signature] = {}

    def of(self, op: Op) -> Signature:
        """The signature of an op without regions: its own, or that of the first equal op."""
        types = tuple([v.type for v in (*op.operands, *op.results)])
        key = op.name, len(op.operands), tuple(op.attrs.items()), OPS[op.name].numbers(op.attrs), types
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = signature_of(op)
        else:
            found.is_shared = True
        return found if found is op.signature else _known(op, found)


def _known(op: Op, signature: Signature) -> Signature:
    object.__setattr__(op, "signature", signature)
    return signature
