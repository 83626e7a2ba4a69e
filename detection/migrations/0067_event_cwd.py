from django.db import migrations, models


class Migration(migrations.Migration):
    """Keep the directory in which a call ran; adding the column rewrites nothing."""

    dependencies = [("detection", "0066_replies")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE detection_event ADD COLUMN cwd varchar(1024) NOT NULL DEFAULT ''",
            "ALTER TABLE detection_event DROP COLUMN cwd",
            state_operations=[
                migrations.AddField(
                    "event",
                    "cwd",
                    models.CharField(
                        default="", help_text="Of a call: the working directory, if known.", max_length=1024
                    ),
                ),
            ],
        ),
    ]
