"""The Agents page and the forms of tags and messages: what people type reaches the agents, and viewers change nothing."""

from __future__ import annotations

import pytest
from django.test import Client

from detection.models import AgentMessage, AgentTags, ApiKey, Role
from detection.services import keys
from tests.support.agents import Agent
from tests.support.projects import make_key, make_member, make_project

from .scenes import text

PAGE = "/p/support/agents"


@pytest.fixture
def project(db):
    return make_project("support")


@pytest.fixture
def agent(project):
    principal = keys.authenticate(make_key(project))
    assert principal is not None
    agent = Agent(principal, agent="triage")
    agent.asks(agent.call())
    return agent


def signed_in(project, role):
    client = Client()
    client.force_login(make_member(project, role=role))
    return client


def test_an_agent_is_listed_and_tagged(project, agent):
    client = signed_in(project, Role.OPERATOR)
    assert "triage" in text(client.get(PAGE))
    answer = client.post(
        PAGE, {"action": "tags", "agent": "triage", "tags": "checkout, <b>eu</b>"}, follow=True
    )
    assert "Tags of triage: checkout, &lt;b&gt;eu&lt;/b&gt;." in answer.content.decode()
    assert "<b>eu</b>" not in answer.content.decode()
    assert AgentTags.objects.get().tags == ["checkout", "<b>eu</b>"]
    client.post(PAGE, {"action": "tags", "agent": "unheard", "tags": "later"})
    assert "unheard" in text(client.get(PAGE))
    client.post(PAGE, {"action": "tags", "agent": "unheard", "tags": ""}, follow=True)
    assert "unheard" not in text(client.get(PAGE))


def test_a_message_is_left_delivered_once_and_shown_as_delivered(project, agent):
    client = signed_in(project, Role.OPERATOR)
    client.post(PAGE, {"action": "message", "agent": "triage", "text": "use the test shop"})
    assert "Waiting use the test shop" in text(client.get(PAGE))
    (verdict,) = agent.asks(agent.call(arguments='{"q": "other"}')).verdicts
    assert "use the test shop" in verdict.message()
    shown = text(client.get(PAGE))
    assert "Delivered use the test shop" in shown
    row = AgentMessage.objects.get()
    refused = client.post(PAGE, {"action": "withdraw", "message": row.public_id})
    assert refused.status_code == 409
    assert "has this message" in text(refused)


def test_a_message_for_a_session_is_left_on_its_page_and_can_be_withdrawn(project, agent):
    client = signed_in(project, Role.OPERATOR)
    form = {"name": agent.session, "action": "message", "text": "stop asking"}
    answer = client.post("/p/support/session/act", form, follow=True)
    assert "The agent gets it with its next verdict." in text(answer)
    row = AgentMessage.objects.get()
    assert row.session == agent.session
    client.post(PAGE, {"action": "withdraw", "message": row.public_id})
    assert "Withdrawn stop asking" in text(client.get(PAGE))
    (verdict,) = agent.asks(agent.call(arguments='{"q": "other"}')).verdicts
    assert "stop asking" not in verdict.message()


def test_what_is_wrong_is_said_and_nothing_typed_is_lost(project, agent):
    client = signed_in(project, Role.OPERATOR)
    answer = client.post(PAGE, {"action": "message", "agent": "", "text": "typed <i>text</i>"})
    assert answer.status_code == 422
    assert "typed &lt;i&gt;text&lt;/i&gt;" in answer.content.decode()
    answer = client.post(PAGE, {"action": "tags", "agent": "triage", "tags": "x" * 65})
    assert answer.status_code == 422
    assert not AgentTags.objects.exists()


def test_a_viewer_sees_and_does_not_act(project, agent):
    client = signed_in(project, Role.VIEWER)
    page = client.get(PAGE)
    assert "triage" in text(page)
    assert 'name="action"' not in page.content.decode()
    assert client.post(PAGE, {"action": "tags", "agent": "triage", "tags": "a"}).status_code == 403
    assert not AgentTags.objects.exists()


def test_a_key_is_tagged_by_an_admin_only(project, agent):
    key = ApiKey.objects.get()
    form = {"key": key.public_id, "tags": "checkout, eu"}
    assert signed_in(project, Role.OPERATOR).post("/p/support/keys/tags", form).status_code == 403
    answer = signed_in(project, Role.ADMIN).post("/p/support/keys/tags", form, follow=True)
    assert "tagged checkout" in text(answer)
    key.refresh_from_db()
    assert key.tags == ["checkout", "eu"]
