"""What Django's operations cannot say: tables with partitions, storage, and functions that run as the owner.

A function that runs with its owner's rights names the schema it works in, and looks for temporary tables last, so that
nothing of the caller's can stand in for a table.
"""

SESSION_COUNTER = (
    "CREATE SEQUENCE detection_session_counter CYCLE MAXVALUE 4294967295",
    "DROP SEQUENCE detection_session_counter",
)

# PostgreSQL reads `= ANY` of a literal faster than `IN` of a list.
EVENT_TABLE = (
    """
CREATE TABLE detection_event (
    project_id bigint NOT NULL,
    session_id bigint NOT NULL,
    seq integer NOT NULL CHECK (seq > 0),
    tokens integer NOT NULL DEFAULT 0,
    content_length integer NOT NULL DEFAULT 0,
    occurred_at timestamptz,
    received_at timestamptz NOT NULL DEFAULT now(),
    is_error boolean,
    type varchar(16) NOT NULL
        CHECK (type = ANY ('{call,result,message,end,compaction,usage,heartbeat}'::text[])),
    decision varchar(8) NOT NULL DEFAULT 'allow'
        CHECK (decision = ANY ('{allow,warn,block,hold,stop}'::text[])),
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
    call_number integer NOT NULL DEFAULT 0,
    reply text NOT NULL DEFAULT '',
    arguments_digest varchar(16) NOT NULL DEFAULT '',
    closes integer NOT NULL DEFAULT 0,
    role varchar(16) NOT NULL DEFAULT '',
    cwd varchar(1024) NOT NULL DEFAULT '',
    PRIMARY KEY (project_id, session_id, seq)
) PARTITION BY RANGE (session_id);
CREATE INDEX event_call_id ON detection_event (session_id, call_id, seq) WHERE type IN ('call', 'result');
CREATE INDEX event_reply ON detection_event (session_id, seq) WHERE reply <> '';
CREATE TABLE detection_event_rest PARTITION OF detection_event DEFAULT;

-- One partition a week of session starts, named after its first day counted from 1970-01-01.
CREATE FUNCTION detection_ensure_partitions(weeks_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    this_week bigint := floor(extract(epoch FROM now()) / 604800);
    made integer := 0;
BEGIN
    FOR week IN this_week - 1 .. this_week + weeks_ahead LOOP
        IF to_regclass(format('detection_event_%s', week * 7)) IS NULL
           AND NOT EXISTS (SELECT 1 FROM detection_event_rest
                           WHERE session_id >= (week::bigint * 7) << 32
                             AND session_id < ((week + 1)::bigint * 7) << 32) THEN
            EXECUTE format('CREATE TABLE detection_event_%s PARTITION OF detection_event FOR VALUES FROM (%s) TO (%s)',
                           week * 7, (week::bigint * 7) << 32, ((week + 1)::bigint * 7) << 32);
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;
SELECT detection_ensure_partitions(8);

CREATE FUNCTION detection_drop_empty_partitions(before_day integer) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    partition text;
    first_id bigint;
    end_id bigint;
BEGIN
    FOR partition IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'detection_event'::regclass AND c.relname ~ '^detection_event_[0-9]{1,8}$'
    LOOP
        first_id := split_part(partition, '_', 3)::bigint << 32;
        end_id := (split_part(partition, '_', 3)::bigint + 7) << 32;
        IF first_id >= before_day::bigint << 32
           OR EXISTS (SELECT 1 FROM detection_project p JOIN detection_session s
                          ON s.project_id = p.id AND s.id >= first_id AND s.id < end_id AND s.packed_at IS NULL)
           OR EXISTS (SELECT 1 FROM detection_event WHERE session_id >= first_id AND session_id < end_id) THEN
            CONTINUE;
        END IF;
        -- Whoever unpacks events has written them before this lock is granted, or writes them to the default partition.
        LOCK TABLE detection_event IN ACCESS EXCLUSIVE MODE;
        IF EXISTS (SELECT 1 FROM detection_event WHERE session_id >= first_id AND session_id < end_id) THEN
            CONTINUE;
        END IF;
        EXECUTE format('DROP TABLE %I', partition);
        RETURN NEXT partition;
    END LOOP;
END $$;
""",
    "DROP FUNCTION detection_drop_empty_partitions, detection_ensure_partitions; DROP TABLE detection_event;",
)

