"""Store who stopped a session, observed stops, and whether an incident is active; derive these for existing rows."""

from django.db import migrations, models

from detection.migrations import _sql_0011

_STORED_STATES = ("running", "looping", "held", "stopped", "ended")


class Migration(migrations.Migration):
    dependencies = [("detection", "0010_overrides")]

    operations = [
        migrations.AddField(
            "session",
            "stopped_by_kind",
            models.CharField(
                blank=True,
                choices=[("", "Not stopped"), ("person", "Person"), ("detection", "Detection")],
                db_default="",
                default="",
                max_length=16,
            ),
        ),
        migrations.AddField(
            "session",
            "would_have_stopped_at_call",
            models.IntegerField(
                blank=True,
                help_text="Number of the first observed call that would have been stopped.",
                null=True,
            ),
        ),
        migrations.AddField(
            "session",
            "has_active_incident",
            models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether an incident of the session has no end; healthy sessions cost no query.",
            ),
        ),
        migrations.AlterField(
            "session",
            "stopped_by",
            models.CharField(
                blank=True,
                default="",
                help_text="The person, or the detector that decided.",
                max_length=150,
            ),
        ),
        migrations.AlterField(
            "session",
            "state",
            models.CharField(
                choices=[(state, state.capitalize()) for state in _STORED_STATES],
                default="running",
                help_text="As stored; idle follows from the last event's age.",
                max_length=16,
            ),
        ),
        migrations.RunSQL(_sql_0011.DERIVE, migrations.RunSQL.noop),
        migrations.AddIndex(
            "session",
            models.Index(
                fields=["last_event_at"],
                name="session_with_active_incident",
                condition=models.Q(has_active_incident=True),
            ),
        ),
        migrations.AddConstraint(
            "session",
            models.CheckConstraint(
                condition=models.Q(stopped_by_kind="", stopped_at=None)
                | models.Q(stopped_by_kind__in=("person", "detection"), stopped_at__isnull=False),
                name="session_stopped_by_somebody",
            ),
        ),
    ]
