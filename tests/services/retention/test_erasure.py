"""An erased session leaves no trace: every table of the database is searched for its name and texts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.filtering.language import term, write
from detection.models import Attempt, AuditEntry, Erasure, Incident, Loop, Session, WhatIf
from detection.models.erasures import MAX_ATTEMPTS, name_digest
from detection.selectors.erasures import list_erasures
from detection.services import saved_views
from detection.services.alerting import routing
from detection.services.approvals import decisions, judge_consultation
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound
from detection.services.events.event_records import EventRecord
from detection.services.exceptions import exceptions
from detection.services.gateway.conversations import store_rewrite
from detection.services.incidents import loop_triage
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardRequest
from detection.services.ingestion.ingest import ingest
from detection.services.policies import overrides
from detection.services.projects import members
from detection.services.retention import erasure, retention
from detection.services.sessions import actions
from detection.services.what_if import changes, what_ifs, worker
from loopguard_site.judge_env import JudgeEndpoint
from tests.console.scenes import ask, finished_import, loop, principal
from tests.support.alerts import come_due, make_route, make_webhook, send_all
from tests.support.erasures import failing_erasures
from tests.support.http_receiver import Reply, receiving
from tests.support.judge_server import JudgeServer, completion, ruling
from tests.support.projects import make_member, make_project

ANA = Actor("ana")
NAME = 'tickets/"ümit" \\ x47q11'
SECRET = "fingerprint-of-this-customer"


def everything():
    """Return every row of the database as text, by table, as a dump would hold it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        )
        tables = [name for (name,) in cursor.fetchall()]
        found = {}
        for table in tables:
            cursor.execute(f'SELECT string_agg(t::text, chr(10)) FROM "{table}" t')
            found[table] = cursor.fetchone()[0] or ""
    return found


def tables_with(*words):
    # Columns of bytes are shown, and dumped, in hexadecimal digits.
    searched = [*words, *(word.encode().hex() for word in words)]
    return {table for table, text in everything().items() if any(word in text for word in searched)}


