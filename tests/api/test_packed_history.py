"""Packed sessions: everything that reads or writes them finds their events as they were."""

import threading
import time
import zlib
from contextlib import suppress
from datetime import datetime, timedelta
from io import StringIO

import orjson
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.models import (
    AuditEntry,
    CallCount,
    Event,
    Incident,
    PackedEvents,
    Project,
    SearchBlock,
    Session,
)
from detection.selectors.packed_events import events_of
from detection.selectors.sessions import calls_cursor, session_calls
from detection.services.audit import SYSTEM
from detection.services.ingestion import import_worker
from detection.services.keys import authenticate
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.projects import projects
from detection.services.retention import erasure, history, retention
from detection.services.search import indexing
from detection.services.sessions import packing
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.locked_session import locked_session
from detection.services.what_if import changes, what_ifs, worker
from tests.support.agents import Agent
from tests.support.patience import PATIENCE_SECONDS
from tests.support.projects import make_key, make_member, make_project
from tests.support.threads import in_thread, wait_until_blocked
from tests.support.transcripts import claude_code, lines

from .test_telemetry import accepted, recorded, send

pytestmark = pytest.mark.django_db
STEPS = [
    ("read_file", {"path": f"notes-{number}.txt"}, f'line {number}: "größe" is\t{number} \\ kB', number == 3)
    for number in range(6)
]
MONTH = timedelta(days=30)


def settle():
    """What workers do until a session rests."""
    for session in Session.objects.filter(packed_at=None):
        evaluate(session.key)
    indexing.index_texts()
    count_calls()


def age(name, days=40):
    """Let a session be older."""
    then = timezone.now() - timedelta(days=days)
    Session.objects.filter(external_id=name).update(last_event_at=then, started_at=then)


def rows(name):
    """Every column of the events of a session, as the database shows them."""
    names = ", ".join(field.column for field in Event._meta.concrete_fields if field.column)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {names}, e::text FROM detection_event e JOIN detection_session s ON s.id = e.session_id"
            " AND s.project_id = e.project_id WHERE s.external_id = %s ORDER BY seq".replace(
                names, ", ".join(f"e.{one}" for one in names.split(", "))
            ),
            [name],
        )
        return cursor.fetchall()


def session(name):
    return Session.objects.select_related("project").get(external_id=name)


def rested(api, name="old", **about):
    """A session that has rested for 40 days, not packed yet."""
    api.run(STEPS, name, agent="reader", **about)
    settle()
    age(name)


def packed(api, project, name="old", **about):
    """Such a session, packed; returns its rows from before."""
    rested(api, name, **about)
    before = rows(name)
    assert history.pack(project, timezone.now() - MONTH, name=name).sessions == 1
    assert rows(name) == []
    return before


