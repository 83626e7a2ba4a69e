"""Overrides, tool rules and the effective policy."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from detection.models import AuditEntry, Override, ToolOverride


def test_an_override_is_put_read_listed_and_deleted(api):
    Override.objects.create(values={"max_repeats": 8})
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
    assert [override["scope"] for override in listed] == ["server", "project", "backend", "model"]
    assert api.get("/overrides/openai").json()["values"] == {"mode": "warn"}
    assert api.get("/overrides/openai/gpt-5").json()["note"] == "slow tools"
    assert api.delete("/overrides/openai/gpt-5").status_code == 204
    assert api.get("/overrides/openai/gpt-5").status_code == 404
    assert api.delete("/overrides/openai/gpt-5").status_code == 404
    assert api.delete("/overrides").status_code == 204
    assert Override.objects.get(project=None).values == {"max_repeats": 8}


def test_an_override_changes_the_next_verdict(api):
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
    assert [override["backend"] for override in api.get("/overrides", backend="a/b").json()["items"]] == [
        "a/b"
    ]
    assert api.delete("/overrides", backend="a/b", model="m").status_code == 204
    assert (
        api.request("PUT", "/overrides", params={"model": "m"}, json={"values": {}}).json()["path"]
        == "backend"
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"values": {"max_repeats": 1}}, "values.max_repeats"), ({"values": {"nope": 1}}, "values.nope"), ({"values": []}, "values"),
        ({"values": {}, "is_staff": True}, "is_staff"), ({"values": {}, "note": "x" * 301}, "note"), ({"nope": 1}, "nope"),
        ({"values": {"mode": [{}]}}, "values.mode"), ({"values": {"judge_available": True}}, "values.judge_available"), ([], None),
    ],
)  # fmt: skip
def test_settings_that_are_not_allowed_are_rejected(api, body, path):
    answer = api.put("/overrides/openai", body)
    assert answer.status_code == 422
    assert path is None or answer.json()["path"] == path
    assert not Override.objects.exists()


def test_every_wrong_setting_is_named_with_its_path_and_what_is_allowed(api):
    answer = api.put(
        "/overrides/openai",
        {"values": {"ttl_seconds": 0, "mode": "warn", "tool_loop_detection_max_repeats": 1}},
    )
    problem = answer.json()
    assert (problem["code"], problem["path"]) == ("invalid_setting", "values.ttl_seconds")
    assert problem["detail"] == "`ttl_seconds` must be between 1 and 31,536,000."
    assert problem["errors"] == [
        {
            "path": "values.ttl_seconds",
            "code": "invalid_setting",
            "hint": "Must be between 1 and 31,536,000.",
        },
        {"path": "values.max_repeats", "code": "invalid_setting", "hint": "Must be between 2 and 1,000."},
    ]
    assert not Override.objects.exists()


SEED_NAMES = {
    "tool_loop_detection_enabled": ("enabled", False),
    "tool_loop_detection_max_repeats": ("max_repeats", 6),
    "tool_loop_detection_ttl_seconds": ("ttl_seconds", 60),
    "tool_loop_detection_mode": ("mode", "chance_then_break"),
}


def test_the_documented_other_names_are_accepted_wherever_settings_are(api):
    given = {name: value for name, (_, value) in SEED_NAMES.items()} | {"tool_loop_detection_mode": "chance"}
    stored = dict(SEED_NAMES.values())
    assert api.put("/overrides/openai/gpt-5", {"values": given}).json()["values"] == stored
    assert api.put("/tool-rules/x", {"values": given}).json()["values"] == stored
    api.call("s-1")
    api.patch("/sessions/s-1/policy", {"max_repeats": 9})
    assert api.patch("/sessions/s-1/policy", given).json()["policy_values"] == stored
    assert api.patch("/sessions/s-1/policy", dict.fromkeys(given)).json()["policy_values"] == {}


@pytest.mark.parametrize("agent", ["triage", "team/triage", "tri age"])
def test_an_agents_override_applies_between_the_project_and_the_backend(api, agent):
    from urllib.parse import quote

    path = f"/agent-overrides/{quote(agent, safe='')}"
    api.put("/overrides", {"max_repeats": 9, "ttl_seconds": 60, "mode": "warn"})
    put = api.put(path, {"values": {"max_repeats": 6, "mode": "observe"}}).json()
    api.put("/overrides/openai", {"mode": "break"})
    assert (put["scope"], put["agent"], put["backend"], put["source"]) == (
        "agent",
        agent,
        None,
        f"agent:{agent}",
    )
    assert api.get(path).json() == put
    assert [one["scope"] for one in api.get("/overrides").json()["items"]] == ["project", "agent", "backend"]
    assert api.get("/overrides", agent=agent).json()["items"] == [put]
    held = api.get("/policy", agent=agent, backend="openai").json()["policy"]
    assert [
        (held[name]["value"], held[name]["source"]) for name in ("max_repeats", "ttl_seconds", "mode")
    ] == [
        (6, f"agent:{agent}"),
        (60, "project"),
        ("break", "backend:openai"),
    ]
    verdict = api.call("of-agent", agent=agent).json()["verdicts"][0]
    assert verdict["policy"]["max_repeats"] == {"value": 6, "source": f"agent:{agent}"}
    assert api.call("of-another", agent="other").json()["verdicts"][0]["policy"]["max_repeats"]["value"] == 9
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


def test_an_empty_override_is_deleted(api):
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


def test_the_effective_policy_of_a_session(api):
    api.call("a/b", backend="openai", model="gpt-5")
    api.patch("/sessions/a%2Fb/policy", {"max_repeats": 7})
    held = api.get("/policy", session="a/b").json()
    assert (held["backend"], held["model"], held["session"]) == ("openai", "gpt-5", "a/b")
    assert held["policy"]["max_repeats"] == {"value": 7, "source": "session"}
    assert api.get("/policy", session="nobody").status_code == 404
    assert api.get("/policy", sesion="a").json()["code"] == "unknown_parameter"


def audit_note():
    entry = AuditEntry.objects.latest("pk")
    return (entry.after or {}).get("note", "")


def test_a_key_needs_no_reason_and_the_audit_says_that_none_was_given(api):
    assert api.put("/overrides/openai", {"max_repeats": 9}).json()["note"] == ""
    assert audit_note() == "no note given"
    api.put("/overrides/openai", {"values": {"max_repeats": 12}, "note": "slow tools"})
    assert audit_note() == "slow tools"
    api.put("/overrides/openai", {"max_repeats": 3})
    assert audit_note() == ""
    assert api.delete("/overrides/openai").status_code == 204
    assert audit_note() == "no note given"
    api.put("/tool-rules/x", {"exempt": True})
    assert audit_note() == "no note given"
    assert api.delete("/tool-rules/x").status_code == 204
    assert audit_note() == ""


@pytest.mark.parametrize("path", ["/overrides", "/overrides/openai", "/overrides/openai/m", "/tool-rules/x"])
def test_deleting_takes_a_note(api, path):
    api.put(path, {"values": {"max_repeats": 3}})
    refused = api.delete(path, note="x" * 301)
    assert (refused.status_code, refused.json()["path"]) == (422, "note")
    assert api.delete(path, note="a\x00b").json()["path"] == "note"
    assert api.delete(path, note="the index is slow").status_code == 204
    assert audit_note() == "the index is slow"


def test_commands_in_a_chat_need_no_reason(api):
    api.call("s-1")
    answer = api.post("/sessions/s-1/commands", {"text": "!/set(tool-loop-max-repeats=9)"}).json()
    assert answer["policy_values"] == {"max_repeats": 9}
    assert api.patch("/sessions/s-1/policy", {"max_repeats": 12}).status_code == 200


def test_a_change_with_a_version_overwrites_nothing_unseen(api):
    first = api.put("/overrides/openai", {"values": {"max_repeats": 6}}, headers={"If-None-Match": "*"})
    assert first.status_code == 200
    seen = {"If-Match": first.headers["ETag"]}
    compressed = {"If-Match": f'W/"{first.json()["version"]}-gzip"'}  # as a proxy has marked it
    same = api.put("/overrides/openai", {"values": {"max_repeats": 6}}, headers=compressed)
    assert (same.status_code, same.headers["ETag"]) == (200, first.headers["ETag"])
    assert (
        first.headers["ETag"]
        == f'"{first.json()["version"]}"'
        == api.get("/overrides/openai").headers["ETag"]
    )
    second = api.put("/overrides/openai", {"values": {"max_repeats": 7}}, headers=seen)
    assert second.status_code == 200
    for refused in (
        api.put("/overrides/openai", {"values": {"max_repeats": 8}}, headers=seen),
        api.put("/overrides/openai", {"values": {"max_repeats": 8}}, headers={"If-None-Match": "*"}),
        api.request("DELETE", "/overrides/openai", headers=seen),
    ):
        assert (refused.status_code, refused.json()["code"]) == (412, "changed_meanwhile")
        assert refused.headers["ETag"] == second.headers["ETag"]
    assert api.get("/overrides").json()["items"][0]["values"] == {"max_repeats": 7}
    for wrong in ({"If-Match": "7"}, {"If-None-Match": '"a"'}, {"If-Match": '"a"', "If-None-Match": "*"}):
        assert api.put("/overrides/openai", {"max_repeats": 9}, headers=wrong).status_code == 422
    assert (
        api.request("DELETE", "/overrides/openai", headers={"If-Match": second.headers["ETag"]}).status_code
        == 204
    )
    rule = api.put("/tool-rules/get_*", {"tool_class": "poll"})
    assert (
        api.put("/tool-rules/get_*", {"exempt": True}, headers={"If-Match": rule.headers["ETag"]}).status_code
        == 200
    )
    assert (
        api.request("DELETE", "/tool-rules/get_*", headers={"If-Match": rule.headers["ETag"]}).status_code
        == 412
    )
    project = api.get("/project").headers["ETag"]
    assert api.patch("/project", {"name": "Mine"}, headers={"If-Match": project}).status_code == 200
    assert api.patch("/project", {"name": "Other"}, headers={"If-Match": project}).status_code == 412


def test_prices_backends_destinations_and_routes_have_a_version_too(api):
    url = settings.GATEWAY_UPSTREAMS[0]
    price = {"model": "gpt-5", "input_usd": 1, "output_usd": 2}
    backend = {"name": "b-two", "kind": "openai", "base_url": url}
    slack = {
        "name": "chat",
        "kind": "apprise",
        "address": "slack://AAAAAAAAA/BBBBBBBBB/cccccccccccccccccccccccc",
    }
    chat = api.post("/alerts/destinations", slack)
    route = {"name": "night", "destinations": [chat.json()["id"]]}

    def put_price(path, **more):
        return api.put("/prices", {**price, "output_usd": 9}, **more)

    for path, made, change in (
        ("/prices", api.put("/prices", price, headers={"If-None-Match": "*"}), put_price),
        ("/backends", api.post("/backends", backend), lambda path, **more: api.patch(path, {"fails_closed": True}, **more)),
        ("/alerts/routes", api.post("/alerts/routes", route), lambda path, **more: api.put(path, {**route, "position": 3}, **more)),
        ("/alerts/destinations", chat, lambda path, **more: api.patch(path, {"name": "on-call"}, **more)),
    ):  # fmt: skip
        one, seen = f"{path}/{made.json()['id']}", {"If-Match": made.headers["ETag"]}
        assert seen["If-Match"] == f'"{api.get(path).json()["items"][0]["version"]}"', path
        changed = change(one, headers=seen)
        assert (changed.status_code, changed.headers["ETag"] != seen["If-Match"]) == (200, True), path
        for refused in (change(one, headers=seen), api.request("DELETE", one, headers=seen)):
            assert (refused.status_code, refused.json()["code"]) == (412, "changed_meanwhile"), path
            assert refused.headers["ETag"] == changed.headers["ETag"]
        assert api.request("DELETE", one, headers={"If-Match": changed.headers["ETag"]}).status_code == 204


@pytest.mark.parametrize(
    ("address", "listed", "model"),
    [
        ("/overrides/openai", "/overrides", Override),
        ("/agent-overrides/triage", "/overrides", Override),
        ("/overrides", "/overrides", Override),
        ("/tool-rules/get_*", "/tool-rules", ToolOverride),
    ],
)
def test_a_temporary_one_hides_the_permanent_one_until_it_expires(api, address, listed, model):
    def shown():
        (one,) = api.get(listed).json()["items"]
        if address != "/overrides":
            assert api.get(address).json() == one
        return one["values"], one["note"], one["expires_at"] is not None

    def expire():
        past = timezone.now() - timedelta(seconds=1)
        assert model.objects.filter(expires_at__isnull=False).update(expires_at=past) == 1

    def put(limit, note, **more):
        given = {"values": {"max_repeats": limit}, "note": note, **more}
        assert api.put(address, given).status_code == 200

    later = {"expires_at": (timezone.now() + timedelta(hours=1)).isoformat()}
    put(6, "as ever")
    put(9, "slow today", **later)
    assert shown() == ({"max_repeats": 9}, "slow today", True)
    expire()
    assert shown() == ({"max_repeats": 6}, "as ever", False)  # before any sweep
    put(8, "slow again", **later)
    assert shown() == ({"max_repeats": 8}, "slow again", True)
    ended = AuditEntry.objects.get(actor="system", action__startswith="policy.")
    assert (ended.after["note"], ended.after.get("expires_at")) == ("expired", None)
    put(7, "from now on")
    assert shown() == ({"max_repeats": 7}, "from now on", False)
    put(8, "slow once more", **later)
    assert api.delete(address, note="over").status_code == 204
    assert api.get(listed).json()["items"] == []
    assert not model.objects.exists()
