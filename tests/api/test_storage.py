"""A disk that is nearly full stops what would fill it further, and nothing else; PostgreSQL's own word for it counts too."""

import math
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from detection.models import Event, Role, Session
from detection.services.ingestion.attempts import recorder
from detection.services.retention import retention
from detection.services.storage.disk_space import disk_monitor
from loopguard_site import env
from tests.support.projects import make_member

ROOT = "http://127.0.0.1"
CALL = {"type": "call", "session": "s-1", "tool": "t"}


@pytest.fixture
def disk(settings, tmp_path):
    """Set how much of the disk must be free; a real disk is never quite empty."""
    settings.DATABASE_FOLDER = str(tmp_path)

    def must_have(share):
        settings.MIN_FREE_SHARE, settings.MIN_FREE_BYTES = share, math.inf
        disk_monitor.expire()

    yield must_have
    disk_monitor.expire()


def refused(answer):
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_full"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 10


def test_events_and_guard_are_rejected_before_any_write_until_there_is_space(api, disk):
    disk(1.0)
    refused(api.post("/events", CALL))
    refused(api.call())
    assert not Event.objects.exists()
    assert api.get("/sessions").json()["items"] == []
    disk(0.0)
    assert api.post("/events", CALL).status_code == 202
    assert api.call().json()["decision"] == "allow"


@pytest.mark.promise("REL-10")
def test_reading_stopping_and_settings_go_on(api, disk):
    incident = api.loop()["verdicts"][0]["incident"]
    disk(1.0)
    assert api.get("/sessions/s-1").status_code == 200
    assert api.get(f"/incidents/{incident}").status_code == 200
    assert api.post("/sessions/s-1/resume").status_code == 200
    assert api.post("/sessions/s-1/stop", {}).status_code == 200
    assert api.put("/overrides", {"values": {"max_repeats": 3}}).status_code == 200


def test_the_refusals_stand_on_the_connect_screen_and_in_the_metrics(api, disk, project):
    disk(1.0)
    refused(api.call())
    recorder.flush()
    assert [(row["status"], row["code"]) for row in project.attempts.values("status", "code")] == [
        (503, "storage_full")
    ]
    lines = api.client.get(f"{ROOT}/metrics", headers=api.headers).text.splitlines()
    assert "loopguard_storage_full 1.0" in lines
    disk(0.0)
    lines = api.client.get(f"{ROOT}/metrics", headers=api.headers).text.splitlines()
    assert "loopguard_storage_full 0.0" in lines


def test_sign_in_and_retention_go_on_and_every_page_names_the_reason(api, disk, project):
    api.loop()
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=400))
    make_member(project, username="ana")
    disk(1.0)
    client = Client()
    client.post("/sign-in", {"username": "ana", "password": "right horse"})
    assert "new events and guard requests are rejected" in client.get(f"/p/{project.slug}/loops").text
    assert retention.purge(project) == 1
    disk(0.0)
    assert "Read-only" not in client.get(f"/p/{project.slug}/loops").text


def test_however_small_the_disk_some_segments_of_the_log_must_be_free(disk):
    disk(1e-12)
    assert disk_monitor.usage().min_free == 4 * 16 * 1024**2


@pytest.mark.parametrize(
    ("share", "word"),
    [(1.0, "Failing"), (0.0, "Working"), (None, "Nearly full")],
    ids=["full", "room", "nearly"],
)
def test_the_system_page_shows_the_state_of_the_disk(project, disk, share, word):
    disk(0.0)
    usage = disk_monitor.usage()
    disk(usage.free / usage.total * 0.7 if share is None else share)
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    page = client.get(f"/p/{project.slug}/system")
    part = next(part for part in page.context["parts"] if part["name"] == "Disk")
    assert part["word"] == word
    assert "free" in part["words"]
    assert ("storage_full" in page.content.decode()) == (word == "Failing")


def test_of_a_database_elsewhere_nothing_is_known(api, project, settings):
    settings.DATABASE_FOLDER, settings.MIN_FREE_SHARE, settings.MIN_FREE_BYTES = "", 1.0, math.inf
    assert api.post("/events", CALL).status_code == 202
    assert "loopguard_storage" not in api.client.get(f"{ROOT}/metrics", headers=api.headers).text


def test_an_unreadable_folder_rejects_nothing(api, disk, settings, tmp_path):
    disk(1.0)
    settings.DATABASE_FOLDER = str(tmp_path / "gone")
    assert api.post("/events", CALL).status_code == 202


@pytest.fixture
def database_refuses_with(db):
    """Have PostgreSQL refuse every new session with an error of a kind."""

    def refuse(sqlstate):
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '{sqlstate}'; END $$"
            )
            cursor.execute(
                "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON detection_session"
                " FOR EACH ROW EXECUTE FUNCTION refuse()"
            )

    return refuse


@pytest.mark.one_database("a trigger refuses what is written")
@pytest.mark.parametrize("sqlstate", ["53000", "53100", "53200", "53300", "53400"])
def test_what_postgresql_lacks_is_a_503_and_never_a_500(api, database_refuses_with, sqlstate):
    database_refuses_with(sqlstate)
    for answer in (api.post("/events", CALL), api.call()):
        assert answer.status_code == 503, answer.text
        assert answer.json()["code"] == ("storage_full" if sqlstate == "53100" else "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert not Event.objects.exists()


def test_the_environment_says_how_much_must_be_free():
    def read(**given):
        return env.read({"LOOPGUARD_MODE": "test", **given}).min_free

    assert read() == (0.05, 500 * 1024**2)
    assert read(LOOPGUARD_MIN_FREE="10%") == (0.1, math.inf)
    assert read(LOOPGUARD_MIN_FREE="2 GB") == (math.inf, 2 * 1024**3)
    assert read(LOOPGUARD_MIN_FREE="1.5GB, 20 %") == (0.2, 1.5 * 1024**3)
    assert read(LOOPGUARD_MIN_FREE="0") == (0.0, 0.0)


@pytest.mark.parametrize("given", ["5", "-1%", "101%", "much", "5%,", "5 TB", "1e3 MB", "٥%"])
def test_a_measure_that_says_nothing_ends_the_start(given):
    with pytest.raises(env.EnvironmentProblem, match="LOOPGUARD_MIN_FREE"):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_MIN_FREE": given})
