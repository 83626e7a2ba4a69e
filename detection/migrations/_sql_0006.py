"""SQL of the sixth migration: the two changes of tables that go on at run time, for a role that owns no table.

A function that runs with its owner's rights names the schema it works in, and looks for temporary tables last, so that
nothing of the caller's can stand in for a table.
"""

PARTITIONS_BY_THE_OWNER = (
    """
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
           OR EXISTS (SELECT FROM detection_session WHERE id >= first_id AND id < end_id)
           OR EXISTS (SELECT FROM detection_event WHERE session_id >= first_id AND session_id < end_id) THEN
            CONTINUE;
        END IF;
        EXECUTE format('DROP TABLE %I', partition);
        RETURN NEXT partition;
    END LOOP;
END $$;
ALTER FUNCTION detection_ensure_partitions(integer) SECURITY DEFINER;
DO $$
DECLARE
    safe_path text := format('search_path = %I, pg_temp', current_schema());
BEGIN
    EXECUTE 'ALTER FUNCTION detection_ensure_partitions(integer) SET ' || safe_path;
    EXECUTE 'ALTER FUNCTION detection_drop_empty_partitions(integer) SET ' || safe_path;
END $$;
REVOKE EXECUTE ON FUNCTION detection_ensure_partitions(integer), detection_drop_empty_partitions(integer) FROM PUBLIC;
""",
    """
DROP FUNCTION detection_drop_empty_partitions(integer);
ALTER FUNCTION detection_ensure_partitions(integer) SECURITY INVOKER RESET search_path;
GRANT EXECUTE ON FUNCTION detection_ensure_partitions(integer) TO PUBLIC;
""",
)
