from django.db import migrations


class Migration(migrations.Migration):
    """Find the few messages with replies without reading all events of a session."""

    dependencies = [("detection", "0065_sums_from_indexes")]

    operations = [
        migrations.RunSQL("SET LOCAL statement_timeout = 0", migrations.RunSQL.noop),
        migrations.RunSQL(
            "CREATE INDEX event_reply ON detection_event (session_id, seq) WHERE reply <> ''",
            "DROP INDEX event_reply",
        ),
    ]
