"""Name the detector of a limit notice and number its call; name the constraint of stopped sessions after its rule."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

from detection.migrations import _sql_0017

_IS_STOPPED = models.Q(stopped_by_kind__in=("person", "detection"), stopped_at__isnull=False)
_EVENT_TYPES = [
    ("opened", "Opened"),
    ("escalated", "Escalated"),
    ("woke", "Snooze ended"),
    ("ended", "Ended"),
    ("acknowledged", "Acknowledged"),
    ("snoozed", "Snoozed"),
    ("resolved", "Resolved"),
    ("reopened", "Reopened"),
    ("labelled", "Labelled"),
    ("undone", "Undone"),
    ("still_open", "Still open"),
    ("session.near_limit", "A session has nearly reached a limit"),
    ("approval.requested", "A call waits for approval"),
    ("approval.closed", "An approval was decided or expired"),
]


class Migration(migrations.Migration):
    dependencies = [("detection", "0016_incident_groups")]

    operations = [
        migrations.AddField(
            "limitnotice",
            "kind",
            models.CharField(default="budget", help_text="The detector of the limit.", max_length=16),
            preserve_default=False,
        ),
        migrations.AddField(
            "limitnotice",
            "call_number",
            models.IntegerField(default=0, help_text="Which call of the session that was, from 1."),
            preserve_default=False,
        ),
        migrations.RunSQL(_sql_0017.NUMBER, migrations.RunSQL.noop),
        migrations.RemoveConstraint("limitnotice", "one_notice_per_limit"),
        migrations.AddConstraint(
            "limitnotice",
            models.UniqueConstraint(fields=("session", "kind", "unit", "limit"), name="one_notice_per_limit"),
        ),
        # Only the label of a type changes, which the database does not contain.
        migrations.AlterField(
            "alertevent", "type", models.CharField(max_length=20, choices=_EVENT_TYPES)
        ),
        migrations.AlterField(
            "alertroute",
            "event_types",
            ArrayField(
                models.CharField(max_length=20, choices=_EVENT_TYPES),
                default=list,
                help_text="Empty: every type.",
            ),
        ),
        migrations.SeparateDatabaseAndState(
            [migrations.RunSQL(*_sql_0017.RENAME)],
            [
                migrations.RemoveConstraint("session", "session_stopped_by_somebody"),
                migrations.AddConstraint(
                    "session",
                    models.CheckConstraint(
                        condition=models.Q(stopped_by_kind="", stopped_at=None) | _IS_STOPPED,
                        name="session_stop_has_kind_and_time",
                    ),
                ),
            ],
        ),
    ]
