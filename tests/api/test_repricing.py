"""Prices that are saved after an import apply to its calls; what senders gave stays as it is."""

from datetime import timedelta

import pytest
from django.db import connection

from detection.models import (
    CallCount,
    Event,
    ImportedUsage,
    Incident,
    ModelPrice,
    Recalculation,
    Session,
    TranscriptImport,
)
from detection.services.gateway import repricing
from detection.services.ingestion import import_files, import_worker, transcript_imports
from detection.services.ingestion.transcript_imports import Arrived
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.sessions import packing
from detection.services.tracking import counted_calls
from tests.support.alerts import ANA
from tests.support.projects import make_key, make_project
from tests.support.transcripts import claude_code, lines

from .conftest import Api

pytestmark = pytest.mark.django_db
PRICE = {
    "model": "claude-*",
    "input_usd": 10,
    "output_usd": 20,
    "cached_input_usd": 1,
    "cache_write_usd": 12.5,
}


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")


def upload(project, commands, **more):
    path = import_files.new_file()
    path.write_bytes(lines(claude_code(commands)))
    files = [Arrived("run.jsonl", path)]
    transcript_imports.create_import(project.pk, ANA, kind="claude-code", files=files, **more)


def imported(project, commands, **more):
    upload(project, commands, **more)
    import_worker.run_waiting(lambda: False)


def figures(project):
    """Every stored cost of a project."""
    incidents = Incident.objects.filter(project=project).order_by("first_seq", "kind")
    return {
        "events": [
            *Event.objects.filter(project_id=project.pk).order_by("seq").values_list("cost_usd", flat=True)
        ],
        "sessions": [*Session.objects.filter(project=project).values_list("cost_usd", flat=True)],
        "incidents": [*incidents.values_list("kind", "counted_calls", "cost_usd")],
        "evidence": [[call["cost_usd"] for call in one.evidence["calls"]] for one in incidents],
        "hours": [
            *CallCount.objects.filter(project=project).order_by("tool").values_list("tool", "cost_usd")
        ],
    }


def run():
    while repricing.recalculate_waiting():
        pass


COMMANDS = {
    "a short loop": ["make test"] * 8,
    "a loop of more calls than an incident remembers": ["make test"] * 140,
    "two loops and work": ["make test"] * 8 + [f"cat {n}" for n in range(9)] + ["make lint"] * 8,
}


@pytest.mark.parametrize("commands", COMMANDS.values(), ids=COMMANDS)
def test_a_price_saved_later_gives_what_one_saved_before_would_have_given(
    api, project, commands, monkeypatch
):
    monkeypatch.setattr(counted_calls, "MAX_SEQS", 100)
    imported(project, commands)
    count_calls()
    without = figures(project)
    assert {*without["sessions"]} == {0}
    assert api.put("/prices", PRICE).status_code == 200
    waiting = api.get("/prices/recalculation").json()
    assert (waiting["finished_at"], waiting["done_sessions"]) == (None, 0)
    run()

    other = make_project()
    Api(api.client, make_key(other)).put("/prices", PRICE)
    imported(other, commands)
    count_calls()
    priced = figures(other)
    assert priced["sessions"][0] > 0
    assert priced["incidents"][0][2] > 0
    assert figures(project) == priced
    shown = api.get("/prices/recalculation").json()
    assert (shown["sessions"], shown["done_sessions"], shown["changed_sessions"]) == (1, 1, 1)
    assert shown["finished_at"] >= shown["requested_at"]
    hour = CallCount.objects.filter(project=project).earliest("hour").hour
    span = {"from": (hour - timedelta(hours=1)).isoformat(), "to": (hour + timedelta(days=1)).isoformat()}
    own, others = api.get("/statistics", **span), Api(api.client, make_key(other)).get("/statistics", **span)
    assert own.json()["total"]["cost_usd"] == others.json()["total"]["cost_usd"] > 0

    api.delete(f"/prices/{ModelPrice.objects.get(project=project).public_id}")
    run()
    assert figures(project) == without


def test_prices_reach_packed_calls(api, project):
    imported(project, ["make a"] * 8)
    count_calls()
    Session.objects.update(has_active_incident=False, silence_check_at=None)
    key = Session.objects.get().key
    assert packing.pack(Session.objects.filter(project=project), key) > 0
    assert not Event.objects.exists()
    api.put("/prices", PRICE)
    run()
    found = figures(project)
    assert sum(found["events"]) == found["sessions"][0] > 0


def test_it_changes_nothing_when_it_is_repeated_and_a_new_price_begins_it_anew(api, project, monkeypatch):
    monkeypatch.setattr(repricing, "BATCH_SESSIONS", 1)
    imported(project, ["make a"] * 8)
    api.put("/prices", PRICE)
    run()
    once = figures(project)
    Recalculation.objects.update(cursor=0, finished_at=None)
    run()
    assert figures(project) == once
    api.put("/prices", PRICE | {"output_usd": 40})
    again = Recalculation.objects.get()
    assert (again.cursor, again.finished_at, again.changed_sessions) == (0, None, 0)
    run()
    assert figures(project)["sessions"] > once["sessions"]
    api.put("/prices", PRICE | {"output_usd": 40})  # as it is stored
    assert repricing.recalculate_waiting() == 0


def test_costs_that_a_sender_or_an_import_gave_stay(api, project):
    usage = {"input_tokens": 1000, "output_tokens": 10, "cost_usd": 0.25}
    call = {
        "type": "call",
        "session": "live",
        "call_id": "c",
        "tool": "t",
        "model": "claude-x",
        "usage": usage,
    }
    free = call | {"call_id": "d", "usage": {"input_tokens": 1000, "output_tokens": 10}}
    assert api.post("/events", {"events": [call, free]}).status_code == 202
    imported(project, ["make test"] * 8, prices=(3, 15))
    count_calls()
    before = figures(project)
    api.put("/prices", PRICE)
    run()
    assert figures(project) == before
    assert api.get("/prices/recalculation").json()["sessions"] == 0


def test_each_project_has_its_own_prices(api, project, as_other):
    imported(project, ["make test"] * 8)
    as_other.put("/prices", PRICE)
    run()
    assert {*figures(project)["sessions"]} == {0}
    assert api.get("/prices/recalculation").json()["requested_at"] is None


def test_a_price_that_is_saved_during_an_import_applies_to_all_of_it(api, project):
    asked: list[int] = []

    def should_stop():
        asked.append(len(asked))
        if len(asked) == 2:  # the first time is before the prices are read
            api.put("/prices", PRICE)
        return False

    upload(project, ["make test"] * 8)
    TranscriptImport.objects.update(is_checked=True, sessions=1)
    import_worker.run_waiting(should_stop)
    assert len(asked) > 1
    assert not Session.objects.get(project=project).cost_usd
    run()
    assert Session.objects.get(project=project).cost_usd > 0


def test_the_kept_tokens_take_at_most_a_twentieth_of_an_event(project):
    imported(project, ["make test"] * 400)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_column_size(e.*)) FROM detection_event e WHERE project_id = %s", [project.pk]
        )
        (events,) = cursor.fetchone()
        cursor.execute(
            "SELECT sum(pg_column_size(u.*)) FROM detection_importedusage u WHERE project_id = %s",
            [project.pk],
        )
        (tokens,) = cursor.fetchone()
        cursor.execute(
            "SELECT sum(pg_column_size(u.*)) FROM detection_importedloopcalls u WHERE project_id = %s",
            [project.pk],
        )
        (calls,) = cursor.fetchone()
    assert sum(len(row.seqs) for row in ImportedUsage.objects.all()) >= 400
    assert tokens + calls < events / 20
