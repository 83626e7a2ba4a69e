"""How alike two calls are."""

from __future__ import annotations

from typing import Any

import pytest

from detection.engine import Guard
from detection.engine.identity import Keyer, parse
from detection.engine.similarity import (
    changed_words,
    hashed_words,
    literal_arguments,
    literal_result,
    literal_result_similarity,
    literal_similarity,
    signature,
    sketch,
    sketch_similarity,
    word_sample,
    word_set,
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


@pytest.mark.promise("REL-24", "SEC-19")
def test_a_sketch_is_short_and_holds_no_text():
    made = sketch({f"field{i}": "secret words " * 500 for i in range(100)}, KEYER)

    assert len(made) <= 192
    assert "secret" not in made


def test_the_words_of_today_are_cached_however_many_came_before():
    keyer = Keyer(b"project")
    for n in range(5_000):
        sketch({"q": f"word{n} other{n}"}, keyer)
        hashed_words(f"said{n} told{n}", keyer)
    assert sketch({"q": "reset password"}, keyer) == sketch({"q": "reset password"}, Keyer(b"project"))
    assert {b"reset", b"password"} < keyer.word_hashes.keys()
    assert len(keyer.word_hashes) < 5_000


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


# Short texts

SKETCHED = {"similar_method": "sketch", "similar_ladder": "warn", "result_aware": False}


def decisions(guard: Guard, arguments, tool="ask"):
    return [guard.call(tool, one, at=100.0 + at).decision for at, one in enumerate(arguments)]


@pytest.mark.parametrize("method", [{}, SKETCHED])
@pytest.mark.parametrize(
    "arguments",
    [
        list("abcdef"),
        ["7", "8", "9", "10"],
        ["yes", "no", "yep", "nope"],
        ["x1", "x2", "x3", "x4"],
        ["\u6f22", "\u5b57", "\u6587", "\u7ae0"],
    ],
)
def test_short_raw_texts_are_not_alike(arguments, method):
    guard = Guard("similarity", similar_max_calls=3, repeat_enabled=False, cycle_enabled=False, **method)

    assert set(decisions(guard, arguments)) == {"allow"}


def test_equal_raw_texts_are_alike_however_short():
    guard = Guard("similarity", similar_max_calls=3, repeat_enabled=False, cycle_enabled=False)

    assert decisions(guard, ["a", "a", "b", "a"]) == ["allow", "allow", "allow", "warn"]


@pytest.mark.parametrize("method", [{}, SKETCHED])
def test_long_raw_texts_that_differ_in_a_word_are_alike(method):
    guard = Guard("similarity", similar_max_calls=3, repeat_enabled=False, cycle_enabled=False, **method)
    asked = "show me the names of all users that were created in week {} of 2026"

    assert "warn" in decisions(guard, [asked.format(week) for week in range(4)])


def test_raw_texts_are_compared_from_their_first_word_on():
    assert alike("ls", "ls -la") == alike({"command": "ls"}, {"command": "ls -la"}) == 1.0
    assert alike("list all users", "drop all users") == alike(
        {"q": "list all users"}, {"q": "drop all users"}
    )


def test_a_long_text_in_another_field_is_another_call():
    text = " ".join(f"word{number}" for number in range(40))
    assert alike({"source": text}, {"target": text}) == 0.0


# Long texts


def words(first: int, count: int) -> str:
    return " ".join(f"word{number * 7919 % 99991}" for number in range(first, first + count))


SAME = words(0, 400)


@pytest.mark.parametrize("wrap", [str, lambda text: {"path": "a.py", "content": text}, lambda text: [text]])
@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        (SAME + " and more", True),
        ("and more " + SAME, True),
        (words(0, 200) + " and more " + words(200, 200), True),
        (words(0, 250) + words(5_000, 150), False),
        (words(5_000, 150) + words(150, 250), False),
        (words(0, 100) + words(5_000, 200) + words(300, 100), False),
        (words(0, 250), False),
    ],
    ids=["end grows", "start grows", "middle grows", "other end", "other start", "other middle", "cut"],
)
def test_long_arguments_are_compared_as_a_whole(wrap, other, is_alike):
    stored = [parse(literal_arguments(wrap(text), 1500)) for text in (SAME, other)]

    assert (literal_similarity(stored[0], stored[1], 0.8) > 0.8) == is_alike
    assert len(literal_arguments(wrap(other), 1500).encode()) <= 1500


@pytest.mark.parametrize("size", [1200, 200])
@pytest.mark.parametrize("wrap", ["{}", '{{"total": 3, "body": "{}"}}', '["{}"]'])
def test_long_results_are_compared_as_a_whole(wrap, size):
    stored = [
        literal_result(wrap.format(text), size)
        for text in (SAME, SAME + " end", words(0, 100) + words(5_000, 200) + words(300, 100))
    ]

    assert literal_result_similarity(stored[0], stored[1], 0.9) > 0.9
    assert literal_result_similarity(stored[0], stored[2], 0.9) < 0.9
    assert all(len(one.encode()) <= size for one in stored)


