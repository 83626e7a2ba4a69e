"""Let call ids be used again: note the call of each result, and what tells calls with one id apart."""

from django.db import migrations, models

from detection.migrations import _sql_0021


class Migration(migrations.Migration):
    dependencies = [("detection", "0020_judge_labels")]

    operations = [
        migrations.RunSQL(*_sql_0021.ADD_COLUMNS),
        # The table of events is not managed: these describe it and change nothing.
        migrations.AddField(
            "event",
            "arguments_digest",
            models.CharField(
                default="", help_text="Keyed digest of the arguments of a call.", max_length=16
            ),
        ),
        migrations.AddField(
            "event",
            "closes",
            models.IntegerField(
                default=0, help_text="Of a result: the sequence number of its call; 0 if there is none."
            ),
        ),
        migrations.RunSQL(_sql_0021.MATCH, migrations.RunSQL.noop),
        migrations.RunSQL(*_sql_0021.INDEX),
    ]
