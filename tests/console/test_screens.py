"""What screens show and do, through their addresses and on real rows."""

import csv
import html
import io
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from detection.console.loops import incident_text
from detection.engine import interventions
from detection.engine.scopes import PROJECT, Scope
from detection.models import ApiKey, AuditEntry, Event, Incident, Override, Role, Session, ToolOverride
from detection.selectors import dashboard
from detection.services import audit
from detection.services.audit import SYSTEM, Actor
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.policies import overrides
from detection.services.retention import retention
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.locked_session import locked_session
from detection.services.sessions.stalled import report_due
from tests.console.scenes import answer, ask, loop, principal, result_of, run_address, screens, text
from tests.support.projects import make_key, make_member, make_project

pytestmark = pytest.mark.django_db


@pytest.mark.promise("SEC-09")
def test_every_screen_opens_for_every_role_without_scripts_or_inline_code_and_with_a_strict_policy(world):
    for role in Role.values:
        client = Client()
        client.force_login(make_member(world.project, role))
        for name, url in screens(world).items():
            page = client.get(url)
            assert page.status_code == 200, (name, role)
            policy = page["Content-Security-Policy"]
            assert "default-src 'none'" in policy, name
            assert "unsafe" not in policy, name
            assert "no-store" in page["Cache-Control"], name
            body = page.content.decode()
            assert not re.search(r"<script(?![^>]*\bsrc=)", body), name
            assert not re.search(r"<[^>]*\s(on\w+|style)\s*=", body), name


def test_every_screen_opens_in_an_empty_project():
    project = make_project()
    client = Client()
    client.force_login(make_member(project))
    for name in (
        "sessions",
        "loops",
        "loops/history",
        "policies",
        "policies/settings",
        "policies/tools",
        "policies/history",
        "connect",
        "connect/imports",
        "gateway",
        "keys",
        "ingest",
        "system",
        "audit",
    ):
        assert client.get(f"/p/{project.slug}/{name}").status_code == 200, name


def test_the_list_of_sessions_shows_state_strip_and_meter(world):
    page = world.client.get(f"{world.base}/sessions")
    shown = text(page)
    assert "Looping" in shown
    assert "s-1" in shown
    assert "4 of 4" in shown
    assert "<title>4 calls, 1 call repeated, at most 4 times, the last 4 equal" in page.content.decode()
    assert f'id="s-{world.session.pk}"' in page.content.decode()


def test_the_list_of_sessions_filters_by_the_address_alone(world):
    loop(world.project, "other", agent="coder", tool="bash")
    assert "s-1" not in text(world.client.get(f"{world.base}/sessions?q=agent:coder"))
    assert "No matching sessions" in text(world.client.get(f"{world.base}/sessions?q=zzz"))
    assert world.client.get(f"{world.base}/sessions?cursor=rubbish").status_code == 200


def test_a_session_is_stopped_and_resumed_and_the_next_call_obeys(world):
    world.client.post(f"{world.base}/session/act", {"name": "fresh", "action": "stop"})
    assert ask(world.project, "fresh", 1).decision == "allow"
    world.client.post(
        f"{world.base}/session/act", {"name": "fresh", "action": "stop", "reason": "wrong customer"}
    )
    refused = ask(world.project, "fresh", 2, arguments='{"q":"x"}')
    assert refused.decision == "stop"
    assert "wrong customer" in refused.verdicts[0].message()
    world.client.post(f"{world.base}/session/act", {"name": "fresh", "action": "resume"})
    assert ask(world.project, "fresh", 3, arguments='{"q":"y"}').decision == "allow"


def test_selected_sessions_are_stopped_and_resumed_together(world):
    ask(world.project, "one", 1)
    ask(world.project, "two", 1)
    names = ["s-1", "one", "two"]
    world.client.post(f"{world.base}/session/change", {"session": names, "reason": "enough"})
    assert Session.objects.filter(project=world.project, stopped_at=None).count() == 0
    told = world.client.post(
        f"{world.base}/session/change", {"session": [*names, "nobody"], "action": "resume"}, follow=True
    )
    assert "Resumed 3 sessions." in text(told)
    assert Session.objects.filter(project=world.project, stopped_at=None).count() == len(names)
    again = world.client.post(
        f"{world.base}/session/change", {"session": names, "action": "resume"}, follow=True
    )
    assert "None of them is stopped." in text(again)


def test_a_sessions_own_settings_win_and_show_where_they_come_from(world):
    page = world.client.post(
        f"{world.base}/session/act",
        {"name": "s-1", "action": "settings", "set_max_repeats": "9"},
        follow=True,
    )
    assert "set here; otherwise 5 from model openai / gpt-5" in text(page).replace("  ", " ")
    world.session.refresh_from_db()
    assert world.session.policy_values == {"max_repeats": 9}


def test_a_value_that_is_not_allowed_stays_in_the_form_with_the_reason(world):
    page = world.client.post(
        f"{world.base}/session/act", {"name": "s-1", "action": "settings", "set_max_repeats": "1"}
    )
    assert page.status_code == 422
    assert "must be between 2 and 1,000" in text(page).lower()


def test_a_command_is_carried_out_as_in_the_chat(world):
    world.client.post(
        f"{world.base}/session/act",
        {"name": "s-1", "action": "command", "text": "!/set(tool-loop-max-repeats=7)"},
    )
    world.session.refresh_from_db()
    assert world.session.policy_values["max_repeats"] == 7


