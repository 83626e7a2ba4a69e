"""What the page of a loop shows of one of its runs: evidence, reactions, settings and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.utils import timezone

from detection.console import formatting, permalinks
from detection.console.approvals import decisions
from detection.console.loops import incident_text
from detection.console.loops.incident_text import EvidenceLine
from detection.console.policies import change_here, exceptions
from detection.console.policies.change_here import CallNames
from detection.console.policies.decided_settings import DecidedSetting, decided_settings, reached_limit
from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.identity import smallest_rotation
from detection.models import Incident, IncidentActivity, StoppedByKind
from detection.models.incidents import IncidentLabel
from detection.selectors import incidents as selector
from detection.selectors import policies
from detection.services.alerting import event_facts, routing
from detection.services.exceptions.exceptions import is_of_one_tool

MAX_ENTRIES: Final = 100
"""Newest entries of the activity of a run; a judgement."""
FOLDED_FROM: Final = 3
"""Identical calls in a row that are folded; fewer take no more space than the line that stands for them."""


@dataclass(frozen=True, slots=True)
class FoldedLines:
    """Lines of the evidence that are drawn as one row: a single call, or identical ones in a row."""

    lines: Sequence[EvidenceLine]
    is_chosen: bool = False

    @property
    def first(self) -> EvidenceLine:
        """The first call."""
        return self.lines[0]

    @property
    def last(self) -> EvidenceLine:
        """The last call."""
        return self.lines[-1]

    @property
    def is_folded(self) -> bool:
        """Whether it stands for several calls."""
        return len(self.lines) > 1


def folded(lines: Sequence[EvidenceLine], chosen_seq: int = 0) -> list[FoldedLines]:
    """Fold calls that repeat the one before with the same outcome; the chosen one keeps a row of its own.

    Parameters
    ----------
    chosen_seq
        Sequence number of the chosen call; those folded with it are unfolded, too.
    """
    groups: list[list[EvidenceLine]] = []
    for line in lines:
        if groups and line.is_equal and groups[-1][0].is_equal and _outcome(groups[-1][0]) == _outcome(line):
            groups[-1].append(line)
        else:
            groups.append([line])
    found: list[FoldedLines] = []
    for group in groups:
        if len(group) < FOLDED_FROM or any(one.seq == chosen_seq for one in group):
            found += [FoldedLines([one], is_chosen=one.seq == chosen_seq) for one in group]
        else:
            found.append(FoldedLines(group))
    return found


def _outcome(line: EvidenceLine) -> tuple[object, ...]:
    return (
        line.session, line.decision, line.rung, line.result is None, line.result_is_equal, line.is_error,
        line.has_not_run, line.ran_refused, line.was_allowed,
    )  # fmt: skip


def of_run(incident: Incident, chosen_seq: int = 0) -> dict[str, Any]:
    """Return the context of the parts of the page that are about one run; about ten queries."""
    detector = detector_for(incident.kind)
    activity = list(incident.activity.order_by("-at", "-id")[:MAX_ENTRIES])
    of_approvals = decisions.of_incident(incident)
    held = [approval for approval, _ in of_approvals["incident_approvals"]]
    newest = held[-1] if held else None
    lines = incident_text.evidence(incident, {one.seq for one in held if one.decision == "allow"})
    last_loop = selector.last_loop(incident)
    settings = incident_text.settings_then(incident.policy, incident.kind)
    return {
        "incident": incident,
        "run_said": incident_text.sentence(incident, newest),
        "run_activity": activity,
        "evidence": folded(lines, chosen_seq),
        "texts": incident_text.texts(incident),
        "message": _message(activity),
        "did": incident_text.did(incident, newest),
        "did_chip": incident_text.did_chip(incident, newest),
        "progress": incident_text.progress(incident),
        "is_session_stopped": _is_session_stopped(incident),
        "is_run_limit": detector.is_run_limit,
        "is_silence": detector.is_silence,
        "detections_of": _counted_detections(incident),
        "last_loop": last_loop,
        "last_loop_title": incident_text.title(last_loop) if last_loop else "",
        "cycle": smallest_rotation(incident.evidence.get("pattern", ())),
        "decided": _decided(incident, [one.name for one in settings if one.is_key]),
        "all_settings": settings,
        "activity_summary": incident_text.verdicts(incident),
        "blocked_by": incident_text.blocked_by(incident),
        "findings": incident.findings_by_weight,
        "unit": incident_text.unit(incident),
        "uncounted": incident_text.uncounted(incident),
        "slow_calls": incident_text.slow_calls(incident),
        "window_seconds": incident_text.window_seconds(incident),
        "silence": routing.matching_silence(
            routing.active_silences(incident.project_id, timezone.now()), event_facts.incident_facts(incident)
        ),
        "run_is_fine": incident.label == IncidentLabel.FALSE_ALARM,
        "label_reason": incident.get_label_reason_display() if incident.label_reason else "",
        **_ladder(incident),
        **exceptions.saved_of(incident),
        **of_approvals,
    }


def _message(activity: Sequence[IncidentActivity]) -> str:
    """Return the newest message with a reaction; empty without any. `activity` has the newest entry first."""
    return next((entry.note.partition(": ")[2] for entry in activity if entry.action == "reacted"), "")


def _is_session_stopped(incident: Incident) -> bool:
    """Return whether detection stopped the session because of this run, and nobody has resumed it."""
    session = incident.session
    is_stopped = session is not None and session.stopped_by_kind == StoppedByKind.DETECTION
    return is_stopped and incident.decision == "stop" and incident.was_guarded


def _ladder(incident: Incident) -> dict[str, Any]:
    """Return the reactions that the run's came from, with the setting; nothing for silence, which has none."""
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


