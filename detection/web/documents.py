"""Rows of lists as JSON documents, for the API, exports and other views."""

from __future__ import annotations

from urllib.parse import quote

from django.conf import settings

from detection.models import Incident, Session
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.loops import LoopRow
from detection.selectors.row_fields import document_of
from detection.selectors.session_rows import SessionRow


def session_link(project: str, name: str) -> str:
    """Return the address of a session in the console."""
    return f"{settings.PUBLIC_URL}/p/{project}/sessions/{quote(name, safe='')}"


def stop_notice(message: str, project: str, session: str) -> str:
    """Return what a person reads where LoopGuard has ended a run: who ended it, why, and where to look."""
    reason = f"{message} " if message else ""
    return f"LoopGuard ended this run. {reason}See {session_link(project, session)}"


def blocked_notice(message: str, project: str, session: str) -> str:
    """Return what a person reads where an answer is nothing but blocked calls: who ended it, why, and where to look."""
    link = session_link(project, session)
    return f"LoopGuard blocked every call of this answer, so it ends here. {message} See {link}"


def incident_link(project: str, public_id: str) -> str:
    """Return the address of an incident in the console."""
    return f"{settings.PUBLIC_URL}/p/{project}/incidents/{public_id}"


def session_document(row: SessionRow | Session, project: str) -> dict[str, object]:
    """Return a session."""
    links = {"session": session_link(project, row.external_id)}
    return {**document_of(row, SessionRow), "links": links}


def incident_document(row: IncidentRow | Incident, project: str) -> dict[str, object]:
    """Return an incident as lists, exports and actions show it."""
    return {
        **document_of(row, IncidentRow),
        "links": {
            "incident": incident_link(project, row.public_id),
            "session": session_link(project, row.session_name),
        },
    }


def loop_link(project: str, public_id: str) -> str:
    """Return the address of a loop in the console."""
    return f"{settings.PUBLIC_URL}/p/{project}/loops/{public_id}"


def loop_document(row: LoopRow, project: str) -> dict[str, object]:
    """Return a loop as lists, exports and actions show it."""
    return {**document_of(row), "links": {"loop": loop_link(project, row.public_id)}}
