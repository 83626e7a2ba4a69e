"""Counts calls by the hour, and by session and tool, in the background, at no cost for guarded calls.

Sessions touched since the last run are found by the transaction that touched them last, and each session's new calls
are read once, in order, by primary key. How far a session is counted moves in the transaction that adds the numbers, so
a run that dies, or two at once, count nothing twice. `selectors.statistics` reads the counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection, transaction
from django.utils import timezone

from detection.models import CallCount, CountingCursor
from detection.sql.advisory_locks import AdvisoryLock, try_lock_until_commit

BATCH_SESSIONS = 500
BATCH_EVENTS = 30_000
"""Events per transaction; long sessions take several, so that none reaches the statement timeout."""
MAX_BATCHES = 100

_TOUCHED = """
SELECT s.project_id, s.id, s.counted_seq, s.evaluated_seq, s.changed_xid FROM detection_project p CROSS JOIN LATERAL (
    SELECT s.project_id, s.id, coalesce(c.counted_seq, 0) AS counted_seq, s.evaluated_seq, s.changed_xid
    FROM detection_session s
    LEFT JOIN detection_countedsession c ON c.project_id = s.project_id AND c.session_id = s.id
    WHERE s.project_id = p.id AND s.changed_xid >= %(seen)s AND (s.changed_xid, s.id) > (%(xid)s, %(id)s)
      AND s.evaluated_seq > coalesce(c.counted_seq, 0)
    ORDER BY s.changed_xid, s.id LIMIT %(limit)s
) s ORDER BY s.changed_xid, s.id LIMIT %(limit)s
"""
_ADD = """
WITH done AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS d (project_id, session_id, seq)),
counted AS MATERIALIZED (
    SELECT s.id AS session_id, s.project_id, date_trunc('hour', e.received_at, 'UTC') AS hour, s.is_demo,
           coalesce(nullif(e.backend, ''), s.backend) AS backend, coalesce(nullif(e.model, ''), s.model) AS model,
           e.tool,
           -- Only guarded calls have a verdict; reported calls had run already.
           count(*) FILTER (WHERE e.type = 'call') AS checks,
           count(*) FILTER (WHERE e.decision = 'warn' AND e.verdict IS NOT NULL) AS warned,
           count(*) FILTER (WHERE (e.decision IN ('block', 'hold', 'stop') OR e.verdict->>'ending' = 'delay')
               AND e.verdict IS NOT NULL) AS blocked,
           sum(e.tokens) AS token_count, sum(e.cost_usd) AS cost_usd
    FROM done JOIN detection_session s ON s.project_id = done.project_id AND s.id = done.session_id
    LEFT JOIN detection_countedsession c ON c.project_id = s.project_id AND c.session_id = s.id
    JOIN detection_event e ON e.project_id = s.project_id AND e.session_id = s.id
        AND e.seq > coalesce(c.counted_seq, 0) AND e.seq <= done.seq
    WHERE e.type IN ('call', 'usage') GROUP BY 1, 2, 3, 4, 5, 6, 7
),
tools AS (
    INSERT INTO detection_sessiontool AS total (project_id, session_id, tool, calls, warned, blocked)
    SELECT project_id, session_id, tool, sum(checks), sum(warned), sum(blocked) FROM counted
    GROUP BY 1, 2, 3 HAVING sum(checks) > 0 ORDER BY 1, 2, 3
    ON CONFLICT (project_id, session_id, tool) DO UPDATE SET
        calls = total.calls + excluded.calls, warned = total.warned + excluded.warned,
        blocked = total.blocked + excluded.blocked
)
INSERT INTO detection_callcount AS total
    (project_id, hour, is_demo, backend, model, tool, checks, warned, blocked, token_count, cost_usd)
SELECT project_id, hour, is_demo, backend, model, tool, sum(checks), sum(warned), sum(blocked), sum(token_count),
    sum(cost_usd)
FROM counted GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
ON CONFLICT (project_id, hour, is_demo, backend, model, tool) DO UPDATE SET
    checks = total.checks + excluded.checks, warned = total.warned + excluded.warned,
    blocked = total.blocked + excluded.blocked, token_count = total.token_count + excluded.token_count,
    cost_usd = total.cost_usd + excluded.cost_usd
