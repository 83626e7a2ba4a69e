"""Write the conditions of the tables that every call writes so that PostgreSQL reads them faster; what they allow stays the same."""

from django.db import migrations, models
from django.db.models.expressions import RawSQL

TYPES = ("call", "result", "message", "end", "compaction", "usage", "heartbeat")
DECISIONS = ("allow", "warn", "block", "hold", "stop")


def alter(types, decisions):
    """Return the statement that replaces both conditions; stored rows meet them already, and are not read for that."""
    return (
        "ALTER TABLE detection_event DROP CONSTRAINT detection_event_type_check,"
        " DROP CONSTRAINT detection_event_decision_check,"
        f" ADD CONSTRAINT detection_event_type_check CHECK (type {types}) NOT VALID,"
        f" ADD CONSTRAINT detection_event_decision_check CHECK (decision {decisions}) NOT VALID"
    )


def literal(values):
    return f"= ANY ('{{{','.join(values)}}}'::text[])"


class Migration(migrations.Migration):
    dependencies = [("detection", "0049_warned_calls")]

    operations = [
        migrations.RunSQL(
            alter(literal(TYPES), literal(DECISIONS)), alter(f"IN {TYPES}", f"IN {DECISIONS}")
        ),
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
