"""Reads of the what-ifs of a project, and their public form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detection.models import Project, WhatIf
from detection.selectors.pages import Order, Page, SortKey, cut

_NEWEST = Order(SortKey("created", "created_at"))
MISSING_WORDS: Mapping[str, str] = {
    "payloads_not_stored": "their payloads are not stored",
    "too_long": "their sessions are too long",
    "removed": "their sessions have been removed",
    "out_of_time": "the replay took too long",
}
"""Why calls could not be replayed."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the recorded history was replayed.

    Attributes
    ----------
    calls, replayed_calls
        All calls of the period, including removed ones, and those that were replayed.
    missing
        Calls that could not be replayed, by reason.
    """

    calls: int
    replayed_calls: int
    missing: dict[str, int]

    @property
    def share(self) -> float:
        """Share of the calls that was replayed, from 0 to 1; 1 without any call."""
        return self.replayed_calls / self.calls if self.calls else 1.0


def list_what_ifs(project_id: int, _filters: None = None, cursor: str = "", limit: int = 50) -> Page[WhatIf]:
    """Return a page of the what-ifs of a project, newest first; `BadCursor` for a cursor of another list."""
    rows = _NEWEST.page(WhatIf.objects.filter(project_id=project_id), cursor)
    return cut([*rows[: limit + 1]], limit, _NEWEST.cursor)


def find_what_if(project_id: int, public_id: str) -> WhatIf | None:
    """Return the what-if of the project with this id, or None."""
    return WhatIf.objects.filter(project_id=project_id, public_id=public_id).first()


def is_outdated(row: WhatIf) -> bool:
    """Return whether a setting of the project was changed after the replay."""
    versions = Project.objects.filter(pk=row.project_id).values_list("policy_version", flat=True)
    return not row.is_open and row.policy_version != 0 and row.policy_version != versions.first()


def coverage(row: WhatIf) -> Coverage:
    """Return how much of the history a what-if has replayed so far."""
    missing = {
        name: counts["calls"] for name, counts in row.result.get("missing", {}).items() if counts["calls"]
    }
    replayed = row.result.get("replayed", {}).get("calls", 0)
    return Coverage(replayed + sum(missing.values()), replayed, missing)


def as_document(row: WhatIf, *, with_items: bool = True) -> dict[str, object]:
    """Return a what-if in its public form, see `WhatIfSchema` of the API; lists of what-ifs name no incidents."""
    found, covered = row.result, coverage(row)
    labels = found.get("labels", {})
    lists = {
        name: {
            "count": found[name]["count"],
            "by_kind": found[name]["by_kind"],
            "cost_usd": found[name].get("cost_usd", 0.0),
            "labelled": labels.get(name, {}),
            "items": found[name]["items"] if with_items else [],
        }
        for name in ("gained", "lost")
        if found
    }
    return {
        "id": row.public_id,
        "state": row.state,
        "days": row.days,
        "change": row.change,
        "progress": {
            "share": round(row.share, 4),
            "sessions": row.sessions,
            "done_sessions": row.done_sessions,
            "calls": row.calls,
            "done_calls": row.done_calls,
        },
        "result": {
            **lists,
            "changed": {
                "cost_usd": 0.0,
                "cost_usd_after": 0.0,
                **found["changed"],
                **({} if with_items else {"items": []}),
            },
            "incidents": {name: found["incidents"].get(name, 0) for name in ("before", "after")},
            "spent_usd": found.get("spent_usd", {"before": 0.0, "after": 0.0}),
            "decisions": found["decisions"],
            "endings": found.get("endings", {"before": {}, "after": {}}),
            "stops": found["stops"],
            "days": found["days"],
            "recorded": found["recorded"],
            "coverage": {
                "share": round(covered.share, 4),
                "calls": covered.calls,
                "replayed_calls": covered.replayed_calls,
                "missing": covered.missing,
                "unaffected_sessions": found["replayed"].get("unaffected_sessions", 0),
                "failed_events": found["replayed"].get("failed_events", 0),
            },
        }
        if found
        else None,
        "is_outdated": is_outdated(row),
        "error": {"code": row.error_code, "detail": row.error} if row.error else None,
        "created_by": row.created_by,
        "created_at": row.created_at.isoformat(),
        "finished_at": row.finished_at.isoformat() if row.finished_at else None,
    }
