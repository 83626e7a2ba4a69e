"""Indexes of the sessions that are looked for though few: each is of those alone, and a call of another costs no entry.

The words of incidents' tools go: the search compares what is spelled alike, which that index could not answer, and every
finding kept it up.
"""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("detection", "0007_alert_news"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveIndex(model_name="incident", name="incident_tool_words"),
        migrations.AddIndex(
            model_name="incident",
            index=models.Index(
                fields=["project"], name="incident_of_demo", condition=models.Q(("is_demo", True))
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                fields=["project", "-last_event_at", "-id"],
                name="session_remarkable",
                condition=models.Q(("state__in", ("looping", "waiting", "stopped"))),
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                fields=["project", "-last_event_at", "-id"],
                name="session_of_demo",
                condition=models.Q(("is_demo", True)),
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                fields=["project"], name="session_parked", condition=models.Q(("parked", []), _negated=True)
            ),
        ),
    ]
