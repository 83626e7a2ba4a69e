"""Erasures that have failed; and an erasure removes more from the audit: see `_sql_0053`."""

import django.db.models.functions.datetime
from django.db import migrations, models

from detection.migrations import _sql_0053


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0052_counted_calls'),
    ]

    operations = [
        migrations.AddField(
            model_name='erasure',
            name='attempts',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='erasure',
            name='due_at',
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), help_text='No worker tries earlier.'),
        ),
        migrations.AddField(
            model_name='erasure',
            name='error',
            field=models.CharField(blank=True, db_default='', default='', help_text='What ended the last attempt.', max_length=200),
        ),
        # Erasures of the version before call it as this one does.
        migrations.RunSQL(_sql_0053.ERASE_FROM_AUDIT, migrations.RunSQL.noop),
    ]