def command(*arguments):
    out = StringIO()
    call_command("history", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def calls_of(api, name="old"):
    return api.get(f"/sessions/{name}/calls", limit=100).json()["items"]


def test_packing_and_unpacking_are_the_identity_on_all_columns(api, project):
    before = packed(api, project)
    assert len(before) == 12
    assert session("old").packed_at is not None
    one = PackedEvents.objects.get()
    assert (one.events, one.agents, one.project_id) == (12, ["reader"], project.pk)
    assert one.row_bytes > len(bytes(one.columns)) > 0

    assert history.unpack(project).sessions == 1
    assert rows("old") == before
    assert not PackedEvents.objects.exists()
    assert session("old").packed_at is None
    # It rests anew from here on.
    assert history.pack(project, timezone.now() - MONTH).sessions == 0
    Session.objects.update(unpacked_at=timezone.now() - timedelta(days=35))
    assert history.pack(project, timezone.now() - MONTH).sessions == 1


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
EVENT = st.fixed_dictionaries(
    {},
    optional={
        "arguments": TEXT,
        "content": TEXT,
        "tool": TEXT,
        "reply": TEXT,
        "is_error": st.sampled_from([True, False, None]),
        "tokens": st.integers(-(2**31), 2**31 - 1),
        "cost_usd": st.decimals(0, 999_999, places=6),
        "occurred_at": st.datetimes(timezones=st.just(timezone.get_fixed_timezone(0))),
        "received_at": st.datetimes(timezones=st.just(timezone.get_fixed_timezone(0))),
        "verdict": st.recursive(
            st.none() | st.booleans() | TEXT | st.decimals(-(10**30), 10**30, places=9).map(str),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
            max_leaves=5,
        ),
    },
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENT, min_size=1, max_size=4))
def test_any_values_survive(project, events):
    made = Session.objects.create(project=project, external_id=f"any-{Session.objects.count()}")
    with connection.cursor() as cursor:
        for number, event in enumerate(events):
            values = dict(event)
            verdict = values.pop("verdict", None)
            named = ["project_id", "session_id", "seq", "type", *values]
            cursor.execute(
                f"INSERT INTO detection_event ({', '.join(named)}, verdict)"
                f" VALUES ({', '.join(['%s'] * len(named))}, %s::jsonb)",
                [
                    project.pk,
                    made.pk,
                    number + 1,
                    "call",
                    *values.values(),
                    None if verdict is None else connection.ops.adapt_json_value(verdict, None),
                ],
            )
        # A number in JSON keeps its digits.
        cursor.execute("UPDATE detection_event SET verdict = '{\"n\": 1.10}' WHERE seq = 2")
    Session.objects.filter(pk=made.pk).update(
        last_seq=len(events), evaluated_seq=len(events), last_event_at=timezone.now() - MONTH
    )
    settle()
    before = rows(made.external_id)
    assert packing.pack(packing.resting(project, timezone.now() - timedelta(days=20)), made.key) == len(
        events
    )
    read = [
        *events_of(session(made.external_id))
        .order_by("seq")
        .values_list("arguments", "received_at", "cost_usd")
    ]
    assert rows(made.external_id) == []
    history.unpack(project)
    assert rows(made.external_id) == before
    assert read == [
        *Event.objects.filter(session=made)
        .order_by("seq")
        .values_list("arguments", "received_at", "cost_usd")
    ]


def test_a_column_that_is_newer_than_the_packed_events_has_its_default(api, project):
    before = packed(api, project)
    one = PackedEvents.objects.get()
    named = orjson.loads(zlib.decompress(bytes(one.columns)))
    assert {*named["decision"]} == {"allow"}
    del named["cwd"], named["decision"], named["is_error"]
    PackedEvents.objects.update(columns=zlib.compress(orjson.dumps(named)))
    decisions = [row["decision"] for row in calls_of(api)]
    assert decisions == ["allow"] * 6
    history.unpack(project)
    error = [one.column for one in Event._meta.concrete_fields if one.column].index("is_error")

    def others(found):
        return [(*row[:error], *row[error + 1 : -1]) for row in found]

    assert others(rows("old")) == others(before)


def test_a_reader_whose_session_is_packed_meanwhile_finds_its_calls(api, project):
    rested(api)
    stale = session("old")
    first = session_calls(stale, limit=2)
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    rest = session_calls(stale, after_seq=calls_cursor(first.next_cursor), limit=10)
    assert [one.call_number for one in (*first.items, *rest.items)] == [1, 2, 3, 4, 5, 6]
    packed_then = session("old")
    assert len(session_calls(packed_then).items) == 6
    unpacked_meanwhile = session("old")
    history.unpack(project)
    assert len(session_calls(packed_then).items) == len(session_calls(unpacked_meanwhile).items) == 6


def test_api_pages_and_searches_show_a_packed_session_as_before(api, project):
    rested(api)

    def shown():
        return [
            calls_of(api),
            api.get("/sessions/old").json()["calls"],
            api.get("/sessions/old/calls", limit=2).json()["items"],
            [hit["excerpt"] for hit in api.get("/search", q='"größe"').json()["items"]],
            [hit["session"] for hit in api.get("/search", q="notes-4").json()["items"]],
            [one["session"] for one in api.get("/sessions", q="text:notes-4").json()["items"]],
        ]

    before = shown()
    assert len(before[0]) == 6
    assert len(before[3]) == 6
    assert before[4] == ["old"] == before[5]
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    assert not Event.objects.exists()
    assert shown() == before
    assert PackedEvents.objects.exists()  # reading writes nothing


