"""A project that reports far more than usual: what is above the limit is observed, sampled or rejected, as it sets."""

from datetime import UTC, datetime, timedelta

import orjson
import pytest
from django.test import Client

from detection.models import ApiKey, Attempt, AuditEntry, Event, ReportedHour, Role
from detection.selectors.reported_events import FACTOR, LEAST_PER_MINUTE
from detection.services.ingestion import spikes as service
from detection.services.ingestion.attempts import recorder
from detection.services.ingestion.spikes import Spikes, is_kept, spikes
from detection.services.keys import Principal, principal_cache
from detection.services.retention import retention
from tests.support.projects import make_key, make_member

from .conftest import Api

ROOT = "http://127.0.0.1"
NOON = datetime(2026, 3, 4, 12, 30, 20, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock(settings, tmp_path):
    """A clock that stands still in the middle of a minute, and the way to set it."""
    file = tmp_path / "clock"
    settings.TEST_CLOCK = str(file)

    def set_to(moment):
        file.write_text(str(moment.timestamp()))

    set_to(NOON)
    spikes.clear()
    yield set_to
    spikes.clear()


@pytest.fixture
def reporter(with_scopes):
    """A client whose key may only report."""
    return with_scopes("ingest")


def report(client, number=1, session="s-1", **options):
    events = [{"type": "call", "session": session, "tool": "t", "arguments": {"n": n}} for n in range(number)]
    return client.post("/events", {"events": events}, **options)


def set_limit(project, limit, action):
    project.spike_limit, project.spike_action = limit, action
    project.save()
    principal_cache.clear()


def principal_of(project_id):
    return Principal(0, "x", project_id, "x", frozenset(), False, None, b"", spike_limit=10)


def rejected(answer):
    assert (answer.status_code, answer.json()["code"]) == (429, "spike"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return int(answer.headers["retry-after"])


@pytest.mark.promise("REL-45")
def test_above_the_limit_reports_are_rejected_until_the_next_minute(reporter, project, clock):
    set_limit(project, 10, "reject")
    assert report(reporter, 6).status_code == 202
    assert report(reporter, 6, "s-2").status_code == 202  # below the limit when it arrived
    wait = rejected(report(reporter))
    assert 40 <= wait <= 45
    assert Event.objects.count() == 12
    clock(NOON + timedelta(seconds=wait))
    assert report(reporter).status_code == 202


@pytest.mark.parametrize("limit", [10, 100])
def test_below_the_limit_nothing_happens(reporter, project, limit):
    set_limit(project, limit, "reject")
    for number in range(9):
        assert report(reporter, 1, f"s-{number}").status_code == 202
    spikes.flush()
    (row,) = ReportedHour.objects.filter(project_id=project.pk)
    assert (row.events, row.minute, row.minute_events, row.rejected, row.spiked_at) == (9, 30, 9, 0, None)


def test_a_flood_of_one_project_does_not_touch_another(reporter, project, other_project, wsgi_client):
    set_limit(project, 5, "reject")
    set_limit(other_project, 5, "reject")
    other = Api(wsgi_client, make_key(other_project, scopes=["ingest"]))
    report(reporter, 50)
    for _ in range(3):
        rejected(report(reporter))
        assert report(other).status_code == 202
    spikes.flush()
    assert ReportedHour.objects.get(project=other_project).rejected == 0
    assert ReportedHour.objects.get(project=project).rejected == 3


@pytest.mark.promise("REL-45")
def test_the_guard_is_never_rejected_and_blocks_a_loop_while_the_project_has_a_spike(
    with_scopes, reporter, project
):
    set_limit(project, 5, "reject")
    guarded = with_scopes("guard")
    report(reporter, 50)
    rejected(report(reporter))
    assert guarded.loop("g-1", 8)["decision"] in ("block", "stop")
    hook = {"hook_event_name": "PreToolUse", "session_id": "h", "tool_name": "Bash", "tool_input": {}}
    assert guarded.post("/hooks/claude-code", hook).status_code == 200


@pytest.mark.parametrize("route", ["guard", "hooks/claude-code", "otlp"])
def test_reports_with_the_key_of_an_agent_that_asks_pass(api, key, project, route):
    """Its verdicts depend on them."""
    set_limit(project, 5, "reject")
    report(api, 50)
    rejected(report(api))
    used = {route: datetime.now(UTC).isoformat()}
    ApiKey.objects.filter(public_id=key[3:13]).update(routes=used)
    principal_cache.clear()
    assert report(api).status_code == (429 if route == "otlp" else 202)


def test_a_key_that_has_not_asked_for_a_week_only_reports(api, key, project):
    set_limit(project, 5, "reject")
    report(api, 50)
    ApiKey.objects.filter(public_id=key[3:13]).update(
        routes={"guard": (datetime.now(UTC) - timedelta(days=8)).isoformat()}
    )
    principal_cache.clear()
    rejected(report(api))


def test_the_first_request_to_the_guard_is_enough(api, project):
    set_limit(project, 5, "reject")
    report(api, 50)
    rejected(report(api))
    api.call("g-1")
    recorder.flush()
    principal_cache.clear()
    assert report(api).status_code == 202


def test_what_the_client_sends_before_it_asks_passes(reporter, project):
    set_limit(project, 5, "reject")
    report(reporter, 50)
    assert report(reporter, headers={"User-Agent": "loopguard-client/1"}).status_code == 202
    rejected(report(reporter))


@pytest.mark.promise("REL-45")
def test_a_sample_keeps_whole_sessions(reporter, project):
    set_limit(project, 5, "sample")
    report(reporter, 5)
    names = [f"s-{number}" for number in range(200)]
    kept = [name for name in names if is_kept(name)]
    assert 5 <= len(kept) <= 40
    lines = b"\n".join(
        orjson.dumps({"type": "call", "session": name, "tool": tool}) for name in names for tool in ("a", "b")
    )
    answer = reporter.raw("/events", lines, content_type="application/x-ndjson").json()
    assert answer["accepted"] == 2 * len(kept)
    assert {one["code"] for one in answer["rejected"]} == {"sampled"}
    assert [one["index"] for one in answer["rejected"]] == sorted(one["index"] for one in answer["rejected"])
    stored = Event.objects.exclude(session__external_id="s-1").values_list("session__external_id", flat=True)
    assert sorted(stored) == sorted([*kept, *kept])
    spikes.flush()
    assert ReportedHour.objects.get().sampled == 2 * (200 - len(kept))


def test_a_single_event_outside_of_the_sample_is_answered_so(reporter, project):
    set_limit(project, 1, "sample")
    report(reporter, 2)
    name = next(f"x-{number}" for number in range(100) if not is_kept(f"x-{number}"))
    answer = reporter.post("/events", {"type": "call", "session": name, "tool": "t"})
    assert (answer.status_code, answer.json()["accepted"]) == (202, 0)
    assert answer.json()["rejected"][0]["code"] == "sampled"


@pytest.mark.promise("REL-45")
def test_by_default_everything_is_stored_and_said(reporter, project, api):
    assert (project.spike_action, project.spike_limit) == ("observe", 0)
    ReportedHour.objects.create(
        project=project, hour=NOON - timedelta(days=1, minutes=30, seconds=20), events=60
    )
    report(reporter)
    spikes.flush()  # learns what is usual
    state = api.get("/project/reported-events").json()
    assert (state["usual_per_minute"], state["limit_per_minute"]) == (1.0, LEAST_PER_MINUTE)
    assert not state["is_spiking"]
    for number in range(4):
        assert report(reporter, 1000, f"s-{number}").status_code == 202
    spikes.flush()
    state = api.get("/project/reported-events").json()
    assert (state["is_spiking"], state["rejected_requests"], state["sampled_events"]) == (True, 0, 0)
    assert Event.objects.count() == 4001


def test_the_usual_rate_is_that_of_the_busiest_hour_of_a_usual_day(reporter, project, other_project, api):
    for day, (busy, quiet) in enumerate([(60_000, 5), (600_000, 5), (66_000, 5), (9_000_000, 0)], 1):
        for hour, events in ((9, busy), (10, quiet)):
            at = (NOON - timedelta(days=day)).replace(hour=hour, minute=0, second=0)
            ReportedHour.objects.create(project=project, hour=at, events=events)
            ReportedHour.objects.create(project=other_project, hour=at, events=1)
    ReportedHour.objects.create(project=project, hour=NOON.replace(minute=0, second=0), events=10**9)
    usual = (66_000 + 600_000) / 2 / 60
    state = api.get("/project/reported-events").json()
    assert state["usual_per_minute"] == pytest.approx(usual)
    assert state["limit_per_minute"] == pytest.approx(FACTOR * usual)


def test_without_a_day_of_reports_there_is_no_limit(reporter, project, api):
    set_limit(project, 0, "reject")
    for number in range(5):
        assert report(reporter, 1000, f"s-{number}").status_code == 202
        spikes.flush()
    assert api.get("/project/reported-events").json()["limit_per_minute"] is None


def test_all_processes_count_together(reporter, project):
    set_limit(project, 10, "reject")
    elsewhere = Spikes()
    principal = principal_of(project.pk)
    elsewhere.count(principal, 9)
    elsewhere.flush()
    assert report(reporter, 2).status_code == 202
    assert report(reporter, 1).status_code == 202  # it does not know of the other one's yet
    spikes.flush()
    rejected(report(reporter))
    elsewhere.count(principal, 1)
    elsewhere.flush()
    assert elsewhere.limit_exceeded(principal) == 10
    assert ReportedHour.objects.get().events == 13


def test_counts_of_a_minute_that_is_over_come_late_and_change_no_limit(project, clock):
    early, late = Spikes(), Spikes()
    principal = principal_of(project.pk)
    early.count(principal, 50)
    clock(NOON + timedelta(minutes=1))
    late.count(principal, 2)
    late.flush()
    early.flush()
    assert late.limit_exceeded(principal) is None
    row = ReportedHour.objects.get()
    assert (row.events, row.minute, row.minute_events) == (52, 31, 2)


def test_rejected_requests_are_on_the_page_in_the_metrics_and_among_the_attempts(
    reporter, project, other_project, api, settings
):
    set_limit(project, 5, "reject")
    report(reporter, 6)
    rejected(report(reporter))
    spikes.flush()
    recorder.flush()
    assert Attempt.objects.filter(status=429, code="spike", project=project).count() == 1
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    for place in ("ingest", "now"):
        page = client.get(f"/p/{project.slug}/{place}").content.decode()
        assert "The project reports more events than its limit" in page
        assert "rejected, and their senders try again" in page
    assert "1 request<" in client.get(f"/p/{project.slug}/ingest").content.decode()
    other = Client()
    other.force_login(make_member(other_project, Role.VIEWER))
    assert "more events than its limit" not in other.get(f"/p/{other_project.slug}/now").content.decode()
    metrics = api.get(f"{ROOT}/metrics").text
    assert 'loopguard_spike_requests_total{action="reject",project="support"}' in metrics


def test_a_spike_that_is_over_is_no_longer_announced(reporter, project, clock):
    set_limit(project, 5, "observe")
    report(reporter, 6)
    report(reporter)
    spikes.flush()
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    assert "All are stored." in client.get(f"/p/{project.slug}/now").content.decode()
    clock(NOON + timedelta(minutes=3))
    assert "All are stored." not in client.get(f"/p/{project.slug}/now").content.decode()


def test_the_settings_are_checked_saved_and_in_the_audit(api):
    for body in (
        {"spike_action": "drop"},
        {"spike_limit": -1},
        {"spike_limit": 10**9},
        {"spike_limit": "many"},
    ):
        assert api.patch("/project", body).status_code == 422
    saved = api.patch("/project", {"spike_action": "sample", "spike_limit": 500}).json()
    assert (saved["spike_action"], saved["spike_limit"]) == ("sample", 500)
    entry = AuditEntry.objects.get(action="project.save")
    assert entry.before == {"spike_action": "observe", "spike_limit": 0}
    assert entry.after == {"spike_action": "sample", "spike_limit": 500}


def test_the_form_saves_them(project):
    client = Client()
    client.force_login(make_member(project))
    form = {
        "action": "save",
        "name": "P",
        "retention_days": "30",
        "stores_payloads": "yes",
        "is_searchable": "yes",
    }
    page = f"/p/{project.slug}/settings/project"
    given = {"spike_action": "reject", "spike_limit": "1200"}
    assert client.post(page, form | given).status_code == 302
    project.refresh_from_db()
    assert (project.spike_action, project.spike_limit) == ("reject", 1200)
    shown = client.get(page).content.decode()
    assert '<option value="reject" selected>' in shown
    for wrong in ("²", "-1", "1e3", "many"):
        answer = client.post(page, form | given | {"spike_limit": wrong})
        assert answer.status_code == 422
        assert "`spike_limit` must be" in answer.content.decode()


def test_telemetry_is_held_back_too(reporter, project):
    set_limit(project, 5, "reject")
    report(reporter, 6)
    answer = reporter.post("/otlp/v1/traces", {"resourceSpans": []})
    assert answer.status_code == 429
    assert answer.json()["message"].startswith("spike: The project has reported 5 events")
    assert 40 <= int(answer.headers["retry-after"]) <= 45


def test_a_sample_of_telemetry_keeps_whole_traces(reporter, project):
    set_limit(project, 5, "sample")
    report(reporter, 6)
    traces = [f"{number:032x}" for number in range(1, 101)]
    attributes = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
        {"key": "gen_ai.tool.name", "value": {"stringValue": "search"}},
        {"key": "gen_ai.tool.call.arguments", "value": {"stringValue": "{}"}},
    ]
    spans = [
        {
            "traceId": trace,
            "spanId": f"{number:016x}",
            "name": "execute_tool",
            "startTimeUnixNano": str(10**18 + number),
            "endTimeUnixNano": str(10**18 + number + 10),
            "attributes": attributes,
        }
        for number, trace in enumerate([*traces, *traces], 1)
    ]
    answer = reporter.post("/otlp/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    kept = [trace for trace in traces if is_kept(trace)]
    left_out = answer.json()["partialSuccess"]
    assert answer.status_code == 200
    assert 0 < len(kept) < 40
    assert int(left_out["rejectedSpans"]) == 2 * (100 - len(kept))
    assert left_out["errorMessage"].startswith("sampled: ")
    stored = Event.objects.filter(type="call").exclude(session__external_id="s-1")
    assert sorted(stored.values_list("session__external_id", flat=True)) == sorted([*kept, *kept])


def test_old_hours_are_forgotten(project, other_project):
    for one in (project, other_project):
        for days in (1, 20):
            ReportedHour.objects.create(project=one, hour=NOON - timedelta(days=days), events=1)
    retention.purge(project)
    assert ReportedHour.objects.filter(project=project).count() == 1
    assert ReportedHour.objects.filter(project=other_project).count() == 2


def test_the_memory_is_bounded(db):
    kept = Spikes(max_projects=10)
    for number in range(35):
        kept.count(principal_of(number), 1)
        assert len(kept._projects) <= 10
    assert service.MAX_PROJECTS == 10_000


@pytest.mark.django_db(transaction=True)
def test_the_counts_of_a_deleted_project_do_not_take_those_of_others_with_them(project, other_project):
    here, gone = Spikes(), other_project.pk
    other_project.delete()
    for pk in (gone, project.pk, gone + 1_000_000):
        here.count(principal_of(pk), 7)
    here.flush()
    here.count(principal_of(project.pk), 2)
    here.flush()
    assert [*ReportedHour.objects.values_list("project_id", "events")] == [(project.pk, 9)]
