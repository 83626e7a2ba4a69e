"""What a live page fetches: the first page of the list in its order, with the rows that changed since the cursor."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from detection.models import Role, Session
from detection.selectors.sessions import changed_since
from detection.services.audit import SYSTEM
from detection.services.sessions import actions as service
from tests.support.patience import PATIENCE_SECONDS
from tests.support.projects import make_key, make_member, make_project

from .scenes import ask, make_world


@pytest.fixture
def world(db):
    return make_world()


def rows(world, since="", **filters):
    answer = world.client.get(f"{world.base}/session/rows", {"since": since, **filters})
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "private, no-store"
    return answer.json()


def quiet_cursor(world):
    """A cursor behind all that was written: one that an older transaction anywhere on the server holds back may repeat rows."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := rows(world, changed_since(world.project.pk, "").cursor))["rows"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer["cursor"]


def names(answer):
    return [Session.objects.get(pk=int(row["id"].removeprefix("s-"))).external_id for row in answer["rows"]]


def test_the_state_of_every_row_comes_whether_or_not_it_changed(world):
    ask(world.project, "s-2", 1)
    Session.objects.filter(external_id="s-2").update(last_event_at=timezone.now() - timedelta(minutes=11))
    answer = rows(world, changed_since(world.project.pk, "").cursor)
    shown = dict(zip(answer["order"], answer["states"], strict=True))
    assert shown == {
        f"s-{row.pk}": {"s-1": "looping", "s-2": "idle"}[row.external_id] for row in Session.objects.all()
    }


def test_without_a_cursor_every_row_of_the_page_comes(world):
    ask(world.project, "s-2", 1)
    answer = rows(world)
    assert answer["reset"]
    assert names(answer) == ["s-2", "s-1"]
    assert [row["id"] for row in answer["rows"]] == answer["order"]


@pytest.mark.parametrize("since", ["x", "-1", "1e3", "\u0663", "9" * 40, "0 or 1=1"])
def test_a_cursor_that_is_none_of_ours_brings_every_row(world, since):
    assert rows(world, since)["reset"]


@pytest.mark.django_db(transaction=True)
def test_only_what_changed_since_the_cursor_comes(transactional_db):
    world = make_world()
    for name in ("s-2", "s-3"):
        ask(world.project, name, 1)
    cursor = quiet_cursor(world)
    ask(world.project, "s-2", 2)
    answer = rows(world, cursor)
    assert names(answer) == ["s-2"]
    assert len(answer["order"]) == 3
    assert answer["behind_seconds"] >= 0


@pytest.mark.django_db(transaction=True)
def test_a_row_that_no_longer_fits_the_filter_is_named(transactional_db):
    world = make_world()
    ask(world.project, "s-2", 1)
    before = rows(world, q="is:running")
    assert names(before) == ["s-2"]
    service.stop(world.project.pk, "s-2", SYSTEM, "enough")
    after = rows(world, before["cursor"], q="is:running")
    assert after["order"] == after["rows"] == []
    assert before["order"][0] in after["removed"]


@pytest.mark.promise("REL-32")
def test_the_order_is_the_one_of_the_api(world):
    for name in ("s-2", "s-3", "s-4"):
        ask(world.project, name, 1)
    key = make_key(world.project)
    listed = world.client.get("/api/v1/sessions", headers={"Authorization": f"Bearer {key}"}).json()
    assert names(rows(world)) == [item["session"] for item in listed["items"]]


def test_a_row_shows_who_may_stop_the_session_and_escapes_what_clients_wrote(db):
    world = make_world(session="<img src=x onerror=alert(1)>")
    html = rows(world)["rows"][0]["html"]
    assert "<img" not in html
    assert 'type="checkbox"' in html


def test_other_projects_rows_are_not_found(world):
    make_project("other")
    assert world.client.get("/p/other/session/rows").status_code == 404


def test_a_row_is_rendered_again_when_its_session_changed(world):
    before = rows(world)["rows"][0]["html"]
    assert rows(world)["rows"][0]["html"] == before
    service.stop(world.project.pk, "s-1", SYSTEM, "enough")
    assert "Stopping" in rows(world)["rows"][0]["html"]


@pytest.mark.django_db(transaction=True)
def test_pages_that_ask_the_same_share_an_answer_until_anything_is_committed(transactional_db):
    world = make_world()
    cursor = quiet_cursor(world)
    ask(world.project, "s-2", 1)
    asked: list[int] = []
    # Now and then something else in the cluster commits.
    while len(asked) < 200 and not (asked and min(asked) <= max(asked) - 2):
        with CaptureQueriesContext(connection) as queries:
            assert names(rows(world, cursor)) == ["s-2"]
        asked.append(len(queries))
    assert min(asked) <= max(asked) - 2
    ask(world.project, "s-3", 1)
    assert names(rows(world, cursor)) == ["s-3", "s-2"]
    service.stop(world.project.pk, "s-2", SYSTEM, "enough")
    assert "Stopping" in "".join(row["html"] for row in rows(world, cursor)["rows"])


@pytest.mark.django_db(transaction=True)
def test_a_shared_answer_offers_a_viewer_nothing_that_only_operators_may_do(transactional_db):
    world = make_world()
    viewer = Client()
    viewer.force_login(make_member(world.project, Role.VIEWER))
    by_operator, by_viewer = (
        client.get(f"{world.base}/session/rows", {"since": ""}).json()["rows"][0]["html"]
        for client in (world.client, viewer)
    )
    assert "checkbox" in by_operator
    assert "checkbox" not in by_viewer
