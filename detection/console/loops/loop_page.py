"""The page of a loop: what it is, what its incidents share, the incidents, and what people decided."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.loops import incident_text, loop_text
from detection.console.loops.incident_text import Part
from detection.console.loops.loop_list import line_of, members_of
from detection.engine.detectors import detector_for
from detection.filtering.language import Term, parse, term, write
from detection.selectors import approvals, incidents
from detection.selectors import loops as selector
from detection.selectors.filters import list_query
from detection.selectors.lists import INCIDENTS, ONLY_LOOPS

REFRESHED: Final = ",".join(
    f"#loop-{part}"
    for part in (
        "status", "title", "buttons", "banners", "said", "shared", "facts", "activity",
        "exception",
    )
)  # fmt: skip
"""Parts of the page that change with its incidents. An open menu is left as it is, and so is the choice of an owner."""
SHOWN_INCIDENTS: Final = 20
SHOWN_ACTIVITY: Final = 100
_FIELDS: Final = {name: name for name in ("tool", "agent", "model", "backend", "calls_digest")} | {
    "session_name": "session"
}
"""The filter fields for the values that incidents share."""


def _query(terms: tuple[Term, ...], sort: str = "") -> str:
    return urlencode({"q": write(terms), **({"sort": sort} if sort else {})})


@in_project()
@require_safe
def page(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Show a loop."""
    loop = selector.get_loop(request.project.pk, public_id)
    if loop is None:
        raise Http404
    row = selector.row_of(loop)
    facts, line = selector.shared_facts(loop), line_of(row)
    arguments = selector.arguments_of(loop, loop_text.shown_loops(row.kind, facts))
    of_it = (term("loop", public_id),)
    found = incidents.list_incidents(
        request.project.pk, list_query(INCIDENTS, terms=of_it), "", SHOWN_INCIDENTS
    )
    held = approvals.latest_of(request.project.pk, (one.id for one in found.items if one.decision == "hold"))
    activity = list(loop.activity.order_by("-at", "-id")[:SHOWN_ACTIVITY])
    context: dict[str, Any] = {
        "loop": loop,
        "line": line,
        "said": (*line.parts, Part(".")),
        "row": row,
        "detector": detector_for(row.kind),
        "conclusion": loop_text.conclusion(facts),
        "shared": [
            (one, [(value, _query((*of_it, term(_FIELDS[one.name], value.name)))) for value in one.values])
            for one in loop_text.shared_lines(row.kind, facts, arguments)
        ],
        "incidents": [
            (
                one,
                incident_text.STATUS_CHIPS[one.status],
                incident_text.did(one, held.get(one.id)),
                incident_text.did_chip(one, held.get(one.id)),
            )
            for one in found.items
        ],
        "incidents_query": _query(of_it),
        "open_query": _query((*of_it, term("is", "open"))),
        "blocked_query": _query((*of_it, *parse("blocked:>0")), sort="-blocked"),
        "by_session_query": _query(of_it, sort="session"),
        "costly_query": _query((*of_it, *parse(ONLY_LOOPS)), sort="-cost"),
        "newest": found.items[0] if found.items else None,
        "activity": activity[::-1],
        "pending": [entry for entry in activity if entry.finished_at is None],
        "members": members_of(request.project.pk),
        "refreshed": REFRESHED,
    }
    return render(request, "loops/loop.html", context)
