from django.db import migrations, models


class Migration(migrations.Migration):
    """Let statistics and lists read what they add up from indexes.

    The new ones are built before the old ones are dropped, which alone keeps others from reading.
    """

    dependencies = [("detection", "0064_small_incident_rows")]

    operations = [
        migrations.RunSQL("SET LOCAL statement_timeout = 0", migrations.RunSQL.noop),
        migrations.AddIndex(
            "incident",
            models.Index(fields=["group_id"], include=("project", "cost_usd"), name="incident_by_group"),
        ),
        migrations.AddIndex(
            "incident",
            models.Index(
                fields=["project", "status"],
                condition=models.Q(("group_id", models.F("public_id"))),
                name="incident_of_loop",
            ),
        ),
        migrations.AddIndex(
            "session",
            models.Index(
                fields=["project", "-last_event_at", "-id"],
                include=("blocked_count", "warned_count"),
                name="session_by_time",
            ),
        ),
        migrations.RemoveIndex("incident", "incident_group"),
        migrations.RemoveIndex("session", "session_newest"),
    ]
