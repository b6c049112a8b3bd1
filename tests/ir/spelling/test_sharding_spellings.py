"""Every spelling of a sharding reads back as what was written, and says what XLA and Shardy take it to say."""

from __future__ import annotations

import cProfile
import itertools

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.xla_client import HloSharding
from spelt_shardings import to_hlo, to_partition_spec, to_shardy

from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh, merge_axes
from ir.sharding import DimSharding, ReductionKind, Sharding, sharding_faults
from ir.spelling.hlo_shardings import parse_hlo, split_hlo_tuple
from ir.spelling.shardings import NestedInts, assign_devices, parse_sharding, shardy_mesh_name, split_sharding

MESH = Mesh((("x", 4), ("y", 2)))
CUBE = Mesh((("x", 2), ("y", 2), ("z", 2)))
LINE = Mesh((("x", 8),))
X_MAJOR, X_MINOR = AxisRef("x", 1, 2), AxisRef("x", 2, 2)


def parts_of(axis: AxisRef) -> list[AxisRef]:
    """The axis whole, or in the parts that its size has."""
    cuts = {4: [1, 2, 4], 6: [1, 3, 6], 8: [1, 2, 8]}.get(axis.size, [1, axis.size])
    return [AxisRef(axis.name, low, high // low) for low, high in itertools.pairwise(cuts)]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.sampled_from([2, 3, 4, 6, 8]), min_size=1, max_size=3))
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    if draw(st.booleans()):
        return Mesh(mesh.axes, tuple(draw(st.permutations(range(mesh.size)))))
    return mesh


@st.composite
def shardings(draw: st.DrawFn, *, placement_only: bool = False) -> Sharding:
    """Random shardings; only what states where data is, in canonical form, if `placement_only`."""
    mesh = draw(meshes())
    rank = draw(st.integers(0, 3))
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    pending: list[AxisRef] = []
    replicated: list[AxisRef] = []
    places = [*dims, pending] if placement_only else [*dims, pending, replicated]
    pieces = [p for axis in mesh.whole_axes() for p in (parts_of(axis) if draw(st.booleans()) else [axis])]
    for piece in draw(st.permutations(pieces)):
        if draw(st.integers(0, 3)):
            draw(st.sampled_from(places)).append(piece)
    if placement_only:
        canonical = tuple(DimSharding(merge_axes(d)) for d in dims)
        return Sharding(mesh, canonical, tuple((a, "sum") for a in merge_axes(pending)))
    flags = [(draw(st.booleans()), draw(st.integers(0, 2))) for _ in dims]
    return Sharding(
        mesh,
        tuple(DimSharding(tuple(d), is_open, p) for d, (is_open, p) in zip(dims, flags, strict=True)),
        tuple((a, "sum") for a in pending),
        tuple(replicated),
    )


def tiles(sharding: Sharding) -> list[tuple[tuple[int, ...], ...]]:
    """For each position of the mesh, the digits of its coordinates along the axes of each dim, computed one by one."""
    mesh = sharding.mesh
    groups = [*sharding.axes, tuple(axis for axis, _ in sharding.partial)]
    held: list[tuple[tuple[int, ...], ...]] = []
    for coordinates in itertools.product(*map(range, mesh.shape)):
        at = dict(zip(mesh.names, coordinates, strict=True))
        held.append(
            tuple(tuple(at[a.name] // (mesh.axis(a.name).size // a.end) % a.size for a in axes) for axes in groups)
        )
    return held


def flat(digits: tuple[int, ...], axes: tuple[AxisRef, ...]) -> int:
    index = 0
    for digit, axis in zip(digits, axes, strict=True):
        index = index * axis.size + digit
    return index


class TestRoundTrips:
    @given(shardings())
    @settings(max_examples=examples(100), deadline=None)
    def test_shardy_says_everything(self, sharding: Sharding) -> None:
        assert sharding_faults(sharding, (1,) * sharding.rank) == []
        assert parse_sharding(to_shardy(sharding, "mesh"), sharding.mesh, sharding.rank) == sharding

    @given(shardings())
    @settings(max_examples=examples(100), deadline=None)
    def test_a_partition_spec_says_all_but_priorities_and_replicated_axes(self, sharding: Sharding) -> None:
        dims = tuple(DimSharding(d.axes, d.open) for d in sharding.dims)
        expected = Sharding(sharding.mesh, dims, sharding.partial)
        assert parse_sharding(to_partition_spec(sharding), sharding.mesh, sharding.rank) == expected

    @given(shardings(placement_only=True))
    @settings(max_examples=examples(150), deadline=None)
    def test_hlo_says_where_the_data_lies(self, sharding: Sharding) -> None:
        assert parse_sharding(to_hlo(sharding), sharding.mesh, sharding.rank) == sharding

    @given(shardings(placement_only=True))
    @settings(max_examples=examples(100), deadline=None)
    def test_xla_reads_the_same_tiles_in_the_hlo_spelling(self, sharding: Sharding) -> None:
        text = to_hlo(sharding)
        hlo = HloSharding.from_string(text)
        groups = [*sharding.axes, tuple(axis for axis, _ in sharding.partial)]
        if hlo.is_replicated() or hlo.is_unreduced():
            assert not any(sharding.axes)
            assert hlo.is_unreduced() == bool(groups[-1])
            return
        if sharding.mesh.devices is None:
            assert str(hlo) == text
        shape = list(hlo.tile_assignment_dimensions())
        devices = np.array(hlo.tile_assignment_devices()).reshape(shape)
        split = [i for i, axes in enumerate(groups) if i < sharding.rank or axes]
        for device, tile in zip(sharding.mesh.device_ids, tiles(sharding), strict=True):
            (place,) = np.argwhere(devices == device).tolist()
            assert place[: len(split)] == [flat(tile[i], groups[i]) for i in split]


class TestHlo:
    @pytest.mark.parametrize(
        ("text", "dims"),
        [
            ("{devices=[2,1,4]<=[8]}", (("x",), (), ("y", "z"))),
            ("{devices=[2,1,1,4]<=[8] last_tile_dim_replicate}", (("x",), (), ())),
            ("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dims={replicated}}", (("y", "z"), ())),
            ("{devices=[2,4,1]<=[2,2,2]T(2,0,1)}", (("z",), ("x", "y"), ())),
            ("{replicated}", ((), (), ())),
            (' { devices = [8,1] <= [8] metadata={op_name="a{b" source_line=1} } ', (("x", "y", "z"), ())),
            ("{devices=[1,2,1,4]0,1,4,5,2,3,6,7 last_tile_dim_replicate}", ((), ("y",), ())),
            ("{devices=[8,1]<=[8] last_tile_dims={manual}}", (("x", "y", "z"),)),
        ],
    )
    def test_tile_assignments_become_axes(self, text: str, dims: tuple[tuple[str, ...], ...]) -> None:
        assert parse_sharding(text, CUBE, len(dims)) == Sharding.of(CUBE, *dims)

    def test_a_list_in_another_order_is_a_mesh_of_its_own(self) -> None:
        sharding = parse_sharding("{devices=[2,1,4]0,1,2,3,7,6,5,4}", MESH, 3, prefix="ring")
        assert sharding.mesh == Mesh((("ring_0", 2), ("ring_2", 4)), (0, 1, 2, 3, 7, 6, 5, 4), "ring")
        assert sharding == Sharding.of(sharding.mesh, "ring_0", None, "ring_2")

    def test_copies_are_the_last_axis_of_a_mesh_of_its_own(self) -> None:
        text = "{devices=[4,2]0,3,1,2,4,5,6,7 last_tile_dim_replicate}"
        sharding = parse_sharding(text, MESH, 1)
        assert sharding.mesh == Mesh((("assigned_0", 4), ("assigned_1", 2)), (0, 3, 1, 2, 4, 5, 6, 7), "assigned")

    def test_the_order_of_copies_does_not_matter(self) -> None:
        text = "{devices=[2,4]3,1,0,2,5,7,6,4 last_tile_dim_replicate}"
        assert parse_sharding(text, MESH, 1) == Sharding.of(MESH, (X_MAJOR,))

    def test_parts_of_axes_are_found(self) -> None:
        assert parse_sharding("{devices=[4,2]<=[8] last_tile_dim_replicate}", LINE, 1) == Sharding.of(
            LINE, (AxisRef("x", 1, 4),)
        )
        swapped = parse_sharding("{devices=[2,2,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}", LINE, 2)
        assert swapped == Sharding.of(LINE, (AxisRef("x", 4, 2),), (AxisRef("x", 1, 2),))

    def test_the_ids_of_the_mesh_are_looked_up(self) -> None:
        mesh = Mesh((("x", 2), ("y", 2)), (3, 2, 1, 0))
        assert parse_sharding("{devices=[2,2]3,2,1,0}", mesh, 2) == Sharding.of(mesh, "x", "y")
        assert parse_sharding("{devices=[2,2]<=[4]}", mesh, 2).mesh != mesh

    def test_unreduced_is_partial(self) -> None:
        x, y = MESH.whole_axes()
        sharding = parse_sharding("{devices=[4,2]<=[8] last_tile_dims={unreduced}}", MESH, 1)
        assert sharding == Sharding(MESH, (DimSharding((x,)),), ((y, "sum"),))
        assert parse_sharding("{unreduced}", MESH, 1).partial == ((x, "sum"), (y, "sum"))

    def test_a_tuple_is_taken_apart(self) -> None:
        parts = ("{replicated}", "{devices=[2]<=[2] last_tile_dims={manual}}")
        assert split_hlo_tuple(f"{{{', '.join(parts)}}}") == parts
        assert split_hlo_tuple(" {replicated}") == ("{replicated}",)

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("{manual}", "E303"),
            ("{devices=[2,2,2]<=[8] last_tile_dims={manual, replicated}}", "E303"),
            ("{maximal device=0}", "E303"),
            ("{devices=[2,4]<=[8]}", "E303"),
            ("{devices=[16]<=[16]}", "E305"),
            ("{devices=[99999999999,99999999999]<=[4]}", "E305"),
            ("{devices=[8]<=[4]}", "E305"),
            ("{devices=[3]0,1,2}", "E305"),
            ("{devices=[0]<=[0]}", "E305"),
            ("{devices=[8]0,1,2}", "E305"),
            ("{devices=[2]0,0}", "E304"),
            ("{devices=[2]7,8}", "E304"),
            ("{devices=[8]<=[2,4]T(0,0)}", "E309"),
            ("{devices=[8]<=[8]", "E309"),
            ("{devices=[8]<=[8]} more", "E309"),
            ("{devices=[8,1]<=[8] last_tile_dims={other}}", "E309"),
            ("{devices=[1111111111111111111111]<=[8]}", "E309"),
            ('{replicated metadata={op_name="unclosed}', "E309"),
            ("{somewhere}", "E309"),
            ("{}", "E309"),
            ("{", "E309"),
        ],
    )
    def test_what_cannot_be_is_refused(self, text: str, code: str) -> None:
        with pytest.raises(SpmdcError, match=code):
            parse_sharding(text, MESH, 1)


class TestPartitionSpec:
    @pytest.mark.parametrize(
        "text",
        ['P("x", None, ("y",))', "PartitionSpec('x', None, 'y')", "P('x', None, ('y'))", ' P( "x" ,None,"y", ) '],
    )
    def test_specs_are_read_as_jax_prints_them(self, text: str) -> None:
        assert parse_sharding(text, MESH, 3) == Sharding.of(MESH, "x", None, "y")

    def test_dims_that_are_not_named_are_whole(self) -> None:
        assert parse_sharding("P()", MESH, 2) == Sharding.replicate(MESH, 2)

    def test_unconstrained_dims_are_open(self) -> None:
        for spelling in ("UNCONSTRAINED", "P.UNCONSTRAINED", "PartitionSpec.UNCONSTRAINED"):
            assert parse_sharding(f"P({spelling}, 'x')", MESH, 2).dims == (
                DimSharding(open=True),
                DimSharding((MESH.axis("x"),)),
            )

    def test_unreduced_axes_are_partial(self) -> None:
        sharding = parse_sharding("P('x', unreduced={'y'})", MESH, 1)
        assert sharding.partial == ((MESH.axis("y"), "sum"),)
        assert to_partition_spec(sharding) == 'P("x", unreduced={"y"})'

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("P('z')", "E301"),
            ("P('x', 'x')", "E302"),
            ("P('x:(1)3')", "E303"),
            ("P('x', 'y', None)", "E303"),
            ("P('x:(0)2')", "E303"),
            ("P(x)", "E309"),
            ("P('x'", "E309"),
            ("P('x:2')", "E309"),
            ("Q('x')", "E309"),
            ("", "E309"),
        ],
    )
    def test_what_cannot_be_is_refused(self, text: str, code: str) -> None:
        with pytest.raises(SpmdcError, match=code):
            parse_sharding(text, MESH, 2)