# A row that is updated with every call stays on its page when there is space left on it. Snapshots are packed already,
# and compressing them again costs time and saves nothing. Lists and statistics read most incidents of a project, but
# neither evidence nor policy, which would make up nine tenths of a row.
# Back to nothing with the tables. A signature of the search is read with every other one, and hardly compresses.
STORAGE = (
    """
ALTER TABLE detection_session SET (fillfactor = 70);
ALTER TABLE detection_trackerstate SET (fillfactor = 50);
ALTER TABLE detection_trackerstate ALTER COLUMN snapshot SET STORAGE EXTERNAL;
ALTER TABLE detection_incident SET (toast_tuple_target = 512);
ALTER TABLE detection_packedevents ALTER COLUMN columns SET STORAGE EXTERNAL;
ALTER TABLE detection_searchblock ALTER COLUMN signature SET STORAGE EXTERNAL, SET (fillfactor = 80);
""",
    "",
)

# The audit only grows; an erasure replaces names in it, and nothing else.
AUDIT = (
    r"""
CREATE FUNCTION detection_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Only `detection_erase_from_audit` sets this, and it runs as the owner of the table.
    IF TG_OP = 'UPDATE' AND current_setting('loopguard.erasing', true) = 'on'
       AND current_user = (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = TG_RELID)
       AND (NEW.id, NEW.at, NEW.actor, NEW.action) = (OLD.id, OLD.at, OLD.actor, OLD.action)
       AND NEW.project_id IS NOT DISTINCT FROM OLD.project_id THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'audit entries are append-only';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON detection_auditentry
    FOR EACH ROW EXECUTE FUNCTION detection_audit_is_append_only();

CREATE FUNCTION detection_erase_from_audit(project bigint, name text, replacement text, about text[])
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    changed integer;
    -- Of exceptions and silences that name an incident; ids hold no character with a meaning in an expression.
    noted CONSTANT text := '(' || coalesce(nullif(array_to_string(
        ARRAY(SELECT one FROM unnest(about) AS one WHERE one ~ '^inc_\w+$'), '|'), ''), 'none') || ')\)?$';
BEGIN
    -- Not a clause of the function: only a superuser may create one with a variable of an extension's form.
    PERFORM set_config('loopguard.erasing', 'on', true);
    UPDATE detection_auditentry SET
        subject = CASE WHEN (subject = name AND action LIKE 'session.%')
                         OR (subject = ANY (about)
                             AND (action LIKE 'view.%' OR action IN ('approval.remember', 'approval.forget')))
                       THEN replacement ELSE subject END,
        before = CASE WHEN subject = ANY (about) OR (subject = name AND action LIKE 'session.%') THEN NULL
                      WHEN before->>'session' = name THEN jsonb_set(before, '{session}', to_jsonb(replacement))
                      WHEN before#>>'{change,session}' = name
                      THEN jsonb_set(before, '{change,session}', to_jsonb(replacement)) ELSE before END,
        after = CASE WHEN subject = ANY (about) OR (subject = name AND action LIKE 'session.%') THEN NULL
                     WHEN after->>'session' = name THEN jsonb_set(after, '{session}', to_jsonb(replacement))
                     WHEN after#>>'{change,session}' = name
                     THEN jsonb_set(after, '{change,session}', to_jsonb(replacement))
                     WHEN action LIKE 'policy.%' AND after->>'note' ~ noted
                     THEN jsonb_set(after, '{note}', to_jsonb(replacement)) ELSE after END
    WHERE project_id = project
      AND ((subject = name AND action LIKE 'session.%') OR subject = ANY (about)
           OR name IN (before->>'session', after->>'session', before#>>'{change,session}', after#>>'{change,session}')
           OR (action LIKE 'policy.%' AND after->>'note' ~ noted));
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM set_config('loopguard.erasing', 'off', true);
    RETURN changed;
END $$;
""",
    """
DROP TRIGGER audit_append_only ON detection_auditentry;
DROP FUNCTION detection_erase_from_audit, detection_audit_is_append_only;
""",
)

AS_THE_OWNER = (
    """
DO $$
DECLARE
    safe_path text := format('search_path = %I, pg_temp', current_schema());
BEGIN
    EXECUTE 'ALTER FUNCTION detection_ensure_partitions(integer) SET ' || safe_path;
    EXECUTE 'ALTER FUNCTION detection_drop_empty_partitions(integer) SET ' || safe_path;
    EXECUTE 'ALTER FUNCTION detection_erase_from_audit(bigint, text, text, text[]) SET ' || safe_path;
END $$;
REVOKE EXECUTE ON FUNCTION detection_ensure_partitions(integer), detection_drop_empty_partitions(integer),
    detection_erase_from_audit(bigint, text, text, text[]) FROM PUBLIC;
""",
    "",
)