@pytest.fixture
def receiver(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as one:
        yield one


def rich_session(project, receiver, name=NAME, agent="billing-agent"):
    """A session with an incident, a stop, audit entries, a what-if, notifications and a child."""
    make_route(project, make_webhook(project, receiver))
    incident = loop(project, name, arguments=f'{{"q":"{SECRET}"}}', agent=agent)
    loop_triage.comment(project.pk, incident.loop.public_id, ANA, f"seen in {name}")
    actions.stop(project.pk, name, ANA, f"enough of {name}")
    actions.resume(project.pk, name, ANA)
    child = EventRecord(type="call", session="child", call_id="c", tool="t", arguments="{}")
    guard.guard(principal(project), GuardRequest(session="child", parent_session=name, calls=(child,)))
    what_ifs.create_what_if(project.pk, changes.check(project.pk, "project", {"max_repeats": "2"}), ANA)
    worker.run_waiting(lambda: False)
    send_all()
    return incident


def erase(project, of="session", name=NAME):
    row = erasure.request_erasure(project.pk, of, name, ANA)
    assert erasure.run_waiting(lambda: False) == 1
    row.refresh_from_db()
    return row


@pytest.mark.promise("SEC-33")
@pytest.mark.django_db(transaction=True)
def test_an_erased_session_leaves_no_trace(project, receiver):
    rich_session(project, receiver)
    before = tables_with("x47q11", SECRET)
    assert {
        "detection_session", "detection_incident", "detection_loopactivity", "detection_alertevent",
        "detection_notification", "detection_auditentry", "detection_whatif",
    } <= before  # fmt: skip
    assert any(table.startswith("detection_event_") for table in before)
    child = Session.objects.get(project=project, external_id="child")
    row = erase(project)
    assert tables_with("x47q11", SECRET) == set()
    assert row.name == ""
    assert row.removed["sessions"] == 1
    assert row.removed["incidents"] >= 1
    assert row.removed["notifications"] >= 1
    left = Session.objects.get(project=project)
    assert (left.pk, left.parent_external_id) == (child.pk, "")
    assert left.changed_xid > child.changed_xid  # open pages fetch it
    stop = AuditEntry.objects.get(action="session.stop")
    assert (stop.subject, stop.after) == (f"erased:{name_digest(project, 'session', NAME)}", None)
    assert [*list_erasures(project.pk, ("session", NAME)).items] == [row]
    assert [*list_erasures(project.pk, ("session", "another")).items] == []


def everywhere(project, receiver):
    """A session whose name, agent and texts stand wherever a person or an agent can put them, directly or derived."""
    settings = {"family_enabled": True, "handoff_enabled": True}
    overrides.save_override(project.pk, PROJECT, settings, ANA)
    receiver.replies = [Reply(500, body=SECRET.encode()) for _ in range(20)]
    agent, arguments = f"agent of {SECRET}", f'{{"{SECRET}":"{SECRET}"}}'
    texts = [EventRecord(type="message", session=NAME, content=f"{SECRET} !/tool-loop-status", role="user")]
    texts += [
        EventRecord(
            type="call", session=NAME, call_id=SECRET, tool="t", arguments="{}", round=SECRET, run=SECRET
        )
    ]
    ingest(principal(project), texts)
    child = GuardRequest(session=NAME, parent_session="parent", agent=agent)
    guard.guard(
        principal(project),
        replace(child, calls=(EventRecord(type="call", session=NAME, call_id="c", tool="t"),)),
    )
    incident = rich_session(project, receiver, agent=agent)
    loop_triage.fine(project.pk, incident.loop.public_id, ANA, "poll", f"as {SECRET} knows")
    exceptions.create_exception(project.pk, incident.public_id, ANA, "tool:poll", note=f"for {SECRET}")
    until = timezone.now() + timedelta(hours=1)
    loop_triage.comment(project.pk, incident.loop.public_id, ANA, SECRET)
    loop_triage.later(project.pk, incident.loop.public_id, ANA, until=until, reason=SECRET)
    filters = urlencode({"q": write([term("session", NAME)])})
    saved_views.save_view(project.pk, "incidents", "Theirs", filters, ANA)
    saved_views.delete_view(
        project.pk, saved_views.save_view(project.pk, "sessions", SECRET, filters, ANA).public_id, ANA
    )
    overrides.save_override(project.pk, PROJECT, {"preset": "justified", "budget_max_rounds": 6}, ANA, "test")
    for number in range(7):
        secret: dict[str, Any] = {
            "call_id": f"r{number}",
            "arguments": arguments.replace(":", f":{number},"),
            "round": f"{SECRET} {number}",
        }
        call = EventRecord(type="call", session=NAME, tool="read", **secret)
        verdict = guard.guard(principal(project), GuardRequest(session=NAME, calls=(call,))).verdicts[0]
        if verdict.decision == "hold":
            break
    judge_consultation.consult_judge(verdict.approval["id"], project.pk)
    store_rewrite(project.pk, NAME, ("answer", 0), SECRET)
    session = Session.objects.get(project=project, external_id=NAME)
    session.quarantined_events.create(project=project, seq=1, type="call", error=SECRET, traceback=SECRET)
    Attempt.objects.create(
        project=project, route="events", status=422, detail=f"The session `{NAME}` is too long."
    )
    finished_import(incident)
    routing.route_pending()
    send_all()


@pytest.mark.promise("SEC-33")
@pytest.mark.django_db(transaction=True)
def test_of_what_people_agents_judge_and_receivers_wrote_about_a_session_nothing_is_left(
    project, receiver, settings
):
    judge = JudgeServer(lambda request: completion(ruling(request, reason=SECRET, guidance=SECRET)))
    with judge.running():
        settings.JUDGE = JudgeEndpoint(url=judge.url, model="judge-1", key="k")
        everywhere(project, receiver)
    before = tables_with("x47q11", SECRET)
    assert before >= {
        "detection_alertsilence", "detection_approval", "detection_deliveryattempt", "detection_judgecall", "detection_loopactivity",
        "detection_attempt", "detection_gatewayrewrite", "detection_quarantinedevent", "detection_savedview", "detection_sessionfamily",
        "detection_tooloverride", "detection_transcriptimport",
    }  # fmt: skip
    row = erase(project)
    assert tables_with("x47q11", SECRET) == set()
    assert {"saved_views", "judge_calls", "approvals", "imports"} <= row.removed.keys()
    # The tool keeps what people decided about it; their reason is gone.
    rule = project.tool_overrides.get()
    assert (rule.tool_class, rule.note) == ("poll", "Erased.")
    # Nor does the process that wrote the session last remember anything of it.
    for number in range(3):
        assert ask(project, NAME, number, arguments=f'{{"q":"{SECRET}"}}').decision == "allow"
    assert Session.objects.get(project=project, external_id=NAME).call_count == 3


@pytest.mark.django_db(transaction=True)
def test_what_belongs_to_others_stays(project, receiver):
    kept = loop(project, "kept", agent="billing-agent")
    rich_session(project, receiver)
    elsewhere = make_project()
    loop(elsewhere, NAME)
    its_loop = kept.loop_id
    erase(project)
    assert Loop.objects.filter(pk=its_loop).exists()
    assert {*Session.objects.filter(project=project).values_list("external_id", flat=True)} == {
        "kept",
        "child",
    }
    assert Incident.objects.filter(pk=kept.pk).exists()
    assert Session.objects.filter(project=elsewhere, external_id=NAME).exists()


@pytest.mark.promise("SEC-33")
@pytest.mark.django_db(transaction=True)
def test_all_sessions_of_an_agent_are_erased_also_those_past_their_retention(project, receiver):
    rich_session(project, receiver)
    loop(project, "past-x47q12", agent="billing-agent")
    loop(project, "other", tool="grep", agent="other-agent")
    old = Session.objects.filter(external_id="past-x47q12")
    old.update(last_event_at=timezone.now() - timedelta(days=400))
    retention.purge(project)
    assert not old.exists()
    assert Incident.objects.filter(session_name="past-x47q12").exists()
    row = erase(project, "agent", "billing-agent")
    assert tables_with("x47q11", "x47q12", "billing-agent") == set()
    assert row.removed["sessions"] == 1
    assert {*Session.objects.values_list("external_id", flat=True)} == {"child", "other"}


@pytest.mark.django_db(transaction=True)
def test_with_an_agent_go_sessions_that_it_handed_over_and_what_was_remembered_of_it(project):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, ANA)
    approval = loop(project, "held", agent="x47q13").approvals.get()
    decisions.decide(project.pk, approval.public_id, "allow_once", ANA, remember=True)
    ask(project, "handed-over", 1, agent="x47q13")
    ask(project, "handed-over", 2, agent="other")
    ask(project, "kept", 1, agent="other")
    row = erase(project, "agent", "x47q13")
    assert tables_with("x47q13") == set()
    assert (row.removed["sessions"], row.removed["remembered_decisions"]) == (2, 1)
    assert Session.objects.get().external_id == "kept"


