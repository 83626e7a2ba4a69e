"""Addresses of sessions, calls, incidents and loops.

Session names come from clients and may contain characters that a path cannot.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from django.urls import reverse


def session_url(project: str, name: str) -> str:
    """Return a session's page; names that a browser would treat as path segments go into the query instead."""
    segments = name.split("/")
    is_plain = (
        name.isprintable()
        and not {"", ".", ".."} & set(segments)
        and not any(s.endswith(" ") for s in segments)
    )
    if is_plain:
        return f"/p/{project}/sessions/{quote(name, safe='/')}"
    return f"{reverse('console:session_by_name', args=[project])}?{urlencode({'name': name})}"


def call_url(project: str, name: str, seq: int) -> str:
    """Return the details of one call, a part of the session's page."""
    return f"{reverse('console:session_call', args=[project])}?{urlencode({'name': name, 'call': seq})}"


def call_page_url(project: str, name: str, seq: int) -> str:
    """Return the session's page with one call selected."""
    page = session_url(project, name)
    return f"{page}{'&' if '?' in page else '?'}call={seq}"


def run_url(project: str, loop: str, incident: str) -> str:
    """Return the page of a loop with one of its runs."""
    return f"{loop_url(project, loop)}?run={incident}"


def incident_url(project: str, public_id: str) -> str:
    """Return the address of an incident where its loop is not at hand; it leads there."""
    return f"/p/{project}/incidents/{public_id}"


def loop_url(project: str, public_id: str) -> str:
    """Return a loop's page."""
    return f"/p/{project}/loops/{public_id}"


def undo_url(project: str, ids: str) -> str:
    """Return the address that undoes a change of these loops, separated by spaces, of a bulk action, or an answer."""
    page = "undo_answer" if ids.startswith("ans_") else "loops_act"
    return reverse(f"console:{page}", args=[project])
