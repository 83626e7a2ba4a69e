"""Finds sessions by the names that their clients gave them, which are stored without the secrets in them."""

from __future__ import annotations

from detection.models import Project, Session
from detection.selectors.sessions import get_session
from detection.services.redaction.redaction import Redactor


def stored_session_name(project_id: int, redactor: Redactor, name: str) -> str:
    """Return the name of a session as it is stored: with marks for secrets, unless it is older than their rule."""
    stored = redactor.name(name)
    is_older = stored != name and get_session(project_id, name) is not None
    return name if is_older else stored


def find_session(project: Project, name: str) -> Session | None:
    """Return the session to which its client gave this name."""
    return get_session(project.pk, stored_session_name(project.pk, Redactor.of_project(project), name))