def test_a_saved_preset_says_which_settings_it_does_not_replace(world):
    wider = Scope("model", backend="openai", model="gpt-5")
    overrides.save_override(world.project.pk, wider, {"max_repeats": 9}, SYSTEM)
    form = {"name": "s-1", "action": "settings", "set_preset": "proxy"}
    told = text(world.client.post(f"{world.base}/session/act", form, follow=True))
    assert (
        "Override saved. It takes effect on the next call. tool-loop-max-repeats stays 9 (from model:openai/gpt-5)."
        in told
    )
    again = text(
        world.client.post(f"{world.base}/session/act", form | {"set_ttl_seconds": "60"}, follow=True)
    )
    assert "Override saved." in again
    assert "stays 9" not in again


def test_replies_to_commands_of_the_chat_are_on_the_session_page(world):
    text_of_chat = "!/set(tool-loop-max-repeats=7) !/set(tool-loop-ttl=0)"
    message = EventRecord(type="message", session="s-1", content=text_of_chat)
    ingest(principal(world.project), [message])
    evaluate(world.session.key)
    shown = text(world.client.get(f"{world.base}/sessions/s-1"))
    assert "tool-loop-max-repeats is now 7." in shown
    assert "tool-loop-ttl must be" in shown


@pytest.mark.parametrize(
    ("integration", "words"),
    [
        ("hooks/codex", "A stop does not end its run"),
        ("hooks/claude-code", "It stays stopped until it makes a call"),
    ],
)
def test_the_page_of_a_stopped_session_says_what_its_host_can_do(world, integration, words):
    stopped = {"stopped_by_kind": "detection", "stopped_at": timezone.now(), "stopped_by": "repeat"}
    Session.objects.filter(pk=world.session.pk).update(state="stopped", integration=integration, **stopped)
    assert words in text(world.client.get(f"{world.base}/sessions/s-1"))


def test_an_exemption_is_shown_on_the_session_page_and_undone_there(world):
    with locked_session(world.session.key) as locked:
        interventions.exempt(locked.tracker, "search_web")
    page = f"{world.base}/sessions/s-1"
    assert "search_web is exempt from detection in this session." in text(world.client.get(page))
    undone = world.client.post(
        f"{world.base}/session/act",
        {"name": "s-1", "action": "revoke_exemption", "tool": "search_web"},
        follow=True,
    )
    assert "Exemption of search_web undone." in text(undone)
    assert "is exempt from detection" not in text(world.client.get(page))


def test_a_call_is_shown_with_what_differs_from_the_one_before(world):
    ask(world.project, "differs", 1, arguments='{"q":"reset admin","limit":10}')
    ask(world.project, "differs", 2, arguments='{"q":"reset admin","limit":20}')
    shown = text(world.client.get(f"{world.base}/session/call?name=differs&call=2"))
    assert "Changes since call 1" in shown
    assert "limit 10 20" in shown


def test_a_session_whose_name_no_path_can_carry_has_its_page_too(world):
    for number, name in enumerate(("a/../b", "..", "with/slash", "ends/", "q?x=1#y", "100%", "nämé", "//x")):
        ask(world.project, name, number)
        assert world.client.get(f"{world.base}/sessions").status_code == 200
        from detection.console.permalinks import session_url

        page = world.client.get(session_url(world.project.slug, name))
        assert page.status_code == 200, name
    assert world.client.get(f"{world.base}/session?name=read").status_code == 404


def test_an_incident_says_in_one_sentence_what_happened_and_what_was_done(world):
    shown = text(world.client.get(f"{world.base}/incidents/{world.incident.public_id}", follow=True))
    assert "search_web was called 4 times" in shown
    assert "with identical arguments, and all 3 known results were the same." in shown
    assert "blocked at the 4th call" in shown
    assert "identical" in shown
    assert "preset standard" in shown


def test_an_incident_with_several_reactions_names_each_reaction(world):
    incident = loop(world.project, "hammering", calls=9, model="gpt-5-mini")
    shown = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert (
        "The agent was warned at the 3rd call, blocked from the 4th call and stopped at the 8th call ."
        in shown
    )
    # All that did not run is counted as blocked, whichever verdict it was; every call is in the summary.
    assert "6 calls blocked: 1 × chance, 3 × block, 2 × stop." in shown
    assert "1st–2nd allow, 3rd warn, 4th chance, 5th–7th block, 8th–9th stop" in shown
    assert "They follow Reaction to repeats : chance, 3 × block, stop" in shown
    # Each of these reactions is in the activity, and what came of it, as often as it came.
    activity = [(entry.action, entry.note.partition(": ")[0]) for entry in incident.activity.all()]
    assert activity == [
        ("opened", ""),
        ("reacted", "warn"),
        ("agent_went_on", "after warn"),
        ("reacted", "chance"),
        ("agent_went_on", "after chance"),
        ("reacted_also", "block"),
        ("agent_went_on", "after block"),
        ("reacted", "stop"),
        ("agent_went_on", "after stop"),
    ]
    assert "The agent continued hammering · after block, 3 times" in shown


