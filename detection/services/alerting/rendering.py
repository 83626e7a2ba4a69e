"""Renders `event_facts` as notifications: a title, one sentence per alert event, and the payload of webhooks.

Names come from agents and may contain anything. In sentences they are plain text: without line breaks, invisible or
direction-changing characters, and mentions, links or markup of chat services. Elsewhere in the payload they are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlencode

import orjson
from django.conf import settings

from detection.engine import durations, messages
from detection.engine.calls import Finding, FindingDetail
from detection.engine.detectors import detector_for
from detection.models import AlertEvent, AlertEventType, Approval, ApprovalState, Severity, Unattended
from detection.models.alert_facts import AlertFacts, ContainmentFacts
from detection.models.alerts import LOOP_EVENTS
from detection.models.approvals import DONE
from detection.selectors import strip_images
from detection.selectors.containments import describe
from detection.services import report_links
from detection.services.alerting import event_facts

MAX_LISTED = 20
"""A notification lists this many events and the number of the others."""
MAX_DRAWN = 5
"""The first events of a notification have their strip as an image."""
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_MARKUP = str.maketrans(
    {
        "@": "＠", "<": "‹", ">": "›", "&": "＆", "`": "'", "*": "∗", "~": "∼", "|": "¦", "[": "(", "]": ")", "#": "♯",
        "\\": "⧵",
    }
)  # fmt: skip
_HEADLINES = {
    "opened": "Loop detected",
    "returned": "Loop returned",
    "escalated": "Loop escalated",
    "ended": "Loop ended",
    "reopened": "Reopened",
    "assigned": "Assigned",
    "done": "Done",
    "later": "Later",
    "fine": "Fine",
    "confirmed": "Confirmed",
    "undone": "Undone",
    AlertEventType.STILL_OPEN: "Still open",
    AlertEventType.NEAR_LIMIT: "Close to a limit",
    AlertEventType.APPROVAL_REQUESTED: "Call held",
    AlertEventType.APPROVAL_CLOSED: "Held call closed",
    AlertEventType.JUDGE_DISABLED: "Judge disabled",
    AlertEventType.CONTAINMENT_CREATED: "Contained",
    AlertEventType.CONTAINMENT_LIFTED: "Containment lifted",
    AlertEventType.CONTAINMENT_ENDED: "Containment ended",
    AlertEventType.WEEKLY_REPORT: "Weekly report",
}
_OPENINGS = ("opened", "returned")
_HEADLINES_OF_LIMITS = {"escalated": "Stricter at a limit", "ended": "No longer at a limit"}
_HEADLINES_OF_SILENCE = {"opened": "Stalled", "returned": "Stalled again", "ended": "No longer stalled"}
_WITH_STRIP = frozenset(
    {"opened", "returned", "escalated", AlertEventType.NEAR_LIMIT, AlertEventType.APPROVAL_REQUESTED}
)
_APPROVAL_TYPES = frozenset({AlertEventType.APPROVAL_REQUESTED, AlertEventType.APPROVAL_CLOSED})
_SESSION_FIELDS = ("agent", "backend", "model", "tool", "tags", "severity", "is_demo", "strip")
_APPROVAL_FIELDS = (*_SESSION_FIELDS, "session", "kind", "count", "limit", "unit")
_NOT_SHOWN = frozenset({"unit", "note", "cells", "api_key"})
_WITHDRAWN = {"session_ended": "the session has ended", "session_stopped": "a stop was requested"}
_REACTIONS = {
    "stop": "a stop of the session was requested",
    "block": "the call was blocked",
    "hold": "the call is held for an answer",
    "warn": "the agent was warned",
    "allow": "it was only recorded",
}


def plain(value: object, limit: int = 80) -> str:
    """Return a name as text that chat services, mail readers and terminals show literally."""
    text = _HIDDEN.sub("·", str(value)).translate(_MARKUP).replace("://", ":∕∕")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _describe(facts: AlertFacts) -> str:
    detail = {
        name: plain(value) if isinstance(value, str) else value for name, value in facts["detail"].items()
    }
    window = facts["window_seconds"]
    finding = Finding(
        kind=facts["kind"],
        count=int(facts["count"]),
        limit=int(facts["limit"]),
        window_seconds=round(window) if window else None,
        window_calls=facts["window_calls"],
        results=facts["results"],
        period=facts["period"],
        detail=cast("FindingDetail", {**detail, "tool": plain(facts["tool"])}),
    )
    return messages.describe(finding)


def sentence(event_type: str, actor: str, facts: AlertFacts) -> str:
    """Return one sentence about an alert event."""
    headline = _headline(event_type, facts)
    if event_type == AlertEventType.NEAR_LIMIT:
        return f"{headline}: {_limit_notice(facts)}"
    if event_type in _APPROVAL_TYPES:
        return _approval(facts)
    if event_type == AlertEventType.JUDGE_DISABLED:
        return (
            f"{headline}: the model {plain(facts['judge']['model'])} at {plain(facts['judge']['host'])} followed "
            "an instruction in its data. The judge is disabled for a day, and calls that wait for it are denied. "
            f"{_where(facts)}"
        )
    if "report" in facts:
        row = facts["report"]
        blocked = f" {row['calls_blocked']:,} calls in loops were blocked." if row["calls_blocked"] else ""
        loops = f" {row['loops']:,} began." if row["loop_cost_usd"] else ""
        return f"{report_links.sentence(row)}{loops}{blocked}"
    if "containment" in facts:
        return f"{headline}: {_containment(event_type, actor, facts['containment'])}"
    detector = detector_for(facts["kind"])
    is_silence = detector.is_silence
    if is_silence and event_type in _OPENINGS:
        end = f"the limit is {durations.exact(facts['limit'])}"
    elif is_silence and event_type == "ended":
        end = plain(facts["note"])
    elif event_type in (*_OPENINGS, "escalated"):
        figure = _used(facts) if detector.is_run_limit else f"limit {facts['limit']}"
        end = f"{_REACTIONS.get(facts['decision'], facts['decision'])} ({figure})"
    elif event_type == AlertEventType.STILL_OPEN:
        end = f"open and without an owner since {_utc(facts['opened_at']):%d %b %H:%M} UTC"
    elif event_type == "ended" and detector.is_run_limit:
        end = "further calls kept within it" if facts["recovered"] else "the session ended at it"
    elif event_type == "ended":
        end = "the agent recovered" if facts["recovered"] else "the agent did not recover"
    else:
        end = f"by {plain(actor)}"
    return f"{headline}: {_describe(facts)}; {end}. {_where(facts)}"


def _headline(event_type: str, facts: AlertFacts) -> str:
    headline = _HEADLINES.get(event_type, event_type)
    detector = detector_for(str(facts.get("kind", "")))
    if detector.is_run_limit:
        return (
            detector.headline if event_type in _OPENINGS else _HEADLINES_OF_LIMITS.get(event_type, headline)
        )
    return _HEADLINES_OF_SILENCE.get(event_type, headline) if detector.is_silence else headline


def _used(facts: AlertFacts) -> str:
    detail = facts["detail"]
    return f"{durations.figure(detail.get('used', facts['count']), facts['unit'])} used"


def _where(facts: AlertFacts) -> str:
    agent = f"agent {plain(facts['agent'])}, " if facts["agent"] else ""
    return f"({agent}session {plain(facts['session'])})"


def _utc(moment: str) -> datetime:
    return datetime.fromisoformat(moment).astimezone(UTC)


def _limit_notice(facts: AlertFacts) -> str:
    unit = facts["unit"]
    used, limit = durations.figure(facts["count"], unit), durations.amount(facts["limit"], unit)
    agent = f"agent {plain(facts['agent'])}, " if facts["agent"] else ""
    return (
        f"session {plain(facts['session'])} has used {used} of {limit}; nothing was stopped. "
        f"({agent}last call {plain(facts['tool'])})"
    )


def _approval(facts: AlertFacts) -> str:
    approval = facts["approval"]
    tool, summary = plain(facts["tool"]), plain(approval["summary"], 300)
    unattended = _lowered(Unattended(approval["unattended"]).label)
    if approval["state"] == ApprovalState.OPEN:
        deadline = f"{_utc(approval['deadline']):%H:%M:%S} UTC"
        return (
            f"A call to {tool} is held and waits for your answer until {deadline}. Without one, {unattended}. "
            f"{summary}. {_where(facts)}"
        )
    if approval["state"] == ApprovalState.EXPIRED:
        end = f"nobody decided in time, so {unattended}"
    elif approval["state"] == ApprovalState.WITHDRAWN:
        end = f"it is no longer needed because {_WITHDRAWN.get(approval['reason'], 'the call was cancelled')}"
    else:
        end = f"{plain(approval['decided_by'])} {DONE[approval['choice']].format(by=approval['raise_by'])}"
    return f"The held call to {tool} is closed: {end}. {summary}. {_where(facts)}"


def _words_of(row: ContainmentFacts) -> str:
    return describe(row["scope"], plain(row["value"]), plain(row["tool"]))


def _containment(event_type: str, actor: str, row: ContainmentFacts) -> str:
    if event_type == AlertEventType.CONTAINMENT_CREATED:
        reaches = row["reaches"]
        end = f" until {_utc(row['until']):%d %b %H:%M} UTC" if row["until"] else " until it is lifted"
        return (
            f"every call of {_words_of(row)} gets the reaction {row['reaction']}{end}, by {plain(actor)}. "
            f"Of the sessions that it reaches, {reaches['can_stop']:,} can be stopped, {reaches['can_block']:,} can be "
            f"blocked, and {reaches['watch_only']:,} are only watched."
        )
    by = f", by {plain(actor)}" if event_type == AlertEventType.CONTAINMENT_LIFTED else ""
    return f"calls of {_words_of(row)} are judged again{by}. The reaction was {row['reaction']}."


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def update_closed_approvals(events: Iterable[AlertEvent]) -> None:
    """Update approval requests that have been closed, so that nobody is notified needlessly.

    Changes only the objects, not the stored rows.
    """
    requests = {
        event.facts["approval"]["id"]: event
        for event in events
        if event.type == AlertEventType.APPROVAL_REQUESTED
    }
    if requests:
        projects = {event.project_id for event in requests.values()}
        closed = Approval.objects.filter(project_id__in=projects, public_id__in=requests)
        closed = closed.exclude(state=ApprovalState.OPEN)
        for approval in closed.select_related("session", "incident"):
            requests[approval.public_id].facts = event_facts.approval_facts(approval, approval.session)


def _is_open_request(event: AlertEvent) -> bool:
    return (
        event.type == AlertEventType.APPROVAL_REQUESTED
        and event.facts["approval"]["state"] == ApprovalState.OPEN
    )


def title_of(events: Sequence[AlertEvent]) -> str:
    """Return a title for subject lines and lists."""
    first = next((event for event in events if _is_open_request(event)), events[0])
    headline = _headline(first.type, first.facts)
    if first.type == AlertEventType.APPROVAL_REQUESTED and not _is_open_request(first):
        headline = _HEADLINES[AlertEventType.APPROVAL_CLOSED]
    subject = plain(first.facts["session" if first.type == AlertEventType.NEAR_LIMIT else "tool"], 60)
    if first.type == AlertEventType.JUDGE_DISABLED:
        subject = plain(first.facts["judge"]["model"], 60)
    if "report" in first.facts:
        subject = f"7 days to {report_links.last_day(first.facts['report']):%d %b %Y}"
    if "containment" in first.facts:
        subject = _words_of(first.facts["containment"])
    title = f"{headline}: {subject}"
    if len(events) > 1:
        title += f" and {len(events) - 1} more"
    incidents = len({event.incident_id for event in events} - {None})
    return f"{title} ({incidents} runs)" if incidents > 1 else title


def _base(project: str) -> str:
    return f"{settings.PUBLIC_URL}/p/{project}"


def _run_url(project: str, facts: AlertFacts) -> str:
    """Return the page of the loop with the run; facts from before their loop was known lead there."""
    if loop := facts.get("loop_id"):
        return f"{_base(project)}/loops/{loop}?run={facts['id']}"
    return f"{_base(project)}/incidents/{facts['id']}"


def _url(project: str, event: AlertEvent) -> str:
    base = _base(project)
    if event.type == AlertEventType.NEAR_LIMIT:
        # A session's name may contain characters that a path cannot.
        return f"{base}/session?{urlencode({'name': event.facts['session']})}"
    if event.type in (*_APPROVAL_TYPES, AlertEventType.JUDGE_DISABLED):
        return f"{base}/held#{event.facts['approval']['id']}"
    if "report" in event.facts:
        return f"{base}/insights/reports#{event.facts['report']['id']}"
    if "containment" in event.facts:
        return f"{base}/contain"
    return _run_url(project, event.facts)


def text_of(project: str, events: Sequence[AlertEvent]) -> str:
    """Return the text for people: a sentence, the strip and the link of each event."""
    parts = []
    closed = {
        event.facts["approval"]["id"] for event in events if event.type == AlertEventType.APPROVAL_CLOSED
    }
    for event in events[:MAX_LISTED]:
        if event.type == AlertEventType.APPROVAL_REQUESTED and event.facts["approval"]["id"] in closed:
            continue  # the event of its end is in the same notification
        lines = [sentence(event.type, event.actor, event.facts)]
        if event.facts["strip"] and event.type in _WITH_STRIP:
            lines.append(event.facts["strip"])
        if event.facts["note"] and event.type != "ended":
            lines.append(f"“{plain(event.facts['note'], 300)}”")
        lines.append(_url(project, event))
        parts.append("\n".join(lines))
    if len(events) > MAX_LISTED:
        parts.append(f"… and {len(events) - MAX_LISTED} more: {_base(project)}/loops")
    return "\n\n".join(parts)


def payload(public_id: str, project: str, events: Sequence[AlertEvent], now: datetime) -> str:
    """Return the JSON body of a notification, frozen at its first attempt."""
    severities = list(Severity.values)
    return orjson.dumps(
        {
            "id": public_id,
            "type": _type_of(events),
            "timestamp": now,
            "data": {
                "project": project,
                "title": title_of(events),
                "text": text_of(project, events),
                "severity": max((event.facts["severity"] for event in events), key=severities.index),
                "event_count": len(events),
                "events": [
                    {**_event(project, event), "strip_svg": _image(event) if index < MAX_DRAWN else ""}
                    for index, event in enumerate(events[:MAX_LISTED])
                ],
            },
        }
    ).decode()


def _type_of(events: Sequence[AlertEvent]) -> str:
    if len(events) == 1:
        event_type = events[0].type
        thing = "loop" if event_type in LOOP_EVENTS else "incident"
        return event_type if "." in event_type else f"{thing}.{event_type}"
    is_about_incidents = all("." not in event.type for event in events)
    return "incidents.changed" if is_about_incidents else "alerts.grouped"


def _image(event: AlertEvent) -> str:
    return strip_images.of_message(event.facts.get("cells", [])) if event.type in _WITH_STRIP else ""


def _event(project: str, event: AlertEvent) -> dict[str, object]:
    facts, url = event.facts, _url(project, event)
    named: Mapping[str, object] = facts
    shown: dict[str, object] = {
        "type": event.type,
        "at": event.at,
        "actor": event.actor,
        "note": facts["note"],
    }
    if event.type == AlertEventType.NEAR_LIMIT:
        session = {
            "id": facts["session"],
            "used": facts["count"],
            "limit": facts["limit"],
            "unit": facts["unit"],
            **{name: named[name] for name in _SESSION_FIELDS},
            "url": url,
        }
        return {**shown, "incident": None, "session": session}
    if event.type in _APPROVAL_TYPES:
        incident_url = _run_url(project, facts)
        approval = {
            **facts["approval"],
            **{name: named[name] for name in _APPROVAL_FIELDS},
            "calls_digest": facts["calls_digest"],
            "url": url,
        }
        return {
            **shown,
            "incident": {"id": facts["id"], "url": incident_url} if facts["id"] else None,
            "approval": approval,
        }
    if event.type == AlertEventType.JUDGE_DISABLED:
        return {
            **shown,
            "incident": None,
            "judge": {**facts["judge"], "session": facts["session"], "url": url},
        }
    if "report" in facts:
        return {**shown, "incident": None, "report": {**facts["report"], "url": url}}
    if "containment" in facts:
        return {**shown, "incident": None, "containment": {**facts["containment"], "url": url}}
    incident = {name: value for name, value in facts.items() if name not in _NOT_SHOWN}
    return {**shown, "incident": {**incident, "url": url}}


def with_links(payload: str, project: str, events: Iterable[AlertEvent]) -> str:
    """Return a payload with links to reports that need no account, in place of the page of links.

    Only what is sent has them: with the token of a link, whoever has it sees the figures.
    """
    for event in events:
        if "report" in event.facts:
            url = f"{settings.PUBLIC_URL}/reports/{report_links.token_of(event.facts['report']['id'])}"
            payload = payload.replace(_url(project, event), url)
    return payload


def test_payload(public_id: str, project: str, destination: str, now: datetime) -> str:
    """Return the JSON body of a test notification."""
    return orjson.dumps(
        {
            "id": public_id,
            "type": "test",
            "timestamp": now,
            "data": {
                "project": project,
                "title": "LoopGuard test notification",
                "text": f"This is a test of the destination {plain(destination)}.\n{settings.PUBLIC_URL}",
                "severity": Severity.INFO.value,
                "event_count": 0,
                "events": [],
            },
        }
    ).decode()


def is_recovery(event_types: Iterable[str]) -> bool:
    """Return whether a notification is only about loops that ended or that people dealt with."""
    return set(event_types) <= {"ended", "assigned", "done", "fine"}
