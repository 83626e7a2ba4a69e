"""SQL of the migration that lets call ids be used again: results name their calls, and ids are no longer unique."""

ADD_COLUMNS = (
    "ALTER TABLE detection_event ADD COLUMN arguments_digest varchar(16) NOT NULL DEFAULT '',"
    " ADD COLUMN closes integer NOT NULL DEFAULT 0",
    "ALTER TABLE detection_event DROP COLUMN arguments_digest, DROP COLUMN closes",
)

MATCH = """
UPDATE detection_event r SET closes = c.seq
FROM detection_event c
WHERE r.type = 'result' AND c.type = 'call' AND c.session_id = r.session_id AND c.call_id = r.call_id AND c.seq < r.seq
"""

INDEX = (
    "DROP INDEX event_call_once;"
    " CREATE INDEX event_call_id ON detection_event (session_id, call_id, seq) WHERE type IN ('call', 'result')",
    "DROP INDEX event_call_id;"
    " CREATE UNIQUE INDEX event_call_once ON detection_event (session_id, type, call_id) WHERE type IN ('call', 'result')",
)
