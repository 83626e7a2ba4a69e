"""Have sessions looked at for silence, and allow events of the type `heartbeat`."""

from django.db import migrations, models

TYPES = "('call', 'result', 'message', 'end', 'compaction', 'usage'"
ALTER = (
    "ALTER TABLE detection_event DROP CONSTRAINT detection_event_type_check,"
    # Not checked for the rows of before, of which the constraint so far admitted fewer.
    f" ADD CONSTRAINT detection_event_type_check CHECK (type IN {TYPES}, 'heartbeat')) NOT VALID",
    "DELETE FROM detection_event WHERE type = 'heartbeat';"
    " ALTER TABLE detection_event DROP CONSTRAINT detection_event_type_check,"
    f" ADD CONSTRAINT detection_event_type_check CHECK (type IN {TYPES}))",
)


class Migration(migrations.Migration):
    dependencies = [("detection", "0039_patterns")]

    operations = [
        migrations.RunSQL(*ALTER),
        migrations.AddField(
            "session",
            "silence_check_at",
            models.DateTimeField(
                blank=True,
                help_text="When to look whether something of the session is stalled; null if nothing can be.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            "session",
            models.Index(
                condition=models.Q(("silence_check_at__isnull", False)),
                fields=["silence_check_at"],
                name="session_silence",
            ),
        ),
    ]
