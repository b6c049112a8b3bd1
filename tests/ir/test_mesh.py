"""Meshes know their hashes, which are others in other processes, and an axis is one object."""

from __future__ import annotations

import copy
import pickle

from ir.mesh import AxisRef, Mesh


def test_what_another_process_has_pickled_has_the_hash_of_this_one() -> None:
    made = Mesh((("x", 2), ("y", 2)), (1, 0, 2, 3), "other")
    theirs = copy.copy(made)
    object.__setattr__(theirs, "_hash", hash(made) + 1)
    ours = pickle.loads(pickle.dumps(theirs))
    assert ours == made
    assert hash(ours) == hash(made)


def test_equal_axes_are_one_object_wherever_they_come_from() -> None:
    axis = AxisRef("x", 1, 4)
    assert all(x is axis for x in (AxisRef("x", 1, 4), copy.deepcopy(axis), pickle.loads(pickle.dumps(axis))))
    assert len({axis, AxisRef("x", 2, 4), AxisRef("y", 1, 4)}) == 3
    assert sorted([AxisRef("y", 1, 2), AxisRef("x", 2, 2), axis]) == [axis, AxisRef("x", 2, 2), AxisRef("y", 1, 2)]
