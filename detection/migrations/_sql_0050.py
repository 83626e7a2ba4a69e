"""SQL of the migration that writes the conditions of events so that PostgreSQL reads them faster."""

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


CHECKS = (alter(literal(TYPES), literal(DECISIONS)), alter(f"IN {TYPES}", f"IN {DECISIONS}"))