def test_all_pages_of_a_long_packed_session_are_as_before(api, project):
    steps = [("read_file", {"path": f"part-{number}.txt"}, f"text {number}") for number in range(60)]
    api.run(steps, "old", agent="reader")
    settle()
    age("old")

    def by_cursor(**about):
        found: list[list[str]] = []
        cursor: dict[str, str] = {}
        while True:
            page = api.get("/sessions/old/calls", limit=7, **cursor, **about).json()
            found.append([call["call_id"] for call in page["items"]])
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    def shown():
        one = session("old")
        backwards = session_calls(one, before_seq=one.last_seq + 1, limit=7).items
        middle = session_calls(one, after_seq=35, limit=7).items
        return by_cursor(), [call.seq for call in backwards], [call.seq for call in middle]

    before = shown()
    assert [len(page) for page in before[0]] == [7] * 8 + [4]
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    assert shown() == before


def test_the_console_shows_a_packed_session_as_before(api, project):
    rested(api)
    browser = Client()
    browser.force_login(make_member(project))
    base = f"/p/{project.slug}/sessions/old"
    addresses = (base, f"{base}?call=3", f"{base}?view=trace", f"{base}?find=notes-2")

    def shown():
        found = []
        for address in addresses:
            answer = browser.get(address)
            assert answer.status_code == 200, address
            found.append(answer.content.decode().count("notes-"))
        return found

    before = shown()
    assert max(before) > 0
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    assert shown() == before


def test_documents_and_pages_say_which_sessions_are_packed_and_since_when(api, project):
    rested(api)
    rested(api, "young")
    browser = Client()
    browser.force_login(make_member(project))

    def said(name):
        page = browser.get(f"/p/{project.slug}/sessions/{name}").content.decode()
        (listed,) = (one for one in api.get("/sessions").json()["items"] if one["session"] == name)
        assert listed["packed_at"] == api.get(f"/sessions/{name}").json()["packed_at"]
        return listed["packed_at"], "Calls packed" in page

    assert said("old") == said("young") == (None, False)
    assert history.pack(project, timezone.now() - MONTH, name="old").sessions == 1
    at, is_on_page = said("old")
    assert datetime.fromisoformat(at) == session("old").packed_at
    assert is_on_page
    assert said("young") == (None, False)
    api.post("/sessions/old/stop")
    assert said("old") == (None, False)


def test_exports_have_packed_sessions_as_before(api, project):
    rested(api)
    api.loop("looped", times=8)
    settle()
    age("looped")
    retention.end_abandoned()
    browser = Client()
    browser.force_login(make_member(project))

    def exported():
        found = {}
        for name in ("sessions", "incidents", "loops"):
            for form in ("jsonl", "csv"):
                for query in ("", 'session:"looped"' if name == "incidents" else "tool:search_web"):
                    wanted = {"format": form, "q": query}
                    if name != "sessions":
                        answer = api.get(f"/{name}/export", **wanted)
                        assert answer.status_code == 200, answer.text
                        found["api", name, form, query] = answer.text
                    page = browser.get(f"/p/{project.slug}/export/{name}", wanted)
                    assert page.status_code == 200
                    found["page", name, form, query] = page.getvalue().decode()
        return found

    before = exported()
    assert history.pack(project, timezone.now() - MONTH).sessions == 2
    since = {name: session(name).packed_at for name in ("old", "looped")}
    assert PackedEvents.objects.count() == 2
    after = exported()
    for (where, name, form, query), text in after.items():
        assert text.count("\n") > 0, (where, name)
        if name == "sessions":  # which say it
            assert any(text.count(at.isoformat()) for at in since.values()), text
            for at in since.values():
                for shown in (at.isoformat(), at.isoformat().replace("+00:00", "Z")):
                    text = text.replace(f'"packed_at":"{shown}"', '"packed_at":null').replace(shown, "")
        assert text == before[where, name, form, query], (where, name, form)
    assert PackedEvents.objects.count() == 2
    history.unpack(project)
    assert exported() == before


