"""Snapshots are packed already: letting the database compress them again costs time and saves nothing."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("detection", "0004_incident_was_asked")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE detection_trackerstate ALTER COLUMN snapshot SET STORAGE EXTERNAL",
            "ALTER TABLE detection_trackerstate ALTER COLUMN snapshot SET STORAGE EXTENDED",
        )
    ]
