"""Index arithmetic on random integers, with reads and writes at what comes out, computes the same when it is folded."""

from __future__ import annotations

from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import RegionBuilder
from ir.program import Attr, Op, Program, Value, all_ops
from ir.types import DType, TensorType, f32, pred, s8, s32, u8, u32
from ir.verify.program import check
from lowering.reference.shards import same_bits
from passes.optimize.fold.infer import FactMap
from passes.optimize.fold.simplify import simplify
from spmdc.frontends.spmd import print_program
from spmdc.testing import inputs_for

_SHAPES = ((), (6,), (3, 4), (4, 3), (1, 5), (5,), (9, 9))
_UNARY = ("negate", "abs", "sign", "not", "popcnt")
_BINARY = (
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor",
    "shift_right_logical", "shift_right_arithmetic",
)  # fmt: skip
_LOGICAL = ("and", "or", "xor", "maximum", "minimum")


class Chain:
    """A program in the making: ops of integers, one behind the other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.b = RegionBuilder()
        self.types = draw(st.lists(st.sampled_from((s32, s8, u8, u32)), min_size=1, max_size=2))
        self.table = self.b.param("table", TensorType((7, 6), f32))
        self.values = [self.bounded() for _ in range(draw(st.integers(1, 3)))]

    def bounded(self) -> Value:
        """A parameter, or what is left of it between bounds."""
        type = TensorType(self.draw(st.sampled_from(((6,), (3, 4), (9, 9)))), self.dtype())
        x = self.b.param("p", type)
        low, high = (self.b.op("constant", value=self.draw(st.integers(0, 9)), type=type) for _ in range(2))
        match self.draw(st.sampled_from(("clamp", "remainder", "compare", "nothing"))):
            case "clamp":
                return self.b.op("clamp", low, x, high)
            case "remainder":
                return self.b.op("remainder", x, high)
            case "compare":
                return self.b.op("convert", self.b.op("compare", x, low, direction="LT"), dtype=type.dtype)
            case _:
                return x

    def dtype(self) -> DType:
        return self.draw(st.sampled_from(self.types))

    def number(self, type: TensorType) -> Value:
        """A constant, or what a dim counts."""
        if type.dtype == pred:
            return self.b.op("constant", value=self.draw(st.booleans()), type=type)
        if type.rank and self.draw(st.booleans()):
            return self.b.op("iota", type=type, dim=self.draw(st.integers(0, type.rank - 1)))
        low = 0 if type.dtype.kind == "unsigned" else -3
        if len(type.shape) == 1 and self.draw(st.booleans()):
            few = tuple([self.draw(st.integers(low, 9)) for _ in range(type.size)])
            return self.b.op("constant", value=few, type=type)
        ends = st.sampled_from((int(type.dtype.lowest), int(type.dtype.highest), 0, 1))
        return self.b.op("constant", value=self.draw(st.integers(low, 9) | ends), type=type)

    def like(self, type: TensorType) -> Value:
        fitting = [v for v in self.values if v.type == type]
        if not fitting or self.draw(st.booleans()):
            return self.number(type)
        return self.draw(st.sampled_from(fitting))

    def pick(self) -> Value:
        if self.draw(st.integers(0, 3)) == 0:
            return self.number(TensorType(self.draw(st.sampled_from(_SHAPES)), self.dtype()))
        return self.draw(st.sampled_from(self.values))

    def step(self) -> None:
        x = self.pick()
        way = self.draw(st.sampled_from((self.compute, self.choose, self.move, self.reduce)))
        self.values.append(way(x))

    def compute(self, x: Value) -> Value:
        if x.dtype == pred:
            name = self.draw(st.sampled_from(_LOGICAL))
            return self.b.op(name, x, self.like(x.type))
        name = self.draw(st.sampled_from((*_BINARY, *_UNARY, "clamp", "convert")))
        if name == "convert":
            return self.b.op("convert", x, dtype=self.draw(st.sampled_from((*self.types, pred))))
        if name == "clamp":
            return self.b.op("clamp", self.like(x.type), x, self.like(x.type))
        if name in ("negate", "abs", "sign") and x.dtype.kind == "unsigned":
            name = "not"
        return self.b.op(name, x) if name in _UNARY else self.b.op(name, *self.order(x, self.like(x.type)))

    def order(self, x: Value, y: Value) -> tuple[Value, Value]:
        return (x, y) if self.draw(st.booleans()) else (y, x)

    def choose(self, x: Value) -> Value:
        y = self.like(x.type)
        which = self.b.op("compare", *self.order(x, y), direction=self.draw(st.sampled_from(("LT", "GE", "EQ", "NE"))))
        return self.b.op("select", which, *self.order(x, self.like(x.type))) if self.draw(st.booleans()) else which

    def move(self, x: Value) -> Value:
        shape, rank = x.shape, x.type.rank
        match self.draw(
            st.sampled_from(("slice", "reverse", "reshape", "broadcast_in_dim", "transpose", "concatenate"))
        ):
            case "slice":
                start = tuple(self.draw(st.integers(0, n - 1)) for n in shape)
                stride = tuple(self.draw(st.integers(1, 2)) for _ in shape)
                return self.b.op("slice", x, start=start, limit=shape, stride=stride)
            case "reverse":
                return self.b.op("reverse", x, dims=tuple(range(self.draw(st.integers(0, rank)))))
            case "reshape":
                return self.b.op(
                    "reshape", x, shape=self.draw(st.sampled_from(((x.type.size,), (1, *shape), (*shape, 1))))
                )
            case "transpose":
                return self.b.op("transpose", x, perm=tuple(self.draw(st.permutations(range(rank)))))
            case "concatenate" if rank:
                return self.b.op("concatenate", x, self.like(x.type), dim=self.draw(st.integers(0, rank - 1)))
            case _:
                return self.b.op("broadcast_in_dim", x, shape=(*shape, 2), dims=tuple(range(rank)))

    def reduce(self, x: Value) -> Value:
        kinds = ("and", "or", "max", "min") if x.dtype == pred else ("sum", "max", "min", "prod")
        dims = tuple(range(self.draw(st.integers(0, x.type.rank))))
        return self.b.op("reduce", x, dims=dims, kind=self.draw(st.sampled_from(kinds)))

    def read(self, x: Value) -> list[Value]:
        """Rows of the table at these indices, and the table with numbers added or put there."""
        if x.dtype == pred or x.type.size > 12:
            return []
        rank, mode = x.type.rank, self.draw(st.sampled_from(("clip", "fill")))
        kind = self.draw(st.sampled_from(("replace", "max", "sum")))
        got = self.b.op(
            "gather", self.table, x, offset_dims=(rank,), collapsed_slice_dims=(0,), start_index_map=(0,),
            index_vector_dim=rank, slice_sizes=(1, 6), mode=mode,
        )  # fmt: skip
        put = self.b.op(
            "scatter", self.table, x, got, update_window_dims=(rank,), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,), index_vector_dim=rank, kind=kind,
        )  # fmt: skip
        return [got, put]


@st.composite
def chains(draw: st.DrawFn) -> Program:
    chain = Chain(draw)
    for _ in range(draw(st.integers(1, 8))):
        chain.step()
        if chain.values[-1].type.size > 100:
            chain.values.pop()
    read = [v for x in chain.values[-2:] for v in chain.read(x)]
    return Program((), {"main": chain.b.function("main", (*chain.values, *read))})


@settings(max_examples=examples(200), deadline=None)
@given(chains(), st.integers(0, 100))
def test_folded_index_arithmetic_gives_the_same_numbers(program: Program, seed: int) -> None:
    after = simplify(program)
    check(after)
    arrays = inputs_for(program, seed, anything=bool(seed % 2))
    results = zip(program.main.results, spmdc.evaluate(program, *arrays), spmdc.evaluate(after, *arrays), strict=True)
    for result, want, got in results:
        assert same_bits(want, got), (
            f"{result.name}: {want}, then {got}\n{print_program(program)}{print_program(after)}"
        )


@settings(max_examples=examples(200), deadline=None)
@given(chains(), st.integers(0, 100))
def test_what_is_known_of_a_value_is_true_of_it(program: Program, seed: int) -> None:
    facts = FactMap()
    for op in all_ops(program):
        facts.learn(op)
    arrays = inputs_for(program, seed, anything=True)
    for value, array in zip(program.main.body.results, spmdc.evaluate(program, *arrays), strict=True):
        known = facts.of(value)
        if known is not None:
            assert known.low <= int(array.min()), value.name
            assert int(array.max()) <= known.high, value.name


def _constant(value: Attr, type: TensorType) -> Op:
    return Op("constant", (), (Value("c", type),), {"value": value, "type": type})


def test_a_large_table_of_numbers_is_known_by_its_bounds() -> None:
    facts, op = FactMap(), _constant(tuple(range(3, 103)), TensorType((100,), s32))
    facts.learn(op)
    known = facts.of(op.result)
    assert known is not None
    assert (known.low, known.high, known.numbers) == (3, 102, None)
    assert known.grid is not None
    assert (known.grid.start, known.grid.steps) == (3, (1,))
    half = _constant((tuple(range(40000)),) * 2, TensorType((2, 40000), u32))
    facts.learn(half)
    known = facts.of(half.result)
    assert known is not None
    assert (known.low, known.high, known.grid) == (0, 39999, None)
