"""SQL of the first migration that Django's operations cannot say. Never edited once released: later changes are new files."""

SESSION_COUNTER = (
    "CREATE SEQUENCE detection_session_counter CYCLE MAXVALUE 4294967295",
    "DROP SEQUENCE detection_session_counter",
)

EVENT_TABLE = (
    """
CREATE TABLE detection_event (
    session_id bigint NOT NULL,
    seq integer NOT NULL CHECK (seq > 0),
    tokens integer NOT NULL DEFAULT 0,
    content_length integer NOT NULL DEFAULT 0,
    occurred_at timestamptz,
    received_at timestamptz NOT NULL DEFAULT now(),
    is_error boolean,
    type varchar(8) NOT NULL CHECK (type IN ('call', 'result', 'message', 'end')),
    decision varchar(8) NOT NULL DEFAULT 'allow' CHECK (decision IN ('allow', 'warn', 'block', 'hold', 'stop')),
    call_id varchar(256) NOT NULL DEFAULT '',
    tool varchar(128) NOT NULL DEFAULT '',
    call_key varchar(32) NOT NULL DEFAULT '',
    result_digest varchar(32) NOT NULL DEFAULT '',
    tail_digest varchar(32) NOT NULL DEFAULT '',
    flags varchar(12) NOT NULL DEFAULT '',
    altered varchar(120) NOT NULL DEFAULT '',
    round varchar(256) NOT NULL DEFAULT '',
    run varchar(256) NOT NULL DEFAULT '',
    backend varchar(128) NOT NULL DEFAULT '',
    model varchar(200) NOT NULL DEFAULT '',
    agent varchar(128) NOT NULL DEFAULT '',
    cost_usd numeric(12, 6) NOT NULL DEFAULT 0,
    arguments text,
    content text,
    verdict jsonb,
    PRIMARY KEY (session_id, seq)
) PARTITION BY RANGE (session_id);
CREATE UNIQUE INDEX event_call_once ON detection_event (session_id, type, call_id) WHERE type IN ('call', 'result');
CREATE TABLE detection_event_rest PARTITION OF detection_event DEFAULT;

-- One partition a week of session starts, named after its first day counted from 1970-01-01.
CREATE FUNCTION detection_ensure_partitions(weeks_ahead integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    this_week bigint := floor(extract(epoch FROM now()) / 604800);
    made integer := 0;
BEGIN
    FOR week IN this_week - 1 .. this_week + weeks_ahead LOOP
        IF to_regclass(format('detection_event_%s', week * 7)) IS NULL
           AND NOT EXISTS (SELECT FROM detection_event_rest
                           WHERE session_id >= (week::bigint * 7) << 32 AND session_id < ((week + 1)::bigint * 7) << 32) THEN
            EXECUTE format('CREATE TABLE detection_event_%s PARTITION OF detection_event FOR VALUES FROM (%s) TO (%s)',
                           week * 7, (week::bigint * 7) << 32, ((week + 1)::bigint * 7) << 32);
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
SELECT detection_ensure_partitions(8);
""",
    "DROP FUNCTION detection_ensure_partitions; DROP TABLE detection_event;",
)

# A row that is updated with every call stays on its page when there is room left on it.
FILLFACTOR = (
    "ALTER TABLE detection_session SET (fillfactor = 70); ALTER TABLE detection_trackerstate SET (fillfactor = 50);",
    "ALTER TABLE detection_session RESET (fillfactor); ALTER TABLE detection_trackerstate RESET (fillfactor);",
)

AUDIT_APPEND_ONLY = (
    """
CREATE FUNCTION detection_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are append-only';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON detection_auditentry
    FOR EACH ROW EXECUTE FUNCTION detection_audit_is_append_only();
""",
    "DROP TRIGGER audit_append_only ON detection_auditentry; DROP FUNCTION detection_audit_is_append_only;",
)

CACHE_TABLE = (
    "CREATE TABLE loopguard_cache (cache_key varchar(255) PRIMARY KEY, value text NOT NULL, expires timestamptz NOT NULL);"
    "CREATE INDEX loopguard_cache_expires ON loopguard_cache (expires);",
    "DROP TABLE loopguard_cache;",
)
