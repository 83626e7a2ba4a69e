"""Stop everything of…: preview, button, the red line on every page, and lifting."""

from __future__ import annotations

import pytest
from django.test import Client

from detection.models import Containment, Role, Session
from detection.services.audit import SYSTEM
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from tests.support.agents import Agent
from tests.support.projects import make_key, make_member, make_project

from .scenes import text


@pytest.fixture
def project(db):
    return make_project("support")


def signed_in(project, role=Role.OPERATOR, **about):
    person = make_member(project, role=role)
    for name, value in about.items():
        setattr(person, name, value)
    person.save()
    client = Client()
    client.force_login(person)
    return client


@pytest.fixture
def session(project):
    from detection.services import keys

    principal = keys.authenticate(make_key(project))
    assert principal is not None
    agent = Agent(principal, agent="triage")
    agent.asks(agent.call())
    return Session.objects.get()


WANTED = {"scope": "agent", "value": "triage", "reaction": "stop", "reason": "wrong <b>orders</b>"}
PAGE = "/p/support/contain"


def test_a_preview_says_what_the_button_will_do_and_changes_nothing(project, session):
    client = signed_in(project)
    shown = text(client.get(PAGE, WANTED))
    assert "Stop 1" in shown
    assert "Stop everything of the agent triage" in shown
    assert not Containment.objects.exists()


def test_it_is_created_shown_on_every_page_and_undone(project, session):
    client = signed_in(project)
    answer = client.post(PAGE, WANTED, follow=True)
    assert "In force for the agent triage: 1 can be stopped" in text(answer)
    row = Containment.objects.get()
    assert (row.reaction, row.value, row.created_by != "") == ("stop", "triage", True)
    for path in ("/p/support/sessions", "/p/support/loops", "/p/support/settings"):
        page = client.get(path)
        assert "everything of the agent triage" in text(page)
        assert 'name="lift"' in page.content.decode()
    session.refresh_from_db()
    assert session.state == "stopping"  # until a call of it is refused
    shown = text(client.post(PAGE, {"lift": row.public_id}, follow=True))
    assert "Lifted. Calls are judged again." in shown
    assert "Nothing is stopped, held or blocked." in shown
    assert "everything of the agent triage" not in text(client.get("/p/support/sessions"))
    session.refresh_from_db()
    assert session.state == "running"
    assert client.post(PAGE, {"lift": row.public_id}).status_code == 302


def test_what_is_wrong_is_said_and_nothing_typed_is_lost(project):
    page = signed_in(project).post(PAGE, WANTED | {"value": ""})
    assert page.status_code == 422
    assert "`value` is required for this scope." in text(page)
    assert "wrong &lt;b&gt;orders&lt;/b&gt;" in page.content.decode()


def test_a_viewer_sees_and_does_not_act(project, session):
    found = containments.contain(project.pk, Wanted("agent", "triage", "stop"), SYSTEM)
    client = signed_in(project, Role.VIEWER)
    page = client.get(PAGE)
    assert "the agent triage" in text(page)
    assert 'name="lift"' not in page.content.decode()
    assert client.post(PAGE, {"lift": found.public_id}).status_code == 403
    assert client.post(PAGE, WANTED).status_code == 403


def test_only_staff_contain_and_lift_the_server(project):
    body = {"scope": "server", "reaction": "block", "reason": "all"}
    person = signed_in(project, Role.ADMIN)
    assert "staff" in text(person.post(PAGE, body))
    assert not Containment.objects.exists()
    staff = signed_in(project, Role.ADMIN, is_staff=True)
    staff.post(PAGE, body)
    row = Containment.objects.get()
    assert row.project_id is None
    assert person.post(PAGE, {"lift": row.public_id}).status_code == 404
    assert 'name="lift"' not in person.get("/p/support/sessions").content.decode()
    staff.post(PAGE, {"lift": row.public_id})
    row.refresh_from_db()
    assert row.lifted_at is not None


def test_another_project_is_left_alone(project, session):
    other = make_project("rivals")
    found = containments.contain(other.pk, Wanted("project", "", "stop"), SYSTEM)
    client = signed_in(project)
    assert "Contained" not in text(client.get("/p/support/sessions"))
    assert client.post(PAGE, {"lift": found.public_id}).status_code == 404


def test_an_open_page_fetches_the_line_by_itself(project, session):
    client = signed_in(project)
    assert "Contained" not in text(client.get("/p/support/contained"))
    found = containments.contain(project.pk, Wanted("agent", "triage", "block"), SYSTEM)
    page = client.get("/p/support/contained")
    assert "Block, by system: everything of the agent triage" in text(page)
    assert 'data-refresh-on="containment"' in page.content.decode()
    assert "<html" not in page.content.decode()
    client.post(PAGE, {"lift": found.public_id})
    assert "Contained" not in text(client.get("/p/support/contained"))
