"""Give messages a role, and allow the types `compaction` and `usage`."""

from django.db import migrations, models

from detection.migrations import _sql_0025


class Migration(migrations.Migration):
    dependencies = [("detection", "0024_gateway_backends")]

    operations = [
        migrations.RunSQL(*_sql_0025.COLUMNS),
        # The table of events is not managed: these describe it and change nothing.
        migrations.AddField(
            "event",
            "role",
            models.CharField(
                default="", help_text="Of a message: who wrote it; empty is the user.", max_length=16
            ),
        ),
        migrations.AlterField(
            "event",
            "type",
            models.CharField(
                choices=[
                    ("call", "Call"),
                    ("result", "Result"),
                    ("message", "Message"),
                    ("end", "End"),
                    ("compaction", "Compaction"),
                    ("usage", "Usage"),
                ],
                max_length=16,
            ),
        ),
        migrations.AlterField(
            "event",
            "closes",
            models.IntegerField(
                default=0,
                help_text="Of a result: the sequence number of its call; of a usage: of the first call of its round; 0 if there is none.",
            ),
        ),
    ]