def _call_names(incident: Incident) -> CallNames:
    """Return the names of the calls of the run, for which its settings are explained."""
    return CallNames(
        incident.agent,
        incident.backend,
        incident.model,
        incident.tool if is_of_one_tool(incident) else "",
        incident.session_name if incident.session is not None else "",
    )


def _decided(incident: Incident, names: Sequence[str]) -> list[DecidedSetting]:
    """Return the settings that decided, with what applies now."""
    call, slug = _call_names(incident), incident.project.slug
    now = policies.effective(
        incident.project, call.agent, call.backend, call.model, call.tool, incident.session
    )
    reached = reached_limit(incident.kind, incident.limit, incident.policy)
    then = {name: incident.policy[name] for name in (reached, *names) if name in incident.policy}
    return decided_settings(slug, then, now, call, _address(incident), reached)


def _address(incident: Incident) -> str:
    return permalinks.run_url(incident.project.slug, incident.loop.public_id, incident.public_id)


def _setting_url(incident: Incident, name: str) -> str:
    """Return where a setting of the run is changed."""
    source = str(incident.policy.get(name, {}).get("source", ""))
    return change_here.change_url(
        incident.project.slug, name, source, _address(incident), _call_names(incident)
    )


def _counted_detections(incident: Incident) -> str:
    """Return what the detection number counts, by the settings at that time."""
    scope = incident.policy.get("escalation_scope", {}).get("value", "loop")
    what = "limit" if detector_for(incident.kind).is_run_limit else "loop"
    return "all loops of the session" if scope == "session" else f"this {what}"


def limit_url(incident: Incident) -> str:
    """Return where the limit that found the run is changed; empty where it has none."""
    name = detector_for(incident.kind).limit_setting
    return _setting_url(incident, name) if name in FIELDS else ""


def issue_text(
    title: str, said: str, address: str, incident: Incident | None, lines: Sequence[FoldedLines]
) -> str:
    """Return a loop as the text of an issue, in Markdown."""
    parts = [f"# {title}", "", said, "", address]
    if incident is not None and lines:
        first = lines[0].first
        parts += ["", f"In session {incident.session_name}, one of its calls:", "", "```"]
        parts += [f"{first.tool} {first.arguments}"]
        if first.result is not None:
            parts += ["", first.result]
        parts += ["```"]
    return formatting.visible_block("\n".join(parts))
