"""SQL of the migration 0011: who stopped each session, and the state that follows."""

DERIVE = """
UPDATE detection_session SET stopped_by_kind = 'person' WHERE stopped_at IS NOT NULL;

UPDATE detection_session s SET stopped_by_kind = 'detection', stopped_at = last.received_at,
    stopped_by = coalesce(last.verdict->'finding'->>'kind', ''),
    stop_reason = left(coalesce(last.verdict->>'message', ''), 300)
FROM (
    SELECT s.id, e.received_at, e.verdict FROM detection_session s CROSS JOIN LATERAL (
        SELECT e.received_at, e.decision, e.verdict FROM detection_event e
        WHERE e.session_id = s.id AND e.type = 'call' ORDER BY e.seq DESC LIMIT 1
    ) e WHERE s.blocked_count > 0 AND s.stopped_at IS NULL AND e.decision = 'stop' AND e.verdict IS NOT NULL
) last WHERE s.id = last.id;

UPDATE detection_session s SET would_have_stopped_at_call = first.number
FROM (
    SELECT f.session_id, count(*) AS number FROM (
        SELECT session_id, min(seq) AS seq FROM detection_event
        WHERE type = 'call' AND decision = 'stop' AND verdict IS NULL GROUP BY session_id
    ) f JOIN detection_event e ON e.session_id = f.session_id AND e.type = 'call' AND e.seq <= f.seq
    GROUP BY f.session_id
) first WHERE s.id = first.session_id;

UPDATE detection_session s SET has_active_incident = true
WHERE EXISTS (SELECT FROM detection_incident i WHERE i.session_id = s.id AND i.ended_at IS NULL);

UPDATE detection_session s SET state = derived.state
FROM (
    SELECT s.id, CASE
        WHEN s.ended_at IS NOT NULL THEN 'ended'
        WHEN s.stopped_by_kind = 'person' THEN 'stopped'
        WHEN s.state = 'held' THEN 'held'
        WHEN s.stopped_by_kind = 'detection' THEN 'stopped'
        WHEN EXISTS (SELECT FROM detection_incident i
                     WHERE i.session_id = s.id AND i.ended_at IS NULL AND i.label <> 'false_alarm') THEN 'looping'
        ELSE 'running' END AS state
    FROM detection_session s
) derived WHERE s.id = derived.id AND s.state <> derived.state;

-- A row that is updated twice has a foreign key to check at commit; the index that follows cannot wait for it.
SET CONSTRAINTS ALL IMMEDIATE;
"""
