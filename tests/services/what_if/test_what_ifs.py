"""What-ifs: replays of what real evaluation stored, under the current policy and under a changed one."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT, Scope
from detection.models import Event, Incident, Session, ToolOverride, WhatIf
from detection.selectors.policies import load_overrides
from detection.services.audit import SYSTEM, Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.exceptions import exceptions
from detection.services.maintenance import hourly_counts
from detection.services.policies import overrides
from detection.services.retention import removal
from detection.services.sessions import actions
from detection.services.what_if import changes, history, what_ifs, worker
from tests.console.scenes import answer, ask, loop
from tests.support.alerts import fine_run
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db
ANA = Actor("ana")


def what_if(project, scope, values=None, days=7, **facts):
    change = changes.check(project.pk, scope, values or {}, **facts)
    return what_ifs.create_what_if(project.pk, change, ANA, days=days)


def worked(row):
    worker.run_waiting(lambda: False)
    row.refresh_from_db()
    return row


def summary(row):
    found = row.result
    return found["gained"]["count"], found["lost"]["count"], found["changed"]["by_difference"]


@pytest.fixture
def project(db):
    return make_project()


def test_an_exception_for_one_agent_loses_its_loops_only_and_labelled_ones_come_first(project):
    poll = loop(project, "poll", calls=6, agent="poller", cost_usd=0.5)
    loop(project, "newer", calls=6, agent="poller", cost_usd=0.25)
    loop(project, "real", calls=6, cost_usd=2)
    fine_run(poll, ANA)
    row = worked(
        what_if(
            project,
            "agent:poller",
            {"repeat_enabled": False, "outcome_enabled": False, "stagnation_enabled": False},
        )
    )
    assert (row.state, row.error) == ("finished", "")
    assert summary(row) == (0, 2, {})
    assert [one["session"] for one in row.result["lost"]["items"]] == ["poll", "newer"]
    assert row.result["lost"]["items"][0]["incident"] == poll.public_id
    # What they cost is what the incidents cost; sums exclude what is not a loop.
    assert [one["cost_usd"] for one in row.result["lost"]["items"]] == [3.0, 1.5]
    assert float(Incident.objects.get(pk=poll.pk).cost_usd) == 3.0
    assert row.result["lost"]["cost_usd"] == 1.5
    assert row.result["spent_usd"] == {"before": 13.5, "after": 12.0}
    assert [(one["found_at_call"], one["reacted_at_call"]) for one in row.result["lost"]["items"]] == [
        (3, 4)
    ] * 2
    assert row.result["labels"]["lost"] == {"false_alarm": 1}
    assert (
        row.result["recorded"]["reproduced"]
        == row.result["recorded"]["incidents"]
        == Incident.objects.count()
    )
    assert row.result["replayed"]["unaffected_sessions"] == 1
    assert row.result["missing"] == {}


def test_a_sub_agent_is_replayed_under_what_its_top_and_the_agent_of_that_hand_down(project):
    ask(project, "top", 0, agent="lead")
    loop(project, "child", calls=6, agent="helper", parent_session="top")
    before = {"repeat_enabled": False, "outcome_enabled": False, "stagnation_enabled": False}
    assert summary(worked(what_if(project, "agent:lead", before))) == (0, 1, {})
    assert summary(worked(what_if(project, "agent:other", before))) == (0, 0, {})


def test_a_session_that_has_been_quiet_for_hours_is_replayed(project):
    loop(project, "quiet", calls=6)
    hours_ago = timezone.now() - timedelta(hours=3)
    Event.objects.update(received_at=hours_ago)
    Session.objects.update(last_event_at=hours_ago)
    row = worked(what_if(project, "project", {"enabled": False}))
    assert (row.state, row.error) == ("finished", "")
    assert row.result["lost"]["count"] == Incident.objects.count()


def test_a_stricter_limit_finds_more_and_tells_what_changes_of_the_rest(project):
    for number in range(3):
        ask(project, "short", number)
        answer(project, "short", number, f"{number} results")
    loop(project, "long", calls=8)
    before = Incident.objects.count()
    values = {"max_repeats": 2, "repeat_warn_at": 2, "result_aware": False}
    row = worked(what_if(project, "project", values, days=30))
    (gained,) = row.result["gained"]["items"]
    assert (gained["session"], gained["kind"], gained["found_at_call"]) == ("short", "repeat", 2)
    assert row.result["incidents"]["before"] == before
    (changed,) = row.result["changed"]["items"]
    assert changed["session"] == "long"
    assert changed["difference"] in ("earlier", "stricter")
    assert changed["found_at_call"] > changed["found_at_call_after"]
    assert row.result["decisions"]["after"]["block"] > row.result["decisions"]["before"].get("block", 0)


def test_the_cost_of_lost_gained_and_changed_incidents_adds_up(project):
    """Where a cycle is no longer found, other detectors find its calls: labelled ones are no loop there either."""
    for session in ("labelled", "open"):
        for number in range(16):
            arguments = f'{{"q":"side {number % 2}"}}'
            ask(project, session, number, arguments=arguments, cost_usd=0.5)
            answer(project, session, number, "same")
    own = Incident.objects.get(session_name="labelled", kind="cycle")
    fine_run(own, ANA)
    values = {"cycle_enabled": False, "outcome_enabled": False, "mode": "warn"}
    found = worked(what_if(project, "project", values)).result
    spent, (lost, gained, changed) = (
        found["spent_usd"],
        (found[name] for name in ("lost", "gained", "changed")),
    )
    # Of each session one loop, in which another detector acts then.
    assert (lost["count"], gained["count"], changed["count"]) == (0, 0, 2)
    assert {one["kind"] for one in changed["items"]} == {"cycle"}
    assert "cycle" not in {one["kind_after"] for one in changed["items"]}
    difference = changed["cost_usd_after"] - changed["cost_usd"]
    assert changed["cost_usd_after"] < changed["cost_usd"]
    total = spent["before"] - lost.get("cost_usd", 0.0) + gained.get("cost_usd", 0.0) + difference
    assert spent["after"] == pytest.approx(total)
    # Both sessions are alike, and the labelled one adds nothing.
    items = [one for part in (gained, changed) for one in part["items"]]
    assert {one["label"] for one in items if one["session"] == "labelled"} == {"false_alarm"}
    costs = [one.get("cost_usd_after", one["cost_usd"]) for one in items if one["session"] == "open"]
    assert spent["after"] == pytest.approx(sum(costs))


@pytest.mark.parametrize(
    ("scope", "facts"),
    [
        ("tool:search_*", {"exempt": True}),
        ("model:openai/gpt-5", {"values": {"enabled": False}}),
        ("backend:openai", {"values": {"enabled": False}}),
        ("server", {"values": {"enabled": False}}),
        ("session", {"values": {"enabled": False}, "session": "s-1"}),
    ],
)
def test_every_scope_can_be_tried(project, scope, facts):
    loop(project, calls=6)
    loop(project, "s-2", calls=6, tool="read_page", backend="local", model="q")
    everything = scope == "server"
    row = worked(what_if(project, scope, **facts))
    lost = {one["session"] for one in row.result["lost"]["items"]}
    assert lost == ({"s-1", "s-2"} if everything else {"s-1"})
    assert row.sessions == (1 if scope == "session" else 2)


def test_an_override_that_exists_is_replaced_by_the_change(project):
    """A change is the whole override; what a narrower scope sets stays, and the order of tool rules is that of detection."""
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 9, "repeat_warn_at": 0}, SYSTEM, "slow")
    overrides.save_override(project.pk, Scope.of("triage"), {"max_repeats": 3}, SYSTEM)
    overrides.save_override(project.pk, Scope("tool", pattern="s*"), values={"max_repeats": 2}, actor=SYSTEM)
    stored = changes.check(project.pk, "tool:search*", {"max_repeats": 5})
    tried = stored.applied(load_overrides(project.pk))
    saved = overrides.save_override(
        project.pk, Scope("tool", pattern="search*"), values={"max_repeats": 5}, actor=SYSTEM, note="x"
    )
    live = load_overrides(project.pk)
    assert [rule.pattern for rule in tried.tool_rules] == [rule.pattern for rule in live.tool_rules]
    assert isinstance(saved, ToolOverride)
    assert saved.pattern in [rule.pattern for rule in tried.tool_rules]
    emptied = changes.check(project.pk, "project", {}).applied(live)
    assert emptied.policy_for("", "", "", {}).get("max_repeats") == 4
    assert emptied.policy_for("triage", "", "", {}).get("max_repeats") == 3


def test_what_differs_from_the_record_is_told_with_its_cause(project):
    loop(project, "then", calls=6)
    overrides.save_override(project.pk, PROJECT, {"enabled": False}, SYSTEM, "off")
    row = worked(what_if(project, "agent:nobody", {"max_repeats": 3}))
    recorded = row.result["recorded"]
    assert (recorded["reproduced"], set(recorded["not_found"])) == (0, {"settings"})
    overrides.save_override(project.pk, PROJECT, {}, SYSTEM)
    ask(project, "later", 0)
    actions.set_policy(project.pk, "later", {"enabled": False}, ANA)
    for number in range(1, 8):
        assert ask(project, "later", number).decision == "allow"
    again = worked(what_if(project, "agent:nobody", {"max_repeats": 3})).result["recorded"]
    assert again["reproduced"] == again["incidents"] > 0
    assert again["not_recorded"] == {}  # the settings of a session are repeated at their time


def test_history_that_cannot_be_replayed_is_counted_by_reason(project, monkeypatch):
    loop(project, "whole", calls=6)
    loop(project, "without", calls=6)
    Event.objects.filter(session__external_id="without").update(arguments=None, content=None)
    loop(project, "long", calls=6)
    monkeypatch.setattr(history, "MAX_EVENTS", 8)
    row = worked(what_if(project, "project", {"enabled": False}))
    kept = Session.objects.get(external_id="long").call_count - 4
    assert row.result["missing"]["payloads_not_stored"] == {
        "sessions": 1,
        "calls": Session.objects.get(external_id="without").call_count,
    }
    assert row.result["missing"]["too_long"]["calls"] >= kept
    assert {one["session"] for one in row.result["lost"]["items"]} == {"whole", "long"}
    assert row.result["replayed"]["sessions"] == 2


def test_a_project_without_payloads_is_told_that_it_is_not_available(project):
    project.stores_payloads = False
    project.save()
    with pytest.raises(Conflict) as error:
        what_if(project, "project", {"max_repeats": 3})
    assert error.value.code == "payloads_not_stored"


def test_pieces_of_any_size_find_the_same_and_a_changed_policy_begins_anew(project, monkeypatch):
    for number in range(5):
        loop(project, f"s-{number}", calls=6)
    whole = worked(what_if(project, "project", {"max_repeats": 9, "repeat_warn_at": 0}))
    monkeypatch.setattr(worker, "PIECE_SECONDS", 0.0)
    monkeypatch.setattr(worker, "GROUP_SESSIONS", 2)
    parts = what_if(project, "project", {"max_repeats": 9, "repeat_warn_at": 0})
    stops = iter([False, False, False, True])
    worker.run_waiting(lambda: next(stops))
    parts.refresh_from_db()
    assert (parts.state, parts.done_sessions) == ("running", 1)
    overrides.save_override(project.pk, Scope.of("other"), {"max_repeats": 3}, SYSTEM)
    worked(parts)
    assert (parts.state, parts.done_sessions, parts.sessions) == ("finished", 5, 5)
    for row in (parts, whole):
        assert row.result["replayed"].pop("began_at") <= timezone.now().timestamp()
    assert parts.result == whole.result
    assert parts.share == 1


def test_a_what_if_is_cancelled_once_and_keeps_what_it_found(project, monkeypatch):
    for number in range(3):
        loop(project, f"s-{number}", calls=6)
    monkeypatch.setattr(worker, "PIECE_SECONDS", 0.0)
    row = what_if(project, "project", {"enabled": False})
    stops = iter([False, False, True])
    worker.run_waiting(lambda: next(stops))
    what_ifs.cancel_what_if(project.pk, row.public_id, ANA)
    worked(row)
    assert (row.state, row.finished_by, row.done_sessions, row.result["lost"]["count"]) == (
        "cancelled",
        "ana",
        1,
        1,
    )
    with pytest.raises(Conflict):
        what_ifs.cancel_what_if(project.pk, row.public_id, ANA)
    with pytest.raises(NotFound):
        what_ifs.cancel_what_if(make_project().pk, row.public_id, ANA)


def test_a_piece_that_ends_every_worker_fails_in_the_end(project, monkeypatch):
    loop(project, calls=6)
    row = what_if(project, "project", {"enabled": False})

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    for _ in range(worker.MAX_STARTS):
        with pytest.raises(Killed):
            worker.run_waiting(lambda: False, die)
    assert worked(row).error_code == "interrupted"


def test_a_spent_budget_is_not_excepted_by_its_arguments_or_the_class_of_its_tool(project):
    limits = {"budget_enabled": True, "budget_max_calls": 3}
    overrides.save_override(project.pk, PROJECT, limits, SYSTEM, "small")
    for number in range(5):
        ask(project, "s-1", number, tool="find_user", arguments=f'{{"user": "u-{number}"}}')
    found = {one.id for one in exceptions.options(Incident.objects.get(kind="budget"))}
    assert {one for one in found if one.startswith("tool:")} == {"tool:raise", "tool:exempt"}


@pytest.mark.parametrize(
    ("kind", "content", "offered"),
    [
        ("repeat", "[]", {"poll"}),
        ("outcome", "no such user", {"fallible", "ignore"}),
        ("outage", "HTTP 429: rate limit exceeded", {"fallible"}),
    ],
)
def test_every_exception_for_a_tool_that_is_offered_changes_something(project, kind, content, offered):
    for number in range(12):
        arguments = "{}" if kind == "repeat" else f'{{"user": "u-{number}"}}'
        verdict = ask(project, "s-1", number, tool="find_user", arguments=arguments)
        if verdict.decision in ("allow", "warn"):
            answer(project, "s-1", number, content, is_error=kind != "repeat")
    incident = Incident.objects.get(kind=kind)
    found = [one for one in exceptions.options(incident) if one.id.startswith("tool:")]
    assert {one.id.removeprefix("tool:") for one in found} - {"raise", "exempt"} == offered
    for option in found:
        row = worked(what_ifs.create_what_if(project.pk, option.change, ANA, days=7))
        _, lost, changed = summary(row)
        assert lost or changed, option.id


def test_the_number_of_open_and_kept_what_ifs_is_bounded(project, monkeypatch):
    rows = [what_if(project, "project", {"max_repeats": 3}) for _ in range(what_ifs.MAX_OPEN)]
    with pytest.raises(Conflict) as error:
        what_if(project, "project", {"max_repeats": 3})
    assert error.value.code == "too_many_what_ifs"
    worked(rows[-1])
    monkeypatch.setattr(what_ifs, "MAX_KEPT", 2)
    what_ifs.trim()
    assert [*WhatIf.objects.values_list("pk", flat=True)] == [row.pk for row in rows[:-3:-1]]


def test_calls_of_sessions_that_are_removed_by_now_are_counted(project):
    loop(project, "gone", calls=6)
    loop(project, "kept", calls=6)
    Session.objects.update(started_at=timezone.now() - timedelta(hours=3))
    hourly_counts.count_calls()
    calls = Session.objects.get(external_id="gone").call_count
    Session.objects.filter(external_id="gone").update(last_event_at=timezone.now() - timedelta(days=6))
    removal.remove_older_than(project.pk, timezone.now() - timedelta(days=5))
    row = worked(what_if(project, "project", {"enabled": False}))
    assert row.result["missing"] == {"removed": {"sessions": 0, "calls": calls}}


def test_calls_that_arrive_while_it_runs_are_not_those_of_removed_sessions(project, monkeypatch):
    for number in range(3):
        loop(project, f"before-{number}", calls=6)
    hourly_counts.count_calls()
    monkeypatch.setattr(worker, "PIECE_SECONDS", 0.0)
    row = what_if(project, "project", {"enabled": False})
    worker.run_waiting(iter([False, False, True]).__next__)  # one piece, which is one session
    loop(project, "meanwhile", calls=6)
    hourly_counts.count_calls()
    row = worked(row)
    assert row.result["missing"] == {}
    assert row.result["replayed"]["sessions"] == 3


@pytest.mark.parametrize(
    ("scope", "given", "field"),
    [
        ("planet", {}, "scope"),
        ("environment", {"values": {"max_repeats": 3}}, "scope"),
        ("session", {"values": {"max_repeats": 3}}, "session"),
        ("project", {"session": "s-1"}, "session"),
        ("project", {"values": {"max_repeats": 1}}, "max_repeats"),
        ("project", {"exempt": True}, "exempt"),
        ("tool:x", {"tool_class": "nonsense"}, "tool_class"),
        ("tool:x", {"ignore_arguments": [3]}, "ignore_arguments"),
        ("project", {"days": 8}, "days"),
    ],
)
def test_a_change_that_could_not_be_saved_is_not_tried(project, scope, given, field):
    with pytest.raises(Invalid) as error:
        what_if(project, scope, **given)
    assert error.value.field == field
