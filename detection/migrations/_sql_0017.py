"""SQL of the migration of limit notices.

Existing notices get the number of their call where its event is still stored, alert events the details of their finding,
and stored verdicts the new name of their messages by wire shape.
"""

NUMBER = """
UPDATE detection_limitnotice n SET call_number = e.call_number
FROM detection_event e WHERE e.session_id = n.session_id AND e.seq = n.seq;

UPDATE detection_alertevent SET facts = facts || jsonb_build_object(
    'window_calls', NULL,
    'detail', CASE WHEN facts->>'unit' = '' THEN '{}' ELSE jsonb_build_object('unit', facts->'unit') END
) WHERE facts ? 'period' AND NOT facts ? 'detail';

UPDATE detection_event
SET verdict = verdict - 'wordings' || jsonb_build_object('message_by_shape', verdict->'wordings')
WHERE verdict ? 'wordings';
"""

RENAME = (
    "ALTER TABLE detection_session RENAME CONSTRAINT session_stopped_by_somebody TO session_stop_has_kind_and_time",
    "ALTER TABLE detection_session RENAME CONSTRAINT session_stop_has_kind_and_time TO session_stopped_by_somebody",
)
