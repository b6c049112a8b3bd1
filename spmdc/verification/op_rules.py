"""Checks the rules of ops: each op is computed in parts, as its rules say it may be, and compared with the whole.

A claim that fails is *wrong*. A claim that would hold and is not made is *missing*: it would save communication. The
idea is that of PyTorch DTensor's strategy validation: parts of a reduction are drawn unequal, so that no coincidence
hides a fault.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ir.builder import Names, RegionBuilder
from ir.diagnostics import Diagnostic, SpmdcError
from ir.mesh import Mesh
from ir.ops import OPS, Factor, FactorKind, FactorRule
from ir.ops.collective import COLLECTIVES
from ir.ops.control import is_manual
from ir.program import DeviceOrder, Function, Op, Program, Result, all_ops
from ir.sharding import REDUCTION_KINDS, DimSharding, ReductionKind, Sharding
from ir.types import Array, DType, TensorType, f32
from lowering.reference import evaluate, simulate
from lowering.reference.arrays import UFUNCS
from passes.cost.machine import TPU_V3
from passes.factors import dims_of_factors, factor_rule, other_rules
from passes.partition import make_plan, write_plan
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.options import PartitionOptions
from passes.partition.plan.decisions import Decision
from passes.partition.plan.sides import StrategyQuery
from passes.partition.plan.strategies import StrategySelector
from passes.partition.registry import ALONG, can_split_along
from passes.partition.strategy import Strategy
from passes.propagation.propagate import propagate
from spmdc.verification.exactness import FAULTS
from spmdc.verification.op_instances import MANUAL, Instance, instances_of
from spmdc.verification.random_programs.control import scalar_function

_DEVICES = (2, 3)
_DRAWS = 4


@dataclass(frozen=True)
class Finding:
    """A claim that does not hold, or one that would hold and is not made. `accepted` is the reason for the latter."""

    claim: str
    instance: Instance
    reason: str = ""
    accepted: str = ""


@dataclass(frozen=True)
class RuleReport:
    """The number of claims of an op's rules that were checked, and the findings."""

    op: str
    checked: int
    wrong: tuple[Finding, ...]
    missing: tuple[Finding, ...]

    @property
    def unexplained(self) -> tuple[Finding, ...]:
        """Missing claims without a known reason."""
        return tuple(f for f in self.missing if not f.accepted)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """An error for each wrong claim."""
        return tuple(
            Diagnostic(
                "E509",
                f"{f.instance}: {f.claim} does not hold: {f.reason}",
                help="mend the factor rule in ir/ops, where the op is declared",
            )
            for f in self.wrong
        )

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""

        def plain(f: Finding) -> dict[str, object]:
            return {"claim": f.claim, "instance": str(f.instance), "reason": f.reason, "accepted": f.accepted}

        return {
            "op": self.op,
            "checked": self.checked,
            "wrong": [plain(f) for f in self.wrong],
            "missing": [plain(f) for f in self.missing],
        }


def verify_rules(op: str, instances: Sequence[Instance] | None = None) -> RuleReport:
    """Checks the claims of the op's factor rule and linearity, on these instances of it, or on all known ones."""
    instances = instances_of(op) if instances is None else instances
    checked = 0
    wrong: list[Finding] = []
    missing: list[Finding] = []
    for instance in instances:
        for claim, reason in itertools.chain(_factor_claims(instance), _linearity_claims(instance)):
            checked += 1
            if reason:
                wrong.append(Finding(claim, instance, reason))
        missing.extend(_unclaimed_factors(instance))
    missing.extend(_unclaimed_linearity(op, instances))
    unique = {f.claim: f for f in missing}
    return RuleReport(op, checked, tuple(wrong), tuple(unique.values()))


# Factors


def _factor_claims(instance: Instance) -> Iterator[tuple[str, str]]:
    """Each claim about a factor, and why it fails; "" if it holds."""
    op = op_of(instance)
    for rule, f, factor in _factors(op):
        along = factor.kind in ALONG
        if factor.kind is FactorKind.NEED_REPLICATION or (along and not can_split_along(op, rule, f)):
            continue
        silent = not along and (factor.kind is FactorKind.PARALLEL or factor.reduction is not None)
        for devices in _DEVICES:
            reason = _split_fault(instance, rule, f, devices, silent)
            if reason is not None:
                yield f"factor {f} of {rule} is {factor.kind}, over {devices} devices", reason


