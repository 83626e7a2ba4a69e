"""Decisions about suggestions: accept them through the services of policies, reject, try and undo them."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from detection.models import AuditEntry, Project, Suggestion, SuggestionDecision, WhatIf
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, NotFound, found
from detection.services.learning.suggestions import OpenSuggestion, learn
from detection.services.policies import overrides
from detection.services.what_if import what_ifs
from detection.services.what_if.changes import ChangeDocument
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit


@transaction.atomic
def accept(
    project_id: int, public_id: str, actor: Actor, *, note: str = "", expires_at: datetime | None = None
) -> Suggestion:
    """Save the change of a suggestion; it takes effect on the next call.

    Parameters
    ----------
    note
        Reason; the policy history keeps it with the evidence for the suggestion.
    expires_at
        When the change expires.

    Raises
    ------
    NotFound
        If the labels of the project do not support it.
    Conflict
        ``already_decided``.
    Invalid
        For a time that is out of range.
    """
    found = _open(_locked(project_id), public_id)
    latest = AuditEntry.objects.filter(project_id=project_id).aggregate(pk=Max("pk"))["pk"] or 0
    reason = " ".join(filter(None, (note.strip(), f"{found.reason} ({public_id})")))
    what_ifs.save_change(
        project_id, found.change, actor, reason[-overrides.MAX_NOTE_CHARACTERS :], expires_at
    )
    entries = AuditEntry.objects.filter(
        project_id=project_id, subject=str(found.change.scope), pk__gt=latest, actor=actor.name[:150]
    )
    entry = entries.order_by("-pk").values_list("pk", flat=True).first()
    return _decide(found, project_id, actor, SuggestionDecision.ACCEPTED, note, entry)


@transaction.atomic
def reject(project_id: int, public_id: str, actor: Actor, *, note: str = "") -> Suggestion:
    """Reject a suggestion. It is not made again until `undo`. Replaces an earlier decision to accept it.

    Raises
    ------
    NotFound, Conflict
        See `accept`.
    """
    return _decide(
        _open(_locked(project_id), public_id), project_id, actor, SuggestionDecision.REJECTED, note, None
    )


@transaction.atomic
def undo(project_id: int, public_id: str, actor: Actor) -> None:
    """Undo a decision: restore the policy before an accepted suggestion unless it expired; make a rejected one again.

    Raises
    ------
    NotFound
        If nothing was decided about it.
    Conflict
        ``changed_since`` if the policy of its scope has changed since; it can be restored from the policy history.
    """
    rows = Suggestion.objects.select_for_update().filter(project_id=project_id, public_id=public_id)
    row = found(rows.first())
    if row.decision == SuggestionDecision.ACCEPTED and row.audit_entry is not None:
        later = AuditEntry.objects.filter(
            project_id=project_id,
            subject=row.change["scope"],
            pk__gt=row.audit_entry,
            action__startswith="policy.",
        )
        is_expired = [
            by == audit.SYSTEM.name and (after or {}).get("note") == overrides.EXPIRED
            for by, after in later.values_list("actor", "after")
        ]
        if not all(is_expired):
            raise Conflict(
                "The policy of this scope has changed since. Restore it from the policy history.",
                code="changed_since",
            )
        if not is_expired:
            overrides.restore(project_id, row.audit_entry, actor)
    audit.record(
        actor,
        "suggestion.undo",
        public_id,
        project_id=project_id,
        before={"decision": row.decision, "words": row.words},
    )
    row.delete()
    publish_after_commit(project_id, Hint("policy"))


def try_on_history(project_id: int, public_id: str, actor: Actor, *, days: int = 7) -> WhatIf:
    """Create the what-if of a suggestion; see `what_ifs.create_what_if` for the errors."""
    found = _open(Project.objects.get(pk=project_id), public_id)
    return what_ifs.create_what_if(project_id, found.change, actor, days=days)


def latest_what_if(project_id: int, change: ChangeDocument) -> WhatIf | None:
    """Return the newest what-if of exactly this change."""
    return WhatIf.objects.filter(project_id=project_id, change=change).order_by("-pk").first()


def _locked(project_id: int) -> Project:
    """Return the project, locked as for every change of its policy: of two decisions, the later one finds the first."""
    return Project.objects.select_for_update(of=("self",), no_key=True).get(pk=project_id)


def _open(project: Project, public_id: str) -> OpenSuggestion:
    for one in learn(project).suggestions:
        if one.id == public_id:
            return one
    if Suggestion.objects.filter(project=project, public_id=public_id).exists():
        raise Conflict("This suggestion is decided already.", code="already_decided")
    raise NotFound


def _decide(
    found: OpenSuggestion, project_id: int, actor: Actor, decision: str, note: str, entry: int | None
) -> Suggestion:
    row, _ = Suggestion.objects.update_or_create(
        project_id=project_id,
        public_id=found.id,
        defaults={
            "kind": found.kind,
            "words": found.words,
            "reason": found.reason,
            "change": found.change.as_dict(),
            "labels": found.labels,
            "decision": decision,
            "note": note.strip()[:300],
            "decided_by": actor.name[:150],
            "decided_at": timezone.now(),
            "audit_entry": entry,
        },
    )
    audit.record(
        actor,
        f"suggestion.{'accept' if decision == SuggestionDecision.ACCEPTED else 'reject'}",
        found.id,
        project_id=project_id,
        after={"words": found.words, "note": note.strip()},
    )
    publish_after_commit(project_id, Hint("policy"))
    return row