class TestShardy:
    def test_the_attribute_says_all(self) -> None:
        text = '#sdy.sharding<@mesh, [{"x":(1)2}, {?}, {"y", ?}p1], replicated={"x":(2)2}>'
        y = MESH.axis("y")
        sharding = Sharding(
            MESH,
            (DimSharding((X_MAJOR,)), DimSharding(open=True), DimSharding((y,), open=True, priority=1)),
            replicated=(X_MINOR,),
        )
        assert parse_sharding(text, MESH, 3) == sharding
        assert to_shardy(sharding, "mesh") == text

    def test_unreduced_axes_are_partial(self) -> None:
        text = '#sdy.sharding<@mesh, [{"x"}], unreduced={"y"}>'
        assert parse_sharding(text, MESH, 1).partial == ((MESH.axis("y"), "sum"),)

    def test_the_mesh_s_name_can_be_read_first(self) -> None:
        assert shardy_mesh_name("#sdy.sharding<@mesh_2, []>") == "mesh_2"
        assert shardy_mesh_name('#sdy.sharding<mesh<["x"=2]>, []>') == ""

    def test_a_mesh_may_be_spelt_out(self) -> None:
        same = parse_sharding('#sdy.sharding<mesh<["x"=4, "y"=2]>, [{"x"}]>', MESH, 1)
        assert same == Sharding.of(MESH, "x")
        other = parse_sharding('#sdy.sharding<mesh<["a"=2], device_ids=[1, 0]>, [{"a"}]>', MESH, 1)
        assert other.mesh == Mesh((("a", 2),), (1, 0))

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ('#sdy.sharding<@mesh, [{"z"}]>', "E301"),
            ('#sdy.sharding<@mesh, [{"x", "x"}]>', "E302"),
            ('#sdy.sharding<@mesh, [{"x"}], replicated={"x"}>', "E302"),
            ('#sdy.sharding<@mesh, [{"x"}, {}]>', "E303"),
            ('#sdy.sharding<@mesh, [{"x":(3)2}]>', "E303"),
            ('#sdy.sharding<mesh<["x"=2, "x"=2]>, [{}]>', "E304"),
            ('#sdy.sharding<mesh<["x"=2], device_ids=[0, 2]>, [{}]>', "E304"),
            ('#sdy.sharding<@mesh, [{"x"}]', "E309"),
            ("#sdy.sharding<@mesh, [{x}]>", "E309"),
            ('#sdy.sharding<@mesh, [{"x"}q1]>', "E309"),
            ('#sdy.sharding<@mesh, [{"x"}], other={}>', "E309"),
            ("#sdy.sharding<@, []>", "E309"),
        ],
    )
    def test_what_cannot_be_is_refused(self, text: str, code: str) -> None:
        with pytest.raises(SpmdcError, match=code):
            parse_sharding(text, MESH, 1)

    def test_parts_without_a_common_refinement_are_refused(self) -> None:
        text = '#sdy.sharding<@mesh, [{"x":(1)4}, {"x":(6)2}]>'
        with pytest.raises(SpmdcError, match="E307"):
            parse_sharding(text, Mesh((("x", 12),)), 2)


