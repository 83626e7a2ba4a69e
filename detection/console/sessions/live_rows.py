"""Rows of the live page that changed since a cursor.

The response lists the ids of the first page and of the sessions behind it in order, so a page that missed hints is
complete after one request. It carries the markup of the changed rows only.
"""

from __future__ import annotations

import time
from datetime import datetime

import orjson
from django.db import connection
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from detection import clock
from detection.console.access import ProjectRequest, in_project
from detection.console.accounts import preferences
from detection.console.recent_cache import RecentCache
from detection.console.sessions import session_list
from detection.console.sessions.session_rows import session_row
from detection.models import Role
from detection.models.session_state import shown_state
from detection.selectors import changes
from detection.selectors import sessions as selector
from detection.selectors.session_rows import SessionRow

MAX_CACHED_ROWS = 2000
MAX_CACHED_RESPONSES = 64
MAX_MARGIN_ROWS = 100
"""An active session stays on the page when others move ahead of it, so responses cover more rows than it shows."""
RESPONSE_SECONDS = 1.0
"""Maximum age of cached ages and time-based states."""


row_cache: RecentCache[str] = RecentCache(MAX_CACHED_ROWS)
response_cache: RecentCache[tuple[float, bytes]] = RecentCache(MAX_CACHED_RESPONSES)


@in_project()
@require_safe
def live_rows(request: ProjectRequest) -> HttpResponse:
    """Return the rows that changed since the cursor ``since``, under the filters of the address.

    All open pages fetch at once after a change. Requests with the same address share one response until the next
    commit, for at most `RESPONSE_SECONDS`.
    """
    seen = changes.snapshot()
    key = (
        request.project.pk,
        seen,
        request.META["QUERY_STRING"],
        request.membership.allows(Role.OPERATOR),
        preferences.of(request).time,
        str(preferences.zone(request)),
    )
    # The key does not cover the changes of an open transaction.
    known = None if connection.in_atomic_block else response_cache.get(key)
    if known is None or time.monotonic() - known[0] > RESPONSE_SECONDS:
        known = time.monotonic(), _response_body(request, seen)
        response_cache.put(key, known)
    return HttpResponse(
        known[1], content_type="application/json", headers={"Cache-Control": "private, no-store"}
    )


def _response_body(request: ProjectRequest, seen: str) -> bytes:
    project, now = request.project, clock.now()
    changes = selector.changed_since(project.pk, request.GET.get("since", ""), seen=seen)
    rows = session_list.page_rows(request)
    query = session_list.listing_of(request).query
    page = selector.list_sessions(project.pk, query, "", rows + min(rows, MAX_MARGIN_ROWS))
    changed = {row.id for row in changes.sessions}
    order = [row.id for row in page.items]
    sent = [row for row in page.items if changes.reset or row.id in changed]
    newest = max((row.last_event_at for row in changes.sessions), default=None)
    return orjson.dumps(
        {
            "cursor": changes.cursor,
            "reset": changes.reset,
            "order": [f"s-{number}" for number in order],
            # Time alone changes states without a change, so the page compares every state.
            "states": [shown_state(row, now) for row in page.items],
            "removed": [f"s-{number}" for number in sorted(changed.difference(order))],
            "rows": [_row(request, row, now) for row in sent],
            "behind_seconds": round((now - newest).total_seconds(), 3) if newest else None,
        }
    )


def _row(request: ProjectRequest, stored: SessionRow, now: datetime) -> dict[str, str]:
    """Return a row for the page; its markup is in the cache if another page has just fetched the same row."""
    row = session_row(stored, now)
    key = (
        stored.id,
        stored.last_seq,
        stored.evaluated_seq,
        row.state,
        row.is_behind,
        row.meter_text,
        row.meter_label,
        stored.blocked_count,
        row.stopped_by,
        row.since_stop,
        stored.reach,
        stored.would_have_stopped_at_call,
        request.membership.allows(Role.OPERATOR),
        preferences.of(request).time,
    )
    html = row_cache.get(key)
    if html is None:
        html = render_to_string("sessions/_row.html", {"row": row}, request)
        row_cache.put(key, html)
    return {
        "id": f"s-{stored.id}",
        "at": stored.last_event_at.isoformat(),
        "state": row.state,
        "html": html,
    }