"""
_MARK = """
INSERT INTO detection_countedsession (project_id, session_id, counted_seq)
SELECT s.project_id, s.id, d.seq FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS d (project_id, session_id, seq)
JOIN detection_session s ON s.project_id = d.project_id AND s.id = d.session_id
ON CONFLICT (project_id, session_id) DO UPDATE SET counted_seq = excluded.counted_seq
"""

# Held and delayed calls that were allowed are counted as blocked first, however early the answer came.
_ALLOW = """
WITH allowed AS (
    DELETE FROM detection_allowedcall a USING detection_countedsession c
    WHERE c.project_id = a.project_id AND c.session_id = a.session_id AND a.seq <= c.counted_seq
    RETURNING a.project_id, a.session_id, a.seq
), calls AS MATERIALIZED (
    SELECT s.id AS session_id, s.project_id, date_trunc('hour', e.received_at, 'UTC') AS hour, s.is_demo,
           coalesce(nullif(e.backend, ''), s.backend) AS backend, coalesce(nullif(e.model, ''), s.model) AS model,
           e.tool
    FROM allowed a JOIN detection_session s ON s.project_id = a.project_id AND s.id = a.session_id
    JOIN detection_event e ON e.project_id = a.project_id AND e.session_id = a.session_id AND e.seq = a.seq
), tools AS (
    UPDATE detection_sessiontool t SET blocked = greatest(t.blocked - c.number, 0)
    FROM (SELECT project_id, session_id, tool, count(*) AS number FROM calls GROUP BY 1, 2, 3) c
    WHERE c.project_id = t.project_id AND c.session_id = t.session_id AND c.tool = t.tool
)
UPDATE detection_callcount t SET allowed_later = least(t.allowed_later + c.number, t.blocked)
FROM (SELECT project_id, hour, is_demo, backend, model, tool, count(*) AS number FROM calls GROUP BY 1, 2, 3, 4, 5, 6) c
WHERE (t.project_id, t.hour, t.is_demo, t.backend, t.model, t.tool)
    = (c.project_id, c.hour, c.is_demo, c.backend, c.model, c.tool)
"""


def count_calls() -> int:
    """Count the calls evaluated since the last run.

    Returns
    -------
    int
        Number of sessions with new calls. Only one process counts at a time; another one returns 0 at once. Takes about
        a second per 20,000 new calls on a busy machine, and one index look-up per project without new calls.
    """
    total = 0
    after = (0, 0)
    horizon: int | None = None
    for _ in range(MAX_BATCHES):
        with transaction.atomic(), connection.cursor() as cursor:
            if not try_lock_until_commit(AdvisoryLock.COUNTING):
                return total
            place, _ = CountingCursor.objects.get_or_create(pk=1)
            if horizon is None:
                # Whatever was not committed when the run began was touched by a transaction that is not older than
                # this.
                cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
                (horizon,) = cursor.fetchone()
            place_after = {"seen": place.seen_xid, "xid": after[0], "id": after[1], "limit": BATCH_SESSIONS}
            cursor.execute(_TOUCHED, place_after)
            rows = cursor.fetchall()
            projects, ids, seqs, after = _portion(rows, after)
            if ids:
                cursor.execute(_ADD, [projects, ids, seqs])
                cursor.execute(_MARK, [projects, ids, seqs])
                total += len(ids)
            if len(rows) < BATCH_SESSIONS and (not rows or after == (rows[-1][4], rows[-1][1])):
                place.seen_xid, place.counted_at = horizon or 0, timezone.now()
                place.save(update_fields=["seen_xid", "counted_at"])
                cursor.execute(_ALLOW)
                return total
    return total


def _portion(
    rows: Sequence[tuple[int, int, int, int, int]], after: tuple[int, int]
) -> tuple[list[int], list[int], list[int], tuple[int, int]]:
    """Return the sessions to count now, how far, and the last one that will be fully counted."""
    projects: list[int] = []
    ids: list[int] = []
    seqs: list[int] = []
    left = BATCH_EVENTS
    for project_id, session_id, counted, evaluated, xid in rows:
        if left <= 0:
            break
        to = min(evaluated, counted + left)
        projects.append(project_id)
        ids.append(session_id)
        seqs.append(to)
        left -= to - counted
        if to < evaluated:
            break
        after = (xid, session_id)
    return projects, ids, seqs, after


def forget_demo(project_id: int) -> None:
    """Remove the counts of the demo, in the caller's transaction."""
    CallCount.objects.filter(project_id=project_id, is_demo=True).delete()
