"""Snapshots are packed already: letting the database compress them again costs time and saves nothing."""

from django.db import migrations

from detection.migrations import _sql_0005


class Migration(migrations.Migration):
    dependencies = [("detection", "0004_incident_was_asked")]

    operations = [migrations.RunSQL(*_sql_0005.PACKED_SNAPSHOTS)]
