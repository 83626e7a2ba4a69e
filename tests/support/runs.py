"""Long runs, stored as detection leaves them."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.utils import timezone

from detection.models import Project, Session
from tests.support.alerts import make_incident

_PLAYED = """
INSERT INTO detection_event (
    project_id, session_id, seq, type, tool, arguments, content, closes, call_id, call_key, flags, call_number, decision, received_at,
    content_length, is_error
)
SELECT %(project)s, %(session)s, 2 * n - 1 + is_result, CASE is_result WHEN 0 THEN 'call' ELSE 'result' END,
    CASE WHEN is_result = 1 THEN '' WHEN n BETWEEN 4001 AND 4300 THEN 'search_web' ELSE 'read_file' END,
    CASE is_result WHEN 0 THEN format('{"n":%%s,"path":"src/module-%%s.py"}', n, n %% 977) END,
    CASE is_result WHEN 1 THEN CASE WHEN n = 7777 THEN 'the Needle' ELSE repeat('result ' || n || ' ', 20) END END,
    CASE is_result WHEN 1 THEN 2 * n - 1 ELSE 0 END, 'c' || n,
    CASE WHEN is_result = 1 THEN '' WHEN n BETWEEN 4001 AND 4300 THEN repeat('ab', 16) ELSE md5(n::text) END,
    CASE WHEN is_result = 1 THEN '' WHEN n BETWEEN 4001 AND 4300 THEN 's' WHEN n %% 50 = 0 THEN '!' ELSE '^' END,
    n, CASE WHEN is_result = 0 AND n BETWEEN 4001 AND 4300 THEN 'stop' ELSE 'allow' END,
    now() - interval '5 hours' + n * interval '1 second' + CASE WHEN n > 6000 THEN interval '2 hours' ELSE '0' END,
    0, CASE is_result WHEN 1 THEN n %% 50 = 0 END
FROM generate_series(1, %(calls)s) AS n, generate_series(0, 1) AS is_result
"""


def make_long_run(project: Project, calls: int) -> Session:
    """A session named "long" with one loop, calls 4,001 to 4,300, and a budget that was spent by its later half."""
    session = Session.objects.create(
        project=project, external_id="long", call_count=calls, last_seq=2 * calls, evaluated_seq=2 * calls
    )
    with connection.cursor() as cursor:
        cursor.execute(_PLAYED, {"project": project.pk, "session": session.pk, "calls": calls})
    where: dict[str, Any] = {
        "session": session,
        "session_name": "long",
        "status": "ended",
        "ended_at": timezone.now(),
    }
    make_incident(
        project, **where, kind="repeat", tool="search_web", count=300, limit=4, first_seq=8001, last_seq=8599,
        first_call_number=4001, last_call_number=4300, calls_digest="l",
    )  # fmt: skip
    make_incident(
        project, **where, kind="budget", tool="", count=5000, limit=1000, first_seq=10_001, last_seq=2 * calls,
        first_call_number=5001, last_call_number=calls, calls_digest="b",
    )  # fmt: skip
    return session
