"""Note which approvals nobody waits for: the decision is for the same call when it is made again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("detection", "0022_read_messages")]

    operations = [
        migrations.AddField(
            "approval",
            "awaits_retry",
            models.BooleanField(
                default=False,
                db_default=False,
                help_text="Whether the agent does not wait: the decision is for the same call when it is made again.",
            ),
        ),
    ]
