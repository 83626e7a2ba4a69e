"""What the strict JSON parser accepts, marks and rejects, in the document and inside strings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.strict_json import MAX_DEPTH, MAX_NODES, Cleaner, JsonProblem, compact, loads


def clean(text):
    cleaner = Cleaner()
    return cleaner.value(loads(text)), [*cleaner.marks]


def refusal(text):
    with pytest.raises(JsonProblem) as raised:
        clean(text)
    return raised.value.code, raised.value.path


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{'a': 1}", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": "\x00"}', b'{"a": "\xff"}',
        b'{"a": "\xc0\xaf"}', '{"a": 1}'.encode("utf-16"), b'\xef\xbb\xbf{"a": 1}', b'{"a": 1} x', b'{"a": 01}',
        b'{"a": 1,}', b'{"a": "\xed\xa0\x80"}',
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused_as_such(body):
    assert refusal(body)[0] == "not_json"


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ('{"a": {"b": 1e400}}', "number_range", "a.b"),
        ('{"a": [1, -1e999]}', "number_range", "a[1]"),
        ('{"a": ' + "9" * 65 + "}", "number_too_long", "a"),
        ('{"a": -' + "9" * 5000 + "}", "number_too_long", "a"),
        ('{"a": 0.' + "1" * 90 + "}", "number_too_long", "a"),
        ('{"a": "{\\"b\\": 1e400}"}', "number_range", "a.b"),
        ('{"' + "k" * 257 + '": 1}', "key_too_long", "k" * 60),
        ('{"' + "é" * 129 + '": 1}', "key_too_long", "é" * 60),
    ],
)
def test_numbers_and_keys_beyond_the_limits_are_refused_with_their_place(text, code, path):
    assert refusal(text) == (code, path)


@pytest.mark.promise("REL-15")
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200, 1_100, 20_000, 300_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_beyond_the_limit_is_refused_whatever_the_depth(depth, opening, closing):
    text = opening * depth + "1" + closing * depth
    assert refusal(text)[0] == "too_deep"
    assert refusal(json.dumps({"q": text}))[0] == "too_deep"


def test_depth_counts_through_strings():
    inner = "[" * 40 + "]" * 40
    assert clean("[" * MAX_DEPTH + "]" * MAX_DEPTH)[1] == []
    assert refusal("[" * 30 + json.dumps(inner) + "]" * 30)[0] == "too_deep"


def test_a_deep_part_does_not_harm_its_neighbours():
    parsed = loads('[{"ok": 1}, ' + "[" * 50_000 + "]" * 50_000 + ', {"ok": "]["}]')
    assert parsed[0] == {"ok": 1}
    assert parsed[2] == {"ok": "]["}
    with pytest.raises(JsonProblem):
        Cleaner().value(parsed[1])


def test_nodes_are_limited_in_sum_over_all_levels():
    assert refusal(json.dumps(list(range(MAX_NODES))))[0] == "too_many_nodes"
    half = list(range(MAX_NODES // 2))
    assert refusal(json.dumps([half, json.dumps(half)]))[0] == "too_many_nodes"


def test_nul_and_lone_surrogates_become_visible_marks_that_keep_texts_apart():
    assert clean(r'{"a\u0000": "x\u0000y"}') == ({"a␀": "x␀y"}, ["nul"])
    first, marks = clean(r'"\ud800"')
    second, _ = clean(r'"\udc00"')
    assert marks == ["surrogate"]
    assert first != second
    first.encode()
    assert clean(r'"\ud83d\ude00"') == ("😀", [])


def test_doubled_keys_keep_every_value_under_a_name_of_its_own():
    assert clean('{"a": 1, "a": 2, "a": 3}') == (
        {"a (duplicate 1)": 1, "a (duplicate 2)": 2, "a": 3},
        ["duplicate_key"],
    )
    assert clean('{"a (duplicate 1)": 0, "a": 1, "a": 2}')[0] == {
        "a (duplicate 1)": 0, "a (duplicate 2)": 1, "a": 2,
    }  # fmt: skip


def test_integers_stay_exact_and_finer_numbers_are_marked():
    value, marks = clean('{"a": 18446744073709551616, "b": 18446744073709552000, "c": 0.1, "d": 1e3}')
    assert marks == []
    assert compact(value) == '{"a":18446744073709551616,"b":18446744073709552000,"c":0.1,"d":1000.0}'
    assert clean("1.00000000000000000001") == (1.0, ["number_precision"])


def test_argument_text_stays_as_the_model_wrote_it_unless_it_cannot_be_stored():
    cleaner = Cleaner()
    assert cleaner.json_text('{ "b": 1, "a": [ 1.0 ] }') == '{ "b": 1, "a": [ 1.0 ] }'
    assert not cleaner.marks
    assert cleaner.json_text('{"a": tru') == '{"a": tru'
    assert [*cleaner.marks] == ["not_json"]
    assert cleaner.json_text(r'{"a": "\u0000"}') == '{"a":"␀"}'
    assert [*cleaner.marks] == ["not_json", "nul"]


def test_strings_that_are_json_obey_the_same_rules_inside_arguments():
    value, marks = clean(json.dumps({"body": r'{"x": "\u0000", "y": NaN}', "other": r'{"x": "\ud800"}'}))
    assert value["body"] == r'{"x": "\u0000", "y": NaN}'
    assert value["other"] == '{"x":"�d800"}'
    assert marks == ["not_json", "surrogate"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=60), inner, max_size=5),
    max_leaves=20,
)


@given(json_values)
def test_whatever_is_json_comes_through_storable_and_reading_it_again_changes_nothing(value):
    cleaner = Cleaner()
    try:
        cleaned = cleaner.value(loads(json.dumps(value)))
    except JsonProblem as problem:
        assert problem.code in {"number_too_long", "number_range", "too_deep"}
        return
    text = compact(cleaned)
    text.encode()
    assert "\x00" not in text
    again, marks = clean(text)
    assert again == cleaned
    assert "nul" not in marks
    assert "surrogate" not in marks


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_parsed_or_refused(data):
    try:
        Cleaner().value(loads(data))
    except JsonProblem as problem:
        assert problem.detail
