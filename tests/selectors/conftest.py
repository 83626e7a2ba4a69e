"""A project with sessions and incidents, written as rows without the API."""

import itertools
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Incident, Session
from detection.services.tracking import loops
from tests.support.projects import make_project

_numbers = itertools.count()


@pytest.fixture
def project(db):
    return make_project("support")


@pytest.fixture
def session(project):
    def make(name=None, age_seconds=0, **fields):
        name = name or f"made-{next(_numbers)}"
        at = timezone.now() - timedelta(seconds=age_seconds)
        fields.setdefault("project", project)
        return Session.objects.create(external_id=name, last_event_at=at, **fields)

    return make


@pytest.fixture
def incident(project):
    def make(session=None, **fields):
        values = {
            "project": project, "session": session, "session_name": session.external_id if session else "gone",
            "calls_digest": f"{next(_numbers)}", "kind": "repeat", "tool": "search_web", "count": 4, "limit": 4, "decision": "stop",
            "first_seq": 1, "last_seq": 4,
        }  # fmt: skip
        row = Incident(**(values | fields))
        loops.assign([row])
        row.save()
        return row

    return make
