"""An erasure also removes the details of audit entries about the session: reasons that people wrote may name it."""

from django.db import migrations

from detection.migrations import _sql_0042

_before = _sql_0042.ERASE_FROM_AUDIT[0].partition('CREATE FUNCTION')[2].partition('REVOKE')[0]
BEFORE = 'CREATE OR REPLACE FUNCTION' + _before
AFTER = BEFORE.replace(
    'CASE WHEN subject = ANY (about) THEN NULL',
    "CASE WHEN subject = ANY (about) OR (subject = name AND action LIKE 'session.%') THEN NULL",
)


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0047_end_unlisted_sign_ins'),
    ]

    operations = [
        migrations.RunSQL(AFTER, BEFORE),
    ]
