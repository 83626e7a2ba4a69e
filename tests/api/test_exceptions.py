"""POST /incidents/{id}/exceptions/undo: only what the exception has set is restored, and only where it still is."""

from datetime import UTC, datetime, timedelta, timezone
from time import sleep

import pytest

from detection.models import Override, Session
from detection.services.maintenance import hourly_counts
from detection.services.policies import overrides

pytestmark = pytest.mark.django_db
AGENT = "/agent-overrides/alpha"


@pytest.fixture
def path(api):
    api.loop("s-1", agent="alpha")
    return f"/incidents/{api.get('/incidents').json()['items'][0]['id']}/exceptions"


def except_(api, path, option, **more):
    saved = api.post(path, {"option": option, "note": "slow", **more})
    assert saved.status_code == 200, saved.text


def undo(api, path):
    """The status and the code of an undo; its action if it succeeds."""
    answer = api.post(f"{path}/undo")
    document = answer.json()
    return answer.status_code, document.get("code") or document["action"]


UNDONE, CHANGED_SINCE = (200, "exception_undone"), (409, "changed_since")


def expiry(api, path):
    found = api.get(path).json()["expires_at"]
    return datetime.fromisoformat(found) if found else None


def soon(hours=1):
    return datetime.now(UTC) + timedelta(hours=hours)


@pytest.mark.parametrize(
    "before", [None, {"cycle_min_laps": 7}, {"max_repeats": 4, "preset": "conservative"}]
)
def test_a_plain_undo_restores_the_earlier_override_or_deletes_that_of_the_exception(api, path, before):
    if before:
        api.put(AGENT, {"values": before, "note": "x"})
    except_(api, path, "agent:raise")
    assert api.get(AGENT).json()["values"]["max_repeats"] > 4
    assert undo(api, path) == UNDONE
    after = api.get(AGENT)
    assert (after.json()["values"] == before) if before else (after.status_code == 404)
    assert undo(api, path) == (409, "nothing_to_undo")


def test_other_settings_that_were_set_since_stay(api, path):
    except_(api, path, "agent:raise")
    values = api.get(AGENT).json()["values"]
    api.put(AGENT, {"values": {**values, "preset": "conservative", "cycle_min_laps": 7}, "note": "x"})
    assert undo(api, path) == UNDONE
    assert api.get(AGENT).json()["values"] == {"preset": "conservative", "cycle_min_laps": 7}


def test_a_setting_that_was_changed_since_stays_and_with_none_left_the_undo_is_denied(api, path):
    except_(api, path, "agent:off")
    api.put(AGENT, {"values": {"repeat_enabled": True, "max_repeats": 3}, "note": "x"})
    answer = api.post(f"{path}/undo")
    assert (answer.status_code, answer.json()["code"]) == (409, "changed_since")
    assert "The settings were changed since" in answer.json()["detail"]
    assert api.get(AGENT).json()["values"] == {"repeat_enabled": True, "max_repeats": 3}
    assert undo(api, path) == CHANGED_SINCE
    api.delete(AGENT)
    assert undo(api, path) == CHANGED_SINCE
    # As the exception set it again: there is something to undo.
    api.put(AGENT, {"values": {"repeat_enabled": False, "max_repeats": 3}, "note": "x"})
    assert undo(api, path) == UNDONE
    assert api.get(AGENT).json()["values"] == {"max_repeats": 3}


def test_of_several_settings_those_that_are_still_as_set_are_restored(api, path):
    api.put(AGENT, {"values": {"scattered_repeats": 3}, "note": "x"})
    api.loop("s-2", agent="alpha")
    except_(api, path, "agent:raise")
    values = api.get(AGENT).json()["values"]
    assert len(values) > 2
    api.put(AGENT, {"values": {**values, "max_repeats": 3}, "note": "x"})
    assert undo(api, path) == UNDONE
    assert api.get(AGENT).json()["values"] == {"scattered_repeats": 3, "max_repeats": 3}


def test_the_earlier_expiry_is_restored_only_where_that_of_the_exception_still_is(api, path):
    # With another offset than the stored time.
    until = soon().astimezone(timezone(timedelta(hours=2))).isoformat()
    except_(api, path, "agent:off", expires_at=until)
    api.put(AGENT, {"values": {"repeat_enabled": False, "max_repeats": 3}, "note": "x", "expires_at": until})
    assert undo(api, path) == UNDONE
    assert (api.get(AGENT).json()["values"], expiry(api, AGENT)) == ({"max_repeats": 3}, None)
    later = soon(2)
    except_(api, path, "agent:off", expires_at=soon().isoformat())
    api.put(
        AGENT,
        {
            "values": {"repeat_enabled": False, "max_repeats": 4},
            "note": "x",
            "expires_at": later.isoformat(),
        },
    )
    assert undo(api, path) == UNDONE
    assert (api.get(AGENT).json()["values"], expiry(api, AGENT)) == ({"max_repeats": 4}, later)
    except_(api, path, "agent:off", expires_at=later.isoformat())
    assert undo(api, path) == UNDONE
    assert (api.get(AGENT).json()["values"], expiry(api, AGENT)) == ({"max_repeats": 4}, later)


