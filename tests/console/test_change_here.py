"""Change here: a setting is explained, tried on history, saved at a scope, and seen in effect."""

import re
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from detection.console.policies.decided_settings import reached_limit
from detection.engine.policy import ExplainedSetting
from detection.engine.scopes import PROJECT, Scope
from detection.models import AuditEntry, Override, Role, Session, ToolOverride, WhatIf
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.what_if import quick
from tests.console.scenes import ask, loop, text
from tests.support.projects import make_member

pytestmark = pytest.mark.django_db

MODEL = "model:openai/gpt-5"


def member(world, role):
    client = Client()
    client.force_login(make_member(world.project, role))
    return client


def url(world, **query):
    return f"{world.base}/policies/change?{urlencode({'setting': 'max_repeats', **query})}"


def fields(page) -> dict[str, str]:
    """The hidden fields of the form, as a browser would send them."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.content.decode())
    return {name: value for name, value in found if name != "csrfmiddlewaretoken"}


def send(world, action, page, client=None, **given):
    return (client or world.client).post(
        f"{world.base}/policies/change", {**fields(page), "action": action, **given}, follow=action == "save"
    )


def test_it_says_why_the_value_applies_and_what_it_beats(world):
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 7}, SYSTEM, "a test")
    overrides.save_override(world.project.pk, Scope.parse(MODEL), {"max_repeats": 10}, SYSTEM, "a test")
    page = world.client.get(url(world, scope=MODEL, agent="researcher"))
    words = text(page)
    assert (
        "It is 10 for researcher, openai / gpt-5 , because model openai / gpt-5 says so; project says 7"
        in words
    )
    assert "preset standard says 4" in words
    options = re.findall(
        r'<option value="([^"]+)"', page.content.decode()[page.content.index(b"change-scope") :]
    )
    assert options[:4] == [MODEL, "backend:openai", "agent:researcher", "project"]
    assert "model openai / gpt-5 (now 10)" in words


@pytest.mark.parametrize(
    ("call", "starts_at"),
    [
        ({"tool": "search_web", "agent": "researcher", "session": "s-1"}, "tool:search_web"),
        ({"agent": "researcher", "session": "s-1"}, MODEL),
        ({"agent": "nobody"}, "agent:nobody"),
        ({"tool": "search_*"}, "project"),
        ({}, "project"),
    ],
)
def test_a_value_of_a_preset_is_changed_at_the_narrowest_scope_of_the_calls(world, call, starts_at):
    page = world.client.get(url(world, scope="preset:standard", **call)).content.decode()
    offered = page[page.index("change-scope") :]
    assert re.search(r'<option value="([^"]+)"', offered)[1] == starts_at
    given = world.client.get(url(world, scope="project", **call)).content.decode()
    assert re.search(r'<option value="([^"]+)"', given[given.index("change-scope") :])[1] == "project"


def test_a_value_is_tried_and_saved_where_the_person_came_from(world):
    back = f"{world.base}/loops"
    loop(world.project, "s-2", calls=7)
    page = world.client.get(url(world, scope=MODEL, **{"from": back}))
    tried = send(world, "try", page, scope=MODEL, value="9")
    words = text(tried)
    assert "Replayed all 2 sessions of the last 7 days." in words
    assert "You would no longer block or stop 1 loop" in words
    assert "Weakens detection" in words
    assert Override.objects.get(model="gpt-5").values["max_repeats"] == 5
    refused = send(world, "save", page, scope=MODEL, value="9")
    assert (refused.status_code, "Give a reason" in text(refused)) == (422, True)
    saved = send(world, "save", page, scope=MODEL, value="9", note="slow search")
    assert saved.redirect_chain == [(back, 302)]
    assert "is now 9 for model openai / gpt-5. It takes effect on the next call." in text(saved)
    assert Override.objects.get(model="gpt-5").values["max_repeats"] == 9
    assert (
        AuditEntry.objects.filter(action="policy.save", subject=MODEL).first().after["note"] == "slow search"
    )


def test_other_settings_and_facts_of_the_scope_stay(world):
    pk, tools = world.project.pk, Scope("tool", pattern="search_*")
    overrides.save_override(
        pk, tools, {"cycle_min_laps": 5}, SYSTEM, "a test", tool_class="poll", ignore_arguments=["page"]
    )
    page = world.client.get(url(world, scope="tool:search_*"))
    send(world, "save", page, scope="tool:search_*", value="3")
    row = ToolOverride.objects.get(pattern="search_*")
    assert (row.values, row.tool_class, row.ignore_arguments) == (
        {"cycle_min_laps": 5, "max_repeats": 3}, "poll", ["page"],
    )  # fmt: skip
    page = world.client.get(url(world, scope="tool:search_*"))
    send(world, "remove", page, scope="tool:search_*", note="not needed")
    assert ToolOverride.objects.get(pattern="search_*").values == {"cycle_min_laps": 5}


def test_a_rule_without_anything_left_is_removed(world):
    page = world.client.get(url(world, scope="tool:fetch"))
    send(world, "save", page, scope="tool:fetch", value="3")
    assert ToolOverride.objects.get(pattern="fetch").values == {"max_repeats": 3}
    page = world.client.get(url(world, scope="tool:fetch"))
    send(world, "remove", page, scope="tool:fetch", note="not needed")
    assert not ToolOverride.objects.filter(pattern="fetch").exists()


def test_a_setting_of_a_session_is_changed_by_an_operator(world):
    operator = member(world, Role.OPERATOR)
    page = operator.get(url(world, scope="session", session="s-1"))
    assert "for s-1, researcher, openai / gpt-5" in text(page)
    send(world, "save", page, operator, scope="session", value="9")
    assert Session.objects.get(external_id="s-1").policy_values == {"max_repeats": 9}
    denied = send(world, "save", page, operator, scope="project", value="9", note="mine")
    assert denied.status_code == 403
    assert not Override.objects.filter(agent="", backend="", values__has_key="max_repeats").exists()


def test_a_viewer_looks_and_the_server_is_for_its_own_people(world):
    viewer = member(world, Role.VIEWER)
    assert "You can look but not act" in text(viewer.get(url(world, scope="project")))
    assert viewer.post(f"{world.base}/policies/change", {"setting": "max_repeats"}).status_code == 403
    page = world.client.get(url(world, scope="project"))
    assert b'value="server"' not in page.content
    assert send(world, "save", page, scope="server", value="9", note="mine").status_code == 403


def test_a_change_of_someone_else_is_not_replaced_unseen(world):
    page = world.client.get(url(world, scope="agent:researcher"))
    overrides.save_override(
        world.project.pk, Scope.of(agent="researcher"), {"max_repeats": 8}, SYSTEM, "theirs"
    )
    shown = send(world, "save", page, scope="agent:researcher", value="3")
    assert (shown.status_code, "Theirs: 8" in text(shown)) == (409, True)
    assert 'value="3"' in shown.content.decode()
    send(world, "save", shown, scope="agent:researcher", value="3")
    assert Override.objects.get(agent="researcher").values == {"max_repeats": 3}


def test_a_value_that_a_narrower_scope_beats_says_so(world):
    overrides.save_override(world.project.pk, Scope.parse(MODEL), {"max_repeats": 10}, SYSTEM, "a test")
    page = world.client.get(url(world, scope=MODEL, agent="researcher"))
    tried = send(world, "try", page, scope="project", value="3")
    assert "It would still be 10 for these calls: model openai / gpt-5 is narrower." in text(tried)


def test_an_expiry_and_what_it_falls_back_to(world):
    page = world.client.get(url(world, scope="agent:researcher"))
    send(world, "save", page, scope="agent:researcher", value="3", expires="7d")
    assert Override.objects.get(agent="researcher").expires_at is not None
    shown = world.client.get(url(world, scope="agent:researcher")).content.decode()
    assert '<option value="keep">' in shown


def test_what_is_wrong_is_said_and_nothing_typed_is_lost(world):
    page = world.client.get(url(world, scope="project"))
    for typed in ("0", "many", "10001"):
        shown = send(world, "save", page, scope="project", value=typed, note="mine <b>")
        assert shown.status_code == 422, typed
        assert f'value="{typed}"' in shown.content.decode()
        assert 'value="mine &lt;b&gt;"' in shown.content.decode()
    assert world.client.get(url(world, setting="no_such")).status_code == 404
    assert world.client.get(url(world, scope="nothing:x")).status_code == 200
    assert world.client.get(url(world, session="nobody", scope="session")).status_code == 404


def test_only_an_address_of_this_site_is_returned_to(world):
    page = world.client.get(url(world, scope="project", **{"from": "https://evil.example/x"}))
    assert fields(page)["from"] == ""
    saved = send(world, "save", page, scope="project", value="3")
    assert saved.redirect_chain[0][0].startswith(f"{world.base}/policies?setting=max_repeats&")


def test_details_create_the_whole_what_if(world):
    page = world.client.get(url(world, scope="project"))
    answer = send(world, "details", page, scope="project", value="9")
    row = WhatIf.objects.get()
    assert answer["Location"].endswith(f"/{row.public_id}")
    assert (row.change["values"]["max_repeats"], row.days) == (9, 7)


def test_one_replay_of_a_project_runs_at_a_time_and_payloads_are_needed(world, monkeypatch):
    page = world.client.get(url(world, scope="project"))
    monkeypatch.setattr(
        quick, "try_lock", lambda *_: nullcontext(False)
    )  # as another connection would find it
    assert "Another replay of this project runs." in text(
        send(world, "try", page, scope="project", value="9")
    )
    monkeypatch.undo()
    world.project.stores_payloads = False
    world.project.save()
    assert "stores no payloads" in text(send(world, "try", page, scope="project", value="9"))


def test_a_replay_claims_nothing_about_what_it_has_not_replayed(world, monkeypatch):
    page = world.client.get(url(world, scope="project"))
    monkeypatch.setattr(quick, "_replay", partial(late, quick._replay))
    words = text(send(world, "try", page, scope="project", value="9"))
    assert "A second was too short to replay a session. Details replays all of them." in words
    assert "Nothing would have changed" not in words
    monkeypatch.undo()
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=8))
    words = text(send(world, "try", page, scope="project", value="9"))
    assert "No session had a call in the last 7 days." in words
    assert "Nothing would have changed" not in words


def late(replay, project, change, ends_at):
    """A replay whose time is over when it begins."""
    return replay(project, change, ends_at - 2 * quick.SECONDS)


def test_the_next_matching_call_shows_that_it_is_in_effect(world):
    page = world.client.get(url(world, scope="agent:buyer", tool="search_web"))
    saved = send(world, "save", page, scope="agent:buyer", value="2")
    assert "Limit for identical calls is 2 from agent buyer" in text(saved)
    link = re.search(r'href="([^"]*policies/verify[^"]*)"', saved.content.decode())[1].replace("&amp;", "&")
    words = text(world.client.get(link))
    assert "It is 2 for buyer, search_web , because agent buyer says so. No matching call since" in words
    # The database keeps the time at which the transaction of the test began.
    since = (timezone.now() - timedelta(minutes=1)).isoformat()
    names = {"setting": "max_repeats", "agent": "buyer", "tool": "search_web", "since": since}
    where = f"{world.base}/policies/verify?{urlencode(names)}"
    ask(world.project, "s-8", 1, agent="seller")
    ask(world.project, "s-9", 1, agent="buyer", tool="other_tool")
    assert "No matching call since" in text(world.client.get(where))
    ask(world.project, "s-9", 2, agent="buyer")
    assert "The next matching call, call 2 of s-9 , ran" in text(world.client.get(where))


def test_the_call_of_a_session_shows_what_decided_and_changes_it_there(world):
    seq = world.incident.last_seq
    page = world.client.get(f"{world.base}/sessions/s-1?call={seq}").content.decode()
    assert "Settings that decided" in page
    link = re.search(r'href="([^"]*policies/change[^"]*setting=max_repeats[^"]*)"', page)[1].replace(
        "&amp;", "&"
    )
    form = world.client.get(link)
    assert "for s-1, researcher, openai / gpt-5, search_web" in text(form)
    saved = send(world, "save", form, scope="agent:researcher", value="3")
    assert saved.redirect_chain[0][0] == f"{world.base}/sessions/s-1?call={seq}"
    assert "Verify" in text(saved)


def test_of_the_settings_that_decided_the_limit_that_was_reached_stands_out():
    then: dict[str, ExplainedSetting] = {
        name: {"value": value, "source": "preset:standard"}
        for name, value in {
            "outcome_max_results": 6,
            "outcome_max_errors": 4,
            "outcome_max_similar": 8,
            "outcome_ladder": "graduated",
        }.items()
    }
    assert reached_limit("outcome", 4, then) == "outcome_max_errors"
    assert reached_limit("outcome", 6, then) == "outcome_max_results"
    then["outcome_max_similar"]["value"] = 6
    assert reached_limit("outcome", 6, then) == "", "which of the two it was is not known"
    assert reached_limit("outcome", 9, then) == "", "the limit was raised for this run"


def test_who_comes_to_try_a_value_is_led_to_the_replay_and_not_to_saving(world):
    primary = re.compile(r'class="btn primary" name="action" value="(\w+)"')
    assert primary.findall(world.client.get(url(world)).content.decode()) == ["save"]
    page = world.client.get(url(world, tries="1"))
    assert primary.findall(page.content.decode()) == ["details"]
    assert "Nothing is saved before you press Save." in page.content.decode()
    again = send(world, "try", page, value="9")
    assert primary.findall(again.content.decode()) == ["details"]
    answer = send(world, "details", page, value="9")
    assert WhatIf.objects.get().public_id in answer["Location"]
    assert not Override.objects.filter(values__max_repeats=9).exists()