@pytest.mark.parametrize("kind", ["max", "prod"])
def test_spellings_that_know_only_sums_refuse_other_reductions(kind: ReductionKind) -> None:
    sharding = Sharding(MESH, (DimSharding(),), ((MESH.axis("x"), kind),))
    for spell in (to_hlo, to_partition_spec, lambda s: to_shardy(s, "mesh")):
        with pytest.raises(SpmdcError, match="E308"):
            spell(sharding)


def test_hlo_refuses_parts_without_a_common_refinement() -> None:
    mesh = Mesh((("x", 12),))
    with pytest.raises(SpmdcError, match="E307"):
        to_hlo(Sharding.of(mesh, (AxisRef("x", 1, 4),), (AxisRef("x", 6, 2),)))


class TestDeviceAssignments:
    def test_the_paper_s_assignments(self) -> None:
        """Figure 10: 2 by 4 partitions, in the order of the devices and in that of a ring."""
        assert assign_devices(MESH, [[0, 1, 2, 3], [4, 5, 6, 7]], "m") == Sharding.of(
            MESH, (X_MAJOR,), (X_MINOR, MESH.axis("y"))
        )
        ring = assign_devices(MESH, [[0, 1, 5, 4], [2, 3, 7, 6]], "ring")
        assert ring == Sharding.of(
            Mesh((("ring_0", 2), ("ring_1", 4)), (0, 1, 5, 4, 2, 3, 7, 6), "ring"), "ring_0", "ring_1"
        )

    def test_a_scalar_has_one_device_and_copies(self) -> None:
        assert assign_devices(MESH, 0, "m") == Sharding.replicate(MESH, 0)

    @pytest.mark.parametrize(
        ("ids", "axes"),
        [([0, 2, 4, 6], ("x",)), ([1, 3, 5, 7], ("x",)), ([0, 1], ("y",)), ([6, 7], ("y",)), ([0, 4], (X_MAJOR,))],
    )
    def test_devices_that_are_not_listed_hold_copies(self, ids: list[int], axes: tuple[AxisRef | str, ...]) -> None:
        assert assign_devices(MESH, ids, "m") == Sharding.of(MESH, axes)

    def test_copies_are_shared_out_in_a_mesh_of_its_own(self) -> None:
        sharding = assign_devices(MESH, [[3], [1], [2], [0]], "m")
        assert sharding.mesh == Mesh((("m_0", 4), ("m_2", 2)), (3, 4, 1, 5, 2, 6, 0, 7), "m")
        assert sharding == Sharding.of(sharding.mesh, "m_0", None)

    @given(st.permutations(range(8)), st.sampled_from([(8,), (2, 4), (4, 1, 2), (2, 2, 2)]))
    @settings(max_examples=examples(60), deadline=None)
    def test_each_device_holds_the_partition_at_its_id_s_place(self, ids: list[int], shape: tuple[int, ...]) -> None:
        nested: NestedInts = np.array(ids).reshape(shape).tolist()
        sharding = assign_devices(CUBE, nested, "m")
        place = {int(i): at for at, i in np.ndenumerate(np.array(nested))}
        for device, tile in zip(sharding.mesh.device_ids, tiles(sharding), strict=True):
            assert tuple(flat(t, axes) for t, axes in zip(tile, sharding.axes, strict=False)) == place[device]

    @pytest.mark.parametrize(
        ("ids", "code"),
        [
            ([[0, 1], [2]], "E303"),
            ([0, [1]], "E303"),
            ([0, 0], "E304"),
            ([0, 8], "E304"),
            ([-1, 0], "E304"),
            ([0, 1, 2], "E305"),
            (list(range(9)), "E305"),
            ([], "E305"),
        ],
    )
    def test_what_cannot_be_is_refused(self, ids: NestedInts, code: str) -> None:
        with pytest.raises(SpmdcError, match=code):
            assign_devices(MESH, ids, "m")

    def test_more_partitions_than_devices_have_to_be_fewer(self) -> None:
        with pytest.raises(SpmdcError, match="fewer partitions"):
            assign_devices(MESH, list(range(9)), "m")