def test_a_loop_of_a_stopped_session_is_not_called_active(world):
    incident = loop(world.project, "hammering", calls=9, model="gpt-5-mini")
    assert incident.is_active
    shown = text(world.client.get(f"{world.base}/loops/history?q=session:hammering"))
    assert "Repeats · search_web · blocked" in shown
    assert "calls 1 to 9, blocked" in text(world.client.get(f"{world.base}/sessions/hammering"))
    # An allowed call ends the stop, and the loop may go on.
    ask(world.project, "hammering", 20, tool="read_file")
    shown = text(world.client.get(f"{world.base}/loops/history?q=session:hammering"))
    assert "Repeats · search_web · active" in shown


@pytest.mark.parametrize(
    ("is_reported", "why"),
    [
        (False, "blocked calls have no result"),
        (True, "results of calls that would have been blocked do not count"),
    ],
)
def test_an_incident_says_which_results_are_not_counted(world, is_reported, why):
    events = []
    for number in range(12):
        arguments = json.dumps({"user": f"user-{number}"})
        if not is_reported:
            verdict = ask(world.project, "mail", number, tool="read_mail", arguments=arguments)
            if verdict.decision in ("allow", "warn"):
                answer(world.project, "mail", number, "denied", is_error=True)
            continue
        about: dict[str, Any] = {"session": "mail", "call_id": f"call-{number}"}
        events.append(EventRecord(type="call", tool="read_mail", arguments=arguments, **about))
        events.append(EventRecord(type="result", content="denied", is_error=True, **about))
    if is_reported:
        ingest(principal(world.project), events)
        evaluate(Session.objects.get(external_id="mail").key)
    incident = Incident.objects.get(session_name="mail", kind="outcome")
    shown = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert (incident.count, incident.calls_in_loop) == (9, 12)
    assert f"9 counted, limit 4 identical results. The loop has 12 calls: {why}." in shown
    # Without blocks, more than these may count.
    asked = world.client.get(f"{world.base}/loops/{incident.loop.public_id}/fine?run={incident.public_id}")
    assert "Raise the limit to 100 identical results" in text(asked)


def test_an_incident_gives_one_time_for_its_loop(world):
    incident = loop(world.project, "slowly", calls=8, model="gpt-5-mini")
    page = run_address(incident)
    assert "8 times within 1 s with identical arguments" in text(world.client.get(page))
    start = datetime(2026, 5, 1, tzinfo=UTC)
    for number, call in enumerate(incident.evidence["calls"]):
        call["at"] = (start + timedelta(seconds=0.77 * number)).isoformat()
    # Messages to agents round up, too.
    incident.window_seconds = 6
    incident.save()
    shown = text(world.client.get(page))
    assert "8 times in 6 s with identical arguments" in shown
    assert "within 6 s" not in shown
    assert "Its calls were blocked since the stop." in shown


def test_an_incident_of_searches_that_find_nothing_shows_its_limit_its_calls_and_the_warning(world):
    for number, query in enumerate(("blue vase", "oak table", "brass lantern", "chess set", "wool rug")):
        ask(
            world.project, "searching", number, tool="search_products", arguments=json.dumps({"query": query})
        )
        answer(world.project, "searching", number, "No results found.")
    incident = Incident.objects.get(session_name="searching", kind="stagnation")
    shown = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert "The last 5 calls within 1 s brought no new result." in shown
    assert "5 counted, limit 4 calls without a new result" in shown
    assert "Limit for searches that find nothing 4" in shown
    assert "5 calls in the loop" in shown
    assert shown.count("same warn") == 1


def test_an_incident_of_a_spent_budget_names_the_unit_of_the_limit(world):
    overrides.save_override(world.project.pk, PROJECT, {"budget_max_calls": 3}, SYSTEM)
    for number in range(3):
        ask(world.project, "spending", number, tool=f"tool_{number}", model="gpt-5-mini")
    incident = Incident.objects.get(session_name="spending")
    shown = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert "2 counted, limit 2 calls" in shown
    assert "1 call at the limit" in shown


def test_an_incident_of_repeated_words_shows_the_texts_and_the_call_before_them(world):
    ask(world.project, "talking", 1, tool="lookup")
    said = "I will look into the orders now."
    more: dict[str, Any] = {"type": "message", "session": "talking", "role": "assistant"}
    ingest(principal(world.project), [EventRecord(content=said, **more) for _ in range(3)])
    session = Session.objects.get(external_id="talking")
    evaluate(session.key)
    incident = Incident.objects.get(session=session)
    shown = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    said_so = "The agent said the same 3 times without a call in between."
    assert f"{said_so} The agent got no message, because its texts were only reported." in shown
    assert f"Assistant {said}" in shown
    assert shown.count("Assistant identical") == 2
    assert "3 counted, limit 3 texts" in shown
    assert "3 texts in the loop" in shown
    page = world.client.get(f"{world.base}/sessions/talking").content.decode()
    assert "3 texts" in page
    assert incident.public_id in page


def test_incidents_of_a_family_and_of_silence_say_what_was_found_and_how_it_was_handled(world):
    values = {"family_enabled": True, "family_max_repeats": 2, "stalled_enabled": True}
    overrides.save_override(world.project.pk, PROJECT, values, SYSTEM)
    for number in range(4):
        ask(world.project, f"child-{number % 2}", number, parent_session="lead")
        answer(world.project, f"child-{number % 2}", number, "0 results")
    ask(world.project, "child-1", 9, tool="fetch_url", arguments="{}")
    report_due(timezone.now() + timedelta(hours=2))

    def page_of(kind):
        incident = Incident.objects.filter(kind=kind).earliest("pk")
        return text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))

    assert "was repeated 2 times by 2 sessions of one family" in page_of("family")
    shown = page_of("stalled")
    assert "It was reported to operators, and the agent got no message" in shown
    assert "It ends with the next sign of life" in shown
    assert "1 call in the loop" in shown


