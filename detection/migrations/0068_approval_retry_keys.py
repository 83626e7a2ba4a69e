"""Know which held calls await their retry: one approval decides several, and each gets the decision once."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0067_event_cwd'),
    ]

    operations = [
        migrations.AddField(
            model_name='approval',
            name='retry_keys',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32), blank=True, db_default=[], default=list, help_text='Keys of the calls whose agent does not wait: each gets the decision when it is made again.', size=None),
        ),
        migrations.RunSQL("SET LOCAL statement_timeout = 0", migrations.RunSQL.noop),
        migrations.RunSQL(
            "UPDATE detection_approval SET retry_keys = ARRAY[call_key] WHERE awaits_retry",
            "UPDATE detection_approval SET awaits_retry = true WHERE retry_keys <> '{}'",
        ),
        migrations.RemoveField(
            model_name='approval',
            name='awaits_retry',
        ),
    ]