def _unclaimed_factors(instance: Instance) -> Iterator[Finding]:
    """Factors that need replication according to their rule, but can be split."""
    op = op_of(instance)
    for rule, f, factor in _factors(op):
        if factor.kind is not FactorKind.NEED_REPLICATION or factor.size < max(_DEVICES):
            continue
        if not any((f,) in t for t in rule.operands):
            continue
        way = next((g for g in _ways(rule, f) if _holds(instance, rule, f, g)), None)
        if way is not None:
            how = f"{way.kind}({way.reduction})" if way.reduction else str(way.kind)
            claim = f"factor {f} of {rule} is {how}"
            yield Finding(claim, instance, accepted=_accepted(instance.op, "factor"))


def _factors(op: Op) -> Iterator[tuple[FactorRule, int, Factor]]:
    """The factors of each rule of an op, with their numbers."""
    return ((rule, f, factor) for rule in _rules(op) for f, factor in enumerate(rule.factors))


def _ways(rule: FactorRule, f: int) -> Iterator[Factor]:
    size = rule.factors[f].size
    if any((f,) in t for t in rule.results):
        yield Factor(size)
        return
    for kind in ("sum", "max", "min"):
        yield Factor(size, FactorKind.REDUCTION, kind)


def _holds(instance: Instance, rule: FactorRule, f: int, factor: Factor) -> bool:
    changed = replace(rule, factors=(*rule.factors[:f], factor, *rule.factors[f + 1 :]))
    return all(_split_fault(instance, changed, f, devices, True) == "" for devices in _DEVICES)


def _rules(op: Op) -> tuple[FactorRule, ...]:
    rule = factor_rule(op)
    return (rule, *other_rules(op)) if rule is not None else ()


def _split_fault(instance: Instance, rule: FactorRule, f: int, devices: int, silent: bool) -> str | None:
    """Why the op cannot be computed with the factor split over that many devices; "" if it can, None if such shards do
    not exist. If `silent`, devices must not communicate."""
    mesh = Mesh((("d", devices),))
    axes = {f: mesh.whole_axes()}
    operands = [dims_of_factors(rule, t, axes) for t in rule.operands]
    results = [dims_of_factors(rule, t, axes) for t in rule.results]
    if any(dims is None for dims in (*operands, *results)):
        return None
    reduction = rule.factors[f].reduction
    partial = ((mesh.axis("d"), reduction),) if reduction is not None else ()
    into = tuple(ClosedSharding(dims) for dims in operands if dims is not None)
    out = tuple(ClosedSharding(dims, partial) for dims in results if dims is not None)
    program = _program(instance, mesh, into, out)
    arrays = _draw(instance, np.random.default_rng(zlib.crc32(str(instance).encode())))
    expected = evaluate(program, *arrays)
    try:
        split = _partition(program, rule, Strategy(((f, axes[f]),), into, out, 0.0))
        got = simulate(split, *arrays)
    except (*FAULTS, SpmdcError) as problem:
        return f"{type(problem).__name__}: {problem}".splitlines()[0]
    if silent and _collectives(split) > _collectives(program):
        return "devices must communicate"
    return "" if all(map(_agree, got, expected)) else "the parts do not make up the whole"


def _partition(program: Program, rule: FactorRule, strategy: Strategy) -> Program:
    """The program with the op computed by this strategy, whatever its cost."""
    propagated = propagate(program)
    checked = _checked(propagated.program)

    def decide(_: StrategySelector, queries: Sequence[StrategyQuery]) -> Decision | None:
        return (rule, strategy) if queries[0].op is checked else None

    return write_plan(make_plan(propagated, PartitionOptions.on(TPU_V3), decide))


def _collectives(program: Program) -> int:
    return sum(1 for op in all_ops(program) if op.name in COLLECTIVES)


def op_of(instance: Instance) -> Op:
    """The op of an instance, in a program of its own."""
    return _checked(_program(instance))


def _checked(program: Program) -> Op:
    """The op whose rules are checked, which may be in a manual region."""
    (op,) = program.main.body.ops
    return op.regions[0].ops[0] if is_manual(op) else op


