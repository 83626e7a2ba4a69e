"""What a message says: a title, one sentence for each piece of news, and the payload of webhooks; from `alert_facts`.

Names come from agents and may try anything. In sentences they stand as plain text: no line breaks, no invisible or
direction-changing characters, no mention, link or markup of a chat service. In the payload's own fields they are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import orjson
from django.conf import settings

from detection.engine import messages
from detection.engine.calls import Finding
from detection.models import AlertTransition, ApprovalState, Severity, Transition, Unattended
from detection.models.approvals import DONE
from detection.selectors import strip_images

MAX_LISTED = 20
"""A message that gathered more transitions lists these and says how many there are."""
MAX_DRAWN = 5
"""Of so many transitions of a message the strip is drawn."""
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_MARKUP = str.maketrans(
    {
        "@": "＠", "<": "‹", ">": "›", "&": "＆", "`": "'", "*": "∗", "~": "∼", "|": "¦", "[": "(", "]": ")", "#": "♯",
        "\\": "⧵",
    }
)  # fmt: skip
_WORDS = {
    "opened": "Loop found",
    "escalated": "Loop got worse",
    "woke": "Loop is back from its snooze",
    "ended": "Loop ended",
    "acknowledged": "Acknowledged",
    "snoozed": "Snoozed",
    "resolved": "Resolved",
    "reopened": "Reopened",
    "labelled": "Labelled",
    "undone": "Taken back",
    Transition.STILL_OPEN: "Still open",
    Transition.NEAR_LIMIT: "Close to a limit",
    Transition.REQUESTED: "Answer needed",
    Transition.CLOSED: "Approval closed",
}
_WITH_STRIP = frozenset({"opened", "escalated", Transition.NEAR_LIMIT, Transition.REQUESTED})
_OF_APPROVALS = frozenset({Transition.REQUESTED, Transition.CLOSED})
_ABOUT = ("agent", "backend", "model", "tool", "severity", "is_demo", "strip")
_WITHDRAWN = {"session_ended": "the session has ended", "session_stopped": "the session was stopped"}
_DONE = {
    "stop": "the session was stopped",
    "block": "the call was blocked",
    "hold": "the call is held until somebody answers",
    "warn": "the agent was warned",
    "allow": "nothing was done",
}


def plain(value: object, limit: int = 80) -> str:
    """Return a name as text that no chat service, mail reader or terminal takes for anything else."""
    text = _HIDDEN.sub("·", str(value)).translate(_MARKUP).replace("://", ":∕∕")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _what(facts: Mapping[str, Any]) -> str:
    detail = {"tool": plain(facts["tool"])} | ({"unit": plain(facts["unit"])} if facts["unit"] else {})
    window = facts["window_seconds"]
    finding = Finding(
        kind=facts["kind"],
        count=facts["count"],
        limit=facts["limit"],
        window_seconds=round(window) if window else None,
        results=facts["results"],
        period=facts["period"],
        detail=detail,
    )
    return messages.describe(finding)


def sentence(transition: str, actor: str, facts: Mapping[str, Any]) -> str:
    """Say in one sentence what happened."""
    head = _WORDS.get(transition, transition)
    if transition == Transition.NEAR_LIMIT:
        return f"{head}: {_use(facts)}"
    if transition in _OF_APPROVALS:
        return _about_approval(facts)
    if transition in ("opened", "escalated", "woke"):
        tail = f"{_DONE.get(facts['decision'], facts['decision'])} (limit {facts['limit']})"
    elif transition == Transition.STILL_OPEN:
        tail = f"nobody has taken it up since {datetime.fromisoformat(facts['opened_at']).astimezone(UTC):%d %b %H:%M} UTC"
    elif transition == "ended":
        tail = "the agent changed course" if facts["recovered"] else "the agent did not change course"
    else:
        tail = f"by {plain(actor)}"
    who = f"agent {plain(facts['agent'])}, " if facts["agent"] else ""
    return f"{head}: {_what(facts)}; {tail}. ({who}session {plain(facts['session'])})"


def _use(facts: Mapping[str, Any]) -> str:
    used, limit = f"{facts['count']:,.10g}", f"{facts['limit']:,.10g}"
    who = f"agent {plain(facts['agent'])}, " if facts["agent"] else ""
    return (
        f"session {plain(facts['session'])} has used {used} of {limit} {facts['unit']}; nothing was stopped. "
        f"({who}last call {plain(facts['tool'])})"
    )


def _about_approval(facts: Mapping[str, Any]) -> str:
    approval = facts["approval"]
    who = f"agent {plain(facts['agent'])}, " if facts["agent"] else ""
    where = f"({who}session {plain(facts['session'])})"
    what, otherwise = plain(approval["summary"], 300), _lowered(Unattended(approval["unattended"]).label)
    if approval["state"] == ApprovalState.OPEN:
        until = f"{datetime.fromisoformat(approval['deadline']).astimezone(UTC):%H:%M:%S} UTC"
        return f"A call of {plain(facts['tool'])} waits for your answer until {until}; without one, {otherwise}. {what}. {where}"
    if approval["state"] == ApprovalState.EXPIRED:
        end = f"nobody answered in time, so {otherwise}"
    elif approval["state"] == ApprovalState.WITHDRAWN:
        end = f"no answer is needed any more, {_WITHDRAWN.get(approval['reason'], 'the call is gone')}"
    else:
        end = f"{plain(approval['decided_by'])} {DONE[approval['choice']].format(by=approval['raised_by'])}"
    return f"A call of {plain(facts['tool'])} waited for an answer: {end}. {what}. {where}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _is_waiting(entry: AlertTransition) -> bool:
    return entry.transition == Transition.REQUESTED and entry.facts["approval"]["state"] == ApprovalState.OPEN


def title_of(entries: Sequence[AlertTransition]) -> str:
    """Head a message in a few words, for subject lines and lists."""
    first = next((entry for entry in entries if _is_waiting(entry)), entries[0])
    words = _WORDS.get(first.transition, first.transition)
    if first.transition == Transition.REQUESTED and not _is_waiting(first):
        words = _WORDS[Transition.CLOSED]
    tool = plain(first.facts["session" if first.transition == Transition.NEAR_LIMIT else "tool"], 60)
    if len(entries) == 1:
        return f"{words}: {tool}"
    incidents = len({entry.incident_id for entry in entries} - {None})
    return (
        f"{words}: {tool} and {len(entries) - 1} more ({incidents} incidents)"
        if incidents > 1
        else (f"{words}: {tool} and {len(entries) - 1} more")
    )


def _base(project: str) -> str:
    return f"{settings.PUBLIC_URL}/p/{project}"


def _url(project: str, entry: AlertTransition) -> str:
    base = _base(project)
    if entry.transition == Transition.NEAR_LIMIT:
        # A session's name may hold anything a path cannot.
        return f"{base}/session?{urlencode({'name': entry.facts['session']})}"
    if entry.transition in _OF_APPROVALS:
        return f"{base}/approvals#{entry.facts['approval']['id']}"
    return f"{base}/incidents/{entry.facts['id']}"


def text_of(project: str, entries: Sequence[AlertTransition]) -> str:
    """Return the text for people: a sentence, the strip and the link of each transition."""
    parts = []
    closed = {entry.facts["approval"]["id"] for entry in entries if entry.transition == Transition.CLOSED}
    for entry in entries[:MAX_LISTED]:
        if entry.transition == Transition.REQUESTED and entry.facts["approval"]["id"] in closed:
            continue  # its end says it all
        lines = [sentence(entry.transition, entry.actor, entry.facts)]
        if entry.facts["strip"] and entry.transition in _WITH_STRIP:
            lines.append(entry.facts["strip"])
        if entry.facts["note"] and entry.transition != "ended":
            lines.append(f"“{plain(entry.facts['note'], 300)}”")
        lines.append(_url(project, entry))
        parts.append("\n".join(lines))
    if len(entries) > MAX_LISTED:
        parts.append(f"… and {len(entries) - MAX_LISTED} more: {_base(project)}/incidents")
    return "\n\n".join(parts)


def payload(public_id: str, project: str, entries: Sequence[AlertTransition], now: datetime) -> str:
    """Return the JSON body of a message, frozen when it is sent for the first time."""
    severities = list(Severity.values)
    return orjson.dumps(
        {
            "id": public_id,
            "type": _type_of(entries),
            "timestamp": now,
            "data": {
                "project": project,
                "title": title_of(entries),
                "text": text_of(project, entries),
                "severity": max((entry.facts["severity"] for entry in entries), key=severities.index),
                "transition_count": len(entries),
                "transitions": [
                    {**_listed(project, entry), "strip_svg": _picture(entry) if place < MAX_DRAWN else ""}
                    for place, entry in enumerate(entries[:MAX_LISTED])
                ],
            },
        }
    ).decode()


def _type_of(entries: Sequence[AlertTransition]) -> str:
    if len(entries) == 1:
        return entries[0].transition if "." in entries[0].transition else f"incident.{entries[0].transition}"
    is_of_incidents = all("." not in entry.transition for entry in entries)
    return "incidents.changed" if is_of_incidents else "news.gathered"


def _picture(entry: AlertTransition) -> str:
    return strip_images.of_message(entry.facts.get("cells", [])) if entry.transition in _WITH_STRIP else ""


def _listed(project: str, entry: AlertTransition) -> dict[str, Any]:
    facts, url = entry.facts, _url(project, entry)
    shown: dict[str, Any] = {
        "transition": entry.transition,
        "at": entry.at,
        "actor": entry.actor,
        "note": facts["note"],
    }
    if entry.transition == Transition.NEAR_LIMIT:
        about = {
            name: facts[name]
            for name in ("agent", "backend", "model", "tool", "severity", "is_demo", "strip")
        }
        used = {
            "id": facts["session"],
            "used": facts["count"],
            "limit": facts["limit"],
            "unit": facts["unit"],
        }
        return {**shown, "incident": None, "session": {**used, **about, "url": url}}
    if entry.transition in _OF_APPROVALS:
        about = {name: facts[name] for name in (*_ABOUT, "session", "kind", "count", "limit", "unit")}
        return {
            **shown,
            "incident": {"id": facts["id"], "url": f"{_base(project)}/incidents/{facts['id']}"}
            if facts["id"]
            else None,
            "approval": {**facts["approval"], **about, "loop": facts["loop_id"], "url": url},
        }
    incident = {
        name: value for name, value in facts.items() if name not in ("unit", "note", "loop_id", "cells")
    }
    return {**shown, "incident": {**incident, "loop": facts["loop_id"], "url": url}}


def test_payload(public_id: str, project: str, destination: str, now: datetime) -> str:
    """Return the body that the test button sends."""
    return orjson.dumps(
        {
            "id": public_id,
            "type": "test",
            "timestamp": now,
            "data": {
                "project": project,
                "title": "LoopGuard test message",
                "text": f"This is a test of the destination {plain(destination)}. Nothing is looping.\n{settings.PUBLIC_URL}",
                "severity": Severity.INFO.value,
                "transition_count": 0,
                "transitions": [],
            },
        }
    ).decode()


def is_good_news(transitions: Iterable[str]) -> bool:
    """Whether a message tells only of what came to rest."""
    return set(transitions) <= {"ended", "resolved", "acknowledged"}
