"""A project, a key and a short way to speak to the services as an agent would."""

from __future__ import annotations

import pytest

from detection.models import Project
from detection.services import keys
from tests.support.agents import OPERATOR, Agent


@pytest.fixture
def project(db):
    return Project.objects.create(slug="support", name="Support agents")


@pytest.fixture
def principal(project):
    _, token = keys.create_key(project, "agent", OPERATOR)
    return keys.authenticate(token)


@pytest.fixture
def agent(principal):
    return Agent(principal, backend="openai", model="gpt-5", agent="triage")
