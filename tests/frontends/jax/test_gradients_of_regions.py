"""Gradients through manual regions: what devices say to one another is answered on the way back."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import spmdc
from ir.ops.control import links
from ir.program import all_ops

_STEP = 1e-6

PROGRAMS = {
    "a mesh with devices in another order, and a second mesh": """
        mesh ring (e=2, d=4) devices=[2, 0, 3, 1, 7, 5, 4, 6]
        mesh other (k=8)
        def main(x: f64[8@d, 4]) -> (y: f64[8@d, 4@e]) {
          z = split(x * 2, 0, k)
          y: f64[8@d, 4@?] = manual(v of f64[8@d, 4] = x + z, axes=(d)) {
            return collective_permute(v * v, target=(d), source=(d), shift=1) * f64(axis_index(axes=(d)))
          }
          return y
        }
        """,
    "parts of an axis": """
        mesh (d=4)
        def main(x: f64[8@d:(1)2, 4]) -> (y: f64[8@d:(1)2, 4]) {
          y: f64[8@d:(1)2, 4] = manual(v of f64[8@d:(1)2, 4] = x) { return v * all_reduce(v * v, axes=(d:(1)2)) }
          return y
        }
        """,
    "an axis of one device": """
        mesh (e=1, d=2)
        def main(x: f64[8@d, 4]) -> (y: f64[8@d, 4]) {
          y: f64[8@d, 4] = manual(v of f64[8@d, 4] = x, axes=(e)) { return v * all_reduce(v * v, axes=(e)) }
          return y
        }
        """,
    "a result that is the same everywhere": """
        mesh (d=4)
        def main(x: f64[8@d, 4]) -> (y: f64[2, 4]) {
          return manual(v of f64[8@d, 4] = x) {
            return tanh(dynamic_slice(all_gather(v, axes=(d), dim=0), 2, 0, sizes=[2, 4]))
          }
        }
        """,
    "the largest": """
        mesh (d=4)
        def main(x: f64[8@d, 4]) -> (y: f64[2, 4]) {
          return manual(v of f64[8@d, 4] = x) { return all_reduce(v * v, axes=(d), kind=max) }
        }
        """,
    "a product": """
        mesh (d=4)
        def main(x: f64[8@d, 4]) -> (y: f64[2, 4]) {
          return manual(v of f64[8@d, 4] = x) { return all_reduce(v, axes=(d), kind=prod) }
        }
        """,
    "the smallest, scattered": """
        mesh (d=4)
        def main(x: f64[8, 4]) -> (y: f64[8@d, 4]) {
          y: f64[8@d, 4] = manual(v = x) {
            return reduce_scatter(v * f64(axis_index(axes=(d))), axes=(d), dim=0, kind=min)
          }
          return y
        }
        """,
    "an annotation along a free axis": """
        mesh (d=4, m=2)
        def main(x: f64[8@d, 4@m]) -> (y: f64[8@d, 4@m]) {
          y: f64[8@d, 4@m] = manual(v of f64[8@d, 4@m] = x, axes=(d)) {
            h = split(v * v, 1, m)
            return h * f64(axis_index(axes=(d)))
          }
          return y
        }
        """,
    "a round of a box exchange": """
        mesh (d=4)
        def main(x: f64[8@d, 4]) -> (y: f64[8@d, 4]) {
          y: f64[8@d, 4] = manual(v of f64[8@d, 4] = x) {
            return v * box_permute(v, axes=(d), boxes=[8, 2, -1, 2, 2], round=0)
          }
          return y
        }
        """,
    "rounds of box exchanges in one message": """
        mesh (d=4)
        def main(x: f64[8@d, 4]) -> (y: f64[8@d, 4]) {
          y: f64[8@d, 4] = manual(v of f64[8@d, 4] = x) {
            row = v[:1]
            a, b = box_permutes(v, row, axes=(d), boxes=[[8, 2, -2, 2, 2], [8, 2, 6, 2, 2]], round=[0, 0])
            return v * a + row * b
          }
          return y
        }
        """,
    "parts of a maximum": """
        mesh (d=4)
        def main(x: f64[8@d, 4]) -> (y: f64[2, 4]) {
          y: f64[2, 4]{partial: max d} = manual(v of f64[8@d, 4] = x) { return v * v }
          return y
        }
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_through_a_region_is_its_slope(name: str) -> None:
    program = spmdc.parse(PROGRAMS[name])
    gradient = spmdc.gradient(program, ["x"], of="y")
    assert gradient.meshes == program.meshes
    rng = np.random.default_rng(0)
    x, way, cotangent = (rng.uniform(-1, 1, t.shape) for t in (*gradient.main.params[:1], *gradient.main.params))
    (got,) = spmdc.evaluate(gradient, x, cotangent)
    ends = [np.sum(cotangent * spmdc.evaluate(program, x + sign * _STEP * way)[0]) for sign in (1, -1)]
    np.testing.assert_allclose(np.sum(got * way), (ends[0] - ends[1]) / (2 * _STEP), rtol=1e-6)
    np.testing.assert_allclose(spmdc.partition(gradient).simulate(x, cotangent)[0], got, rtol=1e-12)


def test_the_gradient_of_a_region_is_one_and_runs_on_devices(devices: list[object]) -> None:
    program = spmdc.parse(PROGRAMS["parts of an axis"].replace("f64", "f32"))
    gradient = spmdc.gradient(program, ["x"], of="y")
    regions = [op for op in all_ops(gradient) if op.name == "manual"]
    assert regions
    assert {op.attrs["axes"] for op in regions} == {(program.mesh.axis("d"),)}
    x, cotangent = spmdc.random_inputs(gradient, integers=True)
    partitioned = spmdc.partition(gradient)
    np.testing.assert_array_equal(partitioned.to_jax()(x, cotangent)[0], spmdc.evaluate(gradient, x, cotangent)[0])


@pytest.mark.parametrize(
    "region",
    [
        "case(i) { return -x } or { return x * 2 }",
        "loop k < 3 (v = x) { return v * 2 }",
        "manual(v = x) { return all_reduce(v, axes=(d)) }",
        "f(x)",
    ],
)
def test_what_a_result_depends_on_is_found_in_time_that_grows_with_the_program(region: str) -> None:
    def looked_at(layers: int) -> int:
        """How many ops are, of as many regions one behind the other."""
        program = spmdc.parse(f"""mesh (d=2)
def f(x: f32[8]) -> f32[8] {{ return -x }}
def main(a: f32[8], i: s32[]) -> (y: f32[8]) {{
  b = repeat l < {layers} (x = a) {{ y = {region} return y }}
  return opaque(b, target="unknown", types=[f32[8]])
}}""")
        with (
            patch("spmdc.frontends.jax.gradients.links", wraps=links) as seen,
            pytest.raises(spmdc.SpmdcError, match="y depends on a by way of @unknown"),
        ):
            spmdc.gradient(program, "a", of="y")
        return seen.call_count

    assert looked_at(12) - looked_at(8) == looked_at(8) - looked_at(4)
