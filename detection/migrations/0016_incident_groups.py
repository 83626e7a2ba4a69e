"""Every finding has an incident of its own: related ones share a group, and sums count their calls once."""

from django.db import migrations, models

_FILL = """
UPDATE detection_incident SET group_id = public_id, unshared_calls = calls_in_loop, unshared_cost_usd = cost_usd;
"""


class Migration(migrations.Migration):
    dependencies = [("detection", "0015_incident_lifecycle")]

    operations = [
        migrations.AddField(
            "incident",
            "group_id",
            models.CharField(
                db_default="",
                default="",
                help_text="Public id of the first incident about the same calls; related incidents share it.",
                max_length=32,
            ),
        ),
        migrations.AddField(
            "incident",
            "unshared_calls",
            models.IntegerField(
                db_default=0,
                default=0,
                help_text="Calls of the loop that no earlier incident counts, for sums.",
            ),
        ),
        migrations.AddField(
            "incident",
            "unshared_cost_usd",
            models.DecimalField(
                db_default=0, decimal_places=6, default=0, help_text="Their cost.", max_digits=14
            ),
        ),
        migrations.AddIndex("incident", models.Index(fields=["group_id"], name="incident_group")),
        migrations.RunSQL(_FILL, migrations.RunSQL.noop),
    ]
