import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from detection.services.redaction import named_values, redaction
from detection.services.redaction.redaction import Redactor, normalized_name
from detection.services.redaction.secret_names import key_kind
from detection.services.redaction.secret_rules import RULES
from tests.services.redaction.secret_corpus import WITH_SECRET, WITHOUT_SECRET, encoded, halves

KEY = b"k" * 32


@pytest.mark.promise("SEC-17")
def test_every_secret_of_the_corpus_is_replaced_and_stays_so_when_redacted_again():
    readable, changing = [], []
    for marked in WITH_SECRET:
        text, secret = halves(marked)
        cleaned = Redactor(KEY).content(f"before\n{text}\nafter" if text[:1] not in "{[" else text)
        if secret in cleaned or "[redacted:" not in cleaned:
            readable.append(text)
        if Redactor(KEY).content(cleaned) != cleaned:
            changing.append(text)
    assert readable == []
    assert changing == []


def test_ordinary_text_is_left_alone():
    assert [text for text in WITHOUT_SECRET if Redactor(KEY).content(text) != text] == []


def test_every_rule_has_a_text_in_the_corpus_and_a_mark_with_its_name():
    marks = {
        part.partition(":")[0]
        for marked in WITH_SECRET
        for part in Redactor(KEY).content(halves(marked)[0]).split("[redacted:")[1:]
    }
    tokens = {"service-token": "twilio-token", "service-value": "heroku-token"}
    assert marks >= {tokens.get(rule.name, rule.name) for rule in RULES} | {"seed-phrase", "field", "base64"}


@settings(deadline=None)
@given(st.text(max_size=60), st.sampled_from(WITH_SECRET), st.text(max_size=60))
def test_a_secret_is_found_on_a_line_of_any_text(before, marked, after):
    text, secret = halves(marked)
    assume(text[:1] not in "{[" and secret not in before + after)
    assert secret not in Redactor(KEY).content(f"{before}\n{text}\n{after}")


def test_a_large_binary_text_does_not_hide_a_secret():
    noise = "".join(chr(0x100 + at * 7919 % 0xD000) for at in range(300_000))
    assert "hunter2" not in Redactor(KEY).content(f"{noise}\nPGPASSWORD=hunter2\n{noise}")


def test_nested_json_inside_a_string_is_looked_into():
    inner = json.dumps({"password": "hunter2hunter2"})
    cleaned = Redactor(KEY).content(json.dumps({"body": inner}))
    assert "hunter2" not in cleaned


def test_marks_are_keyed_equal_for_equal_secrets_and_different_for_different_ones():
    one, other = Redactor(b"a" * 32), Redactor(b"b" * 32)
    assert one.text("password=abcd1234") == one.text("password=abcd1234")
    assert one.text("password=abcd1234") != one.text("password=abcd1235")
    assert one.text("password=abcd1234") != other.text("password=abcd1234")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("userPassword", "phrase"),
        ("PGPASSWORD", "phrase"),
        ("api-key", "secret"),
        ("X-Api-Key", "secret"),
        ("passwords", "phrase"),
        ("auth", "weak"),
        ("tokenizer", ""),
        ("pageToken", ""),
        ("max_tokens", ""),
    ],
)
def test_field_names_are_read_as_people_spell_them(name, expected):
    assert key_kind(name) == expected


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_comes_through_without_an_error(text):
    redactor = Redactor(KEY, frozenset({"iban"}), ("EMP-[0-9]{6}",))
    redactor.content(text)
    redactor.content(json.dumps({"a": text}))


def test_everything_below_a_sensitive_name_is_a_secret():
    cleaned = Redactor(KEY).content(
        '{"credentials": {"user": "ann-smith", "parts": ["abcd1234"]}, "page": 2}'
    )
    assert "ann-smith" not in cleaned
    assert "abcd1234" not in cleaned
    assert json.loads(cleaned)["page"] == 2


@pytest.mark.promise("SEC-18")
def test_names_and_patterns_of_a_project_are_redacted_as_well():
    redactor = Redactor(KEY, frozenset({normalized_name("customerEmail")}), ("EMP-[0-9]{6}",))
    cleaned = redactor.content('{"customer_email": "a@b.example", "note": "asked by EMP-123456"}')
    assert "a@b.example" not in cleaned
    assert "[redacted:field:" in cleaned
    assert "asked by [redacted:pattern:" in cleaned
    assert "EMP-123456" not in redactor.text("customerEmail=x asked by EMP-123456")


def test_a_long_value_is_replaced_to_its_end():
    value = "aB3" * 400
    redactor = Redactor(KEY, frozenset({normalized_name("customerEmail")}))
    for text in (
        f"password={value}",
        f"--token {value}",
        f"name: API_KEY\nvalue: {value}",
        f"customerEmail={value}",
    ):
        cleaned = redactor.text(f"{text} and on")
        assert "aB3" not in cleaned
        assert cleaned.endswith("] and on")


@pytest.mark.parametrize(
    "part", ["password=", "password=$a", "value=name=token", "/--token=a", "customerEmail="]
)
def test_a_text_that_is_one_value_behind_many_names_is_read_a_bounded_number_of_times(part, monkeypatch):
    read: list[int] = []
    for module, name in ((named_values, "_VALUE"), (named_values, "_REST"), (redaction, "_FIELD_VALUE")):
        monkeypatch.setattr(module, name, Counted(getattr(module, name), read))
    text = part * 2_000
    Redactor(KEY, frozenset({normalized_name("customerEmail")})).text(text)
    assert read
    assert sum(read) < 600 * 2 * 2_000


class Counted:
    """A pattern that notes how many characters it matched."""

    def __init__(self, pattern, read):
        self.pattern, self.read = pattern, read

    def match(self, *given):
        found = self.pattern.match(*given)
        self.read.append(len(found[0]) if found else 0)
        return found


def test_base64_is_decoded_only_once():
    twice = encoded(encoded("password=hunter2hunter2"))
    assert Redactor(KEY).content(twice) == twice