def test_a_scope_with_a_preset_of_its_own_inherits_the_values_of_that_preset(world):
    scope = Scope("model", "", "openai", "gpt-5")
    overrides.save_override(world.project.pk, scope, {"preset": "proxy"}, SYSTEM, "as before")
    shown = text(world.client.get(f"{world.base}/policies/settings?scope=model:openai/gpt-5"))
    assert "set here; otherwise standard from preset standard" in shown
    assert "Unless noted, values come from preset proxy ." in shown
    assert shown.count("preset proxy") < 3
    page = world.client.get(f"{world.base}/policies/settings?scope=model:openai/gpt-5").content.decode()
    assert re.search(r'name="set_mode"[^>]*placeholder="break"', page)


def test_the_changes_of_a_form_are_shown_before_they_are_saved(world):
    def changes(url, **form):
        return text(world.client.post(url, {"action": "diff", **form}, HTTP_HX_REQUEST="true"))

    url = f"{world.base}/policies/settings?scope=model:openai/gpt-5"
    assert changes(url, set_max_repeats="5").strip() == ""
    shown = changes(url, set_max_repeats="7", set_once_per_round="true")
    assert "Limit for identical calls: 5 → 7 Weaker" in shown
    assert "Weaker settings need a reason." in shown
    asking = changes(url, set_mode="ask")
    assert (
        "The strictest reaction becomes ask (the call is held until a person decides), which is weaker"
        in asking
    )
    assert "which is weaker than stop (the run ends)." in asking
    assert "Weaker Weaker reactions come before stop." in changes(url, set_mode="graduated")
    assert "Limit for identical calls: 5, set here → 4, inherited" in changes(url) or "5 → 4" in changes(url)
    by_preset = changes(url, set_max_repeats="5", set_preset="proxy")
    assert re.search(r"Preset: standard → proxy .*\d+ more values? from the preset", by_preset)
    weaker = changes(url, set_max_repeats="5", set_preset="conservative")
    assert re.search(r"more values from the preset, \d+ of them weaker", weaker)
    assert "Detect talk loops: on → off Weaker" in weaker
    assert "Weaker settings need a reason." in weaker
    one_wrong = changes(url, set_max_repeats="1", set_once_per_round="true")
    assert "must be between 2 and 1,000" in one_wrong.lower()
    assert "Limit for identical calls" not in one_wrong.replace("Limit for identical calls must", "")
    assert "off → on" in one_wrong or "on, set here" in one_wrong
    rule = f"{world.base}/policies/tools?pattern=get_*"
    assert "Tool class: poll → exempt" in changes(rule, pattern="get_*", tool_class="exempt")
    session = changes(f"{world.base}/session/act", name="s-1", set_max_repeats="7")
    assert "Limit for identical calls: 5 → 7 Weaker" in session
    assert "reason" not in session
    world.session.refresh_from_db()
    assert world.session.policy_values == {}


def test_an_incident_of_a_cycle_names_its_pattern_and_how_often_the_ladder_reacted(world):
    for number in range(8):
        ask(world.project, "cycling", number, tool=("read_file", "edit_file")[number % 2], model="gpt-5-mini")
    incident = Incident.objects.get(session_name="cycling", kind="cycle")
    shown = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    # Markup between two words leaves a space before a comma or a point.
    assert "Cycle: edit_file → read_file , repeated 4 times" in shown
    assert "Strictest reaction: warn . Reactions to this loop: 1" in shown
    # However the cycle began, the incident and its loop have one name for it.
    assert "Cycle of calls: edit_file → read_file" in shown
    assert "edit_file → read_file" in text(world.client.get(f"{world.base}/loops"))
    assert "last one repeats. After a warning, the agent can change course: the next reaction" in shown
    assert "comes 3 calls later at the earliest." in shown
    # The preset has rungs of its own for the ladder; the incident and the form of a policy name these.
    assert "They follow Reaction to cycles : 2 × warn, block, stop" in shown
    assert "Steps of the graduated reaction warn → warn → block → stop" in shown
    assert "warn, then warn, then block, then stop" in text(
        world.client.get(f"{world.base}/policies/settings")
    )


def test_an_incident_stays_readable_when_its_session_is_gone(world):
    from detection.services.retention.removal import delete_sessions

    delete_sessions(world.project.pk, [world.session.pk])
    shown = text(world.client.get(f"{world.base}/incidents/{world.incident.public_id}", follow=True))
    assert "the evidence is kept" in shown
    assert "search_web was called 4 times" in shown


def fine(world, incident, where, **more):
    """Say in the form of the loop that a run is fine, and return the page that follows."""
    form = {"action": "fine", "ids": incident.loop.public_id, "run": incident.public_id, "where": where}
    form |= {"reason": "other", "expires": "30d", "next": run_address(incident), **more}
    return world.client.post(f"{world.base}/loops/act", form, follow=True)


