"""SQL of the migration that adds roles of messages, and the types `compaction` and `usage`."""

COLUMNS = (
    "ALTER TABLE detection_event DROP CONSTRAINT detection_event_type_check,"
    " ADD COLUMN role varchar(16) NOT NULL DEFAULT '', ALTER COLUMN type TYPE varchar(16),"
    # Not checked for the rows of before, of which the constraint so far admitted fewer.
    " ADD CONSTRAINT detection_event_type_check"
    " CHECK (type IN ('call', 'result', 'message', 'end', 'compaction', 'usage')) NOT VALID",
    "DELETE FROM detection_event WHERE type IN ('compaction', 'usage');"
    " ALTER TABLE detection_event DROP CONSTRAINT detection_event_type_check, DROP COLUMN role,"
    " ALTER COLUMN type TYPE varchar(8),"
    " ADD CONSTRAINT detection_event_type_check CHECK (type IN ('call', 'result', 'message', 'end'))",
)