def _program(
    instance: Instance,
    mesh: Mesh | None = None,
    into: Sequence[ClosedSharding] = (),
    out: Sequence[ClosedSharding] = (),
) -> Program:
    """A program of the one op, with operands and results in these shardings."""
    if OPS[instance.op].family == "collective":
        return _in_a_region(instance, mesh.axes if mesh is not None else (), into, out)

    def sharding(shardings: Sequence[ClosedSharding], i: int) -> Sharding | None:
        if mesh is None:
            return None
        return Sharding(mesh, tuple(DimSharding(a) for a in shardings[i].axes), shardings[i].partial)

    b = RegionBuilder(Names())
    params = [b.param(f"a{i}", t, sharding(into, i)) for i, t in enumerate(instance.operands)]
    functions: dict[str, Function] = {}
    if instance.op == "map":
        scalars = scalar_function(f32)
        functions[scalars.name] = scalars
        types = [r.type.with_shape(instance.operands[0].shape) for r in scalars.results]
        params = params[: len(scalars.params)]
        results = b.append("map", params, dict(instance.attrs), types=types)
    else:
        results = b.append(instance.op, params, dict(instance.attrs))
    declared = [Result(f"r{i}", v.type, sharding(out, i)) for i, v in enumerate(results)]
    functions["main"] = b.function("main", results, declared)
    return Program((mesh,) if mesh is not None else (), functions)


def _in_a_region(
    instance: Instance, free: Sequence[tuple[str, int]], into: Sequence[ClosedSharding], out: Sequence[ClosedSharding]
) -> Program:
    """A program of a collective in a manual region; operands and results have these shardings along the free axes."""
    mesh = Mesh((MANUAL, *free))
    axis = mesh.axis(MANUAL[0])

    def whole(type: TensorType) -> TensorType:
        return type.with_shape((type.shape[0] * axis.size, *type.shape[1:]))

    def placed(type: TensorType, shardings: Sequence[ClosedSharding], i: int) -> Sharding:
        sharding = shardings[i] if free else ClosedSharding.replicated(type.rank)
        dims = tuple(DimSharding((axis, *axes) if d == 0 else axes) for d, axes in enumerate(sharding.axes))
        return Sharding(mesh, dims, sharding.partial)

    b, inner = RegionBuilder(Names()), RegionBuilder(Names())
    shardings = [placed(t, into, i) for i, t in enumerate(instance.operands)]
    params = [b.param(f"a{i}", whole(t), s) for i, (t, s) in enumerate(zip(instance.operands, shardings, strict=True))]
    shards = [
        inner.param(f"s{i}", t, s, of=whole(t))
        for i, (t, s) in enumerate(zip(instance.operands, shardings, strict=True))
    ]
    attrs = {name: DeviceOrder(mesh, v.axes) if isinstance(v, DeviceOrder) else v for name, v in instance.attrs.items()}
    returned = inner.append(instance.op, shards, attrs)
    types = [whole(v.type) for v in returned]
    outside = [placed(v.type, out, i) for i, v in enumerate(returned)]
    region = (inner.region(*returned),)
    results = b.append("manual", params, {"axes": (axis,)}, shardings=outside, regions=region, types=types)
    declared = [Result(f"r{i}", v.type, s) for i, (v, s) in enumerate(zip(results, outside, strict=True))]
    return Program((mesh,), {"main": b.function("main", results, declared)})


# Linearity


def _linearity_claims(instance: Instance) -> Iterator[tuple[str, str]]:
    for linearity in OPS[instance.op].linearity(op_of(instance)):
        for kind in linearity.kinds:
            holds = _commutes(instance, linearity.group, kind)
            if holds is not None:
                yield _linear(linearity.group, kind), "" if holds else "the parts do not make up the whole"


def _linear(group: Sequence[int], kind: ReductionKind) -> str:
    return f"linear in {'+'.join(map(str, group))} for {kind}"


