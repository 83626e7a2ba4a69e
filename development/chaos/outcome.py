"""What an installation has made of the runs, without names, times and numbers that differ between installations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg

from development.chaos.agents import Answers

Rows = list[tuple[Any, ...]]
_WAITING = (
    "SELECT count(*) FROM detection_session s JOIN detection_project p ON p.id = s.project_id"
    " WHERE p.slug = %s AND evaluated_seq < last_seq"
)
_TABLES = {
    "sessions": """
        SELECT external_id, state, outcome, last_seq, evaluated_seq, call_count, blocked_count, last_tool, meter_kind,
            meter_count, meter_limit,
            (SELECT jsonb_agg(jsonb_build_array(cell -> 0, cell -> 2, cell -> 3))
             FROM jsonb_array_elements(strip) cell)::text,
            stopped_by_kind, CASE stopped_by_kind WHEN 'person' THEN stop_reason END, has_active_incident,
            exempt_tools::text, pending_since IS NULL
        FROM detection_session s JOIN detection_project p ON p.id = s.project_id WHERE p.slug = %s""",
    "events": """
        SELECT external_id, seq, type, e.call_id, tool, e.arguments, content, closes, is_error, round, call_number,
            flags, decision
        FROM detection_event e JOIN detection_session s ON s.id = e.session_id
            JOIN detection_project p ON p.id = s.project_id WHERE p.slug = %s""",
    "incidents": """
        SELECT session_name, kind, tool, count, "limit", confidence, detections, was_guarded, calls_blocked,
            calls_in_loop, decision, rung, first_seq, last_seq, status, recovered, ended_at IS NULL
        FROM detection_incident i JOIN detection_project p ON p.id = i.project_id WHERE p.slug = %s""",
    "approvals": """
        SELECT external_id, a.state, seq, call_id, held_calls, tool, kind, count, "limit", choice, decision
        FROM detection_approval a JOIN detection_session s ON s.id = a.session_id
            JOIN detection_project p ON p.id = a.project_id WHERE p.slug = %s""",
    "alert events": """
        SELECT e.type, session_name, kind, i.tool, first_seq
        FROM detection_alertevent e JOIN detection_project p ON p.id = e.project_id
            LEFT JOIN detection_incident i ON i.id = e.incident_id
        -- What one transaction finds is one escalation, so their number depends on how far evaluation lagged.
        WHERE p.slug = %s AND e.type <> 'escalated'""",
    "quarantined events": """
        SELECT external_id, q.seq, q.error
        FROM detection_quarantinedevent q JOIN detection_session s ON s.id = q.session_id
            JOIN detection_project p ON p.id = q.project_id WHERE p.slug = %s""",
}
_DIFFERS = frozenset(
    ("id", "key", "loop", "group", "loop_id", "links", "message", "incident", "request_id", "window_seconds",
     "deadline", "trend", "decided_by", "by", "summary")
)  # fmt: skip
"""Ids, keyed digests and times, and sentences that contain them."""
_MOST_SHOWN = 5


@dataclass
class Outcome:
    """Everything that is compared, by part: tables of the database, lists of the API, rows of the page, verdicts."""

    parts: dict[str, Counter[Any]] = field(default_factory=dict)


@dataclass
class Comparison:
    """What differs from the reference, as sentences.

    Attributes
    ----------
    lost, duplicated
        Events, calls and rows that the reference has and this outcome has not, and the other way round.
    different
        Rows of both that are not equal, and everything else that was not promised.
    """

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing differs."""
        return not (self.lost or self.duplicated or self.different)


def waiting_sessions(database: psycopg.Connection[tuple[Any, ...]], project: str) -> int:
    """Return how many sessions of a project are not evaluated to their end."""
    row = database.execute(_WAITING, [project]).fetchone()
    return int(row[0]) if row else 0


