"""Calculates the costs of imported calls anew after a change of prices, in a worker: session by session, resumable.

It concerns events whose record had tokens and no cost, imported without prices of their own. Costs that a sender gave
stay, and so do findings: a limit on cost is not judged again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import structlog
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from detection.models import ImportedUsage, Project, Recalculation, SessionKey
from detection.models.sessions import cost_with
from detection.selectors.prices import PriceList, load_prices
from detection.services.errors import NotFound
from detection.services.events.event_records import MAX_COST_USD as MAX_EVENT_USD
from detection.services.sessions.locked_session import locked_session
from detection.services.tracking import incident_costs
from detection.sql.advisory_locks import AdvisoryLock, lock_until_commit, try_lock
from detection.sql.retries import retry_conflicts
from detection.stream.hints import Hint
from detection.stream.publisher import publish_now

log = structlog.get_logger(__name__)
RUN_SECONDS: Final = 5.0
"""The work of one run on a project; other projects wait no longer. A judgement."""
BATCH_SESSIONS: Final = 20
_SIX_PLACES: Final = Decimal("0.000001")

_EVENTS = """
SELECT seq, type, closes, backend, model, cost_usd FROM detection_event
WHERE project_id = %s AND session_id = %s AND seq = ANY(%s::int[])
"""
_SET_COSTS = """
UPDATE detection_event e SET cost_usd = v.cost_usd
FROM unnest(%s::int[], %s::numeric[]) AS v (seq, cost_usd)
WHERE e.project_id = %s AND e.session_id = %s AND e.seq = v.seq
"""
# As `hourly_counts` has counted them, up to where it has come.
_ADD_TO_HOURS = """
UPDATE detection_callcount t SET cost_usd = greatest(t.cost_usd + c.more, 0)
FROM (
    SELECT date_trunc('hour', e.received_at, 'UTC') AS hour, s.is_demo,
           coalesce(nullif(e.backend, ''), s.backend) AS backend, coalesce(nullif(e.model, ''), s.model) AS model,
           e.tool, sum(v.more) AS more
    FROM unnest(%s::int[], %s::numeric[]) AS v (seq, more)
    JOIN detection_countedsession c ON c.project_id = %s AND c.session_id = %s AND v.seq <= c.counted_seq
    JOIN detection_session s ON s.project_id = c.project_id AND s.id = c.session_id
    JOIN detection_event e ON e.project_id = c.project_id AND e.session_id = c.session_id AND e.seq = v.seq
    GROUP BY 1, 2, 3, 4, 5
) c
WHERE t.project_id = %s
    AND (t.hour, t.is_demo, t.backend, t.model, t.tool) = (c.hour, c.is_demo, c.backend, c.model, c.tool)
"""


@dataclass(frozen=True, slots=True)
class _Change:
    """An event whose cost changes."""

    seq: int
    call: int
    cost_usd: Decimal
    more_usd: Decimal


def recalculate_waiting() -> int:
    """Work on the open recalculations of all projects; return how many sessions. One query if there are none."""
    total = 0
    waiting = Project.objects.filter(recalculations__isnull=False, recalculations__finished_at=None)
    for project_id in [*waiting.order_by("recalculations__requested_at").values_list("pk", flat=True)]:
        with try_lock(AdvisoryLock.RECALCULATION, project_id) as is_locked:
            until = time.monotonic() + RUN_SECONDS
            while (
                is_locked
                and time.monotonic() < until
                and (done := _recalculate_batch(project_id)) is not None
            ):
                total += done
    return total


def _recalculate_batch(project_id: int) -> int | None:
    """Recalculate the next sessions and store the progress; None if nothing is left."""
    row = Recalculation.objects.filter(project_id=project_id, finished_at=None).first()
    if row is None:
        return None
    # What is saved from here on begins a recalculation of its own, which the update below leaves alone.
    prices = load_prices(project_id)
    priced = ImportedUsage.objects.filter(project_id=project_id).order_by("session_id")
    sessions = priced.values_list("session_id", flat=True).distinct()
    if not row.cursor:
        row.sessions = sessions.count()
    batch = [*sessions.filter(session_id__gt=row.cursor)[:BATCH_SESSIONS]]
    changed = sum(_recalculate_session(SessionKey(project_id, one), prices) for one in batch)
    is_done = len(batch) < BATCH_SESSIONS
    same = Recalculation.objects.filter(project_id=project_id, pk=row.pk, requested_at=row.requested_at)
    same.update(
        cursor=batch[-1] if batch else row.cursor,
        sessions=row.sessions,
        done_sessions=F("done_sessions") + len(batch),
        changed_sessions=F("changed_sessions") + changed,
        finished_at=timezone.now() if is_done else None,
    )
    if changed:
        publish_now(project_id, Hint("session"), Hint("incident"))
    if is_done:
        log.info("costs_recalculated", project=project_id, sessions=row.done_sessions + len(batch))
    return len(batch)


@retry_conflicts
@transaction.atomic
def _recalculate_session(key: SessionKey, prices: PriceList) -> bool:
    """Set the costs of a session's events, and what follows from them; return whether any has changed.

    Changes nothing when it is repeated, because each figure moves by the difference of the costs that are stored.
    """
    # Before the lock of the session, as no other transaction waits for it while it holds one.
    lock_until_commit(AdvisoryLock.COUNTING)
    try:
        with locked_session(key) as locked:
            changes = _changes(key, prices)
            if not changes:
                return False
            session = locked.session
            more = sum((one.more_usd for one in changes), Decimal(0))
            session.cost_usd = Decimal(str(max(0.0, cost_with(session.cost_usd, more)))).quantize(_SIX_PLACES)
            seqs, costs = [one.seq for one in changes], [one.cost_usd for one in changes]
            with connection.cursor() as cursor:
                cursor.execute(_SET_COSTS, [seqs, costs, *key])
                cursor.execute(_ADD_TO_HOURS, [seqs, [one.more_usd for one in changes], *key, key.project_id])
            incident_costs.add(
                key, session.external_id, {one.seq: one.cost_usd for one in changes}, _by_call(changes)
            )
    except NotFound:
        return False  # removed by now
    return True


def _changes(key: SessionKey, prices: PriceList) -> list[_Change]:
    tokens: dict[int, tuple[int, int, int, int]] = {}
    for row in ImportedUsage.objects.filter(project_id=key.project_id, session_id=key.session_id):
        amounts = zip(
            row.input_tokens, row.cached_tokens, row.cache_write_tokens, row.output_tokens, strict=True
        )
        tokens.update(zip(row.seqs, amounts, strict=True))
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, [*key, [*tokens]])
        events = cursor.fetchall()
    found = []
    for seq, event_type, closes, backend, model, stored in events:
        price = prices.find(backend, [model])
        usd = min(price.cost(*tokens[seq]), MAX_EVENT_USD) if price is not None else 0.0
        cost = Decimal(str(usd)).quantize(_SIX_PLACES)
        if cost != stored:
            found.append(_Change(seq, closes if event_type == "usage" else seq, cost, cost - stored))
    return found


def _by_call(changes: list[_Change]) -> dict[int, Decimal]:
    more: dict[int, Decimal] = {}
    for one in changes:
        more[one.call] = more.get(one.call, Decimal(0)) + one.more_usd
    return more
