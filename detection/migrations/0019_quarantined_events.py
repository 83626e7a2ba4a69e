"""Give quarantined events a table of their own: all of them, with their tracebacks."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

COPY = """
INSERT INTO detection_quarantinedevent (project_id, session_id, seq, type, tool, error)
SELECT DISTINCT ON (s.id, one.seq) s.project_id, s.id, one.seq, coalesce(e.type, ''), coalesce(e.tool, ''), coalesce(left(one.error, 300), '')
FROM detection_session s CROSS JOIN LATERAL jsonb_to_recordset(s.quarantined) AS one (seq int, error text)
LEFT JOIN detection_event e ON e.session_id = s.id AND e.seq = one.seq
WHERE s.quarantined <> '[]' AND one.seq IS NOT NULL
ORDER BY s.id, one.seq;
"""
COPY_BACK = """
UPDATE detection_session s SET quarantined = q.entries
FROM (
    SELECT session_id, jsonb_agg(jsonb_build_object('seq', seq, 'error', error) ORDER BY seq) AS entries
    FROM detection_quarantinedevent GROUP BY session_id
) q WHERE q.session_id = s.id;
"""


class Migration(migrations.Migration):
    dependencies = [("detection", "0018_session_integration")]

    operations = [
        migrations.CreateModel(
            name="QuarantinedEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("seq", models.IntegerField(help_text="Sequence number of the event in its session.")),
                ("type", models.CharField(max_length=8)),
                ("tool", models.CharField(blank=True, db_default="", default="", max_length=128)),
                ("error", models.CharField(max_length=300)),
                (
                    "traceback",
                    models.TextField(blank=True, db_default="", default="", help_text="The end of the traceback."),
                ),
                ("at", models.DateTimeField(db_default=Now(), help_text="When its evaluation failed last.")),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="detection.project",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="quarantined_events",
                        to="detection.session",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["project", "-id"], name="quarantined_newest")],
                "constraints": [
                    models.UniqueConstraint(fields=("session", "seq"), name="event_quarantined_once")
                ],
            },
        ),
        migrations.RunSQL(COPY, COPY_BACK),
        migrations.RemoveIndex("session", "session_quarantined"),
        migrations.RemoveField("session", "quarantined"),
    ]
