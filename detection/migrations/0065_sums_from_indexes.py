from django.db import migrations, models


class Migration(migrations.Migration):
    """Let statistics and lists read what they add up from indexes, and find the few messages with replies."""

    dependencies = [("detection", "0064_small_incident_rows")]

    operations = [
        migrations.RemoveIndex("incident", "incident_group"),
        migrations.AddIndex(
            "incident",
            models.Index(fields=["group_id"], include=("project", "cost_usd"), name="incident_group"),
        ),
        migrations.AddIndex(
            "incident",
            models.Index(
                fields=["project", "status"],
                condition=models.Q(("group_id", models.F("public_id"))),
                name="incident_of_loop",
            ),
        ),
        migrations.RemoveIndex("session", "session_newest"),
        migrations.AddIndex(
            "session",
            models.Index(
                fields=["project", "-last_event_at", "-id"],
                include=("blocked_count", "warned_count"),
                name="session_newest",
            ),
        ),
        migrations.RunSQL(
            "CREATE INDEX event_reply ON detection_event (session_id, seq) WHERE reply <> ''",
            "DROP INDEX event_reply",
        ),
    ]