def test_this_is_fine_saves_an_exception_for_exactly_this_tool_and_undo_takes_back_both(world):
    asked = world.client.get(f"{world.base}/loops/{world.incident.loop.public_id}/fine")
    choices = re.findall(r'name="where"\s+value="(\w+)"\s+(checked)?', asked.content.decode())
    assert choices == [("run", ""), ("tool", "checked"), ("agent", ""), ("model", ""), ("everywhere", "")]
    assert "s-1, until it ends" in text(asked)
    tried = {"exception_of": world.incident.public_id, "where": "tool", "reason": "poll", "days": "7"}
    shown = world.client.post(f"{world.base}/policies/what-ifs/create", tried, follow=True)
    assert "What-if for tools search_web" in text(shown)
    saved = fine(world, world.incident, "tool", reason="poll", expires="7d", note="mock")
    world.incident.refresh_from_db()
    assert (world.incident.label, world.incident.label_reason) == ("false_alarm", "poll")
    assert "Polling: it waits for a state to change." in text(saved)
    assert "1 loop marked as fine." in text(saved)
    rule = ToolOverride.objects.get(pattern="search_web")
    assert rule.tool_class == "poll"
    assert rule.expires_at is not None
    assert rule.note == f"mock (from {world.incident.public_id})"
    rule_page = f"{world.base}/policies/tools?pattern=search_web"
    assert f'href="{rule_page}"' in saved.content.decode().partition("Open its settings")[0]
    listed = world.client.get(f"{world.base}/policies")
    assert "This is fine 1 exception" in text(listed)
    assert re.search(
        r"Tool search_web: Treat it as polling: higher limits apply from .*: mock · until \d\d \w{3} ",
        text(listed),
    )
    assert f'href="{rule_page}"' in listed.content.decode()
    for number in range(8):
        assert ask(world.project, "afterwards", number).decision == "allow"
    assert "Undo exception" in text(saved)
    undo = {"ids": world.incident.loop.public_id, "action": "undo", "next": run_address(world.incident)}
    assert "1 loop restored." in text(world.client.post(f"{world.base}/loops/act", undo, follow=True))
    assert not ToolOverride.objects.filter(pattern="search_web").exists()
    assert "No exceptions" in text(world.client.get(f"{world.base}/policies"))
    world.incident.refresh_from_db()
    assert (world.incident.label, world.incident.label_reason) == ("", "")


def test_only_this_run_is_fine_and_its_stopped_session_can_be_resumed(world):
    for number in range(16):
        arguments = f'{{"q":"{number % 2}"}}'
        verdict = ask(world.project, "edits", number, arguments=arguments, results=()).decision
        if verdict in ("allow", "warn"):
            answer(world.project, "edits", number, "edited")
    own = Incident.objects.filter(session_name="edits")
    cycle = own.get(kind="cycle")
    assert cycle.decision == "stop"
    # Also the first call, which belongs to no whole lap.
    assert [call["number"] for call in cycle.evidence["calls"]] == [*range(1, cycle.last_call_number + 1)]
    labelled = fine(world, cycle, "run", reason="honest_repetition")
    assert own.filter(label="false_alarm").count() == 1
    assert "1 loop marked as fine." in text(labelled)
    listed = text(world.client.get(f"{world.base}/loops/history?q=session:edits"))
    assert "active" not in listed.partition("edit")[2].partition("Export")[0]
    world.session.refresh_from_db()
    assert Session.objects.get(external_id="edits").policy_values  # until it ends
    assert "A stop of its session is still in force." in text(labelled)
    resume = {"name": "edits", "action": "resume", "next": run_address(cycle)}
    resumed = world.client.post(f"{world.base}/session/act", resume, follow=True)
    assert "Session resumed." in text(resumed)
    assert "A stop of its session is still in force." not in text(resumed)
    undo = {"ids": cycle.loop.public_id, "action": "undo", "next": run_address(cycle)}
    assert "1 loop restored" in text(world.client.post(f"{world.base}/loops/act", undo, follow=True))
    assert not own.exclude(label="").exists()
    assert not Session.objects.get(external_id="edits").policy_values


def test_a_saved_override_changes_the_next_verdict_and_the_history_restores_it(world):
    url = f"{world.base}/policies/settings?scope=model:openai/gpt-5"
    world.client.post(url, {"set_max_repeats": "2"})
    assert ask(world.project, "override", 1).decision == "allow"
    answer(world.project, "override", 1, "0 results")
    assert ask(world.project, "override", 2).decision == "block"
    entry = AuditEntry.objects.filter(action="policy.save").latest("pk")
    world.client.post(f"{world.base}/policies/history", {"entry": entry.pk})
    assert Override.objects.get(model="gpt-5").values == {"max_repeats": 5}


def test_an_agents_override_is_saved_explained_and_restored_like_any_other(world):
    url = f"{world.base}/policies/settings?scope=agent:researcher"
    assert "inherits everything" in text(world.client.get(url))
    refused = world.client.post(url, {"set_repeat_enabled": "false", "set_cycle_enabled": "false"})
    assert (refused.status_code, "Give a reason" in text(refused)) == (422, True)
    ask(world.project, "known", 1)
    cursor = Session.objects.get(external_id="known").project.policy_version
    world.client.post(url, {"set_max_repeats": "2"})
    row = Override.objects.get(agent="researcher")
    assert row.project.policy_version > cursor
    assert ask(world.project, "known", 2, model="other").decision == "block"  # of a session that is open
    assert ask(world.project, "another", 1, agent="b", model="other").decision == "allow"
    held = Session.objects.get(external_id="known")
    shown = text(world.client.get(f"{world.base}/sessions/known?tab=settings"))
    assert "agent researcher" in shown
    assert Incident.objects.get(session=held).policy["max_repeats"] == {
        "value": 2,
        "source": "agent:researcher",
    }
    entry = AuditEntry.objects.filter(action="policy.save", subject="agent:researcher").latest("pk")
    assert entry.actor == world.user.get_username()
    assert "agent researcher" in text(world.client.get(f"{world.base}/policies/history"))
    again = world.client.post(f"{world.base}/policies/history", {"entry": entry.pk}, follow=True)
    assert "The state before that change is restored" in text(again)
    assert not Override.objects.filter(agent="researcher").exists()


