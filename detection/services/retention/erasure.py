"""Erasure: removes a session, or all sessions of an agent, with everything that was recorded or derived from them.

A request is stored, a worker carries it out within a second or two, and the request becomes the receipt. The work is
done session by session, in transactions of limited size, and may be interrupted and repeated at any point. Unlike
`removal`, which keeps incidents, it leaves no row in which the name of a session occurs; the audit keeps a keyed digest
of the name.

Not covered: text that people entered elsewhere (comments on other incidents), logs and backups.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final
from urllib.parse import quote, urlencode

import orjson
import structlog
from django.db import DatabaseError, connection, transaction
from django.db.models import Count, Exists, F, Max, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from detection.models import (
    AlertEvent,
    AlertSilence,
    Approval,
    Attempt,
    BriefRecord,
    DeliveryAttempt,
    Erasure,
    ErasureOf,
    Event,
    Incident,
    JudgeCall,
    Loop,
    Notification,
    NotificationItem,
    PackedEvents,
    Project,
    RememberedDecision,
    Session,
    SessionFamily,
    SessionKey,
    TranscriptImport,
    WhatIf,
)
from detection.models.erasures import MAX_ATTEMPTS, name_digest
from detection.models.imports import LONGEST_SHOWN
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.retention import erased_mentions, removal
from detection.services.sessions import families
from detection.services.sessions.locked_session import locked_session
from detection.sql.advisory_locks import AdvisoryLock, try_lock
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit, publish_now

log = structlog.get_logger(__name__)
MAX_OPEN: Final = 100
"""Erasures of a project that wait for a worker."""
LONGEST_WAIT_SECONDS: Final = 60
"""Between two attempts; the first is repeated after two seconds, and each further one after twice as long."""
_BATCH_SESSIONS: Final = 100


def preview(project_id: int, of: str, name: str) -> dict[str, int]:
    """Return how many sessions, calls and incidents an erasure would remove now; all 0 for an unknown name."""
    sessions = _sessions(project_id, of, name)
    found = sessions.aggregate(sessions=Count("pk"), calls=Sum("call_count"))
    left = _left_incidents(project_id, of, name).count()
    return {
        "sessions": found["sessions"],
        "calls": found["calls"] or 0,
        "incidents": left + Incident.objects.filter(project_id=project_id, session__in=sessions).count(),
    }


def request_erasure(project_id: int, of: str, name: str, actor: Actor) -> Erasure:
    """Request the erasure of a session or of all sessions of an agent, or retry it. It cannot be undone.

    Parameters
    ----------
    of
        ``session`` or ``agent``.
    name
        The client's name for the session, or the agent, exactly.

    Returns
    -------
    Erasure
        The receipt; the one that is open already, if there is one for this name. If that has failed, it is tried again.

    Raises
    ------
    Invalid
        For an empty name.
    NotFound
        If nothing is stored under the name.
    Conflict
        ``too_many_erasures`` if too many are open.
    """
    if not name:
        raise Invalid("A name is required.", field=of, code="required")
    with transaction.atomic():
        # Locks the project, so that two requests at the same time become one erasure.
        project = Project.objects.select_for_update(of=("self",), no_key=True).get(pk=project_id)
        open_rows = Erasure.objects.filter(project=project, finished_at=None)
        if (same := open_rows.filter(of=of, name=name).first()) is not None:
            return _retried(same, actor)
        if not any(preview(project.pk, of, name).values()):
            raise NotFound
        if open_rows.count() >= MAX_OPEN:
            raise Conflict(f"{MAX_OPEN} erasures wait for a worker already.", code="too_many_erasures")
        row = Erasure.objects.create(
            project=project,
            of=of,
            name=name,
            name_digest=name_digest(project, of, name),
            requested_by=actor.name[:150],
        )
        audit.record(
            actor,
            f"{of}.erase",
            f"erased:{row.name_digest}",
            project_id=project.pk,
            after={"erasure": row.public_id},
        )
        publish_after_commit(project.pk, Hint("erasure", row.public_id))
    return row


def request_erasures(project_id: int, names: Sequence[str], actor: Actor) -> dict[str, Erasure | None]:
    """Request the erasure of several sessions, each with its own receipt, all of them or none.

    Parameters
    ----------
    names
        Up to `MAX_OPEN`.

    Returns
    -------
    dict
        The receipts by name; None where nothing is stored under it.

    Raises
    ------
    Conflict
        ``too_many_erasures`` if too many would be open. None of them is requested then.
    """
    found: dict[str, Erasure | None] = {}
    with transaction.atomic():
        for name in dict.fromkeys(names):
            try:
                found[name] = request_erasure(project_id, ErasureOf.SESSION, name, actor)
            except NotFound:
                found[name] = None
    return found


def _retried(row: Erasure, actor: Actor) -> Erasure:
    """Let a worker try an erasure again at once, if it has failed."""
    if row.attempts < MAX_ATTEMPTS:
        return row
    audit.record(
        actor,
        f"{row.of}.erase",
        f"erased:{row.name_digest}",
        project_id=row.project_id,
        before={"error": row.error},
        after={"erasure": row.public_id},
    )
    row.attempts, row.due_at = 0, timezone.now()
    row.save(update_fields=("attempts", "due_at"))
    publish_after_commit(row.project_id, Hint("erasure", row.public_id))
    return row


def run_waiting(should_stop: Callable[[], bool], *, project_id: int | None = None) -> int:
    """Carry out the open erasures that are due, one process at a time for each project. Returns how many were finished.

    An error ends the attempt, not the other erasures; `Erasure.error` names it. The database may be restarting, so
    there are `MAX_ATTEMPTS` within about four minutes, counted from the last session that was erased.

    Parameters
    ----------
    should_stop
        Whether this worker shuts down; asked after every session.
    project_id
        Only erasures of this project.
    """
    rows = Erasure.objects.filter(finished_at=None, attempts__lt=MAX_ATTEMPTS, due_at__lte=timezone.now())
    rows = rows.select_related("project").order_by("pk")
    if project_id is not None:
        rows = rows.filter(project_id=project_id)
    finished = 0
    for row in rows:
        with try_lock(AdvisoryLock.ERASURE, row.project_id) as is_locked:
            if not is_locked or not rows.filter(project_id=row.project_id, pk=row.pk).exists():
                continue
            try:
                finished += _ErasureWork(row, should_stop).run()
            except Exception as error:
                log.warning("erasure_interrupted", id=row.public_id, exc_info=True)
                _note_error(row, error)
    return finished


def _note_error(row: Erasure, error: Exception) -> None:
    """Store what ended an attempt; without its message, which may contain what is to be erased."""
    cause = error.__cause__ if isinstance(error, DatabaseError) and error.__cause__ else error
    state = getattr(cause, "sqlstate", None)
    row.refresh_from_db(fields=("attempts",))
    wait = timedelta(seconds=min(2 ** (row.attempts + 1), LONGEST_WAIT_SECONDS))
    words = (
        f"{type(cause).__name__}{f' (SQLSTATE {state})' if state else ''}. The worker log has the details."
    )
    Erasure.objects.filter(project_id=row.project_id, pk=row.pk).update(
        attempts=F("attempts") + 1, due_at=timezone.now() + wait, error=words[:200]
    )
    publish_now(row.project_id, Hint("erasure", row.public_id))


def _sessions(project_id: int, of: str, name: str) -> QuerySet[Session]:
    rows = Session.objects.filter(project_id=project_id)
    if of == ErasureOf.SESSION:
        return rows.filter(external_id=name)
    # A session has one agent, but another one may have looped in it.
    return rows.filter(
        Q(agent=name)
        | Exists(Incident.objects.filter(project_id=project_id, session_id=OuterRef("pk"), agent=name))
    )


def _of_families(project_id: int, name: str) -> QuerySet[Incident]:
    """Return the incidents of families whose evidence names a session: it contains its calls."""
    rows = Incident.objects.filter(project_id=project_id, is_of_family=True)
    return rows.filter(evidence__sessions__contains=[name])


def _left_incidents(project_id: int, of: str, name: str) -> QuerySet[Incident]:
    """Return the incidents of sessions that retention has removed before."""
    rows = Incident.objects.filter(project_id=project_id, session=None)
    return rows.filter(session_name=name) if of == ErasureOf.SESSION else rows.filter(agent=name)


class _ErasureWork:
    """The work on one erasure, under the lock of its project."""

    def __init__(self, row: Erasure, should_stop: Callable[[], bool]) -> None:
        self._row, self._should_stop = row, should_stop
        self._project = row.project

    def run(self) -> bool:
        """Erase until nothing is left or the worker stops; return whether the erasure is finished."""
        row = self._row
        # Ids rise with time: what begins from here on is not part of the request, and an agent may continue.
        rows = Session.objects.filter(project_id=row.project_id)
        last = rows.aggregate(last=Max("pk"))["last"] or 0
        sessions = _sessions(row.project_id, row.of, row.name).filter(pk__lte=last)
        while (session := sessions.order_by("pk").first()) is not None:
            if self._should_stop():
                return False
            self._erase_session(session)
        if row.of == ErasureOf.AGENT:
            for session in self._sessions_with_calls(last):
                if self._should_stop():
                    return False
                self._erase_session(session)
        left = _left_incidents(row.project_id, row.of, row.name)
        while (incident := left.first()) is not None:
            if self._should_stop():
                return False
            self._erase_name(incident.session_name)
        with transaction.atomic():
            self._erase_mentions()
            row.name, row.error, row.finished_at = "", "", timezone.now()
            row.save(update_fields=("name", "error", "finished_at"))
            publish_after_commit(row.project_id, Hint("erasure", row.public_id))
        log.info("erasure_finished", id=row.public_id, of=row.of, removed=row.removed)
        return True

    def _sessions_with_calls(self, last: int) -> Iterator[Session]:
        """Yield sessions in which the agent made calls but not the last one; reads every event of the project once."""
        rows, after = Session.objects.filter(project_id=self._row.project_id, pk__lte=last), 0
        while ids := [
            *rows.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:_BATCH_SESSIONS]
        ]:
            after = ids[-1]
            events = Event.objects.filter(
                project_id=self._row.project_id, session_id__in=ids, agent=self._row.name
            )
            packed = PackedEvents.objects.filter(
                project_id=self._row.project_id, session_id__in=ids, agents__contains=[self._row.name]
            )
            named = {*events.values_list("session_id", flat=True).distinct()}
            yield from rows.filter(pk__in=named.union(packed.values_list("session_id", flat=True)))

    def _erase_mentions(self) -> None:
        """Remove the views that select the name, and what the project knows of an agent besides its sessions."""
        row = self._row
        views, subjects = erased_mentions.delete_views(row.project_id, row.of, row.name)
        removed = Counter(saved_views=views)
        if row.of == ErasureOf.AGENT:
            remembered = RememberedDecision.objects.filter(project_id=row.project_id, agent=row.name)
            removed["remembered_decisions"] = remembered.delete()[0]
            subjects += erased_mentions.remembered_decisions(row.project_id, row.name)
            # They contain the names of agents; the counts begin anew.
            SessionFamily.objects.filter(project_id=row.project_id).delete()
        removed["audit_entries"] = self._erase_from_audit(None, row.name_digest, subjects)
        self._note(removed)

    def _erase_session(self, session: Session) -> None:
        events = Event.objects.filter(session=session).count()
        events += sum(PackedEvents.objects.filter(session=session).values_list("events", flat=True))
        # In transactions of limited size; what arrives meanwhile is deleted with the row.
        removal.delete_events(Session.objects.filter(project_id=session.project_id, pk=session.pk))
        self._erase_name(session.external_id, session.pk, events)

    def _forget_parent(self, name: str) -> None:
        """Remove the name of a session from those that it started, each in its own transaction.

        No transaction waits for a session while it holds rows that are locked after it, such as those of a family.
        """
        children = Session.objects.filter(project_id=self._row.project_id, parent_external_id=name)
        for session_id in [*children.order_by("pk").values_list("pk", flat=True)]:
            with (
                suppress(NotFound),
                locked_session(SessionKey(self._row.project_id, session_id)) as locked,
            ):  # removed by now
                if locked.session.parent_external_id == name:
                    locked.session.parent_external_id = ""

    def _erase_name(self, name: str, session_id: int | None = None, events: int = 0) -> None:
        """Remove everything that names a session, and its row; in one transaction, but for its children."""
        project_id = self._row.project_id
        self._forget_parent(name)
        with transaction.atomic():
            removed = Counter[str]()
            incidents = Incident.objects.filter(project_id=project_id, session_name=name)
            incidents = incidents.filter(Q(session=None) | Q(session_id=session_id)) | _of_families(
                project_id, name
            )
            about = [*incidents.values_list("public_id", flat=True)]
            loop_ids = [*incidents.values_list("loop", flat=True).distinct()]
            erased_mentions.clear_reasons(project_id, about)
            rows = Session.objects.filter(project_id=project_id).select_for_update()
            session = rows.filter(pk=session_id).first() if session_id is not None else None
            if session is not None:
                families.forget(session)
                removed["sessions"], removed["events"] = 1, events
                approvals = Approval.objects.filter(session=session)
                about += approvals.values_list("public_id", flat=True)
                removed["approvals"] = approvals.count()
                removed["judge_calls"] = JudgeCall.objects.filter(
                    project_id=session.project_id, session_id=session.pk
                ).count()
                removal.delete_sessions(session.project_id, [session.pk])
            removed += self._erase_incidents(name, about)
            about += erased_mentions.clear_silences(project_id, loop_ids)
            SessionFamily.objects.filter(project_id=project_id, name=name).delete()
            # One that runs may hold the name in memory, and would write it later.
            named = (
                Q(change__session=name) | Q(result__regex=f'"session": {_quoted(name)}') | Q(finished_at=None)
            )
            removed["what_ifs"] = WhatIf.objects.filter(named, project_id=project_id).delete()[0]
            imports = TranscriptImport.objects.filter(project_id=project_id).exclude(finished_at=None)
            removed["imports"] = imports.filter(_names_a_session(name)).delete()[0]
            self._erase_brief_records(name)
            Attempt.objects.filter(project_id=project_id, detail__contains=f"`{name}`").update(detail="")
            digest = name_digest(self._project, ErasureOf.SESSION, name)
            removed["audit_entries"] = self._erase_from_audit(name, digest, about)
            self._note(removed)
            publish_after_commit(project_id, Hint("session"), Hint("incident"))

    def _erase_incidents(self, name: str, about: list[str]) -> Counter[str]:
        """Remove the incidents of sessions of this name that have no row any more, with what was sent about them.

        Adds to `about` the loops of which none is left, with their postponements.
        """
        project_id = self._row.project_id
        incidents = Incident.objects.filter(project_id=project_id, session=None, session_name=name)
        incidents |= _of_families(project_id, name)
        loops = [*incidents.values_list("loop_id", flat=True).distinct()]
        events = AlertEvent.objects.filter(
            Q(incident__in=incidents) | Q(facts__session=name), project_id=project_id
        )
        notifications = [
            *NotificationItem.objects.filter(project_id=project_id, event__in=events)
            .values_list("notification_id", flat=True)
            .distinct()
        ]
        judge_calls = JudgeCall.objects.filter(project_id=project_id, incident__in=incidents).delete()[0]
        events.delete()
        removed = Counter(
            judge_calls=judge_calls,
            notifications=_erase_notifications(project_id, notifications),
            incidents=incidents.count(),
        )
        removal.delete_incidents(project_id, incidents)
        left = Incident.objects.filter(project_id=project_id, loop_id=OuterRef("pk"))
        empty = Loop.objects.filter(Q(pk__in=loops) & ~Exists(left), project_id=project_id)
        about += empty.values_list("public_id", flat=True)
        silences = dict(
            AlertSilence.objects.filter(project_id=project_id, loop__in=empty).values_list("pk", "public_id")
        )
        about += silences.values()
        AlertEvent.objects.filter(project_id=project_id, silence_id__in=silences).update(silence=None)
        empty.delete()
        return removed

    def _erase_from_audit(self, name: str | None, digest: str, about: list[str]) -> int:
        """Replace the name of a session in the audit by its digest, with the rights of the database owner.

        Entries about subjects in `about` lose their details, which may contain text from people, and changes of
        settings their reason, if it names one of them. Returns how many entries were changed.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT detection_erase_from_audit(%s, %s, %s, %s)",
                [self._project.pk, name, f"erased:{digest}", about],
            )
            return int(cursor.fetchone()[0])

    def _erase_brief_records(self, name: str) -> None:
        """Forget where forms of the project led, if that is a page of the session."""
        own = BriefRecord.objects.filter(value__location__startswith=f"/p/{self._project.slug}/")
        encoded = {name, quote(name), quote(name, safe=""), urlencode({"name": name})}
        for text in encoded:
            own.filter(value__location__contains=text).delete()

    def _note(self, removed: Counter[str]) -> None:
        """Add to the receipt, in the transaction of the removal. It is progress, so attempts are counted anew."""
        row = self._row
        row.removed = dict(Counter(row.removed) + removed)
        row.attempts = 0
        row.save(update_fields=("removed", "attempts"))


def _quoted(name: str) -> str:
    """Return a regular expression for the name as a whole text of a JSON value."""
    return re.escape(orjson.dumps(name).decode())


def _names_a_session(name: str) -> Q:
    """Match imports whose report names the session, cut or whole, or one of whose files does."""
    file = re.escape(orjson.dumps(name).decode()[:-1])
    shown = _quoted(name[:LONGEST_SHOWN])
    return Q(summary__regex=f'"session": {shown}') | Q(files__regex=rf"{file}[\".]")


def _erase_notifications(project_id: int, ids: list[int]) -> int:
    """Delete notifications without a remaining event; of others, the texts: they are rendered again if not sent."""
    rows = Notification.objects.filter(project_id=project_id, pk__in=ids)
    items = NotificationItem.objects.filter(project_id=project_id, notification_id=OuterRef("pk"))
    deleted = rows.filter(~Exists(items)).delete()[0]
    attempts = DeliveryAttempt.objects.filter(project_id=project_id, notification_id__in=ids)
    attempts.update(problem="", response="")
    return deleted + rows.update(payload="", title="")
