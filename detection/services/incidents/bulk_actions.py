"""Carries out a verb of a person on many loops: one by one, resumable, with progress and undo.

A request carries out as much as fits into its time, usually all. A worker continues with the rest, and after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from detection.models import BulkAction, Loop, LoopActivity
from detection.models.tenants import projects_of
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, ServiceError
from detection.services.incidents.loop_triage import NOTHING_TO_UNDO, SWEEPING
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

log = structlog.get_logger(__name__)
MAX_TARGETS: Final = 100_000
IN_REQUEST_SECONDS: Final = 2.0
IN_WORKER_SECONDS: Final = 5.0
BATCH: Final = 50
CLAIM: Final = timedelta(seconds=60)
UNDO_WITHIN: Final = timedelta(minutes=10)
KEPT: Final = timedelta(days=1)
_TIMES: Final = ("until", "expires_at")
Verbs = Mapping[str, Callable[..., Any]]


def start(
    project_id: int,
    targets: Sequence[int],
    action: str,
    actor: Actor,
    *,
    verbs: Verbs,
    seconds: float,
    **arguments: Any,
) -> BulkAction:
    """Apply an action to loops, for at most some seconds; a worker continues.

    Parameters
    ----------
    targets
        Primary keys of loops of the project, at most `MAX_TARGETS`; others are counted as ``not_found``.
    verbs
        What can be done with a loop, by name, with ``undo``.

    Raises
    ------
    Invalid
        For an unknown action, and without rows.
    Conflict
        ``bulk_action_running`` while another one is carried out: a second submission of the same one, too.
    """
    names = [name for name in verbs if name != "undo"]
    if action not in names:
        raise Invalid(f"`action` must be one of {', '.join(names)}.", field="action")
    if not 1 <= len(targets) <= MAX_TARGETS:
        raise Invalid(f"An action can be applied to 1 to {MAX_TARGETS:,} loops.", field="ids")
    row = BulkAction(
        project_id=project_id,
        action=action,
        arguments={name: _plain(value) for name, value in arguments.items()},
        targets=[*targets],
    )
    _store_new(row, actor)
    _carry_out(row, verbs, seconds)
    return row


def _store_new(row: BulkAction, actor: Actor) -> None:
    row.actor, row.actor_user_id, row.total = actor.name[:150], actor.user_id, len(row.targets)
    row.claimed_until = timezone.now() + CLAIM
    try:
        with transaction.atomic():
            row.save()
            after = {"rows": row.total, **row.arguments}
            audit.record(actor, f"bulk.{row.action}", row.public_id, project_id=row.project_id, after=after)
    except IntegrityError as error:
        raise Conflict(
            "Another action on these rows is still running.", code="bulk_action_running"
        ) from error


def undo(project_id: int, public_id: str, actor: Actor, *, verbs: Verbs, seconds: float) -> BulkAction:
    """Undo an action of the same person on exactly the loops that it changed, and stop it if it is running.

    Later changes by others are kept.

    Raises
    ------
    Conflict
        ``nothing_to_undo``: it is someone else's, undone, or finished for more than ten minutes.
    """
    with transaction.atomic():
        rows = BulkAction.objects.select_for_update().filter(project_id=project_id, reverts=None)
        row = rows.filter(public_id=public_id, actor=actor.name[:150]).first()
        is_over = row is not None and row.finished_at and timezone.now() - row.finished_at > UNDO_WITHIN
        if row is None or is_over or BulkAction.objects.filter(reverts=row).exists():
            raise Conflict(NOTHING_TO_UNDO, code="nothing_to_undo")
        if row.finished_at is None:
            row.finished_at = timezone.now()
            row.save(update_fields=["finished_at"])
        # Another process can be within a batch that it has not counted yet.
        reached = row.targets[: row.done + BATCH]
        change = BulkAction(project_id=project_id, action="undo", targets=reached, reverts=row)
        _store_new(change, actor)
    _carry_out(change, verbs, seconds)
    return change


def _carry_out(row: BulkAction, verbs: Verbs, seconds: float, *, continues: bool = False) -> None:
    """Carry out an action that this process has claimed; a few milliseconds for each row.

    A resumed action may have changed rows of its first batch that were not counted before the process ended.
    """
    until = time.monotonic() + seconds
    if row.reverts is not None and _is_claimed(row.reverts):
        _release(row)
        return
    while True:
        batch = row.targets[row.done : row.done + BATCH]
        names = dict(
            Loop.objects.filter(project_id=row.project_id, pk__in=batch).values_list("pk", "public_id")
        )
        changed = _changed_of(row, batch) if continues else frozenset()
        continues = False
        for pk in batch:
            code = "done" if pk in changed else _apply(row, verbs, names[pk]) if pk in names else "not_found"
            row.changed += code == "done"
            if code != "done" and not _is_untouched(row, code, pk):
                row.failures[code] = row.failures.get(code, 0) + 1
            row.done += 1
            if time.monotonic() > until:
                break
        is_done = row.done >= row.total
        if is_done:
            _count(row)
        row.finished_at = timezone.now() if is_done else None
        row.claimed_until = None if is_done or time.monotonic() > until else timezone.now() + CLAIM
        if not _store(row):  # an undo has ended it
            _release(row)
            return
        if row.claimed_until is None:
            return


def _store(row: BulkAction) -> int:
    fields = ("done", "changed", "failures", "claimed_until", "finished_at")
    with transaction.atomic():
        stored = _itself(row).filter(finished_at=None)
        publish_after_commit(row.project_id, Hint("incident", "", "bulk"))
        return stored.update(**{name: getattr(row, name) for name in fields})


def _is_claimed(row: BulkAction) -> bool:
    return _itself(row).filter(claimed_until__gt=timezone.now()).exists()


def _release(row: BulkAction) -> None:
    _itself(row).update(claimed_until=None)


def _itself(row: BulkAction) -> QuerySet[BulkAction]:
    return BulkAction.objects.filter(project_id=row.project_id, pk=row.pk)


def _apply(row: BulkAction, verbs: Verbs, public_id: str) -> str:
    """Change one loop; returns ``done`` or the code of the error."""
    actor = Actor(row.actor, row.actor_user_id, bulk_action_id=row.pk)
    try:
        if row.reverts is not None:
            _undo_one(row, row.reverts, verbs, public_id, actor)
        else:
            arguments = {
                name: datetime.fromisoformat(value) if name in _TIMES and value else value
                for name, value in row.arguments.items()
            }
            if row.action in SWEEPING:
                arguments["seconds"] = 0.0
            verbs[row.action](row.project_id, public_id, actor, **arguments)
    except ServiceError as error:
        return error.code
    except (OperationalError, InterfaceError):
        raise  # the action continues when the database does
    except Exception:
        # It would be tried again and again, and no other action of the project could begin.
        log.exception("bulk_action_failed", action=row.public_id, loop=public_id)
        return "internal_error"
    return "done"


def _is_untouched(row: BulkAction, code: str, pk: int) -> bool:
    """Whether there is nothing to undo for a row, because the action did not change it or ended before it."""
    reverted = row.reverts
    return reverted is not None and code == "nothing_to_undo" and not _changed_of(reverted, (pk,))


def _changed_of(row: BulkAction, keys: Sequence[int]) -> frozenset[int]:
    """Return the rows that an action has changed."""
    return frozenset(_touched(row).filter(loop__in=keys))


def _count(row: BulkAction) -> None:
    """Count the rows that were changed."""
    if row.reverts is None:
        row.changed = len({*_touched(row)}.intersection(row.targets))


def _touched(row: BulkAction) -> QuerySet[Any, int]:
    """Return the rows that an action has changed."""
    return row.loop_activity.values_list("loop", flat=True)


def unchanged(row: BulkAction) -> int:
    """Return how many rows of a finished action were already as it would have left them."""
    return 0 if row.reverts is not None else row.total - row.changed - sum(row.failures.values())


def _undo_one(row: BulkAction, reverted: BulkAction, verbs: Verbs, public_id: str, actor: Actor) -> None:
    changes = reverted.loop_activity.filter(loop__public_id=public_id)
    change = changes.order_by("-at", "-id").first()
    if change is None:
        raise Conflict("The loop was not changed.", code="nothing_to_undo")
    verbs["undo"](row.project_id, public_id, actor, seconds=0.0, of=change.pk)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def carry_out_waiting(verbs: Verbs) -> int:
    """Continue actions that requests did not finish; returns how many. One query by an empty index if none."""
    total = 0
    free = Q(claimed_until=None) | Q(claimed_until__lt=timezone.now())
    for row in BulkAction.objects.filter(free, finished_at=None).order_by("pk").only("project_id"):
        if _itself(row).filter(free, finished_at=None).update(claimed_until=timezone.now() + CLAIM):
            claimed = _itself(row).select_related("reverts").get()
            try:
                _carry_out(claimed, verbs, IN_WORKER_SECONDS, continues=True)
            except Exception:  # those of other projects must not wait for it
                log.exception("bulk_action_not_continued", action=claimed.public_id)
            total += 1
    return total


def trim() -> None:
    """Delete actions that can no longer be undone."""
    old = BulkAction.objects.filter(finished_at__lt=timezone.now() - KEPT)
    for project_id in projects_of(old):
        rows = old.filter(project_id=project_id)
        done = Q(bulk_action__in=rows) | Q(bulk_action__reverts__in=rows)
        with transaction.atomic():
            LoopActivity.objects.filter(done, project_id=project_id).update(bulk_action=None)
            rows.delete()
