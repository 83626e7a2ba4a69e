"""Weekly partitions are made and dropped with the owner's rights: the role that runs LoopGuard owns no table."""

from django.db import migrations

from detection.migrations import _sql_0006


class Migration(migrations.Migration):
    dependencies = [("detection", "0005_snapshot_storage")]

    operations = [migrations.RunSQL(*_sql_0006.PARTITIONS_BY_THE_OWNER)]
