import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.services.ingestion.redaction import Redactor, is_sensitive

SECRETS = [
    "Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123",
    "Basic dXNlcjpwYXNzd29yZA==",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4",
    "github_pat_" + "11ABCDEFG0aBcDeFgHiJkL",
    "glpat-" + "abcdefghij0123456789",
    "sk-" + "proj-abcdefghijklmnopqrst",
    "xoxb-" + "123456789012-abcdefghij",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi-" + "AgEIcHlwaS5vcmcCJGFiY2RlZmdoaWprbG1ub3A",
    "sk_live_" + "abcdefghijklmnop1234",
    "hf_" + "abcdefghijklmnopqrstuvwxyz012345",
    "lg_0123456789_" + "ab" * 36,
    "postgres://ann:s3cr3tpass@db.internal/app",
    "4111 1111 1111 1111",
    "password=correcthorse",
    "api_key: abcd1234efgh",
    "DB_PASSWORD=abcd1234",
    "export CLIENT_SECRET='abcd-1234'",
    "Set-Cookie: sid=abcdef123456",
    "connection_string=Server=x;Pwd=abcd",
    '{"auth": {"refresh_token": "abcd1234"}}',
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_of_many_kinds_are_replaced(text):
    cleaned = Redactor(b"k" * 32).content(f"before {text} after" if not text.startswith("{") else text)
    assert "[redacted:" in cleaned


@pytest.mark.parametrize("text", SECRETS)
def test_redacting_twice_is_redacting_once(text):
    redactor = Redactor(b"k" * 32)
    assert redactor.content(redactor.content(text)) == redactor.content(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"next_page_token": "CAUQAA"}',
        '{"max_tokens": 500}',
        "the secretary ate a cookie",
        "commit 0123456789012345678901234567890123456789",
        "see https://example.org/a/b?c=d",
        "order 1234567890123",
        "TypeError: token expected",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert Redactor(b"k" * 32).content(text) == text


def test_nested_json_inside_a_string_is_looked_into():
    inner = json.dumps({"password": "hunter2hunter2"})
    cleaned = Redactor(b"k" * 32).arguments(json.dumps({"body": inner}))
    assert "hunter2" not in cleaned


def test_marks_are_keyed_equal_for_equal_secrets_and_different_for_different_ones():
    one, other = Redactor(b"a" * 32), Redactor(b"b" * 32)
    assert one.text("password=abcd1234") == one.text("password=abcd1234")
    assert one.text("password=abcd1234") != one.text("password=abcd1235")
    assert one.text("password=abcd1234") != other.text("password=abcd1234")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("userPassword", True),
        ("api-key", True),
        ("X-Api-Key", True),
        ("passwords", True),
        ("tokenizer", False),
        ("pageToken", False),
    ],
)
def test_field_names_are_read_as_people_spell_them(name, expected):
    assert is_sensitive(name) is expected


@given(st.text(max_size=300))
def test_any_text_comes_through_without_an_error(text):
    Redactor(b"k" * 32).content(text)
    Redactor(b"k" * 32).content(json.dumps({"a": text}))


def test_everything_below_a_sensitive_name_is_a_secret():
    cleaned = Redactor(b"k" * 32).arguments(
        '{"credentials": {"user": "ann-smith", "parts": ["abcd1234"]}, "page": 2}'
    )
    assert "ann-smith" not in cleaned
    assert "abcd1234" not in cleaned
    assert json.loads(cleaned)["page"] == 2
