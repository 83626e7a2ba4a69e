"""Number the calls of each session, store replies to in-chat commands, and show exempt tools on the session."""

from django.core.serializers.json import DjangoJSONEncoder
from django.db import migrations, models
from django.db.models import Value

from detection.migrations import _sql_0014


class Migration(migrations.Migration):
    dependencies = [("detection", "0013_approval_words")]

    operations = [
        migrations.RunSQL(*_sql_0014.ADD_COLUMNS),
        # The table of events is not managed: these describe it and change nothing.
        migrations.AddField(
            "event",
            "call_number",
            models.IntegerField(
                default=0, help_text="Which call of its session it is, from 1; 0 until it is evaluated."
            ),
        ),
        migrations.AddField(
            "event",
            "reply",
            models.TextField(
                default="", help_text="Of a message: the replies to its in-chat commands, one a line."
            ),
        ),
        migrations.AddField(
            "session",
            "exempt_tools",
            models.JSONField(
                db_default=Value([], models.JSONField()),
                default=list,
                help_text="Tools that a person exempted in this session.",
            ),
        ),
        migrations.AlterField(
            "session",
            "strip",
            models.JSONField(
                default=list,
                encoder=DjangoJSONEncoder,
                help_text="The last 60 calls as [seq, key, flags, number], oldest first.",
            ),
        ),
        migrations.AddField(
            "incident",
            "first_call_number",
            models.IntegerField(
                db_default=0,
                default=0,
                help_text="Which call of the session the loop began with, from 1.",
            ),
        ),
        migrations.RunSQL(_sql_0014.NUMBER, migrations.RunSQL.noop),
    ]