def test_a_text_just_below_the_limit_is_like_the_same_just_above_it():
    below = words(0, 400)[:1490]
    for wrap in (str, lambda text: {"content": text}):
        stored = [parse(literal_arguments(wrap(text), 1500)) for text in (below, below + " and some more")]
        assert literal_similarity(stored[0], stored[1], 0.8) > 0.8


@pytest.mark.parametrize("size", [10, 3_000])
def test_many_fields_are_compared_up_to_the_last(size):
    one = {f"name{number:04}": f"value {number}" for number in range(size)}
    other = {**one, f"name{size - 1:04}": "something else entirely"}

    assert sketch(one, KEYER) != sketch(other, KEYER)
    assert len(sketch(one, KEYER)) <= 192


def test_the_end_of_the_last_of_several_long_fields_counts():
    one = {f"field{number}": words(number * 100, 90) for number in range(6)}
    other = {name: text.rsplit(" ", 60)[0] + words(9_000, 60) for name, text in one.items()}

    assert alike(one, other) < 0.85
    assert alike(one, {**one, "field3": one["field3"] + " more"}) >= 5 / 6


@pytest.mark.parametrize(
    "text", ["x" * 9_000, "0123456789abcdef" * 600, "\u6f22\u5b57\u6587\u7ae0" * 900, " \n" * 5_000]
)
def test_texts_without_words_are_alike_to_themselves_only(text):
    made = signature(text, 300)

    assert literal_similarity(made, signature(text, 300), 0.8) == 1.0
    assert literal_similarity(made, signature(words(0, 900), 300), 0.8) < 0.2
    assert len(made.encode()) <= 300


def test_unrelated_texts_in_one_style_are_far_apart():
    texts = [f'{{"id": {number}, "name": "{words(number * 300, 200)}"}}' for number in range(6)]
    stored = [literal_result(text, 1200) for text in texts]

    assert max(literal_result_similarity(one, stored[0], 0.9) for one in stored[1:]) < 0.5


def test_words_beyond_the_beginning_count_in_sets_and_samples():
    start, end, other = words(0, 300), words(1_000, 200), words(2_000, 200)
    letters = str.maketrans("0123456789", "abcdefghij")
    one, another = ((start + " " + rest).translate(letters) for rest in (end, other))

    assert changed_words(word_set(one, KEYER), word_set(one + " more", KEYER))[0] <= 1
    changed, either = changed_words(word_set(one, KEYER), word_set(another, KEYER))
    assert changed / either > 0.4
    assert word_sample(start + " " + end, KEYER) != word_sample(start + " " + other, KEYER)


# Through the library

LONG: dict[str, Any] = {"repeat_enabled": False, "cycle_enabled": False, "outcome_max_results": 3}


def results_of(guard: Guard, texts):
    made = []
    for number, text in enumerate(texts):
        guard.call("read", {"number": number * 37}, call_id=f"c{number}", at=100.0 + number)
        made.append(guard.result(f"c{number}", text, at=100.5 + number).decision)
    return made


def test_long_results_that_differ_in_the_middle_are_no_loop():
    texts = [words(0, 200) + words(1_000 * number, 300) + words(500, 100) for number in range(1, 7)]

    assert set(results_of(Guard("similarity", similar_enabled=False, **LONG), texts)) == {"allow"}


def test_long_results_that_hardly_differ_are_a_loop():
    texts = [words(0, 300) + f" page {number} " + words(300, 300) for number in range(6)]

    assert results_of(Guard("similarity", similar_enabled=False, **LONG), texts)[2] == "warn"


def test_results_whose_end_is_only_a_digest_are_alike_only_to_themselves():
    cut = "{}\n[cut by loopguard-client: 90000 characters, sha256 {:032x}]"
    other = [cut.format(SAME, number) for number in range(6)]
    same = [cut.format(SAME, 1)] * 6

    assert set(results_of(Guard("similarity", similar_enabled=False, **LONG), other)) == {"allow"}
    assert results_of(Guard("similarity", similar_enabled=False, **LONG), same)[2] == "warn"


@pytest.mark.parametrize("at", [0, 5_000, 9_000, 19_000])
def test_one_character_anywhere_makes_another_result(at):
    guard = Guard(repeat_near_ratio=1.0)
    text = words(0, 2_500)
    texts = [text[:at] + letter + text[at + 1 :] for letter in "!?%&"]

    made = []
    for number, one in enumerate(texts):
        guard.call("read", {"path": "a"}, call_id=f"c{number}", at=100.0 + number)
        made.append(guard.result(f"c{number}", one, at=100.5 + number).decision)
    assert set(made) == {"allow"}
    assert guard.call("read", {"path": "a"}, at=110.0).decision == "allow"
