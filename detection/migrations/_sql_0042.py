"""SQL of the migration that lets an erasure replace a name in the audit, and nothing else."""

ERASE_FROM_AUDIT = (
    """
CREATE OR REPLACE FUNCTION detection_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE FUNCTION detection_erase_from_audit(project bigint, name text, replacement text, about text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    quoted text := to_json(name)::text;
    quoted_replacement text := to_json(replacement)::text;
    changed integer;
BEGIN
    -- Not a clause of the function: only a superuser may create one with a variable of an extension's form.
    PERFORM set_config('loopguard.erasing', 'on', true);
    UPDATE detection_auditentry SET
        subject = CASE WHEN subject = name THEN replacement ELSE subject END,
        before = CASE WHEN subject <> ALL (about) THEN replace(before::text, quoted, quoted_replacement)::jsonb END,
        after = CASE WHEN subject <> ALL (about) THEN replace(after::text, quoted, quoted_replacement)::jsonb END
    WHERE project_id = project
      AND (subject = name OR subject = ANY (about) OR position(quoted in before::text) > 0 OR position(quoted in after::text) > 0);
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM set_config('loopguard.erasing', 'off', true);
    RETURN changed;
END $$;
DO $$ BEGIN
    EXECUTE 'ALTER FUNCTION detection_erase_from_audit(bigint, text, text, text[]) SET '
            || format('search_path = %I, pg_temp', current_schema());
END $$;
REVOKE EXECUTE ON FUNCTION detection_erase_from_audit(bigint, text, text, text[]) FROM PUBLIC;
""",
    """
DROP FUNCTION detection_erase_from_audit(bigint, text, text, text[]);
CREATE OR REPLACE FUNCTION detection_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are append-only';
END $$;
""",
)
