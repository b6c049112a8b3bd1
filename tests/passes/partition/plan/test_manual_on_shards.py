"""Manual regions through propagation and partitioning: what crosses their boundaries, and what it costs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import spmdc
from ir.diagnostics import InternalError, SpmdcError
from ir.program import Program, Value, all_ops
from ir.spelling.printer import print_type
from spmdc.frontends.spmd import parse
from spmdc.testing import check_equivalence

MESH = "mesh (d=4, m=2)\n"


def main(params: str, results: str, *lines: str, more: str = "") -> Program:
    body = "\n".join(lines)
    return spmdc.parse(f"{MESH}def main({params}) -> {results} {{\n{body}\n}}\n{more}")


def placed(program: Program, *names: str) -> list[str]:
    """The shardings that propagation gives these values; of a parameter, that of the tensor it is a shard of."""
    found: dict[str, Value] = {}
    for function in spmdc.propagate(program).program.functions.values():
        found |= {p.name: p for p in function.params}
        for op in all_ops(Program((), {"f": function})):
            found |= {v.name: v for v in (*op.results, *(p for r in op.regions for p in r.params))}
    return [print_type(v.of or v.type, v.sharding) for v in map(found.__getitem__, names)]


def kinds(program: Program) -> Counter[str]:
    return Counter(c.kind for c in spmdc.partition(program).collectives())


class TestPropagation:
    REGION = "y: f32[8@(d,?), 6@?] = manual(v of f32[8@(d,?), 6@?] = x, axes=(d)) {\nh = exp(v)\nreturn h\n}"

    def test_free_axes_enter_a_region_and_leave_it(self) -> None:
        program = main("x: f32[8@d, 6@m]", "f32[8, 6]", self.REGION, "z = exp(y)", "return z")
        assert placed(program, "v", "h", "y", "z") == ["f32[8@d, 6@m]", "f32[2, 6@m]", "f32[8@d, 6@m]", "f32[8@d, 6@m]"]

    def test_in_front_of_a_free_axis_stand_the_manual_axes_of_the_dim(self) -> None:
        program = main("x: f32[8@(d,m), 6]", "f32[8, 6]", self.REGION, "return y")
        assert placed(program, "v", "h", "y") == ["f32[8@(d,m), 6]", "f32[2@m, 6]", "f32[8@(d,m), 6]"]

    def test_free_axes_go_backward_through_a_region(self) -> None:
        program = main("x: f32[8, 6]", "f32[8@d, 6@m]", "a = exp(x)", self.REGION.replace("= x", "= a"), "return y")
        assert placed(program, "h", "v", "a", "x") == ["f32[2, 6@m]", "f32[8@d, 6@m]", "f32[8@d, 6@m]", "f32[8@d, 6@m]"]

    def test_closed_dims_keep_them_out(self) -> None:
        region = "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) {\nh = exp(v)\nreturn h\n}"
        program = main("x: f32[8@d, 6@m]", "f32[8, 6@m]", region, "return y")
        assert placed(program, "v", "h", "y") == ["f32[8@d, 6]", "f32[2, 6]{replicated}", "f32[8@d, 6]"]

    def test_manual_axes_never_split_what_is_inside(self) -> None:
        region = "y: f32[8, 6@?] = manual(v of f32[8@?, 6@?] = x, axes=(d)) {\nh = exp(v)\nreturn h\n}"
        program = main("x: f32[8@d, 6@m]", "f32[8@d, 6]", region, "return y")
        assert placed(program, "v", "h", "y") == ["f32[8, 6@m]", "f32[8, 6@m]", "f32[8, 6@m]"]

    def test_annotations_inside_name_free_axes(self) -> None:
        region = self.REGION.replace("h =", "h: f32[2@m, 6] =")
        program = main("x: f32[8@d, 6]", "f32[8, 6]", region, "return y")
        assert placed(program, "v", "y") == ["f32[8@(d,m), 6]", "f32[8@(d,m), 6]"]

    def test_why_tells_how_an_axis_came_in(self) -> None:
        program = main("x: f32[8@d, 6@m]", "f32[8, 6]", self.REGION, "return y")
        diagnostic = spmdc.propagate(program).why("h")
        assert "v dim 1 <- v outside dim 1" in diagnostic
        assert "x dim 1: annotated" in diagnostic
        diagnostic = spmdc.propagate(program).why("v")
        assert diagnostic.startswith(
            "v: f32[2, 6] of f32[8@d, 6@m]\n  dim 0 is split over d\n    v outside dim 0: annotated"
        )
        assert "v outside dim 1 <- x dim 1" in diagnostic


class TestPartitioning:
    def test_a_value_that_lies_as_the_region_takes_it_is_not_moved(self) -> None:
        program = main("x: f32[8@d, 6@m]", "f32[8@d, 6@m]", TestPropagation.REGION, "return y")
        assert kinds(program) == {}
        check_equivalence(program)

    def test_one_that_lies_elsewhere_is_brought_there(self) -> None:
        region = "y: f32[256@d, 64] = manual(v of f32[256@d, 64] = x, axes=(d)) { return v * 2 }"
        program = main("x: f32[256, 64@d]", "f32[256@d, 64]", region, "return y")
        assert kinds(program) == {"all_to_all": 1}
        check_equivalence(program)

    def test_reductions_along_free_axes_stay_owed_across_the_boundary(self) -> None:
        head = "p: f32[8@d, 6] = manual(v of f32[8@d, 16@m] = x, k of f32[16@m, 6] = w, axes=(d))"
        region = f"{head} {{ return matmul(v, k) }}"
        program = main("x: f32[8@d, 16@m], w: f32[16@m, 6]", "f32[8@d, 6@m]", region, "return p + matmul(x, w)")
        assert kinds(program) == {"reduce_scatter": 1}
        check_equivalence(program)

    @pytest.mark.parametrize("op", ["all_reduce(v, axes=(d))", "all_reduce(v, axes=(d), kind=max)"])
    def test_an_all_reduce_leaves_free_axes_alone(self, op: str) -> None:
        region = f"y: f32[2, 6@m] = manual(v of f32[8@d, 6@m] = x, axes=(d)) {{ return {op} }}"
        program = main("x: f32[8@d, 6@m]", "f32[2, 6@m]", region, "return y")
        assert kinds(program) == {"all_reduce": 1}
        check_equivalence(program)

    def test_a_sum_along_manual_axes_commutes_with_one_that_is_owed_along_free_axes(self) -> None:
        region = "y = manual(v of f32[8@d, 6@m] = x, axes=(d)) { return all_reduce(sum(v) * 2, axes=(d)) }"
        program = main("x: f32[8@d, 6@m]", "f32[]", region, "return y + sum(x)")
        assert kinds(program) == {"all_reduce": 2}
        check_equivalence(program)

    @pytest.mark.parametrize(
        ("op", "result"),
        [
            ("all_gather(v, axes=(d), dim=0)", "f32[8, 8]"),
            ("all_gather(v, axes=(d), dim=1)", "f32[2, 32]"),
            ("reduce_scatter(v, axes=(d), dim=1)", "f32[2, 8@d]"),
            ("all_to_all(v, axes=(d), split=1, concat=0)", "f32[8, 8@d]"),
            ("collective_permute(v, target=(d), source=(d), shift=3)", "f32[8@d, 8]"),
        ],
    )
    @pytest.mark.parametrize("x", ["f32[8@d, 8@m]", "f32[8@(d,m), 8]", "f32[8@d, 8]"])
    def test_collectives_work_on_values_that_free_axes_split(self, op: str, result: str, x: str) -> None:
        region = f"y: {result} = manual(v of f32[8@(d,?), 8@?] = x, axes=(d)) {{ return {op} }}"
        check_equivalence(main(f"x: {x}", result.replace("@d", ""), region, "return y"))

    @pytest.mark.parametrize("n", [1, 2, 3, 5, 9, 11])
    @pytest.mark.parametrize("dim", ["d", "(d,m)", "(d,?)"])
    def test_dims_of_any_size_are_cut_and_put_together(self, n: int, dim: str) -> None:
        type = f"f32[{n}@{dim}, 3@?]"
        region = f"y: {type} = manual(v of {type} = x, axes=(d)) {{ return v + f32(axis_index(axes=(d))) }}"
        for x in (f"f32[{n}, 3@d]", f"f32[{n}@(d,m), 3]", f"f32[{n}@(m,d), 3]"):
            check_equivalence(main(f"x: {x}", f"f32[{n}, 3]", region, "return y"))

    def test_a_program_over_another_mesh_needs_other_regions(self) -> None:
        program = main("x: f32[8@d, 6@m]", "f32[8, 6]", TestPropagation.REGION, "return y")
        with pytest.raises(SpmdcError, match="manual regions"):
            spmdc.partition(program, {"d": 2, "m": 2})


class TestFunctions:
    CALLS = (
        "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return f(f(v)) }",
        "z = f(x[:2])",
        "return y, z",
    )
    F = "def f(v: f32[2, 6]) -> f32[2, 6] { return g(v) + 1 }\ndef g(v: f32[2, 6]) -> f32[2, 6] { return v * 2 }"

    def test_a_function_called_inside_and_outside_is_split_as_either_needs(self) -> None:
        program = main("x: f32[8@d, 6@m]", "(f32[8, 6], f32[2@d, 6])", *self.CALLS, more=self.F)
        propagated = spmdc.propagate(program).program
        assert len(propagated.functions) == 5
        check_equivalence(program)

    def test_a_function_that_regions_alone_call_stays_one(self) -> None:
        program = main("x: f32[8@d, 6@m]", "f32[8, 6]", self.CALLS[0], "return y", more=self.F)
        assert set(spmdc.propagate(program).program.functions) == {"main", "f", "g"}


class TestTheOracle:
    def test_padding_is_poisoned(self) -> None:
        region = "y = manual(v of f32[7@d] = x, axes=(d)) { return all_reduce(sum(v), axes=(d)) }"
        program = main("x: f32[7@d]", "f32[]", region, "return y")
        assert np.isnan(spmdc.evaluate(program, np.ones(7, np.float32))[0])

    def test_each_device_sees_its_own_part_and_place(self) -> None:
        program = main("x: s32[8@d]", "(s32[8], s32[4])",
                       "y: s32[8@d], z: s32[4@d] = manual(v of s32[8@d] = x, axes=(d)) {",
                       "return v * 10 + axis_index(axes=(d)), reshape(sum(v), [1])", "}", "return y, z")  # fmt: skip
        y, z = spmdc.evaluate(program, np.arange(8, dtype=np.int32))
        assert y.tolist() == [0, 10, 21, 31, 42, 52, 63, 73]
        assert z.tolist() == [1, 5, 9, 13]

    def test_partial_operands_come_in_parts_that_add_up(self) -> None:
        program = main("x: s32[3]", "(s32[3], s32[4, 3])",
                       "y: s32[3], z: s32[4@d, 3] = manual(v of s32[3]{partial: d} = x, axes=(d)) {",
                       "return all_reduce(v, axes=(d)), reshape(v, [1, 3])", "}", "return y, z")  # fmt: skip
        y, z = spmdc.evaluate(program, np.array([5, -7, 100], np.int32))
        assert y.tolist() == [5, -7, 100]
        assert z.sum(0).tolist() == [5, -7, 100]

    def test_devices_that_wrongly_agree_are_found_out_at_the_boundary(self) -> None:
        region = "y: f32[2] = manual(v of f32[8@d] = x, axes=(d)) { return v }"
        program = parse(f"{MESH}def main(x: f32[8]) -> f32[2] {{\n{region}\nreturn y }}")
        with pytest.raises(InternalError, match="disagree"):
            spmdc.evaluate(program, np.arange(8, dtype=np.float32))
