"""When two results are the same result."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detection.engine import provider_trouble
from detection.engine.identity import Keyer
from detection.engine.results import CallFacts, answers, as_text, evaluate_result, masking, normalise
from detection.engine.similarity import sketch
from detection.engine.substrings import lower
from detection.engine.tool_classes import PLAIN_TOOL, ToolTraits, shipped_traits

KEYER = Keyer(b"secret")


def evaluated(content, is_error=False, traits=PLAIN_TOOL, arguments=None):
    call = CallFacts(sketch=sketch(arguments, KEYER) if arguments is not None else "")
    return evaluate_result(content, is_error, traits, KEYER, call)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 hits\nProcess Group PGID: 4372", "0 hits\nProcess Group PGID: 5190"),
        ("done at 12:00:01", "done at 12:00:59"),
        ("2026-11-21T12:00:00.123Z up", "2026-11-22T07:30:11Z up"),
        ("3 passed in 0.12s", "3 passed in 4.01s"),
        ("took 35 ms", "took 412ms"),
        ("Sat Nov 21 22:43:13 UTC 2026", "Sun Nov 22 01:02:03 UTC 2026"),
        ("object at 0x7f3a2b10", "object at 0x55d0c0ff"),
        ("id 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "id 9f4e28ba-2fa1-11d2-883f-0016d3cca42a"),
        ("request id: 81f2c3", "request id: 77ac01"),
        ("X-REQUEST-ID: 81f2c3", "X-REQUEST-ID: 77ac01"),
        ("Pid 81 is up", "Pid 77 is up"),
        ("Chunk ID: 0fe9ea\nOutput:\nno", "Chunk ID: b9066b\nOutput:\nno"),
        ("no\n<shellId: 0 completed with exit code 1>", "no\n<shellId: 11 completed with exit code 1>"),
        (
            "no <total_tokens>14985 tokens left</total_tokens>",
            "no <total_tokens>985 tokens left</total_tokens>",
        ),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a  b\n\n c", "a b c"),
        ("now 1763766000", "now 1763766999"),
        ('{"ok":true,"timestamp":"x","request_id":"1"}', '{"ok":true,"timestamp":"y","request_id":"2"}'),
    ],
)
def test_times_ids_and_white_space_are_masked(one, other):
    assert evaluated(one).digest == evaluated(other).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7 open", "8 open"),
        ("chunk 1 of 6", "chunk 2 of 6"),
        ("main.py:12:30: error", "main.py:12:31: error"),
        ("HTTP 404", "HTTP 500"),
        ('{"duration":10}', '{"duration":20}'),
        ('{"id":"o-1"}', '{"id":"o-2"}'),
        ("v1.2.3", "v1.2.4"),
        ("x" * 20_000 + "a", "x" * 20_000 + "b"),
    ],
)
def test_other_digits_stay(one, other):
    assert evaluated(one).digest != evaluated(other).digest


def test_a_tools_volatile_fields_are_dropped_at_any_depth():
    traits = ToolTraits(volatile_result_fields=("took", "cursor"))
    one = json.dumps({"rows": [1], "took": 3, "page": {"cursor": "a"}})
    other = json.dumps({"page": {"cursor": "b"}, "took": 9, "rows": [1]})

    assert evaluated(one, traits=traits).digest == evaluated(other, traits=traits).digest
    assert evaluated(one).digest != evaluated(other).digest


def test_an_error_is_the_same_for_another_argument():
    one = evaluated("denied for ann", True, arguments={"to": "ann"})
    other = evaluated("denied for bob", True, arguments={"to": "bob"})

    assert one.error_digest == other.error_digest
    assert one.digest == other.digest


def test_codes_stay_in_an_error_even_when_an_argument_looks_like_one():
    one = evaluated("401 unauthorised", True, arguments={"q": "what is 401"})
    other = evaluated("403 unauthorised", True, arguments={"q": "what is 403"})

    assert one.error_digest != other.error_digest


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        " \n",
        "[]",
        "null",
        "<returncode>0</returncode>\n<output>\n</output>",
        '{"exit_code": 0, "output": ""}',
        "exit code: 1",
    ],
)
def test_an_empty_answer_is_no_evidence_whatever_it_is_wrapped_in(content):
    assert evaluated(content).status == "m"
    assert not evaluated(content).is_evidence


@pytest.mark.parametrize("content", ["ok", "Done.", "SUCCESS", "true", "committed"])
def test_a_bare_acknowledgement_is_no_evidence(content):
    assert evaluated(content).status == "o"
    assert not evaluated(content).is_evidence


@pytest.mark.parametrize("content", ["0 hits", "ok 3", '{"exit_code": 0, "output": "x"}', "<b>bold</b>", "7"])
def test_a_short_answer_with_something_in_it_is_evidence(content):
    assert evaluated(content).is_evidence


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ("Error: no such file", "e"),
        ("Traceback (most recent call last):", "e"),
        ("ValueError: x", "e"),
        ("no errors found", "o"),
    ],
)
def test_without_the_clients_word_a_text_that_begins_like_an_error_is_one(content, status):
    assert evaluated(content, None).status == status


def test_the_clients_word_wins_where_a_text_may_well_begin_like_an_error():
    assert evaluated("Error: it says", False, shipped_traits("read_file")).status == "o"
    assert evaluated("ImportError: it says", False, shipped_traits("read_file")).status == "o"
    assert evaluated("Error: it says", False, shipped_traits("bash")).status == "o"
    assert evaluated("all is well", True).status == "e"


@pytest.mark.parametrize(
    ("tool", "content"),
    [
        ("edit_file", "Error: old text not found"),
        ("edit_file", '{"success": false, "hint": "read the file again"}'),
        ("create_item", '{"ok": false}'),
        ("create_item", '{"status": "error", "message": "invalid id"}'),
        ("create_item", '{"result": null, "error": "content is required"}'),
        ("create_item", '{"error": {"code": 7, "message": "invalid id"}}'),
        ("read_page", "MCP error -32602: Invalid params"),
        ("read_page", "Permission denied: read_page is not allowed in this mode"),
        ("ReadLS", "Unknown tool name: 'ReadLS'"),
        ("process", "No session found for 2321"),
        ("bash", "ImportError: cannot import name 'V' from 'validators'"),
    ],
)
@pytest.mark.parametrize("is_error", [None, False])
def test_a_failure_without_a_flag_is_an_error(tool, content, is_error):
    assert evaluated(content, is_error, shipped_traits(tool)).status == "e"


@pytest.mark.parametrize(
    ("tool", "content"),
    [
        ("create_item", '{"success": true, "error": null}'),
        ("create_item", '{"error": "", "rows": []}'),
        ("lint", '{"errors": [{"line": 3}], "warnings": []}'),
        ("run_tests", '{"status": "failed over", "node": 2}'),
        ("get_country", '{"code": 404, "name": "Narnia"}'),
        ("read_file", "ValueError: is what the log says"),
        ("search", "No results found"),
    ],
)
def test_an_answer_about_errors_is_none(tool, content):
    assert evaluated(content, False, shipped_traits(tool)).status != "e"


def test_damaged_json_is_text():
    assert normalise('{"a": 1, "request_id"') == '{"a": 1, "request_id"'


def test_objects_become_compact_text():
    assert as_text({"a": [1]}) == '{"a":[1]}'
    assert as_text("x") == "x"
    assert as_text(None) is None


@pytest.mark.parametrize(
    "content",
    [
        "false", "36.0", "[(0,)]", '{"available": false}', "count = 12", "80 %", '{"state": "off"}',
        '{"condition": "cloudy", "celsius": 7}',
    ],
)  # fmt: skip
def test_a_bare_number_or_boolean_and_a_few_short_values_are_values(content):
    assert evaluated(content).is_value


@pytest.mark.parametrize(
    "content",
    [
        "clean", "nothing new", "3 failed", '{"a": 1, "b": 2, "c": 3, "d": 4}', '{"answer": "all of it"}', "v1.2.3", "",
    ],
)  # fmt: skip
def test_words_and_records_are_no_values(content):
    assert not evaluated(content).is_value


@pytest.mark.parametrize(
    "content", ["[image]", "<image>", "[Image: 1280x720 png]", "Screenshot saved to /tmp/p.png"]
)
def test_the_stand_in_for_a_picture_is_no_evidence(content):
    assert evaluated(content).is_picture
    assert not evaluated(content).is_evidence


@pytest.mark.parametrize("content", ["image not found", "[image] and a text", "Screenshot failed"])
def test_a_text_about_a_picture_is_none(content):
    assert not evaluated(content).is_picture


def test_an_error_about_another_path_is_the_same():
    def cause(path):
        return evaluated(f"no such file, open '{path}'", True, arguments={"path": path}).error_digest

    assert cause("/srv/app/conf.yml") == cause("notes.txt") == cause("/opt/my-app/etc/main.yml")


_WORDS = re.findall(r"[a-z]+|\d+", " ".join(pattern.pattern for *_, pattern in provider_trouble._REPORTS))
_REFUSALS = re.findall(r"[a-z']+", answers._DECLINED.pattern)


@example(["disk", "quota"])
@given(st.lists(st.sampled_from([*_WORDS, " ", "-", ": ", "ſ", "3", "ed", "s"]), max_size=8))
def test_trouble_is_recognised_with_and_without_the_fast_check(pieces):
    text = "".join(pieces).upper() if len(pieces) % 2 else "".join(pieces)
    slow = (
        (limit, trouble)
        for trouble, limit, _, pattern in provider_trouble._REPORTS
        if pattern.search(text, 0, 400)
    )
    assert provider_trouble.limit_and_trouble(text) == next(slow, ("", ""))


@given(st.lists(st.sampled_from([*_REFUSALS, " ", "'", '"', ": ", "ſ", "done"]), max_size=8))
def test_a_declined_write_is_recognised_with_and_without_the_fast_check(pieces):
    text = "".join(pieces).upper() if len(pieces) % 2 else "".join(pieces)
    slow = answers._DECLINED.search(text, 0, 400) is not None and answers._DONE.match(text) is None
    assert answers.is_declined(text) == slow


_PIECES_OF_TIMES = [
    "0", "1", "12", "30", "2026", "1763766000", "T", "Z", "s", "ms", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s", "ns", "m", "h",
    "w", "secs", "minutes", "ago", "0x", "x", "ab", "pm", "\u0665", "\xe9", *"/-:., +",
]  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES_OF_TIMES), max_size=12))
def test_times_are_masked_with_and_without_the_fast_checks(pieces):
    text = "".join(pieces)
    check = "(?=\\d{9}|\\d*+(?:[-/:.]\\d| ?[smhdwyunµ]|x))"
    kinds = text.encode().translate(masking._KINDS)
    for forms, plain in ((masking._VOLATILE_FORMS, True), (masking._FORMS, False)):
        assert check in forms
        slow = re.compile(forms.replace(check, ""))
        assert masking._without_times(text, kinds, plain=plain) == slow.sub("~", text)


@given(
    st.lists(
        st.sampled_from(
            ["req", "uest", "ID", "ıd", "trace", "\u017fpan", "p", "g", "id", "req_", "7", "é", *" _-:=\n"]
        ),
        max_size=12,
    )
)
def test_labelled_ids_are_the_plain_ones(pieces):
    text = "".join(pieces)
    plain = r"(?i)\b((?:request|req|trace|span|correlation|process)[ _-]?id|pg?id)(\W{1,4})(?=\w*\d)[\w-]+"
    assert masking._LABELLED_ID.sub(r"\1\2~", text) == re.sub(plain, r"\1\2~", text)
    assert masking._END_OF_LABEL.search(lower(text)) or not re.search(plain, text)


@given(
    st.lists(
        st.sampled_from(["id", "ID", "\u0130d", "ref", "erence", "user_", "7", "ab", *' "_-:=#\n']),
        max_size=12,
    )
)
def test_named_ids_are_the_plain_ones(pieces):
    text = "".join(pieces)
    plain = (
        r'(?i)((?:"\w{0,40}(?:id|ref|reference|number|hash|sha|token|url|link|etag|cursor)"\s{0,3}:'
        r'|\b(?:id|ref|reference)\b[:=#]?)[ #]{0,3})("[^"]{0,400}"|(?<=[ #:=])[\w-]+)'
    )
    assert answers._NAMED_IDS.sub(r"\1~", text) == re.sub(plain, r"\1~", text)


@given(st.text("ab1~#$\u20ac .:,/-_\u00e9\u0663\n", max_size=20))
def test_figures_of_a_receipt_are_masked_from_their_first_digit_as_a_whole(text):
    assert answers.receipt_of(text) == answers._FIGURES.sub("~", text)


@given(
    st.lists(st.sampled_from(["id", "ID", "deadbee", "7", "12345678", "f", "x", *" _-:=#\n"]), max_size=12)
)
def test_hashes_are_masked_with_and_without_the_fast_check(pieces):
    text = "".join(pieces)
    assert answers.without_hashes(text) == answers._HASHES.sub("~", text)


@given(st.text("1: lineLINEcolumnchartposk\u017f\u212a=", max_size=40))
def test_positions_are_the_plain_ones(text):
    plain = r"(?i)\b(?:lines?|columns?|col|char|character|position|offset)[ :=]{0,2}\d+|:\d+:\d+"
    assert masking._POSITION.sub("~", text) == re.sub(plain, "~", text)


@given(
    st.lists(st.sampled_from(["", "a", "word", "é", "\N{THAI CHARACTER SARA A}", "."]), max_size=8), st.data()
)
def test_all_white_space_between_words_counts_as_one_space(words, data):
    gaps = st.text(st.sampled_from(" \t\n\r\x0b\x0c\x1c\x85\xa0\u2028\u3000"), min_size=1, max_size=3)
    text = "".join(data.draw(gaps) + word for word in words) + data.draw(st.just("") | gaps)
    assert normalise(text) == " ".join(word for word in words if word)