def read_outcome(
    database: psycopg.Connection[tuple[Any, ...]],
    url: str,
    key: str,
    project: str,
    answers: Answers,
    page: dict[str, tuple[str, str]],
) -> Outcome:
    """Read everything that a project has, from database and API, beside what clients and page were told."""
    parts = {name: Counter(database.execute(text, [project]).fetchall()) for name, text in _TABLES.items()}
    with httpx.Client(
        base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=20
    ) as client:
        sessions = _all(client, "/sessions")
        parts["API sessions"] = _documents(sessions)
        parts["API incidents"] = _documents(_all(client, "/incidents"))
        parts["API approvals"] = _documents(_all(client, "/approvals"))
        parts["API loops"] = _documents(_all(client, "/loops"))
        for name in sorted(one["session"] for one in sessions):
            parts[f"API calls of {name}"] = _documents(_all(client, f"/sessions/{name}/calls"))
    parts["verdicts"] = Counter(answers.verdicts.items())
    parts["live page"] = Counter(
        (name, state, text.replace(project, "")) for name, (state, text) in page.items()
    )
    return Outcome(parts)


def compare(found: Outcome, reference: Outcome) -> Comparison:
    """Compare an outcome with the reference, part by part; a row is told apart by its first columns."""
    comparison = Comparison()
    for name in sorted(found.parts.keys() | reference.parts.keys()):
        here, there = found.parts.get(name, Counter()), reference.parts.get(name, Counter())
        more, less = here - there, there - here
        added, gone = Counter(map(_identity, more.elements())), Counter(map(_identity, less.elements()))
        expected = {_identity(row): row for row in less}
        changed = [(row, expected[_identity(row)]) for row in more.elements() if _identity(row) in gone]
        _note(
            comparison.different,
            name,
            (f"{_identity(row)}: {_difference(row, other)}" for row, other in changed),
        )
        _note(comparison.duplicated, name, (added - gone).elements())
        _note(comparison.lost, name, (gone - added).elements())
    return comparison


def _note(sentences: list[str], name: str, rows: Iterable[Any]) -> None:
    rows = list(rows)
    sentences += [f"{name}: {str(row)[:400]}" for row in rows[:_MOST_SHOWN]]
    if len(rows) > _MOST_SHOWN:
        sentences.append(f"{name}: and {len(rows) - _MOST_SHOWN} more")


def _difference(found: Any, expected: Any) -> str:
    """Return the parts of a row that differ, in words."""
    if isinstance(found, tuple) and isinstance(expected, tuple) and len(found) == len(expected):
        return "; ".join(
            _difference(*pair) for pair in zip(found, expected, strict=True) if pair[0] != pair[1]
        )
    return f"{str(found)[:200]} instead of {str(expected)[:200]}"


def _identity(row: Any) -> Any:
    """Return what names a row: session and number, or whatever comes first."""
    return row[:2] if isinstance(row, tuple) else row


def _all(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    """Read all pages of a list."""
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = client.get(path, params={"limit": 200, **({"cursor": cursor} if cursor else {})})
        answer.raise_for_status()
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if not cursor:
            return items


def _documents(items: list[dict[str, Any]]) -> Counter[Any]:
    return Counter((*_names(item), _plain(item)) for item in items)


def _names(item: dict[str, Any]) -> tuple[Any, Any]:
    return item.get("session") or item.get("title"), item.get("seq") or item.get("first_seq") or item.get(
        "call_id"
    )


def _plain(value: Any) -> Any:
    """Return a JSON value in a form that can be counted, without what differs between projects and moments."""
    if isinstance(value, dict):
        kept = (
            name
            for name in sorted(value)
            if name not in _DIFFERS and not name.endswith(("_at", "_until", "_url")) and name != "at"
        )
        return tuple(
            (name, _plain(value[name]))
            for name in kept
            if (name, value.get("kind")) != ("reason", "detection")
        )
    return tuple(map(_plain, value)) if isinstance(value, list) else value
