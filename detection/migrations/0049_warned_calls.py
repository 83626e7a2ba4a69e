from django.db import migrations, models

# As the hourly counts: only guarded calls have a verdict.
COUNT = """
    UPDATE detection_session SET warned_count = counted.calls FROM (
        SELECT session_id, count(*) AS calls FROM detection_event
        WHERE type = 'call' AND decision = 'warn' AND verdict IS NOT NULL GROUP BY session_id
    ) AS counted WHERE counted.session_id = detection_session.id
"""


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0048_erase_reasons_from_audit'),
    ]

    operations = [
        migrations.AddField(
            model_name='session',
            name='warned_count',
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.RunSQL(COUNT, migrations.RunSQL.noop),
    ]
