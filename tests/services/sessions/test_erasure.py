"""An erased session leaves no trace: every table of the database is searched for its name and texts."""

from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from detection.models import AuditEntry, Erasure, Incident, Pattern, Session, WhatIf
from detection.models.erasures import name_digest
from detection.selectors.erasures import list_erasures
from detection.services.alerting import routing
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound
from detection.services.incidents import patterns, triage
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardRequest
from detection.services.maintenance import retention
from detection.services.projects import members
from detection.services.sessions import actions, erasure
from detection.services.sessions.event_records import EventRecord
from detection.services.what_if import changes, what_ifs, worker
from tests.console.scenes import loop, principal
from tests.support.alerts import come_due, make_route, make_webhook, send_all
from tests.support.http_receiver import receiving
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
    return {table for table, text in everything().items() if any(word in text for word in words)}


@pytest.fixture
def receiver(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as one:
        yield one


def rich_session(project, receiver, name=NAME, agent="billing-agent"):
    """A session with an incident, a stop, audit entries, a what-if, notifications and a child."""
    make_route(project, make_webhook(project, receiver))
    incident = loop(project, name, arguments=f'{{"q":"{SECRET}"}}', agent=agent)
    triage.comment(project.pk, incident.public_id, ANA, f"seen in {name}")
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


@pytest.mark.django_db(transaction=True)
def test_an_erased_session_leaves_no_trace(project, receiver):
    rich_session(project, receiver)
    before = tables_with("x47q11", SECRET)
    assert {
        "detection_session", "detection_incident", "detection_incidentactivity", "detection_alertevent",
        "detection_notification", "detection_auditentry", "detection_whatif",
    } <= before  # fmt: skip
    assert any(table.startswith("detection_event_") for table in before)
    row = erase(project)
    assert tables_with("x47q11", SECRET) == set()
    assert row.name == ""
    assert row.removed["sessions"] == 1
    assert row.removed["incidents"] >= 1
    assert row.removed["notifications"] >= 1
    assert Session.objects.get(project=project).external_id == "child"
    stop = AuditEntry.objects.get(action="session.stop")
    assert (stop.subject, stop.after) == (f"erased:{name_digest(project, 'session', NAME)}", None)
    assert [*list_erasures(project.pk, ("session", NAME)).items] == [row]
    assert [*list_erasures(project.pk, ("session", "another")).items] == []


@pytest.mark.django_db(transaction=True)
def test_what_belongs_to_others_stays(project, receiver):
    kept = loop(project, "kept", agent="billing-agent")
    rich_session(project, receiver)
    elsewhere = make_project()
    loop(elsewhere, NAME)
    pattern = kept.pattern_id
    Incident.objects.update(pattern=None)
    patterns.assign_missing()
    pattern = Incident.objects.get(pk=kept.pk).pattern_id
    erase(project)
    assert Pattern.objects.filter(pk=pattern).exists()
    assert {*Session.objects.filter(project=project).values_list("external_id", flat=True)} == {
        "kept",
        "child",
    }
    assert Incident.objects.filter(pk=kept.pk).exists()
    assert Session.objects.filter(project=elsewhere, external_id=NAME).exists()


@pytest.mark.django_db(transaction=True)
def test_all_sessions_of_an_agent_are_erased_also_those_past_their_retention(project, receiver):
    rich_session(project, receiver)
    loop(project, "past-x47q12", agent="billing-agent")
    loop(project, "other", agent="other-agent")
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
