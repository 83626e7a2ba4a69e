"""The examples of every row of the tables that redaction reads."""

from collections.abc import Callable
from typing import Any

import pytest

from detection.engine import tables
from detection.services.redaction.redaction import Redactor
from detection.services.redaction.secret_names import is_plain_word, key_kind, names_a_name, names_a_value
from detection.services.redaction.service_tokens import mark_of

SERVICES = tables.table("service_tokens")


def read(example):
    """An example of a token as it stands in a text; the sign in it hides it from scanners."""
    return Redactor(b"k" * 32).text(f"before {example.replace('·', '')} after")


@pytest.mark.parametrize("row", SERVICES, ids=[f"{row['service']}-{at}" for at, row in enumerate(SERVICES)])
def test_tokens_of_services_match_their_examples(row):
    mark = f"[redacted:{mark_of(row['service'])}:"
    assert [example for example in row["match"] if mark not in read(example)] == []
    assert [example for example in row["no_match"] if mark in read(example)] == []


@pytest.mark.parametrize("row", [row for row in SERVICES if "beside" in row])
def test_a_value_is_a_token_beside_each_name_of_its_service_and_beside_no_other(row):
    value = row["match"][0].partition("=")[2]
    for word in row["beside"]:
        assert value.replace("·", "") not in read(f"{word.upper()}_X: '{value}'")
        assert value.replace("·", "") in read(f"checked {value}")


READ: dict[str, Callable[[str], Any]] = {
    "harmless": lambda name: not key_kind(name),
    "behind": key_kind,
    "letter": key_kind,
    "plain": is_plain_word,
    "named": names_a_name,
    "valued": names_a_value,
}


@pytest.mark.parametrize("row", tables.table("secret_names"))
def test_names_of_secrets_match_their_examples(row):
    kind = row["kind"]
    is_one = READ.get(kind, lambda name: key_kind(name) == kind)
    assert [name for name in row["match"] if not is_one(name)] == []
    assert [name for name in row["no_match"] if is_one(name)] == []


@pytest.mark.parametrize("row", tables.table("ibans"))
def test_numbers_of_accounts_match_their_examples(row):
    assert [number for number in row["match"] if "[redacted:iban:" not in read(number)] == []
    assert [number for number in row["no_match"] if "[redacted:iban:" in read(number)] == []


@pytest.mark.parametrize("beginning", ["ghp_", "gho_", "glpat-"])
def test_behind_a_telling_beginning_few_characters_are_enough_and_one_is_a_placeholder(beginning):
    assert beginning not in read(beginning + "a1B2" * 9)
    assert beginning in read(beginning + "x" * 36)
