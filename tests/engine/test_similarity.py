"""How alike two calls are."""

from __future__ import annotations

import pytest

from detection.engine.identity import Keyer
from detection.engine.similarity import (
    literal_result_similarity,
    literal_similarity,
    sketch,
    sketch_similarity,
)

KEYER = Keyer(b"secret")


def alike(one, other, ratio=0.85):
    return sketch_similarity(sketch(one, KEYER), sketch(other, KEYER), ratio)


def test_one_word_of_many_hardly_matters():
    text = "django channels redis layer timeout error fix {}"
    assert alike({"q": text.format(2024)}, {"q": text.format("guide")}) >= 0.85


def test_pages_are_far_apart():
    assert alike({"q": "same words here", "page": 1}, {"q": "same words here", "page": 2}) == 0.5


def test_a_short_text_that_holds_the_other_is_alike():
    assert alike({"command": "ls"}, {"command": "ls -la"}) == 1.0


def test_other_fields_are_other_calls():
    assert alike({"a": "x y z"}, {"b": "x y z"}) < 0.85


def test_the_end_of_a_long_text_counts():
    assert alike({"code": "a b c d " * 200 + "e"}, {"code": "a b c d " * 100 + "q r s t " * 100}) < 0.85


@pytest.mark.parametrize(
    "arguments", [None, "", "plain words", "{broken", [1, 2], {"a": None, "b": [{}], "c": 1.5}, "é ü 漢字"]
)
def test_every_kind_of_arguments_is_alike_to_itself(arguments):
    assert alike(arguments, arguments) == 1.0


def test_a_sketch_is_short_and_holds_no_text():
    made = sketch({f"field{i}": "secret words " * 500 for i in range(100)}, KEYER)

    assert len(made) <= 192
    assert "secret" not in made


def test_sketches_differ_between_projects():
    assert sketch({"q": "some words"}, KEYER) != sketch({"q": "some words"}, Keyer(b"other"))


@pytest.mark.parametrize(
    ("one", "other", "score"),
    [
        ({"q": "foo"}, {"q": "fo0"}, 0.0),
        ("foo", "fo0", 2 / 3),
        ("ls", "ls -la", 1 / 3),
        ({}, {}, 1.0),
        ([], [], 1.0),
        ([1, 2], [1], 0.0),
        ([1, 2], [1, 3], 0.5),
        (1, 1.0, 0.0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, 0.5),
    ],
)
def test_the_literal_formula_keeps_its_oddities(one, other, score):
    assert literal_similarity(one, other, 0.8) == pytest.approx(score)


def test_literal_results_compare_by_structure_where_they_can():
    assert literal_result_similarity("", "", 0.9) == 1.0
    assert literal_result_similarity('{"a":1,"b":2}', '{"b":2,"a":1}', 0.9) == 1.0
    assert literal_result_similarity("abcd", "abce", 0.9) == 0.75