def test_an_erasure_over_http_leaves_nothing_of_a_packed_session(api, project):
    packed(api, project, metadata={"customer": "acme"})
    packed(api, project, "kept")
    made = api.post("/erasures", {"session": "old"})
    assert made.status_code == 202
    erasure.run_waiting(lambda: False)
    (receipt,) = api.get("/erasures").json()["items"]
    assert (receipt["id"], receipt["removed"]["events"], receipt["removed"]["sessions"]) == (
        made.json()["id"],
        12,
        1,
    )
    for path in ("/sessions/old", "/sessions/old/calls"):
        assert api.get(path).status_code == 404
    assert {hit["session"] for hit in api.get("/search", q="notes-4").json()["items"]} == {"kept"}
    assert api.get("/project").json()["packed"]["sessions"] == 1
    # The name is free again.
    api.run(STEPS[:2], "old")
    assert len(calls_of(api)) == 2
    assert api.post("/erasures", {"agent": "reader"}).status_code == 202
    erasure.run_waiting(lambda: False)
    assert api.get("/project").json()["packed"]["sessions"] == 0
    assert not PackedEvents.objects.exists()


def test_a_what_if_over_http_replays_packed_sessions(api, project):
    api.loop("poll", times=8)
    settle()
    age("poll", days=20)
    Event.objects.update(received_at=timezone.now() - timedelta(days=20))
    retention.end_abandoned()
    settle()

    def tried():
        made = api.post("/what-if", {"scope": "tool:search_web", "exempt": True, "days": 30})
        assert made.status_code == 202
        worker.run_waiting(lambda: False)
        shown = api.get(f"/what-if/{made.json()['id']}").json()
        assert shown["state"] == "finished"
        return shown["result"]

    before = tried()
    assert before["lost"]["count"] > 0
    assert before["coverage"]["share"] == 1
    assert history.pack(project, timezone.now() - timedelta(days=15)).sessions == 1
    assert tried() == before
    # Of one session, whose calls are read once.
    only = api.post("/what-if", {"scope": "session", "session": "poll", "values": {"repeat_enabled": False}})
    worker.run_waiting(lambda: False)
    assert api.get(f"/what-if/{only.json()['id']}").json()["state"] == "finished"
    assert not Event.objects.exists()


def pack_all(project):
    """Pack whatever is evaluated and counted, however new."""
    settle()
    Session.objects.update(
        silence_check_at=None, has_active_incident=False, last_event_at=timezone.now() - timedelta(days=40)
    )
    return history.pack(project, timezone.now() + timedelta(days=2)).sessions


def test_spans_that_are_sent_again_find_their_packed_calls(api, project):
    accepted(send(api, recorded("pydantic")))
    settle()
    names = [one.external_id for one in Session.objects.all()]
    counts = {name: api.get(f"/sessions/{name}").json()["calls"] for name in names}
    before = {name: rows(name) for name in names}
    assert pack_all(project) == len(names) == 2
    assert not accepted(send(api, recorded("pydantic"))).error_message
    settle()
    assert {name: rows(name) for name in names} == before
    assert {name: api.get(f"/sessions/{name}").json()["calls"] for name in names} == counts


def test_a_file_that_is_imported_again_adds_nothing_to_its_packed_session(api, project, settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")
    content = lines(claude_code(["make test"] * 8))

    def imported():
        answer = api.request(
            "POST", "/imports", content=content, headers={"Content-Type": "application/x-ndjson"}
        )
        import_worker.run_waiting(lambda: False)
        shown = api.get(f"/imports/{answer.json()['id']}").json()
        assert (shown["state"], shown["error"]) == ("finished", None)
        return shown["summary"]

    imported()
    settle()
    (name,) = Session.objects.values_list("external_id", flat=True)
    before, calls = rows(name), calls_of(api, name)
    assert len(calls) == 8
    assert pack_all(project) == 1
    assert calls_of(api, name) == calls
    imported()
    settle()
    assert calls_of(api, name) == calls
    assert len(rows(name)) in (0, len(before))


def test_the_page_of_a_saved_setting_finds_the_next_call_in_a_packed_session(api, project):
    packed(api, project)
    browser = Client()
    browser.force_login(make_member(project))
    since = (timezone.now() - timedelta(days=60)).isoformat()
    wanted = {"setting": "max_repeats", "scope": "project", "since": since}
    page = browser.get(f"/p/{project.slug}/policies/verify", wanted)
    assert page.status_code == 200
    with_packed = page.content.decode()
    history.unpack(project)
    assert "?call=1" in browser.get(f"/p/{project.slug}/policies/verify", wanted).content.decode()
    assert "?call=1" in with_packed


def test_a_decision_is_rendered_for_its_call_when_that_is_packed(api, project):
    api.put("/overrides", {"values": {"budget_max_calls": 3, "budget_ladder": "ask"}})
    calls = [{"call_id": f"c-{n}", "tool": f"tool_{n}"} for n in range(4)]
    api.post("/guard", {"session": "held", "calls": calls})
    (approval,) = api.get("/approvals").json()["items"]
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "skip"})

    def told():
        found = api.get(f"/approvals/{approval['id']}", render="openai", call_id="c-3").json()
        return found["rendered"]["tool_call_id"]

    assert told() == "c-3"
    assert pack_all(project) == 1
    assert told() == "c-3"
    assert not Event.objects.exists()