@pytest.mark.one_database("a trigger refuses what is written")
@pytest.mark.promise("SEC-33")
@pytest.mark.django_db(transaction=True)
def test_an_erasure_that_keeps_failing_says_why_and_can_be_retried(project):
    loop(project, NAME)
    loop(project, "s-2")
    row = erasure.request_erasure(project.pk, "session", NAME, ANA)
    erasure.request_erasure(project.pk, "session", "s-2", ANA)
    with failing_erasures(but="s-2"):
        assert erasure.run_waiting(lambda: False) == 1, "one that fails keeps no other from its turn"
        assert erasure.run_waiting(lambda: False) == 0, "it is not due yet"
        for _ in range(MAX_ATTEMPTS):
            Erasure.objects.update(due_at=timezone.now())
            erasure.run_waiting(lambda: False)
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("failed", MAX_ATTEMPTS)
    assert row.error.startswith("RaiseException (SQLSTATE P0001)")
    assert "x47q11" not in row.error
    assert erasure.request_erasure(project.pk, "session", NAME, ANA) == row
    assert erasure.run_waiting(lambda: False) == 1
    row.refresh_from_db()
    assert (row.state, row.error, row.removed["sessions"]) == ("finished", "", 1)
    assert AuditEntry.objects.filter(action="session.erase", subject=f"erased:{row.name_digest}").count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_group_of_alerts_is_sent_without_the_erased_session(project, receiver):
    make_route(project, make_webhook(project, receiver), group_by=["agent"], group_wait_seconds=60)
    loop(project, "kept", agent="billing-agent")
    loop(project, NAME, agent="billing-agent")
    routing.route_pending()
    erase(project)
    come_due()
    send_all()
    bodies = [body.decode() for _, _, body in receiver.requests]
    assert bodies
    assert all("x47q11" not in body for body in bodies)
    assert any("kept" in body for body in bodies)


