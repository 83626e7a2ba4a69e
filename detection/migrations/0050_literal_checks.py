"""Write the conditions of the tables that every call writes so that PostgreSQL reads them faster; what they allow stays the same."""

from django.db import migrations, models
from django.db.models.expressions import RawSQL

from detection.migrations import _sql_0050


class Migration(migrations.Migration):
    dependencies = [("detection", "0049_warned_calls")]

    operations = [
        migrations.RunSQL(*_sql_0050.CHECKS),
        migrations.RemoveConstraint("session", "session_state_known"),
        migrations.RemoveConstraint("session", "session_stop_has_kind_and_time"),
        migrations.AddConstraint(
            "session",
            models.CheckConstraint(
                condition=RawSQL(
                    "state = ANY ('{running,looping,held,stopped,ended}'::text[])", (), models.BooleanField()
                ),
                name="session_state_known",
            ),
        ),
        migrations.AddConstraint(
            "session",
            models.CheckConstraint(
                condition=RawSQL(
                    "(stopped_by_kind = '') = (stopped_at IS NULL)"
                    " AND stopped_by_kind = ANY ('{\"\",person,detection}'::text[])",
                    (),
                    models.BooleanField(),
                ),
                name="session_stop_has_kind_and_time",
            ),
        ),
    ]
