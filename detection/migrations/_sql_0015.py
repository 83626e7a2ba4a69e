"""SQL of the migration of incidents to their new states."""

SETTLE = """
UPDATE detection_incident i SET needs_acknowledgement = true
WHERE i.status IN ('open', 'snoozed') AND i.label <> 'false_alarm' AND (
    (i.decision = 'stop' AND i.was_guarded)
    OR EXISTS (SELECT FROM detection_approval a WHERE a.incident_id = i.id
               AND (a.state = 'expired' OR (a.state = 'decided' AND a.decision = 'stop')))
);
UPDATE detection_incident SET status = 'ended', snoozed_until = NULL, snoozed_until_worse = false
WHERE (status IN ('open', 'snoozed') AND ended_at IS NOT NULL AND NOT needs_acknowledgement)
    OR (status IN ('open', 'snoozed', 'acknowledged') AND label = 'false_alarm');
UPDATE detection_incident SET status = 'open', snoozed_until_worse = false
WHERE status = 'snoozed' AND ended_at IS NOT NULL AND snoozed_until IS NULL;
"""