def test_a_late_event_finds_the_session_as_it_was_and_nothing_doubles(api, project):
    before = packed(api, project)
    counts = [*CallCount.objects.order_by("pk").values_list("checks", "token_count")]
    again = {"type": "result", "session": "old", "call_id": "old-6", "content": STEPS[5][2]}
    late = {"type": "message", "session": "old", "role": "user", "content": "late"}
    answer = api.post("/events", {"events": [again, late]}).json()
    assert (answer["accepted"], answer["duplicate"]) == (1, 1)
    settle()
    after = rows("old")
    assert after[: len(before)] == before
    assert [row[3] for row in after[len(before) :]] == ["message"]
    assert not PackedEvents.objects.exists()
    assert [*CallCount.objects.order_by("pk").values_list("checks", "token_count")] == counts


def test_the_guard_counts_on_where_the_session_ended(api, project):
    for _ in range(3):
        api.call("loops")
    settle()
    age("loops")
    retention.end_abandoned()
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    # A call that is sent again is recognised by its id, which was packed.
    again = {"call_id": "call-1", "tool": "search_web", "arguments": {"q": "reset"}}
    answer = api.post("/guard", {"session": "loops", "calls": [again]})
    assert answer.status_code == 200
    assert len(rows("loops")) == 3
    assert api.call("loops").status_code == 200
    assert [row[2] for row in rows("loops")] == [1, 2, 3, 4]
    assert session("loops").call_count == 4


def test_what_a_person_does_to_a_packed_session_unpacks_it(api, project):
    before = packed(api, project)
    assert api.post("/sessions/old/stop").status_code == 200
    assert rows("old") == before
    assert session("old").stopped_at is not None


def test_an_erasure_finds_packed_sessions_by_name_and_by_the_agent_of_any_call(api, project):
    packed(api, project)
    packed(api, project, "other")
    Session.objects.filter(external_id="other").update(agent="someone else")
    row = erasure.request_erasure(project.pk, "session", "old", SYSTEM)
    erasure.run_waiting(lambda: False)
    row.refresh_from_db()
    assert (row.removed["sessions"], row.removed["events"]) == (1, 12)
    assert [one.session.external_id for one in PackedEvents.objects.select_related("session")] == ["other"]

    Session.objects.create(project=project, external_id="named", agent="reader")
    row = erasure.request_erasure(project.pk, "agent", "reader", SYSTEM)
    erasure.run_waiting(lambda: False)
    row.refresh_from_db()
    assert (row.removed["sessions"], row.removed["events"]) == (2, 12)
    assert not PackedEvents.objects.exists()
    assert not SearchBlock.objects.exists()


def test_housekeeping_packs_by_the_setting_and_retention_deletes_packed_sessions(api, project):
    rested(api)
    rested(api, "young")
    age("young", days=8)
    api.patch("/project", {"retention_days": 365})
    retention.housekeeping()
    assert not PackedEvents.objects.exists()  # by default nothing is packed
    assert api.patch("/project", {"pack_after_days": 6}).status_code == 422
    changed = api.patch("/project", {"pack_after_days": 10})
    assert changed.json()["pack_after_days"] == 10
    retention.housekeeping()
    assert session("old").packed_at is not None
    assert session("young").packed_at is None
    retention.housekeeping()
    assert PackedEvents.objects.count() == 1
    age("old", days=366)
    retention.housekeeping()
    assert [one.external_id for one in Session.objects.all()] == ["young"]
    assert not PackedEvents.objects.exists()
    assert AuditEntry.objects.filter(action="retention.purge").exists()


