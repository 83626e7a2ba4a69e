"""SQL of the migration that numbers calls: existing calls, strips, counts and incidents get their numbers."""

ADD_COLUMNS = (
    "ALTER TABLE detection_event ADD COLUMN call_number integer NOT NULL DEFAULT 0, ADD COLUMN reply text NOT NULL DEFAULT ''",
    "ALTER TABLE detection_event DROP COLUMN call_number, DROP COLUMN reply",
)

NUMBER = """
UPDATE detection_event e SET call_number = n.number
FROM (
    SELECT e.session_id, e.seq, row_number() OVER (PARTITION BY e.session_id ORDER BY e.seq) AS number
    FROM detection_event e JOIN detection_session s ON s.id = e.session_id
    WHERE e.type = 'call' AND e.seq <= s.evaluated_seq
) n WHERE e.session_id = n.session_id AND e.seq = n.seq;

UPDATE detection_session s SET call_count = n.calls
FROM (SELECT session_id, max(call_number) AS calls FROM detection_event GROUP BY session_id) n
WHERE s.id = n.session_id AND s.call_count <> n.calls;

UPDATE detection_session s SET strip = (
    SELECT jsonb_agg(cell.value || to_jsonb(coalesce(e.call_number, 0)) ORDER BY cell.place)
    FROM jsonb_array_elements(s.strip) WITH ORDINALITY AS cell (value, place)
    LEFT JOIN detection_event e ON e.session_id = s.id AND e.seq = (cell.value->>0)::int
) WHERE jsonb_array_length(s.strip) > 0;

UPDATE detection_incident i SET first_call_number = e.call_number
FROM detection_event e WHERE e.session_id = i.session_id AND e.seq = i.first_seq;

UPDATE detection_incident i SET evidence = jsonb_set(i.evidence, '{calls}', (
    SELECT jsonb_agg(call.value || jsonb_build_object('number', coalesce(e.call_number, 0)) ORDER BY call.place)
    FROM jsonb_array_elements(i.evidence->'calls') WITH ORDINALITY AS call (value, place)
    LEFT JOIN detection_event e ON e.session_id = i.session_id AND e.seq = (call.value->>'seq')::int
)) WHERE jsonb_array_length(coalesce(i.evidence->'calls', '[]')) > 0;
"""
