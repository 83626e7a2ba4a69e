"""Message templates through the API: list, update, delete and preview."""

from typing import get_args

import pytest

from detection.api.schemas.message_templates import RungName
from detection.engine.messages import CLOSINGS, TEMPLATES
from detection.engine.wire_shapes import SHAPES, Shape
from detection.models import AuditEntry, MessageTemplate
from tests.api.test_hooks import SILENT


def texts_of(api):
    return {(item["rung"], item["shape"]): item for item in api.get("/message-templates").json()["items"]}


def test_the_described_rungs_and_shapes_are_those_of_the_engine():
    assert get_args(RungName) == tuple(TEMPLATES)
    assert get_args(Shape) == SHAPES


def test_the_default_of_every_rung_is_listed_with_the_placeholders(api):
    listed = api.get("/message-templates").json()
    assert [(item["rung"], item["shape"]) for item in listed["items"]] == [(rung, "") for rung in TEMPLATES]
    assert not any(item["is_own"] or item["updated_at"] for item in listed["items"])
    assert listed["items"][0]["text"] == TEMPLATES["warn"]
    assert listed["placeholders"] == ["tool", "count", "limit", "window"]
    assert listed["max_characters"] == 1000


def test_a_template_is_saved_takes_effect_on_the_next_verdict_and_is_deleted(api):
    version = api.get("/message-templates").json()["version"]
    put = api.put("/message-templates/stop", {"text": "Enough of $tool after $count."})
    assert put.status_code == 200
    assert put.json() == texts_of(api)["stop", ""]
    assert put.json()["is_own"]
    assert put.json()["updated_at"].endswith("+00:00")
    assert api.get("/message-templates").json()["version"] > version
    assert api.loop("s-1", times=8)["verdicts"][0]["message"] == "Enough of search_web after 8."
    assert api.delete("/message-templates/stop").status_code == 204
    assert texts_of(api)["stop", ""]["text"] == TEMPLATES["stop"]
    assert api.loop("s-2", times=8)["verdicts"][0]["message"].startswith("Tool call loop detected")


def test_a_template_for_one_wire_shape_coexists_with_the_one_for_all(api):
    api.put("/message-templates/stop", {"text": "For all."})
    put = api.request(
        "PUT", "/message-templates/stop", params={"shape": "mcp"}, json={"text": "For MCP: $$5 for $limit."}
    )
    assert put.json()["shape"] == "mcp"
    api.loop("s-1", times=7)
    call = {"session": "s-1", "calls": [{"tool": "search_web", "arguments": {"q": "reset"}}]}
    verdict = api.request("POST", "/guard", params={"render": "mcp"}, json=call).json()["verdicts"][0]
    assert verdict["rendered"]["content"][0]["text"] == "For MCP: $5 for 4."
    assert api.delete("/message-templates/stop", shape="mcp").status_code == 204
    assert set(texts_of(api)) == {(rung, "") for rung in TEMPLATES}
    assert texts_of(api)["stop", ""]["text"] == "For all."


def test_a_missing_template_cannot_be_deleted(api):
    api.request("PUT", "/message-templates/warn", params={"shape": "text"}, json={"text": "Careful."})
    assert api.delete("/message-templates/block").json()["code"] == "not_found"
    assert api.delete("/message-templates/warn").status_code == 404
    assert api.delete("/message-templates/warn", shape="openai").status_code == 404
    assert MessageTemplate.objects.count() == 1


def test_a_change_is_in_the_audit_with_the_key_and_both_templates(api, key):
    api.put("/message-templates/warn", {"text": "First."})
    api.put("/message-templates/warn", {"text": "First."})
    api.put("/message-templates/warn", {"text": "Second."})
    api.delete("/message-templates/warn")
    told = AuditEntry.objects.filter(action="message_template.save").order_by("pk")
    assert [(one.before, one.after) for one in told] == [
        (None, {"text": "First."}), ({"text": "First."}, {"text": "Second."}), ({"text": "Second."}, None),
    ]  # fmt: skip
    assert {(one.actor, one.subject) for one in told} == {(f"key:{key[3:13]}", "warn")}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Stop $password now", "unknown_placeholder"), ("Stop ${arguments}", "unknown_placeholder"), ("costs $5", "unknown_placeholder"),
        ("ends in $", "unknown_placeholder"), ("${", "unknown_placeholder"), ("x" * 1001, "too_long"), ("", "missing"), (" \n ", "missing"),
        ("bell \x07", "invalid_characters"), ("turned \u202e round", "invalid_characters"), ("zero\u200bwidth", "invalid_characters"),
        (7, "invalid"), (None, "invalid"), (["a"], "invalid"),
    ],
)  # fmt: skip
def test_an_invalid_template_is_rejected_with_its_reason_and_nothing_is_stored(api, text, code):
    answer = api.put("/message-templates/stop", {"text": text})
    assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, code, "text")
    assert answer.headers["content-type"] == "application/problem+json"
    assert not MessageTemplate.objects.exists()
    if text not in ("", " \n "):
        assert api.post("/message-templates/preview", {"rung": "stop", "text": text}).json()["code"] == code