def test_a_week_is_dropped_when_all_its_sessions_are_packed_and_its_events_still_return(api, project):
    before = packed(api, project)
    with connection.cursor() as cursor:
        day = int(timezone.now().timestamp()) // 86_400
        cursor.execute("SELECT detection_drop_empty_partitions(%s)", [day + 30])
        dropped = {name for (name,) in cursor.fetchall()}
        week = f"detection_event_{day // 7 * 7}"
        assert week in dropped
        assert history.unpack(project).sessions == 1
        assert rows("old") == before
        cursor.execute("SELECT count(*) FROM detection_event_rest")
        assert cursor.fetchone() == (12,)


def test_what_ifs_replay_packed_sessions(api, project):
    api.loop("poll", times=8)
    settle()

    def lost():
        change = changes.check(project.pk, "project", {"repeat_enabled": False})
        row = what_ifs.create_what_if(project.pk, change, SYSTEM, days=30)
        worker.run_waiting(lambda: False)
        row.refresh_from_db()
        assert row.error == ""
        row.result["replayed"].pop("began_at")
        return row.result

    age("poll", days=20)
    Event.objects.update(received_at=timezone.now() - timedelta(days=20))
    retention.end_abandoned()
    settle()
    before = lost()
    assert before["lost"]["count"] > 0
    assert history.pack(project, timezone.now() - timedelta(days=15)).sessions == 1
    assert lost() == before
    assert not Event.objects.exists()


def test_incidents_keep_their_evidence_and_triage_of_a_packed_session_works(api, project):
    api.loop("looped", times=8)
    settle()
    age("looped")
    retention.end_abandoned()
    incident = Incident.objects.get()
    shown = api.get(f"/incidents/{incident.public_id}").json()
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    assert api.get(f"/incidents/{incident.public_id}").json() == shown


def test_a_project_that_wants_an_index_again_gets_one_of_packed_sessions(api, project):
    projects.update_project(project.pk, SYSTEM, is_searchable=False)
    project.refresh_from_db()
    packed(api, project)
    projects.update_project(project.pk, SYSTEM, is_searchable=True)
    indexing.index_texts()
    assert [hit["session"] for hit in api.get("/search", q="notes-4").json()["items"]] == ["old"]
    assert api.get("/search", q="notes-4").json()["waiting_sessions"] == 0


def test_what_is_open_or_not_counted_yet_stays(api, project):
    api.run(STEPS, "uncounted")
    age("uncounted")
    before = timezone.now() - MONTH
    assert history.pack(project, before).sessions == 0
    settle()
    for kept in (
        {"has_active_incident": True},
        {"state": "held"},
        {"silence_check_at": timezone.now()},
        {"last_seq": 13},
        {"integration": "import/claude-code"},
    ):
        restored = Session.objects.filter(external_id="uncounted").values(*kept).get()
        Session.objects.filter(external_id="uncounted").update(**kept)
        assert history.pack(project, before).sessions == 0, kept
        Session.objects.filter(external_id="uncounted").update(**restored)
    assert history.pack(project, before).sessions == 1


def test_projects_are_apart(api, as_other, project, other_project):
    packed(api, project)
    assert as_other.get("/sessions/old").status_code == 404
    assert as_other.get("/search", q="notes-4").json()["items"] == []
    rested(as_other, "theirs")
    assert history.unpack(other_project).sessions == 0
    assert history.pack(other_project, timezone.now() - MONTH).sessions == 1
    assert {one.project_id for one in PackedEvents.objects.all()} == {project.pk, other_project.pk}
    assert len(calls_of(api)) == len(calls_of(as_other, "theirs")) == 6
    assert api.get("/project").json()["packed"]["sessions"] == 1


def test_an_error_while_packing_or_unpacking_changes_nothing(api, project, monkeypatch):
    rested(api)
    before = rows("old")
    with monkeypatch.context() as patched:
        patched.setattr(packing, "_DELETE", packing._DELETE + " AND seq < 5")
        assert history.pack(project, timezone.now() - MONTH).sessions == 0
    assert rows("old") == before
    assert not PackedEvents.objects.exists()
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    PackedEvents.objects.update(events=13)
    with pytest.raises(packing.PackingError):
        history.unpack(project)
    assert rows("old") == []
    assert PackedEvents.objects.exists()