@pytest.mark.parametrize("permanent", [None, 4])
def test_a_temporary_override_ends_as_without_the_undone_exception(api, path, permanent):
    if permanent:
        api.put(AGENT, {"values": {"max_repeats": permanent}, "note": "x"})
    api.put(AGENT, {"values": {"max_repeats": 6}, "note": "x", "expires_at": soon().isoformat()})
    until = expiry(api, AGENT)
    except_(api, path, "agent:off")
    assert undo(api, path) == UNDONE
    assert (api.get(AGENT).json()["values"], expiry(api, AGENT)) == ({"max_repeats": 6}, until)
    Override.objects.filter(expires_at__isnull=False).update(expires_at=datetime.now(UTC))
    assert overrides.expire_due() == 1
    row = Override.objects.filter(agent="alpha").first()
    assert (row and row.values) == (permanent and {"max_repeats": permanent})


def test_a_later_temporary_override_does_not_end_with_the_undone_exception(api, path):
    except_(api, path, "agent:off")
    until = soon().isoformat()
    values = {"repeat_enabled": False, "max_repeats": 3}
    api.put(AGENT, {"values": values, "note": "x", "expires_at": until})
    assert undo(api, path) == UNDONE
    row = Override.objects.get(agent="alpha")  # it ends with nothing
    assert row.values == {"max_repeats": 3}
    assert row.expires_at == datetime.fromisoformat(until)


@pytest.mark.parametrize("is_swept", [True, False])
def test_an_exception_that_expired_is_undone_without_a_change(api, path, is_swept):
    api.put(AGENT, {"values": {"max_repeats": 4}, "note": "x"})
    end = datetime.now(UTC) + timedelta(seconds=3)
    except_(api, path, "agent:off", expires_at=end.isoformat())
    while datetime.now(UTC) <= end:  # the entry of the audit, which nothing changes, has the time too
        sleep(0.1)
    if is_swept:
        assert overrides.expire_due() == 1
    assert undo(api, path) == UNDONE
    assert (api.get(AGENT).json()["values"], expiry(api, AGENT)) == ({"max_repeats": 4}, None)


def test_a_tool_rule_keeps_what_was_set_since(api, path):
    rule = "/tool-rules/search_web"
    except_(api, path, "tool:exempt")
    api.put(
        rule, {"exempt": True, "ignore_arguments": ["nonce"], "values": {"max_repeats": 3}, "note": "ours"}
    )
    assert undo(api, path) == UNDONE
    found = api.get(rule).json()
    assert (found["exempt"], found["ignore_arguments"]) == (False, ["nonce"])
    assert (found["values"], found["note"]) == ({"max_repeats": 3}, "ours")
    except_(api, path, "tool:poll")
    assert undo(api, path) == UNDONE
    assert api.get(rule).json() == {**found, "updated_at": api.get(rule).json()["updated_at"]}
    except_(api, path, "tool:poll")
    api.put(rule, {"tool_class": "wait", "note": "ours"})
    assert undo(api, path) == CHANGED_SINCE
    assert api.get(rule).json()["tool_class"] == "wait"
    api.delete(rule)
    assert undo(api, path) == CHANGED_SINCE
    except_(api, path, "tool:poll")
    assert undo(api, path) == UNDONE
    assert api.get(rule).status_code == 404


def test_a_session_keeps_what_was_set_since(api, path):
    policy, page = "/sessions/s-1/policy", "/sessions/s-1"
    except_(api, path, "session:off")
    assert api.patch(policy, {"max_repeats": 3}).status_code == 200
    assert undo(api, path) == UNDONE
    assert api.get(page).json()["policy_values"] == {"max_repeats": 3}
    except_(api, path, "session:off")
    assert api.patch(policy, {"repeat_enabled": True}).status_code == 200
    assert undo(api, path) == CHANGED_SINCE
    assert api.get(page).json()["policy_values"] == {"max_repeats": 3, "repeat_enabled": True}


def scopes(api, path):
    """The scopes of the options with their sessions, in order."""
    items = api.get(path).json()["items"]
    return [*dict.fromkeys((one["option"].partition(":")[0], one["sessions"]) for one in items)]


def test_the_scope_with_the_fewest_sessions_comes_first(api, path):
    gpt = {"backend": "openai", "model": "gpt-5"}
    for session in ("s-2", "s-3", "s-4"):
        api.call(session, agent="beta", tool="other", **gpt)
    api.loop("s-5", agent="gamma", **gpt)
    api.call("s-6", agent="gamma", tool="other")
    hourly_counts.count_calls()
    newest = api.get("/incidents").json()["items"][0]["id"]
    counted = f"/incidents/{newest}/exceptions"
    assert scopes(api, counted) == [("session", 1), ("tool", 2), ("agent", 2), ("model", 4)]
    Session.objects.filter(external_id="s-6").update(last_event_at=soon(-31 * 24))
    assert scopes(api, counted) == [("session", 1), ("agent", 1), ("tool", 2), ("model", 4)]