def test_a_request_needs_something_to_erase_and_is_made_once(project):
    with pytest.raises(NotFound):
        erasure.request_erasure(project.pk, "session", "nothing", ANA)
    with pytest.raises(Invalid):
        erasure.request_erasure(project.pk, "session", "", ANA)
    loop(project, NAME)
    first = erasure.request_erasure(project.pk, "session", NAME, ANA)
    assert erasure.request_erasure(project.pk, "session", NAME, ANA) == first
    assert Erasure.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_stops_in_the_middle_is_followed_by_another(project):
    for number in range(3):
        loop(project, f"s-{number}", agent="billing-agent")
    erasure.request_erasure(project.pk, "agent", "billing-agent", ANA)
    asked = iter([False, True])
    assert erasure.run_waiting(lambda: next(asked)) == 0
    assert Session.objects.count() == 2
    assert erasure.run_waiting(lambda: False) == 1
    row = Erasure.objects.get()
    assert row.removed["sessions"] == 3
    assert not Session.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_only_an_erasure_changes_the_audit(project):
    loop(project, NAME)
    actions.stop(project.pk, NAME, ANA, "enough")
    for statement in (
        "UPDATE detection_auditentry SET subject = 'x'",
        "SET LOCAL loopguard.erasing = 'on'; UPDATE detection_auditentry SET actor = 'x'",
        "SET LOCAL loopguard.erasing = 'on'; DELETE FROM detection_auditentry",
    ):
        with (
            pytest.raises(DatabaseError, match="append-only"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["admin", "role", "1", ": ", "session"])
def test_a_name_that_is_also_a_word_of_others_changes_nothing_else(project, name):
    loop(project, name)
    actions.stop(project.pk, name, ANA, "enough")
    member = make_member(project, "viewer", username=f"{name}-member")
    members.change_role(project.pk, member.pk, "admin", ANA)
    other = what_ifs.create_what_if(
        project.pk, changes.check(project.pk, "project", {"max_repeats": "2"}), ANA
    )
    WhatIf.objects.filter(pk=other.pk).update(
        state="finished",
        finished_at=timezone.now(),
        result={"calls": 1, "role": "admin", "lost": {"items": []}},
    )
    erase(project, name=name)
    entry = AuditEntry.objects.get(action="member.role")
    assert entry.after["role"] == "admin"
    assert WhatIf.objects.filter(pk=other.pk).exists()
    assert AuditEntry.objects.get(action="session.stop").subject.startswith("erased:")


@pytest.mark.django_db(transaction=True)
def test_what_an_agent_begins_after_the_request_stays(project):
    loop(project, "before", agent="billing-agent")
    row = erasure.request_erasure(project.pk, "agent", "billing-agent", ANA)
    stops = iter(range(10))

    def continues():
        if next(stops) == 0:
            loop(project, "after", agent="billing-agent")
        return False

    assert erasure.run_waiting(continues) == 1
    row.refresh_from_db()
    assert row.removed["sessions"] == 1
    assert Session.objects.get().external_id == "after"
