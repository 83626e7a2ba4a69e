"""When two calls are the same call."""

from __future__ import annotations

import pytest

from detection.engine.identity import Keyer, canonical, digest_of_calls, smallest_rotation

KEYER = Keyer(b"secret")


def same(one, other, **how):
    return KEYER.call_key("t", one, **how) == KEYER.call_key("t", other, **how)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ('{"a": 1, "b": 2}', {"b": 2, "a": 1}),
        ("  ls -la {oops ", "ls -la {oops"),
        ("", {}),
        (None, {}),
        ("{}", {}),
        ({"q": "é"}, {"q": "é"}),
        ('{"n": 18446744073709551616}', {"n": 18446744073709551616}),
        ('"\\ud800"', '"\\ud800"'),
    ],
)
def test_these_are_one_call(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"n": 1}, {"n": "1"}),
        ({"n": 1}, {"n": 1.0}),
        ({"n": 1}, {"n": True}),
        ('{"n": 18446744073709551616}', '{"n": 18446744073709551617}'),
        ('{"n": 9007199254740993}', '{"n": 9007199254740992}'),
        ('{"n": ' + "9" * 5000 + "}", '{"n": ' + "9" * 4999 + "8}"),
        ('{"n": 1e400}', '{"n": null}'),
        ("ls  -la {", "ls -la {"),
        ("NaN", "null"),
        ('"plain"', "plain"),
        ("[" * 5000, "[" * 4999),
    ],
)
def test_these_are_two_calls(one, other):
    assert not same(one, other)


def test_the_tool_is_part_of_the_call():
    assert KEYER.call_key("a", {}) != KEYER.call_key("b", {})


def test_the_border_between_tool_and_arguments_is_kept():
    assert KEYER.call_key("ab", "c") != KEYER.call_key("a", "bc")


def test_ignored_paths_do_not_count_at_any_depth():
    one = {"q": "x", "request_id": 1, "meta": {"nonce": 1, "page": 2}, "items": [{"id": 1}, {"id": 2}]}
    other = {"q": "x", "request_id": 9, "meta": {"nonce": 8, "page": 2}, "items": [{"id": 5}, {"id": 6}]}
    paths = ("request_id", "meta.nonce", "items.*.id")

    assert same(one, other, ignore=paths)
    assert not same(one, {**other, "meta": {"nonce": 1, "page": 3}}, ignore=paths)


def test_a_path_that_is_not_there_changes_nothing():
    assert same({"q": 1}, {"q": 1}, ignore=("a.b.c", "q.x"))


def test_the_raw_profile_takes_the_text_as_it_came():
    assert not same('{"x":1,"y":2}', '{"y":2,"x":1}', identity="raw")
    assert not same({"x": 1, "y": 2}, {"y": 2, "x": 1}, identity="raw")


def test_digests_differ_between_projects():
    assert Keyer(b"one").call_key("t", {}) != Keyer(b"two").call_key("t", {})


def test_a_secret_of_any_length_works():
    assert len(Keyer(b"x" * 500).call_key("t", {})) == 32


def test_canonical_text_is_compact_and_sorted():
    assert canonical({"b": 1, "a": [True, None]}) == b'{"a":[true,null],"b":1}'


def test_a_cycle_has_one_identity_wherever_one_looks():
    assert smallest_rotation(["b", "a"]) == smallest_rotation(["a", "b"])
    assert smallest_rotation(["c", "a", "b"]) == ("a", "b", "c")
    assert smallest_rotation(["a", "c", "b"]) != smallest_rotation(["a", "b", "c"])
    assert digest_of_calls("cycle", "ab") != digest_of_calls("repeat", "ab")


@pytest.mark.parametrize("before", range(0, 70, 3))
def test_letters_with_more_marks_than_any_script_has_are_compared_as_they_are(before):
    start = "–" * before
    few, many = (start + "e" + "\u0301" * count + " ok" for count in (31, 33))
    assert canonical({"q": few}) == canonical({"q": start + "\u00e9" + "\u0301" * 30 + " ok"})
    assert canonical({"q": many}) != canonical({"q": start + "\u00e9" + "\u0301" * 32 + " ok"})
