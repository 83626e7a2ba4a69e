"""Where people have mentioned what is erased: filters of saved views, reasons of settings and of silences.

Each function runs in the transaction of the erasure. What it cannot tell from other words, such as a name within a
comment on something else, stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import parse_qsl

from detection.filtering import language
from detection.filtering.language import FilterError
from detection.models import AlertSilence, AuditEntry, Incident, Override, SavedView, ToolOverride
from detection.models.erasures import ErasureOf

ERASED: Final = "Erased."
"""Takes the place of a reason."""
_FIELDS: Final = {ErasureOf.SESSION: ("session", "parent"), ErasureOf.AGENT: ("agent",)}


def delete_views(project_id: int, of: str, name: str) -> tuple[int, list[str]]:
    """Delete the saved views whose filter selects a session or an agent by its name.

    Returns
    -------
    tuple
        How many, and the subjects under which the audit has them and those that were deleted before.
    """
    fields = _FIELDS[ErasureOf(of)]
    views = [
        row for row in SavedView.objects.filter(project_id=project_id) if _selects(row.query, fields, name)
    ]
    entries = AuditEntry.objects.filter(project_id=project_id, action__startswith="view.")
    subjects = {
        subject
        for subject, *states in entries.values_list("subject", "before", "after")
        if any(_selects(str((state or {}).get("query", "")), fields, name) for state in states)
    }
    SavedView.objects.filter(project_id=project_id, pk__in=[row.pk for row in views]).delete()
    return len(views), [*subjects]


def clear_reasons(project_id: int, incidents: Collection[str]) -> None:
    """Clear the reasons of settings that are exceptions of these incidents; each ends with the id of its incident."""
    for model in (Override, ToolOverride):
        rows: Any = model._default_manager.filter(project_id=project_id, note__contains="(from inc_")
        noted = rows.values_list("pk", "note")
        found = [pk for pk, note in noted if note.rpartition("(from ")[2].rstrip(")") in incidents]
        rows.filter(pk__in=found).update(note=ERASED)


def clear_silences(project_id: int, loop_ids: Collection[int]) -> list[str]:
    """Clear the reasons of silences of loops that have no incident left; return the public ids of these silences."""
    known = Incident.objects.filter(project_id=project_id, loop__in=loop_ids).values("loop")
    rows = AlertSilence.objects.filter(project_id=project_id, loop__in=loop_ids).exclude(loop__in=known)
    found = [*rows.values_list("public_id", flat=True)]
    AlertSilence.objects.filter(project_id=project_id, public_id__in=found).update(reason=ERASED)
    return found


def remembered_decisions(project_id: int, agent: str) -> list[str]:
    """Return the subjects under which the audit has remembered decisions of an agent."""
    entries = AuditEntry.objects.filter(
        project_id=project_id, action__in=("approval.remember", "approval.forget")
    )
    return [
        subject
        for subject, *states in entries.values_list("subject", "before", "after")
        if any((state or {}).get("agent") == agent for state in states)
    ]


def _selects(query: str, fields: Collection[str], name: str) -> bool:
    with contextlib.suppress(FilterError):
        terms = language.parse(dict(parse_qsl(query)).get("q", ""))
        return any(term.field in fields and any(one.text == name for one in term.values) for term in terms)
    return False