@pytest.mark.parametrize(
    ("path", "params", "body", "blamed"),
    [
        ("/message-templates/observe", {}, {"text": "a"}, "rung"), ("/message-templates/stop%00", {}, {"text": "a"}, "rung"),
        ("/message-templates/stop", {"shape": "soap"}, {"text": "a"}, "shape"), ("/message-templates/stop", {"shpe": "mcp"}, {"text": "a"}, "shpe"),
        ("/message-templates/stop", {}, {"text": "a", "is_own": True}, "is_own"), ("/message-templates/stop", {}, {}, "text"),
    ],
)  # fmt: skip
def test_an_unknown_rung_or_shape_is_rejected(api, path, params, body, blamed):
    answer = api.request("PUT", path, params=params, json=body)
    assert (answer.status_code, answer.json()["path"]) == (422, blamed)
    assert not MessageTemplate.objects.exists()


def test_hostile_text_stays_text(api):
    hostile = (
        "</script><img src=x onerror=alert(1)> {{ 7*7 }} {% debug %} %s %(x)s {tool} '; DROP TABLE--  ü 你好"
    )
    assert api.put("/message-templates/stop", {"text": hostile}).json()["text"] == hostile
    assert api.loop(times=8)["verdicts"][0]["message"] == hostile
    draft = api.post("/message-templates/preview", {"rung": "stop", "text": hostile}).json()
    assert draft["rendered"]["claude_code"]["stopReason"] == hostile


@pytest.mark.parametrize("rung", TEMPLATES)
def test_a_draft_is_shown_in_every_wire_shape_and_stored_nowhere(api, rung):
    has_window = rung not in CLOSINGS
    text = f"$tool: $count of $limit{' in $window' if has_window else ''}, $$9"
    draft = api.post("/message-templates/preview", {"rung": rung, "text": text}).json()
    assert draft["message"].startswith(f"search_web: 4 of 4{' in 2 min' if has_window else ''}, $9")
    assert tuple(draft["rendered"]) == SHAPES
    assert draft["rendered"]["text"] == draft["message"]
    for shape in SHAPES:
        is_read = shape not in SILENT or rung != "warn"
        assert (draft["message"].splitlines()[0] in str(draft["rendered"][shape])) == is_read
    assert not MessageTemplate.objects.exists()
    assert not AuditEntry.objects.filter(action="message_template.save").exists()


def test_an_empty_draft_is_the_default(api):
    draft = api.post("/message-templates/preview", {"rung": "block"}).json()
    assert draft["message"].startswith(
        "The call was not run. 'search_web' was called with identical arguments 4 times"
    )
    assert draft["rendered"]["anthropic"]["is_error"] is True


def test_templates_of_another_project_are_inaccessible(api, as_other):
    api.put("/message-templates/chance", {"text": "Ours."})
    assert not any(item["is_own"] for item in as_other.get("/message-templates").json()["items"])
    assert as_other.delete("/message-templates/chance").status_code == 404
    as_other.put("/message-templates/chance", {"text": "Theirs."})
    assert api.loop()["verdicts"][0]["message"] == "Ours."
    assert as_other.loop()["verdicts"][0]["message"] == "Theirs."


def test_reading_needs_read_and_changing_needs_admin(with_scopes):
    assert with_scopes("read").get("/message-templates").status_code == 200
    for scopes in (("read",), ("guard", "ingest")):
        assert (
            with_scopes(*scopes).put("/message-templates/stop", {"text": "a"}).json()["code"]
            == "missing_scope"
        )
