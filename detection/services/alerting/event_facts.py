"""The values of an alert event as they are at its time; the rows may change before it is sent.

All facts have the fields that routes and silences match on. `rendering` turns them into text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from detection.engine.calls import FindingDetail
from detection.engine.detectors import detector_for
from detection.models import (
    Approval,
    Containment,
    ContainmentScope,
    Incident,
    JudgeCall,
    LimitNotice,
    Session,
    Severity,
    call_flags,
)
from detection.models.alert_facts import AlertFacts, ReportFacts
from detection.models.approvals import CONTAINMENT

STRIP_CELLS = 30
_SEVERITIES = {
    "stop": Severity.CRITICAL,
    "block": Severity.HIGH,
    "hold": Severity.HIGH,
    "warn": Severity.WARNING,
}


def severity_of(decision: str) -> str:
    """Return the severity of a decision: info, warning, high or critical."""
    return str(_SEVERITIES.get(decision, Severity.INFO).value)


def _severity_of(incident: Incident) -> str:
    """Return the severity of an incident. Of silence, nobody but operators is warned."""
    return severity_of("warn" if detector_for(incident.kind).is_silence else incident.decision)


def incident_facts(incident: Incident, note: str = "") -> AlertFacts:
    """Return the facts of an incident as it is now."""
    evidence = incident.evidence or {}
    detail = evidence.get("detail", FindingDetail()).copy()
    detail.pop("tool", None)
    strip, cells = _strip_of(incident.session)
    return {
        "id": incident.public_id,
        "calls_digest": incident.calls_digest,
        "loop_id": _loop_of(incident),
        "kind": incident.kind,
        "kinds": incident.kinds,
        "tool": incident.tool,
        "agent": incident.agent,
        "backend": incident.backend,
        "model": incident.model,
        "session": incident.session_name,
        "count": incident.count,
        "limit": incident.limit,
        "window_seconds": incident.window_seconds,
        "confidence": incident.confidence,
        "results": evidence.get("results", "unknown"),
        "period": evidence.get("period", 1),
        "window_calls": evidence.get("window_calls"),
        "detail": detail,
        "unit": detail.get("unit", ""),
        "decision": incident.decision,
        "rung": incident.rung,
        "severity": _severity_of(incident),
        "status": incident.status,
        "opened_at": incident.opened_at.isoformat(),
        "label": incident.label,
        "recovered": incident.recovered,
        "calls_blocked": incident.calls_blocked,
        "is_demo": incident.is_demo,
        "strip": strip,
        "cells": cells,
        "note": note[:300],
        "tags": _tags_of(incident.session),
        "api_key": _key_of(incident.session),
    }


def _loop_of(incident: Incident | None) -> str:
    return incident.loop.public_id if incident is not None else ""


def limit_notice_facts(session: Session, notice: LimitNotice) -> AlertFacts:
    """Return the facts of a limit that is nearly reached. Nothing was done, so the severity is info."""
    strip, cells = _strip_of(session)
    return {
        "id": "",
        "calls_digest": "",
        "kind": notice.kind,
        "tool": notice.tool,
        "agent": session.agent,
        "backend": session.backend,
        "model": session.model,
        "session": session.external_id,
        "count": notice.used,
        "limit": notice.limit,
        "unit": notice.unit,
        "decision": "allow",
        "severity": severity_of("allow"),
        "is_demo": session.is_demo,
        "strip": strip,
        "cells": cells,
        "note": "",
        "tags": _tags_of(session),
        "api_key": _key_of(session),
    }


def approval_facts(approval: Approval, session: Session) -> AlertFacts:
    """Return the facts of an approval as it is now.

    The severity is at least that of the held call, so that a route matches the end if it matched the request.
    """
    decided = severity_of(approval.decision)
    strip, cells = _strip_of(session)
    return {
        "id": approval.incident.public_id if approval.incident else "",
        "calls_digest": approval.calls_digest,
        "loop_id": _loop_of(approval.incident),
        "kind": approval.kind,
        "kinds": approval.incident.kinds if approval.incident else [approval.kind],
        "tool": approval.tool,
        "agent": approval.agent,
        "backend": session.backend,
        "model": session.model,
        "session": session.external_id,
        "count": approval.count,
        "limit": approval.limit,
        "unit": approval.unit,
        "decision": approval.decision or "hold",
        "severity": decided if decided == Severity.CRITICAL else Severity.HIGH.value,
        "is_demo": session.is_demo,
        "strip": strip,
        "cells": cells,
        "note": "",
        "tags": _tags_of(session),
        "api_key": _key_of(session),
        "approval": {
            "id": approval.public_id,
            "state": approval.state,
            "summary": approval.summary,
            "deadline": approval.deadline.isoformat(),
            "unattended": approval.unattended,
            "decision": approval.decision,
            "choice": approval.choice,
            "raise_by": approval.raise_by,
            "reason": approval.reason,
            "decided_by": approval.decided_by,
        },
    }


def judge_disabled_facts(approval: Approval, session: Session, call: JudgeCall) -> AlertFacts:
    """Return the facts of a judge that was disabled: about which session, and whose model it is."""
    return {
        **approval_facts(approval, session),
        "severity": Severity.CRITICAL.value,
        "judge": {"model": call.model, "host": call.host, "approval": approval.public_id},
    }


def containment_facts(row: Containment, sessions: Sequence[str]) -> AlertFacts:
    """Return the facts of a containment, with the ids of sessions that it reaches.

    Its end is as severe as its beginning, so that a route that matched one matches the other.
    """
    value = {row.scope: row.value, "tool": row.tool}
    if row.scope == ContainmentScope.AGENT_TOOL:
        value["agent"] = row.value
    elif row.scope == ContainmentScope.TOOL:
        value["tool"] = row.value
    return {
        "id": "",
        "calls_digest": "",
        "kind": CONTAINMENT,
        "tool": value["tool"],
        "agent": value.get("agent", ""),
        "backend": "",
        "model": value.get("model", ""),
        "session": value.get("family", ""),
        "count": row.can_stop + row.can_block + row.watch_only,
        "limit": 0,
        "unit": "sessions",
        "decision": row.reaction,
        "severity": severity_of(row.reaction),
        "is_demo": False,
        "strip": "",
        "cells": [],
        "note": row.reason,
        "tags": [value["tag"]] if "tag" in value else [],
        "api_key": value.get("key", ""),
        "containment": {
            "id": row.public_id,
            "scope": row.scope,
            "value": row.value,
            "tool": row.tool,
            "reaction": row.reaction,
            "reason": row.reason,
            "until": row.until.isoformat() if row.until else None,
            "include_new": row.include_new,
            "reaches": {
                "can_stop": row.can_stop,
                "can_block": row.can_block,
                "watch_only": row.watch_only,
            },
            "sessions": [*sessions],
            "created_by": row.created_by,
        },
    }


def report_facts(report: ReportFacts) -> AlertFacts:
    """Return the facts of the report of a week. Only routes that name its type match it, whatever their conditions."""
    return {
        "id": "",
        "calls_digest": "",
        "kind": "report",
        "tool": "",
        "agent": "",
        "backend": "",
        "model": "",
        "session": "",
        "count": report["loops"],
        "limit": 0,
        "unit": "loops",
        "decision": "allow",
        "severity": Severity.INFO.value,
        "is_demo": False,
        "strip": "",
        "cells": [],
        "note": "",
        "tags": [],
        "api_key": "",
        "report": report,
    }


def _tags_of(session: Session | None) -> list[str]:
    return [*session.tags] if session else []


def _key_of(session: Session | None) -> str:
    """Return the key of a session, whose tags routing adds."""
    return session.api_key if session else ""


def _strip_of(session: Session | None) -> tuple[str, list[list[str]]]:
    """Return the session's last calls as text, and as cells for an image."""
    strip = session.strip if session else []
    return strip_text(strip), [[str(cell[1]), str(cell[2])] for cell in strip]


def strip_text(strip: Sequence[Sequence[Any]]) -> str:
    """Return the last calls as text.

    A dot is a call made once, the same letter is the same call, ``!`` an error, ``x`` a block.
    """
    cells = [(str(cell[1]), str(cell[2])) for cell in strip[-STRIP_CELLS:]]
    repeated = [key for key, count in Counter(key for key, _ in cells).most_common() if count > 1 and key]
    letters = {key: chr(ord("A") + place) if place < 26 else "Z" for place, key in enumerate(repeated)}
    drawn = (
        letters.get(key, "·")
        + ("!" if call_flags.ERROR in flags else "")
        + ("x" if call_flags.has_not_run(flags) else "")
        for key, flags in cells
    )
    return " ".join(drawn)
