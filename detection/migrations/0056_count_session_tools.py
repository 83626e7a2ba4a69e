"""Counts the tools of the sessions whose calls are counted already, in transactions of limited size."""

from django.db import migrations, transaction

BATCH_SESSIONS = 500
BATCH_EVENTS = 30_000

_PORTION = """
SELECT session_id FROM (
    SELECT session_id, sum(counted_seq) OVER (ORDER BY session_id) - counted_seq AS before FROM (
        SELECT session_id, counted_seq FROM detection_countedsession WHERE session_id > %s ORDER BY session_id LIMIT %s
    ) AS next
) AS sized WHERE before < %s ORDER BY session_id
"""
# As the hourly counts: only guarded calls have a verdict.
_COUNT = """
INSERT INTO detection_sessiontool (session_id, tool, calls, warned, blocked)
SELECT e.session_id, e.tool, count(*), count(*) FILTER (WHERE e.decision = 'warn' AND e.verdict IS NOT NULL),
       count(*) FILTER (WHERE e.decision IN ('block', 'hold', 'stop') AND e.verdict IS NOT NULL)
FROM detection_countedsession c JOIN detection_event e ON e.session_id = c.session_id AND e.seq <= c.counted_seq
WHERE c.session_id = ANY(%s) AND e.type = 'call' GROUP BY 1, 2
ON CONFLICT DO NOTHING
"""


def count_tools(apps, schema_editor):
    after = 0
    while True:
        with transaction.atomic(using=schema_editor.connection.alias), schema_editor.connection.cursor() as cursor:
            cursor.execute(_PORTION, [after, BATCH_SESSIONS, BATCH_EVENTS])
            ids = [session_id for (session_id,) in cursor.fetchall()]
            if not ids:
                return
            cursor.execute(_COUNT, [ids])
            after = ids[-1]


class Migration(migrations.Migration):
    # A transaction for each portion. If it is interrupted, it begins anew and keeps what is there.
    atomic = False

    dependencies = [
        ("detection", "0055_session_tools"),
    ]

    operations = [
        migrations.RunPython(count_tools, migrations.RunPython.noop),
    ]