def test_weakening_an_override_needs_a_reason(world):
    url = f"{world.base}/policies/settings?scope=model:openai/gpt-5"
    refused = world.client.post(url, {"set_max_repeats": "50"})
    assert refused.status_code == 422
    assert "Give a reason" in text(refused)
    assert Override.objects.get(model="gpt-5").values == {"max_repeats": 5}
    world.client.post(url, {"set_max_repeats": "50", "note": "a slow index"})
    assert Override.objects.get(model="gpt-5").values == {"max_repeats": 50}


def test_an_override_is_deleted_with_a_reason_where_that_weakens_detection(world):
    url = f"{world.base}/policies/settings?scope=model:openai/gpt-5"
    world.client.post(url, {"set_max_repeats": "2"})
    kept = world.client.post(url, {"action": "delete"}, follow=True)
    assert "This weakens detection" in text(kept)
    assert Override.objects.get(model="gpt-5").values == {"max_repeats": 2}
    gone = world.client.post(url, {"action": "delete", "note": "not used"}, follow=True)
    assert "Override deleted." in text(gone)
    assert not Override.objects.filter(model="gpt-5").exists()


def test_settings_saved_with_a_key_name_it_as_their_author(world):
    key = {"Authorization": f"Bearer {make_key(world.project)}"}
    for path, body in (
        ("overrides", {"values": {"max_repeats": 3}}),
        ("tool-rules/get_*", {"exempt": True}),
    ):
        answer = Client().put(f"/api/v1/{path}", body, content_type="application/json", headers=key)
        assert answer.status_code == 200, answer.content
    author = AuditEntry.objects.filter(action="policy.save").latest("pk").actor
    assert author.startswith("key:")
    for page in ("policies/settings?scope=project", "policies/tools?pattern=get_*"):
        assert f"by {author}" in text(world.client.get(f"{world.base}/{page}"))


def test_every_wrong_setting_is_named_at_the_head_of_the_form(world):
    url = f"{world.base}/policies/settings?scope=agent:triage"
    page = world.client.post(url, {"set_max_repeats": "1", "set_ttl_seconds": "soon", "set_mode": "warn"})
    assert page.status_code == 422
    head = page.content.decode().partition('role="alert"')[2].partition("</p>")[0]
    assert re.findall(r'href="#id_set_(\w+)"', head) == ["max_repeats", "ttl_seconds"]
    assert "Must be between 2 and 1,000." in text(page)
    assert not Override.objects.filter(agent="triage").exists()


def test_the_reason_of_the_last_change_is_shown_and_not_given_again(world):
    for url in ("/policies/settings?scope=model:openai/gpt-5", "/policies/tools?pattern=get_*"):
        page = world.client.get(world.base + url)
        reason = "because" if "gpt-5" in url else "polls"
        assert reason in text(page)
        assert re.search(r'<input\s+name="note"[^>]*value=""', page.content.decode())


@pytest.mark.parametrize("scope", ["nowhere", "environment", "session", "tool:x", "model:openai", "agent:"])
def test_an_address_that_names_no_stored_scope_is_not_found(world, scope):
    assert world.client.get(f"{world.base}/policies/settings?scope={scope}").status_code == 404


def test_a_tool_rule_that_weakens_needs_a_reason_and_so_does_deleting_a_strict_one(world):
    url = f"{world.base}/policies/tools?new="
    refused = world.client.post(url, {"pattern": "crm_*", "exempt": "on"})
    assert refused.status_code == 422
    assert "weakens detection (Exempt). Give a reason." in text(refused)
    assert not ToolOverride.objects.filter(pattern="crm_*").exists()
    world.client.post(url, {"pattern": "crm_*", "set_max_repeats": "2"})
    place = f"{world.base}/policies/tools?pattern=crm_*"
    kept = world.client.post(place, {"action": "delete"}, follow=True)
    assert "Give a reason" in text(kept)
    world.client.post(place, {"action": "delete", "note": "not used"})
    assert not ToolOverride.objects.filter(pattern="crm_*").exists()


@pytest.mark.promise("SEC-01")
def test_a_keys_token_is_shown_once_and_never_again(world):
    made = world.client.post(f"{world.base}/keys", {"name": "agents", "scopes": ["guard"]})
    token = re.search(r"lg_[0-9a-z]{10}_[0-9a-f]{72}", made.content.decode())
    assert token is not None
    assert token[0] not in world.client.get(f"{world.base}/keys").content.decode()
    key = ApiKey.objects.get(name="agents")
    world.client.post(f"{world.base}/keys/revoke", {"key": key.public_id})
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_a_sample_loop_is_marked_as_demo_and_removed_in_one_click(world):
    page = world.client.post(f"{world.base}/connect/sample", follow=True)
    assert "Looping" in text(page)
    assert Session.objects.filter(project=world.project, is_demo=True).count() == 1
    assert "Remove demo data" in text(world.client.get(f"{world.base}/sessions"))
    world.client.post(f"{world.base}/session/remove-demo")
    assert not Session.objects.filter(project=world.project, is_demo=True).exists()
    assert Session.objects.filter(project=world.project, external_id="s-1").exists()


