"""Why a checkpoint is of another run: what a person changed, and not all that follows from it."""

from __future__ import annotations

from spmdc.training.course import differences

OWN = {
    "seed": 0, "optimizer.name": "adam", "optimizer.rate": 0.1, "optimizer.b1": 0.9, "[0]['w']": "float32[8, 4]",
    "[1][0].mu['w']": "float32[8, 4]", "[1][0].nu['w']": "float32[8, 4]",
}  # fmt: skip


def test_the_same_course_has_no_differences() -> None:
    assert differences(OWN, dict(OWN)) == ([], [])


def test_of_another_weight_the_memory_is_not_listed() -> None:
    was = {name: str(kind).replace("4]", "5]") if "[" in name else kind for name, kind in OWN.items()}
    assert differences(OWN, was) == (["weight w"], ["w is float32[8, 4], and was float32[8, 5]"])


def test_of_another_optimizer_neither_memory_nor_settings_of_its_own_are_listed() -> None:
    was = {
        "seed": 0,
        "optimizer.name": "sgd",
        "optimizer.rate": 0.2,
        "optimizer.momentum": 0.0,
        "[0]['w']": "float32[8, 4]",
    }
    short, lines = differences(OWN, was)
    assert short == ["optimizer.name", "optimizer.rate"]
    assert lines == ["optimizer.name is 'adam', and was 'sgd'", "optimizer.rate is 0.1, and was 0.2"]


def test_a_weight_that_the_program_has_no_more_is_a_difference() -> None:
    assert differences(OWN, {**OWN, "[0]['v']": "float32[2]"}) == (
        ["weight v"],
        ["v does not exist any more, and was float32[2]"],
    )


def test_of_many_weights_the_first_are_named() -> None:
    many = {f"[0]['w{n}']": "float32[2]" for n in range(20)}
    short, lines = differences({**OWN, **many}, OWN)
    assert short == ["weights w0, w1, w2, w3, w4, w5, w6, w7, and 12 others"]
    assert len(lines) == 8


def test_memory_alone_is_a_difference_too() -> None:
    short, lines = differences(OWN, {**OWN, "[1][0].nu['w']": "float32[8]"})
    assert (short, len(lines)) == (["the memory of the optimizer"], 1)


def test_a_const_differs_only_if_it_makes_another_program() -> None:
    own, was = {"program": "a", "consts.B": 8}, {"program": "a", "consts.B": 4}
    assert differences(own, was) == ([], [])
    assert differences({**own, "program": "b"}, was) == (["consts.B"], ["consts.B is 8, and was 4"])
    assert differences({"program": "b"}, {"program": "a"})[0] == ["program"]


def test_an_unchanged_text_is_the_same_program_although_a_release_reads_other_ops_in_it() -> None:
    was = {"program": "a", "text": "t", "consts.B": 8}
    assert differences({**was, "program": "b"}, was) == ([], [])
    assert differences({**was, "text": "u"}, was) == ([], [])
    assert differences({**was, "program": "b", "text": "u"}, was)[0] == ["program"]
    assert differences({**was, "program": "b", "consts.B": 4}, was)[0] == ["consts.B"]
    assert differences({"program": "b"}, {"program": "a"})[0] == ["program"]


def test_a_checkpoint_of_an_older_release_has_no_program_to_compare() -> None:
    assert differences({**OWN, "program": "a", "consts.B": 8}, OWN) == ([], [])