def _unclaimed_linearity(op: str, instances: Sequence[Instance]) -> Iterator[Finding]:
    """Linearity that holds on every instance to which it applies, and is not declared for any.

    Two operands together are reported only if it holds for neither by itself.
    """
    count = max((len(i.operands) for i in instances), default=0)
    groups = [g for n in (1, 2) for g in itertools.combinations(range(min(count, 4)), n)]
    alone: set[tuple[int, ReductionKind]] = set()
    for group, kind in itertools.product(groups, REDUCTION_KINDS):
        tried = [i for i in instances if max(group) < len(i.operands)]
        if any(_is_declared(i, group, kind) for i in tried) or any((i, kind) in alone for i in group):
            continue
        found = [(i, held) for i in tried if (held := _commutes(i, group, kind)) is not None]
        if found and all(held for _, held in found):
            alone.update((i, kind) for i in group)
            yield Finding(_linear(group, kind), found[0][0], accepted=_accepted(op, kind))


def _is_declared(instance: Instance, group: Sequence[int], kind: ReductionKind) -> bool:
    declared = OPS[instance.op].linearity(op_of(instance))
    return any(tuple(group) == tuple(item.group) and kind in item.kinds for item in declared)


def _commutes(instance: Instance, group: Sequence[int], kind: ReductionKind) -> bool | None:
    """Whether the op on parts makes parts of the result. None if elements have no such reduction, or the data does not
    show it."""
    program = _program(instance)
    dtypes = [instance.operands[i].dtype for i in group] + [r.type.dtype for r in program.main.results]
    if not all(_has(dtype, kind) for dtype in dtypes):
        return None
    rng = np.random.default_rng(zlib.crc32(f"{instance} {group} {kind}".encode()))
    telling = False
    for draw in range(_DRAWS):
        parts = [list(_draw(instance, rng)) for _ in range(2 + draw % 2)]
        for part in parts[1:]:
            part[:] = [x if i in group else parts[0][i] for i, x in enumerate(part)]
        whole = [_reduced(kind, [p[i] for p in parts]) if i in group else x for i, x in enumerate(parts[0])]
        expected = evaluate(program, *whole)
        made = list(zip(*(evaluate(program, *part) for part in parts), strict=True))
        telling = telling or any(not np.array_equal(xs[0], x) for xs in made for x in xs[1:])
        if not all(_agree(_reduced(kind, xs), want) for xs, want in zip(made, expected, strict=True)):
            return False
    return True if telling else None


def _has(dtype: DType, kind: ReductionKind) -> bool:
    if dtype.kind == "pred":
        return kind in ("and", "or")
    if dtype.is_complex:
        return kind in ("sum", "prod")
    return kind not in ("and", "or") or dtype.is_integer


def _reduced(kind: ReductionKind, parts: Sequence[Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(functools.reduce(UFUNCS[kind], parts)).astype(parts[0].dtype)


def _accepted(op: str, what: str) -> str:
    return next((unclaimed.why for unclaimed in OPS[op].unclaimed if what in unclaimed.kinds), "")


# Data


def _draw(instance: Instance, rng: np.random.Generator) -> tuple[Array, ...]:
    """Small nonzero numbers. Floats have 8 bits after the point: products and sums of a few are exact."""
    arrays = [_array(p.type, rng) for p in _program(instance).main.params]
    if instance.definite:
        m = np.tril(rng.integers(-2, 3, instance.operands[0].shape)) + 4 * np.eye(instance.operands[0].shape[-1])
        arrays[0] = (m @ np.swapaxes(m, -1, -2)).astype(arrays[0].dtype)
    return tuple(arrays)


def _array(type: TensorType, rng: np.random.Generator) -> Array:
    dtype = type.dtype
    if dtype.is_complex:
        part = type.with_dtype(dtype.component)
        return (_array(part, rng) + 1j * _array(part, rng)).astype(dtype.numpy)
    if dtype.kind == "pred":
        return rng.integers(0, 2, type.shape).astype(np.bool_)
    values: Array = rng.integers(1, 6, type.shape)
    if dtype.is_float:
        values = values + rng.integers(0, 256, type.shape) / 256
    signs = 1 if dtype.kind == "unsigned" else rng.choice((-1, 1), type.shape)
    return np.asarray(values * signs).astype(dtype.numpy)


def _agree(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    tolerance = 1e-5 if a.dtype.itemsize > 2 else 2.0**-6
    with np.errstate(all="ignore"):
        return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True))