def test_the_command_packs_shows_and_unpacks_and_can_be_repeated(api, project):
    rested(api)
    rested(api, "second")
    with pytest.raises(CommandError, match="--until"):
        command("pack")
    with pytest.raises(CommandError, match="or earlier"):
        command("pack", "--until", timezone.now().date().isoformat())
    with pytest.raises(CommandError, match="no session"):
        command("pack", "--session", "unknown")
    until = (timezone.now() - MONTH).date().isoformat()
    assert "Packed 1 sessions with 12 events." in command("pack", "--until", until, "--session", "old")
    assert "It was packed already." in command("pack", "--until", until, "--session", "old")
    assert "Packed 1 sessions with 12 events." in command("pack", "--until", until)
    assert "Packed 0 sessions" in command("pack", "--until", until)
    assert "2 sessions with 24 events are packed" in command("show")
    age("second", days=90)
    since = (timezone.now() - timedelta(days=60)).date().isoformat()
    assert "Unpacked 1 sessions with 12 events." in command("unpack", "--since", since)
    assert session("second").packed_at is not None
    assert "Unpacked 1 sessions" in command("unpack", "--project", project.slug, "--session", "second")
    assert "Unpacked 0 sessions" in command("unpack")
    with pytest.raises(CommandError, match="was not packed"):
        command("pack", "--until", until, "--session", "old")
    assert not PackedEvents.objects.exists()
    make_key(make_project())
    with pytest.raises(CommandError, match="several projects"):
        command("show")


def restore_partitions():
    """Leave the weeks that other tests expect."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE detection_event")
        cursor.execute("SELECT detection_ensure_partitions(8)")


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_a_week_is_not_dropped_while_a_session_of_it_is_unpacked(api, project):
    def drop():
        with connection.cursor() as cursor:
            cursor.execute("SELECT detection_drop_empty_partitions(%s)", [int(time.time()) // 86_400 + 1])
            return {name for (name,) in cursor.fetchall()}

    rested(api)
    before = rows("old")
    assert f"detection_event_{int(time.time()) // 604_800 * 7}" not in drop()
    assert history.pack(project, timezone.now() - MONTH).sessions == 1
    with locked_session(session("old").key):
        dropping = in_thread(drop)
        wait_until_blocked()
    assert dropping.result() == set()
    assert rows("old") == before
    restore_partitions()


@pytest.mark.django_db(transaction=True)
def test_calls_that_meet_packing_and_the_drop_of_a_week_are_neither_lost_nor_doubled(project):
    principal = authenticate(make_key(project))
    Project.objects.filter(pk=project.pk).update(is_searchable=False)
    project.refresh_from_db()
    names, number = ("one", "two"), 40
    is_done = threading.Event()
    packed_sessions: list[int] = []
    dropped: list[str] = []

    def post(name):
        agent = Agent(principal, name)
        for place in range(number):
            agent.asks(agent.call(call_id=f"{name}-{place}", arguments=f'{{"n": {place}}}'))
            time.sleep(0.08)
            if place % 8 == 0:  # a slow server needs more time than that to pack
                before, until = len(packed_sessions), time.monotonic() + PATIENCE_SECONDS
                while len(packed_sessions) < before + 2 and time.monotonic() < until:
                    time.sleep(0.02)

    def keep_packing():
        soon = timezone.now() + timedelta(days=1)
        day = int(soon.timestamp()) // 86_400 + 30
        while not is_done.is_set():
            with suppress(OperationalError):
                count_calls()
                Session.objects.filter(silence_check_at__isnull=False).update(silence_check_at=None)
                packed_sessions.append(history.pack(project, soon).sessions)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT detection_drop_empty_partitions(%s)", [day])
                    dropped.extend(name for (name,) in cursor.fetchall())

    packer = in_thread(keep_packing)
    posts = [in_thread(post, name) for name in names]
    try:
        for one in posts:
            one.result()
    finally:
        is_done.set()
        packer.result()
    history.unpack(project)
    assert sum(packed_sessions) > 3
    assert f"detection_event_{int(time.time()) // 604_800 * 7}" in dropped
    for name in names:
        found = Event.objects.filter(session__external_id=name).order_by("seq").values_list("seq", "call_id")
        assert [*found] == [(place + 1, f"{name}-{place}") for place in range(number)]
        assert session(name).call_count == number
    restore_partitions()
