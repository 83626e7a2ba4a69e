"""The page of an incident: summary, evidence, reaction and activity."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console import formatting, permalinks
from detection.console.access import ProjectRequest, in_project
from detection.console.approvals import decisions
from detection.console.loops import incident_text
from detection.console.policies import exceptions
from detection.console.policies.change_here import change_url
from detection.engine.detectors import detector_for
from detection.engine.durations import amount
from detection.engine.fields import FIELDS
from detection.engine.identity import smallest_rotation
from detection.models import Incident, StoppedByKind
from detection.models.incidents import IncidentLabel, IncidentStatus
from detection.selectors import incidents as selector
from detection.selectors import strip_images
from detection.selectors.strips import Strip, large
from detection.services.alerting import event_facts, routing

METER_SQUARES = 24
MAX_BRACKETS = 3
"""Findings of other detectors that are drawn below the calls."""


@in_project()
@require_safe
def page(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Show an incident."""
    incident = selector.get_incident(request.project.pk, public_id)
    if incident is None:
        raise Http404
    neighbours = selector.neighbours(incident)
    activity = list(incident.activity.all()[:200])
    last_loop = selector.last_loop(incident)
    message = next(
        (entry.note.partition(": ")[2] for entry in reversed(activity) if entry.action == "reacted"), ""
    )
    of_approvals = decisions.of_incident(incident)
    held = [approval for approval, _ in of_approvals["incident_approvals"]]
    newest = held[-1] if held else None
    parts = incident_text.sentence(incident, newest)
    context: dict[str, Any] = {
        "incident": incident,
        "title": incident_text.title(incident, incident.loop.program if incident.loop else ""),
        "status_chip": incident_text.STATUS_CHIPS[incident.status],
        "detector": detector_for(incident.kind),
        "parts": parts,
        "plain_sentence": "".join(part.text for part in parts),
        "lines": incident_text.evidence(incident, {one.seq for one in held if one.decision == "allow"}),
        "texts": incident_text.texts(incident),
        "message": message,
        "did": incident_text.did(incident, newest),
        "is_session_stopped": _is_session_stopped(incident),
        "is_silence": detector_for(incident.kind).is_silence,
        "is_run_limit": detector_for(incident.kind).is_run_limit,
        "detections_of": _counted_detections(incident),
        "did_chip": incident_text.did_chip(incident, newest),
        # Its label has ended it; removing the label is what can still be done.
        "is_done": incident.label == IncidentLabel.FALSE_ALARM and incident.status == IncidentStatus.ENDED,
        "last_loop": last_loop,
        "last_loop_title": incident_text.title(last_loop) if last_loop else "",
        "cycle": smallest_rotation(incident.evidence.get("pattern", ())),
        "settings": incident_text.settings_then(incident.policy, incident.kind),
        "activity": activity,
        "activity_summary": incident_text.verdicts(incident),
        "blocked_by": incident_text.blocked_by(incident),
        **_ladder(incident),
        "findings": incident.findings_by_weight,
        "neighbours": [(row, incident_text.STATUS_CHIPS[row.status]) for row in neighbours],
        "is_exact": detector_for(incident.kind).is_exact,
        "neighbour_agents": len({row.agent for row in neighbours if row.agent}),
        "strip": _strip(incident),
        "meter": _meter(incident),
        "unit": incident_text.unit(incident),
        "uncounted": incident_text.uncounted(incident),
        "slow_calls": incident_text.slow_calls(incident),
        "window_seconds": incident_text.window_seconds(incident),
        "silence": routing.matching_silence(
            routing.active_silences(request.project.pk, timezone.now()), event_facts.incident_facts(incident)
        ),
        **exceptions.form_of(incident),
        **of_approvals,
    }
    return render(request, "loops/incident.html", context)


def _is_session_stopped(incident: Incident) -> bool:
    """Return whether detection stopped the session because of this incident, and nobody has resumed it."""
    session = incident.session
    is_stopped = session is not None and session.stopped_by_kind == StoppedByKind.DETECTION
    return is_stopped and incident.decision == "stop" and incident.was_guarded


def _ladder(incident: Incident) -> dict[str, Any]:
    """Return the reactions that the incident's came from, with the setting; nothing for silence, which has none."""
    name = detector_for(incident.kind).ladder
    if name not in FIELDS:
        return {}
    ladder = incident_text.ladder(incident)
    gap = incident.policy.get("rung_gap_calls", {}).get("value", 1)
    return {
        "ladder": ladder,
        # Until then, calls run, because the warning has time to work.
        "calls_after_warning": gap if gap > 1 and "warn" in ladder else 0,
        "ladder_label": FIELDS[name].label,
        "ladder_url": _setting_url(incident, name),
    }


def _setting_url(incident: Incident, name: str) -> str:
    """Return where a setting of the incident is changed: in the scope that it came from, or else in the project."""
    source = str(incident.policy.get(name, {}).get("source", ""))
    return change_url(
        incident.project.slug,
        name,
        source,
        permalinks.incident_url(incident.project.slug, incident.public_id),
    )


def _counted_detections(incident: Incident) -> str:
    """Return what the detection number counts, by the settings at that time."""
    scope = incident.policy.get("escalation_scope", {}).get("value", "loop")
    what = "limit" if detector_for(incident.kind).is_run_limit else "loop"
    return "all loops of the run" if scope == "session" else f"this {what}"


def _strip(incident: Incident) -> Strip | None:
    """Draw the calls around the loop, with what its other detectors found."""
    cells = [
        cell._replace(tool=formatting.visible(cell.tool)) for cell in strip_images.cells_around(incident)
    ]
    if not cells:
        return None
    label = amount(incident.count, incident_text.unit(incident))
    if incident_text.uncounted(incident):
        label = f"{incident.calls_in_loop:,} calls"
    first, last = strip_images.span_of(incident, cells)
    others = [
        (one["first_seq"], one["last_seq"], detector_for(one["kind"]).label, "")
        for one in incident.findings_by_weight[1:]
        if detector_for(one["kind"]).is_of_calls
        and one["first_seq"] <= cells[-1].seq
        and one["last_seq"] >= cells[0].seq
    ]
    loops = [(first, last, label, ""), *others[:MAX_BRACKETS]]
    return large(cells, cell_width=strip_images.CELL_WIDTH, loops=loops)


def _meter(incident: Incident) -> dict[str, Any]:
    """Lay out the count against the limit, at most `METER_SQUARES` squares with the limit marked."""
    top = max(incident.count, incident.limit, 1)
    scale = min(1.0, METER_SQUARES / top)
    squares = max(1, round(top * scale))
    filled = max(1, round(incident.count * scale))
    return {
        "squares": [(index * 15, index < filled) for index in range(squares)],
        "width": squares * 15,
        "limit_x": round(incident.limit * scale) * 15 - 1.5,
        "full": incident.count >= incident.limit,
    }
