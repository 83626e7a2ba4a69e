"""GET /api/v1/integrations and GET /api/v1/keys."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import ApiKey, Attempt
from detection.services.ingestion.attempts import recorder

CALL = {"type": "call", "session": "told", "tool": "t"}
HOOK = {"session_id": "h", "tool_name": "Bash", "tool_input": {}}


def test_integrations_tell_when_they_were_heard_and_whether_they_only_watch(api):
    api.call("asked")
    api.post("/events", CALL)
    api.post("/hooks/codex", HOOK | {"hook_event_name": "PostToolUse", "tool_response": "x"})
    items = {one["name"]: one for one in api.get("/integrations").json()["items"]}
    assert {name: one["reach"] for name, one in items.items()} == {
        "guard": "can_stop", "events": "watch_only", "hooks/codex": "watch_only",
    }  # fmt: skip
    assert items["hooks/codex"]["watched_sessions"] == 1
    assert all(one["last_heard_at"] and one["sessions"] == 1 for one in items.values())


@pytest.mark.promise("SEC-03")
def test_keys_tell_what_came_with_them_and_never_their_token(api, with_scopes, project, key, as_other):
    reporter = with_scopes("ingest")
    reporter.post("/events", CALL)
    reporter.post("/guard", {"session": "s", "calls": [{"tool": "t"}]})  # the scope is missing
    api.post("/hooks/codex", HOOK | {"hook_event_name": "PreToolUse"})
    api.call()
    as_other.call()
    recorder.flush()
    items = {one["public_id"]: one for one in api.get("/keys").json()["items"]}
    assert len(items) == ApiKey.objects.filter(project=project).count() == 2
    own = next(one for name, one in items.items() if name in key)
    other = next(one for name, one in items.items() if name not in key)
    assert (sorted(own["heard_on"]), own["reach"]) == (["guard", "hooks/codex"], "can_block")
    assert (other["heard_on"], other["reach"]) == (["events"], "watch_only")
    assert own["last_heard_at"]
    assert key.rpartition("_")[2] not in str(items)


def test_what_a_key_was_used_for_outlives_the_record_of_its_requests(api, project, key):
    api.call()
    recorder.flush()
    Attempt.objects.all().delete()
    api.post("/events", CALL)
    api.post("/events", {"type": "unknown"})
    recorder.flush()
    (item,) = api.get("/keys").json()["items"]
    assert (sorted(item["heard_on"]), item["reach"]) == (["events", "guard"], "can_stop")


def test_a_key_that_stopped_to_ask_a_week_before_is_only_watched(api):
    now = timezone.now()
    routes = {"events": now, "guard": now - timedelta(days=8), "hooks/codex": now - timedelta(days=6)}
    ApiKey.objects.update(routes={route: at.isoformat() for route, at in routes.items()})
    (item,) = api.get("/keys").json()["items"]
    assert (item["heard_on"], item["reach"]) == (["events", "hooks/codex"], "can_block")
    ApiKey.objects.update(routes={route: routes[route].isoformat() for route in ("events", "guard")})
    (item,) = api.get("/keys").json()["items"]
    assert (item["heard_on"], item["reach"]) == (["events"], "watch_only")


def test_a_key_that_was_never_used_was_never_heard(api):
    (item,) = api.get("/keys").json()["items"]
    assert (item["heard_on"], item["last_heard_at"], item["reach"]) == ([], None, None)