class TestSplit:
    @pytest.mark.parametrize(
        ("mesh", "partitions", "axes"),
        [
            (MESH, 4, ("x",)),
            (MESH, 2, ("y",)),
            (MESH, 8, ("x", "y")),
            (MESH, 1, ()),
            (LINE, 4, (AxisRef("x", 1, 4),)),
            (LINE, 8, ("x",)),
            (CUBE, 2, ("x",)),
            (CUBE, 4, ("x", "y")),
            (CUBE, 8, ("x", "y", "z")),
            (Mesh((("x", 6), ("y", 5))), 3, (AxisRef("x", 1, 3),)),
        ],
    )
    def test_the_axes_make_the_partitions(self, mesh: Mesh, partitions: int, axes: tuple[AxisRef | str, ...]) -> None:
        assert split_sharding(mesh, 3, 1, partitions) == Sharding.of(mesh, None, axes, None)

    @pytest.mark.parametrize(("dim", "partitions", "code"), [(3, 2, "E303"), (-1, 2, "E303"), (0, 16, "E305")])
    def test_what_cannot_be_is_refused(self, dim: int, partitions: int, code: str) -> None:
        with pytest.raises(SpmdcError, match=code):
            split_sharding(MESH, 3, dim, partitions)

    @pytest.mark.parametrize(("mesh", "partitions"), [(MESH, 3), (MESH, 0), (Mesh((("x", 6), ("y", 6))), 3)])
    def test_a_number_that_no_axes_make_is_refused(self, mesh: Mesh, partitions: int) -> None:
        with pytest.raises(SpmdcError, match="E305"):
            split_sharding(mesh, 1, 0, partitions)

    def test_the_help_names_the_axes(self) -> None:
        with pytest.raises(SpmdcError) as caught:
            split_sharding(MESH, 1, 0, 3)
        assert "x, y" in caught.value.diagnostics[0].help


@pytest.mark.parametrize("how", ["<=[1024,1024]T(1,0)", "listed"])
def test_no_work_is_done_for_each_of_a_million_devices(how: str) -> None:
    """As calls are counted, of which arrays take a few."""
    listed = ",".join(map(str, np.arange(2**20).reshape(1024, 1024).T.ravel().tolist()))
    text = f"{{devices=[1024,1024]{listed if how == 'listed' else how}}}"
    profile = cProfile.Profile()
    sharding = profile.runcall(parse_hlo, text, Mesh((("x", 2**20),)), 2)
    assert sharding.axes == ((AxisRef("x", 1024, 1024),), (AxisRef("x", 1, 1024),))
    assert sum(entry.callcount for entry in profile.getstats()) < 2_000
