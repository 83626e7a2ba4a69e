"""Secrets do not come through any door of the API: as values, as names of what reports them, or as names of fields."""

import json

import pytest

from detection.models import Event
from tests.services.redaction.secret_corpus import HEX32, WITH_SECRET, WITHOUT_SECRET, halves

NAMES = (
    "password2", "pwd1", "passwd_old", "token2", "ssh_key", "pw", "passwort", "Kennwort", "contraseña", "mot_de_passe",
    "senha", "пароль", "密码", "ｐａｓｓｗｏｒｄ", "pass\u200bword", "pаsswоrd",
)  # fmt: skip
"""The last two: with a character that does not show, and with two letters of Russian."""


def call(arguments, number=1, **about):
    return {
        "type": "call",
        "session": "s",
        "call_id": f"c{number}",
        "tool": "t",
        "arguments": arguments,
    } | about


def result(content, number=1, **about):
    return {"type": "result", "session": "s", "call_id": f"c{number}", "content": content} | about


def stored_texts():
    """All that is stored of events, without what the database adds."""
    return json.dumps([*Event.objects.order_by("seq").values()], default=str, ensure_ascii=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_beside_its_name_is_redacted_however_the_name_is_written(api, name):
    sent = {
        "events": [
            call({"set": {name: "Zk7-pq9Rx"}}),
            result(f"export {name}=Zk7-pq9Rx\n{name}: 'Zk7-pq9Rx'"),
        ]
    }
    assert api.post("/events", sent).json()["accepted"] == 2
    assert "Zk7-pq9Rx" not in stored_texts()


def test_what_only_resembles_a_name_of_a_secret_stays(api):
    harmless = [text for text in WITHOUT_SECRET if len(text) < 16_000]
    sent = [event for at, text in enumerate(harmless) for event in (call({"q": text}, at), result(text, at))]
    assert api.post("/events", {"events": sent}).json()["accepted"] == len(sent)
    assert "[redacted:" not in stored_texts()


def test_no_secret_of_the_corpus_is_stored(api):
    texts = [halves(text) for text in WITH_SECRET]
    sent = [event for at, (text, _) in enumerate(texts) for event in (call({"q": at}, at), result(text, at))]
    assert api.post("/events", {"events": sent}).json()["accepted"] == len(sent)
    contents = dict(Event.objects.filter(type="result").values_list("call_id", "content"))
    assert [text for at, (text, secret) in enumerate(texts) if secret in contents[f"c{at}"]] == []


def test_a_token_of_a_service_is_redacted_without_a_name_and_a_digest_is_not(api):
    token, digest = "SK" + HEX32, f"sha256:{HEX32}{HEX32}"
    api.post("/events", {"events": [call({"q": 1}), result(f"use {token} for {digest}")]})
    assert token not in stored_texts()
    assert "[redacted:twilio-token:" in stored_texts()
    assert digest in stored_texts()
