"""Log lines: one line per event whatever it contains, and a line for each denial."""

import json
import logging
import sys

import pytest
from django.test import Client

from detection.logs import formatter
from detection.models import Role
from tests.support.projects import make_member, make_project

HOSTILE = "a\nb\rc\x1b[2Jd\x07e\x9bf\u2028g\u202eh\x00"


@pytest.mark.promise("SEC-24")
@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_contains_no_control_characters(as_json):
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        problem = sys.exc_info()
    record = logging.LogRecord("django", logging.WARNING, "x.py", 1, "Not Found: %s", (HOSTILE,), problem)
    line = formatter(json=as_json).format(record)
    parts = [line] if as_json else line.split("\n")  # the traceback is readable in text
    assert all(part.isprintable() for part in parts)
    assert line.startswith("{" if as_json else "20")
    assert "Not Found: a\\nb" in (json.loads(line)["event"] if as_json else parts[0])


@pytest.mark.promise("SEC-25")
@pytest.mark.django_db
def test_denied_requests_are_logged(caplog):
    project = make_project()
    viewer = Client()
    viewer.force_login(make_member(project, Role.VIEWER))
    other = make_project()
    assert viewer.post(f"/p/{project.slug}/keys", {}).status_code == 403
    assert viewer.get(f"/p/{other.slug}/sessions").status_code == 404
    assert viewer.post("/projects", {"name": "mine"}).status_code == 403
    assert Client().get("/api/v1/sessions", headers={"Authorization": "Bearer lg_x"}).status_code == 401
    denied = [record.message for record in caplog.records if "access_denied" in record.message]
    assert len(denied) == 3
    assert project.slug in denied[0]
    assert "admin" in denied[0]
    assert other.slug in denied[1]
    assert any("key_rejected" in record.message for record in caplog.records)
