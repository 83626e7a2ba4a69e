"""Incidents whose loop is over are listed as ended, unless someone has to acknowledge them."""

from django.db import migrations, models

from detection.migrations import _sql_0015

_STATUSES = ("open", "acknowledged", "snoozed", "ended", "resolved")


class Migration(migrations.Migration):
    dependencies = [("detection", "0014_call_numbers")]

    operations = [
        migrations.RemoveConstraint("incident", "incident_status_known"),
        migrations.AddField(
            "incident",
            "needs_acknowledgement",
            models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether it stays open until someone acknowledges it, although its loop ended.",
            ),
        ),
        migrations.AlterField(
            "incident",
            "status",
            models.CharField(
                choices=[(status, status.capitalize()) for status in _STATUSES],
                default="open",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            "incident",
            models.CheckConstraint(
                condition=models.Q(status__in=_STATUSES), name="incident_status_known"
            ),
        ),
        migrations.AddIndex(
            "incident",
            models.Index(
                fields=["snoozed_until"], name="incident_snoozed", condition=models.Q(status="snoozed")
            ),
        ),
        migrations.RunSQL(_sql_0015.SETTLE, migrations.RunSQL.noop),
    ]