def test_the_audit_shows_actor_and_action_with_before_and_after(world):
    form = {"action": "done", "ids": world.incident.loop.public_id}
    world.client.post(f"{world.base}/loops/act", form)
    shown = text(world.client.get(f"{world.base}/audit?q=action:loop.*"))
    assert world.user.get_username() in shown
    assert "loop.done" in shown
    assert "Done at: – → " in shown
    world.client.post(f"{world.base}/loops/act", {**form, "action": "fine", "reason": "poll"})
    assert "Label: – → Not a loop" in text(world.client.get(f"{world.base}/audit"))


def test_the_audit_is_paged_and_a_nonsense_place_is_empty(world):
    for number in range(60):
        audit.record(SYSTEM, "test.entry", f"entry-{number:02}", project_id=world.project.pk)
    first = world.client.get(f"{world.base}/audit?q=")
    older = html.unescape(re.search(r'href="([^"]+)" rel="next"', first.content.decode())[1])
    second = text(world.client.get(older))
    assert "entry-59" in text(first)
    assert "entry-09" not in text(first)
    assert "entry-09" in second
    assert "entry-59" not in second
    assert "No changes" in text(world.client.get(f"{world.base}/audit?q=&cursor=nonsense"))


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_the_audit_is_exported_with_the_filters_of_the_screen_and_without_its_pages(world, file_format):
    for number in range(60):
        audit.record(SYSTEM, "session.stop", f"=entry-{number}", project_id=world.project.pk)
    audit.record(Actor("eve"), "session.stop", "of somebody else", project_id=world.project.pk)
    audit.record(SYSTEM, "policy.save", "of another kind", project_id=world.project.pk)
    audit.record(SYSTEM, "session.stop", "of another project", project_id=make_project("other").pk)
    audit.record(SYSTEM, "session.stop", "of the whole server", project_id=None, after={"n": 1})

    screen = world.client.get(f"{world.base}/audit?q=action:session.*+actor:system&cursor=nonsense")
    links = re.findall(r'href="([^"]+)"[^>]* download', screen.content.decode())
    (link,) = (one for one in map(html.unescape, links) if f"format={file_format}" in one)
    told = world.client.get(link)
    name = rf"loopguard-audit-{world.project.slug}-[0-9T-]{{17}}Z\.{file_format}"
    assert re.fullmatch(f'attachment; filename="{name}"', told["Content-Disposition"])
    content = told.getvalue().decode()
    if file_format == "csv":
        rows = list(csv.DictReader(io.StringIO(content)))
        assert {row["subject"][0] for row in rows[1:]} == {"'"}  # no formula for a spreadsheet
        assert json.loads(rows[0]["after"]) == {"n": 1}
    else:
        rows = [json.loads(line) for line in content.splitlines()]
        assert rows[0]["after"] == {"n": 1}
    assert len(rows) == 61
    assert rows[0]["subject"] == "of the whole server"
    assert {(row["actor"], row["action"]) for row in rows} == {("system", "session.stop")}


def test_the_system_page_says_when_only_triggers_keep_the_audit(world):
    shown = text(world.client.get(f"{world.base}/system"))
    assert "Audit Unprotected LoopGuard runs as" in shown
    assert "only triggers" in shown


@pytest.mark.one_database("what PostgreSQL estimates of its own tables")
def test_the_system_page_counts_few_rows_and_estimates_many(world, monkeypatch):
    def said():
        found = re.search(
            r"Events (.+?), in \d+ partitions Sessions (.+?) (?:Deleted|Old)", text(world.client.get(url))
        )
        return (found[1].strip(), found[2].strip())

    url = f"{world.base}/system"
    exact = (f"{Event.objects.count():,}", f"{Session.objects.count():,}")
    assert said() == exact  # whatever PostgreSQL knows of tables that nobody has analysed since
    monkeypatch.setattr(dashboard, "COUNTED_ROWS", 0)
    for words in said():
        assert re.fullmatch(r"more than 0|about [1-9]\d*", words)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE detection_event, detection_session")
    assert said() == tuple(f"about {one}" for one in exact)
    monkeypatch.setattr(dashboard, "COUNTED_ROWS", 10_000)
    assert said() == exact


def test_preferences_hold_from_the_first_byte(world):
    world.client.post("/preferences", {"theme": "dark", "time": "utc", "shortcuts": "off"})
    body = world.client.get(f"{world.base}/sessions").content.decode()
    assert 'data-theme="dark"' in body
    assert 'data-time="utc"' in body
    assert 'data-shortcuts="off"' in body


@pytest.mark.promise("SEC-26")
def test_an_error_page_shows_no_secrets(world):
    page = world.client.get("/nowhere")
    assert page.status_code == 404
    assert "Page not found" in text(page)
    assert "Traceback" not in page.content.decode()


