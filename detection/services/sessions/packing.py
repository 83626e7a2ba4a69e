"""Packs the events of a session that has rested for long, and makes them rows again: both in one transaction.

Whoever locks a session to change it gets its events as rows (`locked_session`), so nothing else writes packed ones.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from detection.models import (
    AllowedCall,
    Approval,
    ApprovalState,
    CountedSession,
    PackedEvents,
    Project,
    SearchBlock,
    Session,
    SessionKey,
    SessionState,
)
from detection.models.sessions import IMPORTED
from detection.selectors.packed_events import (
    COLUMNS,
    ROWS,
    columns_from,
    packed_rows,
    select_texts,
    texts_from,
)

log = structlog.get_logger(__name__)
MAX_EVENTS: Final = 10_000
"""Of a session: a page of a packed one reads them all, some ten megabytes. Longer sessions are rare and stay rows."""
MAX_TEXT_BYTES: Final = 16 << 20
_NAMES: Final = ", ".join(COLUMNS)
_SIZE: Final = """
SELECT count(*), coalesce(sum(coalesce(octet_length(arguments), 0) + coalesce(octet_length(content), 0)), 0)
FROM detection_event WHERE project_id = %s AND session_id = %s
"""
_ROW_BYTES: Final = " + ".join(
    f"coalesce(pg_column_size({name}), 0)" for name in ("project_id", "session_id", *COLUMNS)
)
# By the number: a plain `seq` would be the text that is read, and "10" comes before "2".
_READ: Final = (
    f"SELECT agent, {_ROW_BYTES} + 28, {select_texts()} FROM detection_event"  # noqa: S608 - columns of our own model
    " WHERE project_id = %s AND session_id = %s ORDER BY detection_event.seq"
)
_DELETE: Final = "DELETE FROM detection_event WHERE project_id = %s AND session_id = %s"
_INSERT: Final = (
    f"INSERT INTO detection_event (project_id, session_id, {_NAMES}) SELECT %s, %s, {_NAMES}"  # noqa: S608 - the same
    f" FROM {ROWS} WHERE true"
)


class PackingError(Exception):
    """What was packed is not what was read; nothing was changed."""


def resting(project: Project, before: datetime) -> QuerySet[Session]:
    """Return the sessions whose events can be packed: nothing has happened since, and nothing waits for their events.

    Parameters
    ----------
    before
        The newest event is older; of an imported session, also the day of the import.
    """
    project_id = project.pk
    found = Session.objects.filter(
        Q(unpacked_at=None) | Q(unpacked_at__lt=before),
        project_id=project_id,
        packed_at=None,
        last_event_at__lt=before,
        last_seq__gt=0,
        last_seq__lte=MAX_EVENTS,
        evaluated_seq=F("last_seq"),
        has_active_incident=False,
        silence_check_at=None,
    ).exclude(state=SessionState.HELD)
    first_id_since = int(before.timestamp()) // 86_400 << 32
    found = found.exclude(integration__startswith=IMPORTED, pk__gte=first_id_since)

    def of_session(model: type) -> QuerySet:  # type: ignore[type-arg]
        return model.objects.filter(project_id=project_id, session_id=OuterRef("pk"))  # type: ignore[attr-defined, no-any-return]

    found = found.filter(
        Exists(of_session(CountedSession).filter(counted_seq__gte=OuterRef("last_seq"))),
        ~Exists(of_session(AllowedCall)),
        ~Exists(of_session(Approval).filter(state=ApprovalState.OPEN)),
    )
    if project.is_searchable:
        found = found.filter(Exists(of_session(SearchBlock).filter(last_seq__gte=OuterRef("last_seq"))))
    return found


@transaction.atomic
def pack(rows: QuerySet[Session], key: SessionKey) -> int:
    """Pack the events of a session, if it is still among `resting` rows and nobody has locked it.

    Returns
    -------
    int
        How many events; 0 if it stays as it is.

    Raises
    ------
    PackingError
    """
    session = rows.filter(pk=key.session_id).select_for_update(skip_locked=True, no_key=True).first()
    if session is None:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(_SIZE, key)
        events, size = cursor.fetchone()
        if not 0 < events <= MAX_EVENTS or size > MAX_TEXT_BYTES:
            return 0
        cursor.execute(_READ, key)
        found = cursor.fetchall()
        texts = [row[2:] for row in found]
        columns = columns_from(texts)
        if texts_from(columns) != texts:
            raise PackingError(f"{session.external_id}: what was packed differs from what was read.")
        PackedEvents.objects.create(
            project_id=key.project_id,
            session_id=key.session_id,
            events=events,
            agents=sorted({row[0] for row in found} - {""}),
            row_bytes=sum(row[1] for row in found),
            columns=columns,
        )
        cursor.execute(_DELETE, key)
        if not cursor.rowcount == len(found) == events:
            raise PackingError(f"{session.external_id}: its events have changed meanwhile.")
    _of(key).update(packed_at=timezone.now())
    return int(events)


def unpack(session: Session) -> int:
    """Make the events of a session rows again. Its row is locked by the caller's transaction. Returns how many."""
    key = session.key
    rows = packed_rows(key.project_id, [key.session_id])
    inserted = 0
    if rows is not None:
        with connection.cursor() as cursor:
            cursor.execute(_INSERT, [*key, rows])
            inserted = cursor.rowcount
        packed = PackedEvents.objects.filter(project_id=key.project_id, session_id=session.pk)
        if inserted != packed.values_list("events", flat=True).get():
            raise PackingError(f"{session.external_id}: not all of its events were found.")
        packed.delete()
    session.packed_at, session.unpacked_at = None, timezone.now()
    _of(key).update(packed_at=None, unpacked_at=session.unpacked_at)
    log.info("events_unpacked", session=session.pk, events=inserted)
    return inserted


def _of(key: SessionKey) -> QuerySet[Session]:
    return Session.objects.filter(project_id=key.project_id, pk=key.session_id)
