"""Let people stop the session of a held call. No change of the database."""

from __future__ import annotations

from django.db import migrations, models

CHOICES = [
    ("skip", "Skip this call"),
    ("allow_once", "Allow once"),
    ("raise", "Raise the limit"),
    ("exempt", "Exempt the tool for this session"),
    ("disable", "Disable for this session"),
    ("stop", "Stop the session"),
]


class Migration(migrations.Migration):
    dependencies = [("detection", "0050_literal_checks")]

    operations = [
        migrations.AlterField(
            "approval",
            "choice",
            models.CharField(blank=True, choices=CHOICES, default="", max_length=10),
        ),
        migrations.AlterField(
            "remembereddecision", "choice", models.CharField(choices=CHOICES, max_length=10)
        ),
    ]
