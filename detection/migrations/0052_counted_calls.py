"""The cost of an incident is that of the calls that it counts: each call counts once, in the incident that found it first."""

from django.db import migrations, models

_TAKE = "UPDATE detection_incident SET cost_usd = unshared_cost_usd WHERE cost_usd <> unshared_cost_usd"
_GIVE_BACK = "UPDATE detection_incident SET unshared_cost_usd = cost_usd"


class Migration(migrations.Migration):
    dependencies = [("detection", "0051_stop_choice")]

    operations = [
        migrations.RunSQL(_TAKE, _GIVE_BACK),
        migrations.RemoveField("incident", "unshared_cost_usd"),
        migrations.RenameField("incident", "unshared_calls", "counted_calls"),
        migrations.AlterField(
            "incident",
            "counted_calls",
            models.IntegerField(
                db_default=0,
                default=0,
                help_text="Calls of the loop that no earlier incident counts. Sums add these, so that each call counts once.",
            ),
        ),
        migrations.AlterField(
            "incident",
            "cost_usd",
            models.DecimalField(
                decimal_places=6, default=0, help_text="Cost of the counted calls.", max_digits=14
            ),
        ),
    ]