def test_the_system_page_says_when_the_space_of_deleted_sessions_comes_free(world):
    url = f"{world.base}/system"
    assert "space is freed week by week" in text(world.client.get(url))
    with connection.cursor() as cursor:
        for day in (20_006, 20_013):
            cursor.execute(
                f"CREATE TABLE detection_event_{day} PARTITION OF detection_event FOR VALUES FROM (%s) TO (%s)",
                [day << 32, (day + 7) << 32],
            )
    old = datetime(2024, 11, 1, tzinfo=UTC)
    for number in range(2):
        Session.objects.create(
            id=(20_013 << 32) + number, project=world.project, external_id=f"old-{number}", started_at=old,
            last_event_at=old + timedelta(days=10 * number),
        )  # fmt: skip
    world.project.retention_days = 60
    world.project.save()
    words = text(world.client.get(url))
    assert "from the week of 10 Oct 2024 to be freed within minutes" in words
    assert "from the week of 17 Oct 2024 to be freed around 10 Jan 2025" in words
    assert retention.drop_empty_partitions() == ["detection_event_20006"]
    assert "week of 10 Oct 2024" not in text(world.client.get(url))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_compaction_is_shown_between_its_calls(is_first):
    project = make_project()
    client = Client()
    client.force_login(make_member(project))
    call: dict[str, Any] = {"type": "call", "tool": "search", "session": "s"}
    compactions = [EventRecord(type="compaction", session="s") for _ in range(2)]
    events = [EventRecord(**call, call_id=f"c{number}", arguments=f'{{"q":{number}}}') for number in range(4)]
    at = 0 if is_first else 2
    ingest(principal(project), [*events[:at], *compactions, *events[at:]])
    evaluate(Session.objects.get(external_id="s").key)

    url = f"/p/{project.slug}/sessions/s"
    page = client.get(url).content.decode()
    trace = page.partition('<ol class="tree"')[2].partition("</ol>")[0]
    found = [
        "|" if note else int(seq)
        for seq, note in re.findall(r'data-seq="(\d+)"|(Context compacted 2 times)', trace)
    ]
    assert found == (["|", 3, 4, 5, 6] if is_first else [1, 2, "|", 5, 6])
    table = client.get(f"{url}?tab=calls").content.decode().partition("<tbody")[2].partition("</tbody>")[0]
    rows = re.findall(r'<tr id="c-(\d+)"( class="compaction")?', table)
    assert [bool(is_compaction) for _, is_compaction in rows] == [False] * (4 - at) + [True] * 2 + [
        False
    ] * at
    assert [int(seq) for seq, _ in rows] == [6, 5, 4, 3, 2, 1]


def test_a_session_without_compactions_shows_none(world):
    url = f"{world.base}/sessions/{world.session.external_id}"
    assert "ompacted" not in world.client.get(url).content.decode()


def test_a_loop_that_is_fine_offers_to_reopen_it(world):
    fine(world, world.incident, "")
    page = world.client.get(run_address(world.incident)).content.decode()
    header = page.partition('<header class="page-head">')[2].partition("</header>")[0]
    actions = re.findall(r'name="action"\s+value="([\w:]+)"', header)
    assert "reopen" in actions
    assert not {"done", "fine"} & {*actions}
    world.client.post(f"{world.base}/loops/act", {"action": "reopen", "ids": world.incident.loop.public_id})
    assert 'value="done"' in world.client.get(run_address(world.incident)).content.decode()


def test_a_session_shows_unknown_tokens_and_costs_as_a_dash_and_can_be_kept_stopped(world):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "block_then_stop"}, SYSTEM, "because")
    page = f"{world.base}/sessions/stuck"
    loop(world.project, "stuck", calls=4)
    shown = text(world.client.get(page))
    assert "4 calls · cost –" in shown
    assert "tokens" not in shown.partition("Trace")[0]
    assert "Stop session… " in shown
    loop(world.project, "stuck", calls=9)
    assert Session.objects.get(external_id="stuck").stopped_by_kind == "detection"
    shown = text(world.client.get(page))
    assert "Keep stopped… " in shown
    assert "Stop session… " not in shown


@pytest.mark.parametrize(("length", "is_changing"), [(40, False), (5000, False), (5000, True)])
def test_a_row_says_identical_only_where_the_whole_arguments_were(world, length, is_changing):
    """The evidence keeps the beginning of long arguments only."""
    results: tuple[EventRecord, ...] = ()
    for number in range(6):
        end = f"end {number * 7919}" if is_changing else "end"
        arguments = f'{{"text":"{"w" * length} {end}"}}'
        ask(world.project, "long", number, arguments=arguments, results=results, tool="write_note")
        results = (result_of("long", number, "Error: the note is locked"),)
    incident = Incident.objects.filter(session_name="long").earliest("pk")
    equal = [line.is_equal for line in incident_text.evidence(incident)]
    assert equal[1:] == [not is_changing] * (len(equal) - 1)
    assert len(equal) > 2


def test_the_earlier_address_of_the_sessions_leads_to_all_of_them_with_its_filter(world):
    assert world.client.get(f"{world.base}/live").url == f"{world.base}/sessions?q="
    assert (
        world.client.get(f"{world.base}/live?q=agent%3Acoder").url == f"{world.base}/sessions?q=agent%3Acoder"
    )


def test_the_list_of_sessions_begins_with_those_that_have_not_ended(world):
    ask(world.project, "over", 1)
    Session.objects.filter(external_id="over").update(state="ended")
    assert "over" not in text(world.client.get(f"{world.base}/sessions")).split()
    assert "over" in text(world.client.get(f"{world.base}/sessions?q=is:ended")).split()
