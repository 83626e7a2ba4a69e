"""What-ifs in real workers that die on the way, and on the command line."""

import json
import subprocess
import sys

import pytest
from django.db import connection

from detection.models import Session, WhatIf
from detection.services.audit import Actor
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.keys import authenticate
from detection.services.sessions.evaluation import evaluate
from detection.services.what_if import changes, what_ifs

from .installation import ROOT, looping_events, wait_until

pytestmark = pytest.mark.servers

COPIES = 24
CALLS = 250


def fill(token):
    """One looping session through the services, and copies of its rows under other names."""
    principal = authenticate(token)
    events = looping_events("s-0", CALLS)
    ingest(
        principal,
        [
            EventRecord(**{**event, "arguments": json.dumps(event["arguments"])})
            if "arguments" in event
            else EventRecord(**event)
            for event in events
        ],
    )
    first = Session.objects.get()
    evaluate(first.key)
    first.refresh_from_db()
    names = [
        field.column for field in Session._meta.concrete_fields if field.column not in ("id", "external_id")
    ]
    query = "SELECT array_to_string(array_agg(attname), ', ') FROM pg_attribute WHERE attrelid = 'detection_event'::regclass AND attnum > 0 AND attname <> 'session_id'"
    with connection.cursor() as cursor:
        cursor.execute(query)
        (columns,) = cursor.fetchone()
        listed = ", ".join(names)
        cursor.execute(
            f"INSERT INTO detection_session (external_id, {listed}) SELECT 's-' || n, {listed}"
            " FROM detection_session, generate_series(1, %s) AS n",
            [COPIES],
        )
        cursor.execute(
            f"INSERT INTO detection_event (session_id, {columns}) SELECT s.id, {', '.join('e.' + name for name in columns.split(', '))}"
            " FROM detection_event e, detection_session s WHERE s.id <> e.session_id"
        )
    return first


@pytest.mark.long
def test_a_worker_killed_in_the_middle_of_a_replay_is_replaced_and_nothing_counts_twice(
    install, project, token
):
    fill(token)
    change = changes.check(project.pk, "tool:search_web", {}, exempt=True)
    row = what_ifs.create_what_if(project.pk, change, Actor("ana"))
    installation = install(web=False, worker=False)
    killed = installation.start_worker()

    def done():
        row.refresh_from_db()
        return row.done_sessions

    assert wait_until(lambda: 0 < done() < COPIES), installation.logs()
    installation.kill(killed)
    assert row.state == "running"
    installation.start_worker()
    assert wait_until(lambda: done() and row.state != "running", 90), installation.logs()
    assert (row.state, row.done_sessions, row.done_calls) == ("finished", COPIES + 1, (COPIES + 1) * CALLS)
    assert row.result["replayed"]["calls"] == (COPIES + 1) * CALLS
    assert row.result["lost"]["count"] % (COPIES + 1) == 0
    assert row.result["recorded"]["reproduced"] == row.result["recorded"]["incidents"] > 0
    arguments = ["what-if", "--project", "support", "--scope", "tool:search_web", "--exempt", "--json"]
    said = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=installation._environment | {"LOOPGUARD_BOOTSTRAP": "0"}, capture_output=True, timeout=90,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout.splitlines()[-1])
    assert document["result"]["lost"]["count"] == row.result["lost"]["count"]
    assert WhatIf.objects.count() == 2
