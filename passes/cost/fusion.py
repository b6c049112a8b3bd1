"""Which ops of a region a compiler fuses into one kernel: one pass over memory, whatever it computes on the way.

XLA's compilers fuse by similar rules on all backends. So does this model of them, in time linear in the number of ops:

- An op that computes each element from few others (elementwise ops, broadcasts, slices, iotas, …) is computed in each
  kernel that uses it, and never stored, unless several kernels use it and would read more than if it were stored.
- A reduction, a product or an update of a part ends a kernel; the ops before it are computed on the way in. A product
  is followed by its epilogue: the elementwise ops that nothing else separates from it.
- A product that only one other product reads is computed piece by piece in that product's kernel.
- A reduction of a value that a kernel stores, or that another reduction reads, is merged into that kernel.
- A reshape moves nothing, nor does a transpose that products read or write. A slice reads only its own elements.
- Collectives, loops, calls and other ops that are no pass over elements run by themselves.

Where they differ, the machine says so (`Kernels`): GPUs reduce rows and use the results in one kernel, and their
products are calls of a library, which takes in less.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ir.dataflow import Uses, uses_within
from ir.ops import OPS
from ir.ops.collective import COLLECTIVES
from ir.ops.contraction import is_matrix_product
from ir.ops.control import is_call
from ir.ops.creation import constant_value
from ir.ops.declaration import InKernels
from ir.ops.layout import is_repetition
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Region, Value, used_inside
from ir.records import record
from passes.cost.kernels import Kernels

_PER_ELEMENT = frozenset(
    {
        InKernels.GIVEN,
        InKernels.TRANSPOSITION,
        InKernels.ELEMENTS,
        InKernels.SLICE,
        InKernels.CONCATENATION,
        InKernels.DRAW,
    }
)
"""Ops that compute each element from few others."""
_ENDS = frozenset({InKernels.PRODUCT, InKernels.REDUCTION, InKernels.WINDOW, InKernels.UPDATE})
"""Ops that end a kernel. Their producers are fused into it."""
_READ_A_PART = frozenset({InKernels.SLICE, InKernels.GATHER})
"""Ops that read as much of their first operand as they return."""
_IN_LIBRARY = frozenset({"add", "multiply", "maximum"})
"""What a library computes at the end of a product: c * AB + D, and the maximum of that and 0. D may be a vector."""
_PLAIN = Kernels(math.inf)
_MOST_SOURCES = 8
"""The most stored values from which a value that is not stored may be computed."""
_MANY_KERNELS, _MOST_STEPS = 16, 16
"""A value that more than `_MANY_KERNELS` kernels use is recomputed in each only if that takes at most `_MOST_STEPS`
ops. Otherwise it is computed once and stored."""


@record(eq=False)
class Kernel:
    """Ops that run as one, in order, in the place of the `root`, the last one. `heart` is the product among them, or
    the root. `reads` has the bytes that the kernel reads of each value, `writes` those that it stores, and `multiplied`
    the values from which its product is computed. `copied` has the bytes of each of those that is copied in another
    order first, by a kernel of its own."""

    ops: tuple[Op, ...]
    root: Op
    heart: Op
    reads: Mapping[Value, int]
    writes: Mapping[Value, int]
    multiplied: frozenset[Value] = frozenset()
    copied: tuple[int, ...] = ()

    @property
    def is_product(self) -> bool:
        return role_of(self.heart) is InKernels.PRODUCT

    @property
    def keeps_rows(self) -> bool:
        """Whether it computes elements from reductions that it makes on the way."""
        return any(role_of(op) is InKernels.REDUCTION and op.results[0] not in self.writes for op in self.ops)


@dataclass(slots=True, eq=False)
class _Draft:
    """A kernel under construction: its ops, last first, the `root` that ends it, and its product, if it has one. The
    ops `inside` are computed for the product. It `is_nested` if there is a product among them."""

    root: Op
    product: Op | None
    takes_in: bool
    ops: list[Op] = field(default_factory=list[Op])
    inside: set[Op] = field(default_factory=set[Op])
    is_nested: bool = False


Fuse: TypeAlias = "Callable[[Region], Fusion]"


def fusing(kernels: Kernels | None) -> Fuse:
    """A function from a region to its fusion into such kernels, which is found once."""
    return functools.cache(functools.partial(Fusion, how=kernels or _PLAIN))


class Fusion:
    """The `kernels` of a region's ops, in order, and what is known of its values. Collectives, views, calls and ops
    with regions are in no kernel. `how` says what the machine's kernels take in. If they are `narrow`, values that only
    products read are stored as bf16.

    `views` maps each view to the value it is a view of, `users` each value to the ops that read it. Values that are
    `kept` are stored whoever uses them, and those `multiplied` are used by products only. `sources` has the stored
    values from which each value is computed on the way, and `steps` in how many ops. `follows` has the values in a
    product's epilogue."""

    def __init__(self, region: Region, how: Kernels = _PLAIN) -> None:
        self.region = region
        self.how = how
        self.place = {op: i for i, op in enumerate(region.ops)}
        self.makers: dict[Value, Op] = {value: op for op in region.ops for value in op.results}
        self.multiplied = self._multiplied()
        self.views = self._views()
        self.users: dict[Value, list[Op]] = {}
        self.kept: set[Value] = set()
        self.sources: dict[Value, tuple[Value, ...]] = {}
        self.steps: dict[Value, int] = {}
        self._find_users()
        self.follows = self._follows()
        self.kernels = self._merged([self._kernel(draft) for draft in self._drawn()])

    def _drawn(self) -> list[_Draft]:
        """The drafts of all kernels, found from the last op to the first."""
        found: list[_Draft] = []
        drafts: dict[Op, list[_Draft]] = {}
        for op in reversed(self.region.ops):
            if not self._is_computed(op):
                continue
            joined = self._joined(op, drafts)
            if joined:
                self._note_inside(op, drafts)
            elif role_of(op) is InKernels.GIVEN:
                continue
            else:
                joined = [_Draft(op, op if role_of(op) is InKernels.PRODUCT else None, _takes_in(op))]
                found += joined
            drafts[op] = joined
            for draft in joined:
                draft.ops.append(op)
        return found[::-1]

    def _note_inside(self, op: Op, drafts: Mapping[Op, list[_Draft]]) -> None:
        """Notes in which kernels the op is computed for the product."""
        for user in self._users(op):
            for draft in drafts[user]:
                if op is not draft.product and (user is draft.product or user in draft.inside):
                    draft.inside.add(op)

    def _kernel(self, draft: _Draft) -> Kernel:
        """The finished kernel, with the bytes that it reads and stores."""
        inside = {value for op in draft.ops for value in op.results}
        share = dict.fromkeys(draft.root.results, 1.0)
        reads: dict[Value, int] = {}
        for op in draft.ops:
            part = max((share.get(value, 0.0) for value in op.results), default=1.0)
            for value in op.operands:
                source = self.source(value)
                read = math.ceil(part * self._read(op, value))
                if source not in inside:
                    reads[source] = max(reads.get(source, 0), read)
                else:
                    whole = self.stored_bytes(source)
                    share[source] = max(share.get(source, 0.0), min(read / whole if whole else 0.0, 1.0))
        root = draft.root
        if role_of(root) is InKernels.UPDATE and not self.is_in_place(root):
            reads[self.source(root.operands[0])] = root.result.type.nbytes
        elif role_of(root) is InKernels.UPDATE:
            return Kernel(tuple(draft.ops[::-1]), root, root, reads, {root.result: root.operands[1].type.nbytes})
        writes = {value: self.stored_bytes(value) for value in root.results}
        multiplying = [op for op in draft.ops if op is draft.product or op in draft.inside]
        multiplied = frozenset(self.source(value) for op in multiplying for value in op.operands)
        copied = self._copied(draft.product) if draft.product is not None else ()
        return Kernel(tuple(draft.ops[::-1]), root, draft.product or root, reads, writes, multiplied, copied)

    def _copied(self, product: Op) -> tuple[int, ...]:
        """The bytes of operands that are copied in another order before a library multiplies them. What a kernel makes
        for the product alone is made in its order."""
        if not self.how.library or not is_matrix_product(product):
            return ()
        found: list[int] = []
        for value, side in zip(product.operands, ("lhs", "rhs"), strict=True):
            maker = self.makers.get(self.source(value))
            is_ordered = maker is not None and _is_per_element(maker) and len(self.users[self.source(value)]) == 1
            if not is_ordered and not _is_a_matrix(product, value, side):
                found.append(value.type.nbytes)
        return tuple(found)

    def _merged(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """The kernels, with reductions merged into earlier kernels that store or read the same values."""
        found: dict[Op, list[Kernel]] = {}
        passes: dict[Value, Op] = {}
        for kernel in kernels:
            root, is_reduction = kernel.root, role_of(kernel.root) is InKernels.REDUCTION
            largest = max(kernel.reads, key=kernel.reads.__getitem__, default=None)
            host = passes.get(largest) if is_reduction and largest is not None else None
            if host is not None and self._can_join(kernel, host, largest):
                found[host].append(kernel)
                continue
            found[root] = [kernel]
            if is_reduction and largest is not None:
                passes.setdefault(largest, root)
            if (kernel.is_product and not self.how.library) or _is_per_element(root):
                passes.update(dict.fromkeys(kernel.writes, root))
        return [_joint(parts) for parts in found.values()]

    def _can_join(self, reduction: Kernel, host: Op, shared: Value | None) -> bool:
        """Whether everything else that a reduction reads is available when the kernel that ends with `host` runs."""
        when = self.place[host]
        others = [value for value in reduction.reads if value is not shared]
        return all(value not in self.makers or self.place[self.makers[value]] < when for value in others)

    def source(self, value: Value) -> Value:
        """The value that one is a view of."""
        while value in self.views:
            value = self.views[value]
        return value

    def stored_bytes(self, value: Value) -> int:
        """The bytes of a value in memory."""
        is_narrow = self.how.narrow and value in self.multiplied and value in self.makers and value.dtype.name == "f32"
        return value.type.nbytes // 2 if is_narrow else value.type.nbytes

    def _multiplied(self) -> set[Value]:
        uses = uses_within(self.region)
        found: set[Value] = set()
        for op in reversed(self.region.ops):
            for value in op.results:
                users = uses.users.get(value, ())
                if users and not uses.given.get(value) and all(_multiplies(user, found) for user in users):
                    found.add(value)
        return found

    def _views(self) -> dict[Value, Value]:
        """Results that share the memory of an operand, and that operand. The order of the dims in memory is left to the
        compiler."""
        uses = uses_within(self.region)
        found: dict[Value, Value] = {}
        made: set[Value] = set()
        for op in self.region.ops:
            role = role_of(op)
            if role is InKernels.PRODUCT:
                made.add(op.result)
            elif role is InKernels.VIEW or (role is InKernels.TRANSPOSITION and self._is_view(op, made, uses)):
                for operand, result in zip(op.operands, op.results, strict=True):
                    found[result] = found.get(operand, operand)
                    made.update((result,) if operand in made else ())
            elif op.name in COLLECTIVES and not made.isdisjoint(op.operands[:1]):
                made.update(op.results)
        return found

    def _is_view(self, transpose: Op, made: set[Value], uses: Uses) -> bool:
        """Whether a transpose is a view: products read it, or made its operand, which nothing else reads."""
        (operand,) = transpose.operands
        if self.how.library and not _swaps_a_matrix(transpose):
            return False
        return transpose.result in self.multiplied or (operand in made and uses.count(operand) == 1)

    def _find_users(self) -> None:
        for op in self.region.ops:
            if op.results and op.results[0] in self.views:
                continue
            operands = dict.fromkeys(map(self.source, op.operands))
            for value in operands:
                self.users.setdefault(value, []).append(op)
            if op.regions:
                self.kept.update(map(self.source, used_inside(op)))
            if _is_per_element(op):
                sources = tuple(dict.fromkeys(s for v in operands for s in self.sources.get(v, (v,))))
                if len(sources) <= _MOST_SOURCES:
                    self.sources.update(dict.fromkeys(op.results, sources))
                steps = 1 + sum(self.steps.get(value, 0) for value in operands)
                self.steps.update(dict.fromkeys(op.results, min(steps, _MOST_STEPS + 1)))
        self.kept.update(map(self.source, self.region.results))

    def _follows(self) -> dict[Value, int]:
        """For each value that only elementwise ops separate from a product, the bytes of the product's result, if
        nothing else uses that."""
        found: dict[Value, int] = {}
        if self.how.library:
            return found
        for op in self.region.ops:
            if role_of(op) is InKernels.PRODUCT:
                found[op.result] = self.stored_bytes(op.result)
            elif op.results and op.results[0] not in self.views and _is_per_element(op):
                size = op.results[0].type.size
                alone = [v for v in map(self.source, op.operands) if len(self.users[v]) == 1 and v.type.size == size]
                behind = max((found.get(v, 0) for v in alone), default=0)
                found.update(dict.fromkeys(op.results, behind))
        return found

    def _is_computed(self, op: Op) -> bool:
        """Whether an op is a pass over elements, or a part of one. A slice that only calls use is a part of the
        callee."""
        if not op.results or op.regions or op.name in COLLECTIVES or OPS[op.name].control is not None:
            return False
        users = self.users.get(op.results[0], ())
        if role_of(op) is InKernels.SLICE and users and op.result not in self.kept and all(map(is_call, users)):
            return False
        return op.results[0] not in self.views

    def _joined(self, op: Op, drafts: Mapping[Op, list[_Draft]]) -> list[_Draft]:
        """The kernels into which the op is fused: those of all its users. None if its results are stored."""
        users = self._users(op)
        if not users or not self.kept.isdisjoint(op.results) or any(user not in drafts for user in users):
            return []
        joined = list(dict.fromkeys(draft for user in users for draft in drafts[user]))
        if role_of(op) is InKernels.PRODUCT:
            only = joined[0]
            if len(joined) == 1 and only.product is not None and self._nests(op, only):
                only.is_nested = True
                return joined
            if len(joined) > 1 or only.product is not None or not _is_epilogue(op, only.root):
                return []
            if self.how.library and not all(map(self._is_in_library, only.ops)):
                return []
            only.product = op
            return joined
        if not all(draft.takes_in for draft in joined) or (self.how.library and self._is_apart(op, drafts)):
            return []
        if not _is_per_element(op):
            return joined if len(joined) == 1 and self._is_of_rows(op, joined[0]) else []
        if len(joined) > 1 and (role_of(op) is InKernels.DRAW or self._saves_storing(op, len(joined))):
            return []
        if len(joined) > _MANY_KERNELS and self.steps[op.results[0]] > _MOST_STEPS:
            return []
        return joined

    def _is_apart(self, op: Op, drafts: Mapping[Op, list[_Draft]]) -> bool:
        """Whether a library's product would have to compute the op, for itself or at its end, and cannot."""
        if role_of(op) is InKernels.GIVEN:
            return False
        ends = self._is_in_library(op)
        return any(
            draft.product is not None and (user is draft.product or user in draft.inside or not ends)
            for user in self._users(op)
            for draft in drafts[user]
        )

    def _is_in_library(self, op: Op) -> bool:
        """Whether a library computes the op at the end of a product."""
        if op.name not in _IN_LIBRARY:
            return is_repetition(op) or constant_value(op) is not None
        return op.name == "add" or any(map(self._is_constant, op.operands))

    def _is_constant(self, value: Value) -> bool:
        """Whether all elements of a value are a number that the program contains."""
        maker = self.makers.get(self.source(value))
        while maker is not None and is_repetition(maker):
            maker = self.makers.get(self.source(maker.operands[0]))
        return constant_value(maker) is not None

    def _is_of_rows(self, op: Op, draft: _Draft) -> bool:
        """Whether an op reduces rows of which the kernel computes more than their reduction, on the same pass."""
        if not self.how.rows or role_of(op) is not InKernels.REDUCTION or draft.product is not None:
            return False
        rows = op.operands[0]
        kept = len(op.results[0].shape)
        if rows.type.size <= op.results[0].type.size or op.results[0].shape != rows.shape[:kept]:
            return False
        shared = self._shared(rows)
        return shared is not None and any(shared in map(self.source, each.operands) for each in draft.ops)

    def _shared(self, rows: Value) -> Value | None:
        """The value that a reduction and one other op use, from which only ops on it alone compute these rows."""
        value = self.source(rows)
        while len(self.users[value]) == 1:
            maker = self.makers.get(value)
            if maker is None or role_of(maker) is not InKernels.ELEMENTS:
                return None
            whole = {self.source(each) for each in maker.operands if not self._is_repeated(each)}
            if len(whole) != 1:
                return None
            (value,) = whole
        return value if len(self.users[value]) == 2 else None

    def _is_repeated(self, value: Value) -> bool:
        """Whether a value only repeats the elements of a smaller one."""
        maker = self.makers.get(self.source(value))
        return maker is not None and (is_repetition(maker) or role_of(maker) is InKernels.GIVEN)

    def _users(self, op: Op) -> list[Op]:
        return [user for value in op.results for user in self.users.get(value, ())]

    def _nests(self, op: Op, draft: _Draft) -> bool:
        """Whether a product is computed inside the kernel of another one: nothing else needs it, and no op in between
        is expensive to recompute."""
        if self.how.library or draft.product is None or draft.root is not draft.product or draft.is_nested:
            return False
        if len(set(map(self.source, draft.product.operands))) == 1:
            return False
        own = {draft.product, *draft.inside}
        return (
            all(is_matrix_product(each) and not self._is_sliced(each) for each in (op, draft.product))
            and all(user in own for user in self._users(op))
            and not any(map(_is_dear, draft.inside))
        )

    def only_multiplies(self, value: Value) -> bool:
        """Whether a value from outside the region, or a part of it, is read by products only."""
        uses = uses_within(self.region)
        users = uses.users.get(value, ())
        return not uses.given.get(value) and all(
            _multiplies(user, self.multiplied) or (role_of(user) is InKernels.SLICE and user.result in self.multiplied)
            for user in users
        )

    def _is_sliced(self, product: Op) -> bool:
        """Whether the product multiplies by a part of a tensor at a position that is not known at compile time."""
        makers = [self.makers.get(self.source(value)) for value in product.operands]
        return any(m is not None and role_of(m) is InKernels.SLICE and len(m.operands) > 1 for m in makers)

    def _saves_storing(self, op: Op, kernels: int) -> bool:
        """Whether that many kernels read less if the op's result is stored than if each computes it. A product whose
        epilogue it is need not be stored itself then."""
        sources = self.sources.get(op.results[0], tuple(dict.fromkeys(map(self.source, op.operands))))
        read = sum(
            self._read(op, value) if role_of(op) in _READ_A_PART else self.stored_bytes(value) for value in sources
        )
        behind = self.follows.get(op.results[0], 0)
        stored = sum(map(self.stored_bytes, op.results))
        return kernels * read + behind > read - behind + (kernels + 1) * stored

    def _read(self, op: Op, value: Value) -> int:
        """Bytes of an operand that an op reads."""
        if role_of(op) in _READ_A_PART and value is op.operands[0]:
            return min(op.result.type.nbytes, value.type.nbytes)
        if role_of(op) is InKernels.UPDATE and value is op.operands[0]:
            return 0
        return self.stored_bytes(self.source(value)) if value.type.size else 0

    def is_in_place(self, update: Op) -> bool:
        """Whether a dynamic_update_slice writes into its operand, which nothing else needs."""
        target = self.source(update.operands[0])
        return (target in self.makers or target not in self.region.params) and len(self.users[target]) == 1


def _joint(parts: Sequence[Kernel]) -> Kernel:
    """Several kernels as one, which ends with the root of the first. What one part stores, later parts need not
    read."""
    first, *others = parts
    if not others:
        return first
    reads, writes, ops = dict(first.reads), dict(first.writes), dict.fromkeys(first.ops)
    for part in others:
        for value, nbytes in part.reads.items():
            if value not in writes:
                reads[value] = max(reads.get(value, 0), nbytes)
        writes.update(part.writes)
        ops.update(dict.fromkeys(part.ops))
    return Kernel(tuple(ops), first.root, first.heart, reads, writes, first.multiplied)


def role_of(op: Op) -> InKernels | None:
    """The role of an op in fusion. None if it runs by itself."""
    return OPS[op.name].role


def _multiplies(user: Op, multiplied: set[Value]) -> bool:
    is_product = role_of(user) is InKernels.PRODUCT
    return is_product or (_keeps_elements(user) and all(value in multiplied for value in user.results))


def _keeps_elements(op: Op) -> bool:
    """Whether the results have the same elements as the operands."""
    is_sent = op.name in COLLECTIVES and OPS[op.name].attr("kind") is None
    return is_sent or role_of(op) in (InKernels.VIEW, InKernels.TRANSPOSITION)


def _is_per_element(op: Op) -> bool:
    return OPS[op.name].role in _PER_ELEMENT


def _is_dear(op: Op) -> bool:
    return OPS[op.name].is_dear or role_of(op) is InKernels.DRAW


def _takes_in(op: Op) -> bool:
    """Whether the producers of the op are fused into a kernel that ends with it."""
    return _is_per_element(op) or role_of(op) in _ENDS


def _is_a_matrix(product: Op, value: Value, side: str) -> bool:
    """Whether an operand has its batch dims first, and its summed dims together at one end of the others."""
    batch, summed = (ints_attr(product.attrs, f"{side}_{dims}") for dims in ("batch", "contract"))
    order = [d for d in range(len(value.shape)) if value.shape[d] > 1]
    first = [d for d in order if d in batch]
    rest = order[len(first) :]
    together = [d for d in order if d in summed]
    return order[: len(first)] == first and together in (rest[: len(together)], rest[len(rest) - len(together) :])


def _swaps_a_matrix(transpose: Op) -> bool:
    """Whether a transpose swaps the last dims with those before, and leaves leading ones in place."""
    order = [d for d in ints_attr(transpose.attrs, "perm") if transpose.operands[0].shape[d] > 1]
    kept = sorted(order)
    start = next((i for i, d in enumerate(order) if d != kept[i]), len(order))
    rest, cut = kept[start:], kept[start:].index(order[start]) if start < len(order) else 0
    return order[start:] == rest[cut:] + rest[:cut]


def _is_epilogue(product: Op, root: Op) -> bool:
    """Whether a kernel that ends with `root` can be the product's epilogue: it computes as many elements."""
    return _is_per_element(root) and math.prod(root.results[0].shape) == product.result.type.size
