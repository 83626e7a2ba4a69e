"""The stored tiers, the tool rules, and what holds."""

import pytest

from detection.models import AuditEntry, PolicyTier


def test_a_tier_is_put_read_listed_and_removed(api):
    PolicyTier.objects.create(scope="server", values={"max_repeats": 8})
    put = api.put("/overrides/openai/gpt-5", {"values": {"max_repeats": 6}, "note": "slow tools"}).json()
    assert (put["scope"], put["backend"], put["model"], put["source"]) == (
        "model",
        "openai",
        "gpt-5",
        "model:openai/gpt-5",
    )
    api.put("/overrides/openai", {"mode": "warn"})
    api.put("/overrides", {"values": {"ttl_seconds": 60}})
    listed = api.get("/overrides").json()["items"]
    assert [tier["scope"] for tier in listed] == ["server", "project", "backend", "model"]
    assert api.get("/overrides/openai").json()["values"] == {"mode": "warn"}
    assert api.get("/overrides/openai/gpt-5").json()["note"] == "slow tools"
    assert api.delete("/overrides/openai/gpt-5").status_code == 204
    assert api.get("/overrides/openai/gpt-5").status_code == 404
    assert api.delete("/overrides/openai/gpt-5").status_code == 404
    assert api.delete("/overrides").status_code == 204
    assert PolicyTier.objects.get(scope="server").values == {"max_repeats": 8}


def test_a_stored_tier_changes_the_next_verdict(api):
    for _ in range(3):
        api.call(backend="openai", model="gpt-5")
    api.put("/overrides/openai/gpt-5", {"values": {"max_repeats": 6}})
    verdict = api.call(backend="openai", model="gpt-5").json()["verdicts"][0]
    assert verdict["decision"] == "allow"
    assert verdict["policy"]["max_repeats"] == {"value": 6, "source": "model:openai/gpt-5"}


@pytest.mark.parametrize("model", ["meta-llama/Llama-3", "a/b/c", "mod el", "ü"])
def test_models_with_slashes_work_percent_encoded(api, model):
    from urllib.parse import quote

    path = f"/overrides/open%20router/{quote(model, safe='')}"
    assert api.put(path, {"values": {"max_repeats": 6}}).json()["model"] == model
    assert api.get(path).json()["model"] == model
    policy = api.get("/policy", backend="open router", model=model).json()["policy"]
    assert policy["max_repeats"] == {"value": 6, "source": f"model:open router/{model}"}
    assert api.delete(path).status_code == 204


def test_a_backend_with_a_slash_is_named_in_the_query(api):
    answer = api.request(
        "PUT", "/overrides", params={"backend": "a/b", "model": "m"}, json={"values": {"max_repeats": 6}}
    )
    assert (answer.json()["backend"], answer.json()["scope"]) == ("a/b", "model")
    assert [tier["backend"] for tier in api.get("/overrides", backend="a/b").json()["items"]] == ["a/b"]
    assert api.delete("/overrides", backend="a/b", model="m").status_code == 204
    assert (
        api.request("PUT", "/overrides", params={"model": "m"}, json={"values": {}}).json()["path"]
        == "backend"
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"values": {"max_repeats": 1}}, "values"), ({"values": {"nope": 1}}, "values"), ({"values": []}, "values"),
        ({"values": {}, "is_staff": True}, "is_staff"), ({"values": {}, "note": "x" * 301}, "note"), ({"nope": 1}, "values"),
        ({"values": {"mode": [{}]}}, "values"), ([], None),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(api, body, path):
    answer = api.put("/overrides/openai", body)
    assert answer.status_code == 422
    assert path is None or answer.json()["path"] == path
    assert not PolicyTier.objects.exists()


def test_an_empty_tier_is_removed(api):
    api.put("/overrides/openai", {"values": {"max_repeats": 6}})
    assert api.put("/overrides/openai", {"values": {}}).json()["values"] == {}
    assert api.get("/overrides").json()["items"] == []


def test_tool_rules_are_put_read_listed_and_removed(api):
    rule = {
        "tool_class": "poll",
        "ignore_arguments": ["nonce"],
        "values": {"max_repeats": 9},
        "note": "asks for a state",
    }
    put = api.put("/tool-rules/mcp__jobs__*", rule).json()
    assert (put["pattern"], put["tool_class"], put["ignore_arguments"]) == ("mcp__jobs__*", "poll", ["nonce"])
    assert api.get("/tool-rules/mcp__jobs__*").json() == put
    assert [item["pattern"] for item in api.get("/tool-rules").json()["items"]] == ["mcp__jobs__*"]
    assert api.put("/tool-rules/x", {"tool_class": "nonsense"}).json()["path"] == "tool_class"
    assert api.put("/tool-rules/x", {"values": {"max_repeats": 1}}).status_code == 422
    assert api.put("/tool-rules/a%2Fb", {"exempt": True}).json()["pattern"] == "a/b"
    held = api.get("/policy", tool="mcp__jobs__state").json()["policy"]["max_repeats"]
    assert held == {"value": 9, "source": "tool:mcp__jobs__*"}
    assert api.delete("/tool-rules/mcp__jobs__*").status_code == 204
    assert api.delete("/tool-rules/mcp__jobs__*").status_code == 404


def test_what_holds_is_told_for_a_session_too(api):
    api.call("a/b", backend="openai", model="gpt-5")
    api.patch("/sessions/a%2Fb/policy", {"max_repeats": 7})
    held = api.get("/policy", session="a/b").json()
    assert (held["backend"], held["model"], held["session"]) == ("openai", "gpt-5", "a/b")
    assert held["policy"]["max_repeats"] == {"value": 7, "source": "session"}
    assert api.get("/policy", session="nobody").status_code == 404
    assert api.get("/policy", sesion="a").json()["code"] == "unknown_parameter"


def told():
    entry = AuditEntry.objects.latest("pk")
    return (entry.after or {}).get("note", "")


def test_a_key_may_loosen_without_a_note_and_the_audit_says_that_none_was_given(api):
    assert api.put("/overrides/openai", {"max_repeats": 9}).json()["note"] == ""
    assert told() == "no note given"
    api.put("/overrides/openai", {"values": {"max_repeats": 12}, "note": "slow tools"})
    assert told() == "slow tools"
    api.put("/overrides/openai", {"max_repeats": 3})
    assert told() == ""
    assert api.delete("/overrides/openai").status_code == 204
    assert told() == "no note given"
    api.put("/tool-rules/x", {"exempt": True})
    assert told() == "no note given"
    assert api.delete("/tool-rules/x").status_code == 204
    assert told() == ""


@pytest.mark.parametrize("path", ["/overrides", "/overrides/openai", "/overrides/openai/m", "/tool-rules/x"])
def test_removing_takes_a_note(api, path):
    api.put(path, {"values": {"max_repeats": 3}})
    refused = api.delete(path, note="x" * 301)
    assert (refused.status_code, refused.json()["path"]) == (422, "note")
    assert api.delete(path, note="a\x00b").json()["path"] == "note"
    assert api.delete(path, note="the index is slow").status_code == 204
    assert told() == "the index is slow"


def test_commands_in_a_chat_loosen_without_a_note(api):
    api.call("s-1")
    answer = api.post("/sessions/s-1/commands", {"text": "!/set(tool-loop-max-repeats=9)"}).json()
    assert answer["policy_values"] == {"max_repeats": 9}
    assert api.patch("/sessions/s-1/policy", {"max_repeats": 12}).status_code == 200
