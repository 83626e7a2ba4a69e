"""Remember which messages of the lists that agents send have been read."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("detection", "0021_reused_call_ids")]

    operations = [
        migrations.CreateModel(
            name="ReadMessages",
            fields=[
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="read_messages",
                        serialize=False,
                        to="detection.session",
                    ),
                ),
                ("digests", models.BinaryField()),
            ],
        ),
    ]
