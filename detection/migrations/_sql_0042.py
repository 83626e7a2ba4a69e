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
    changed integer;
BEGIN
    -- Not a clause of the function: only a superuser may create one with a variable of an extension's form.
    PERFORM set_config('loopguard.erasing', 'on', true);
    UPDATE detection_auditentry SET
        subject = CASE WHEN subject = name AND action LIKE 'session.%' THEN replacement ELSE subject END,
        before = CASE WHEN subject = ANY (about) THEN NULL
                      WHEN before->>'session' = name THEN jsonb_set(before, '{session}', to_jsonb(replacement))
                      WHEN before#>>'{change,session}' = name
                      THEN jsonb_set(before, '{change,session}', to_jsonb(replacement)) ELSE before END,
        after = CASE WHEN subject = ANY (about) THEN NULL
                     WHEN after->>'session' = name THEN jsonb_set(after, '{session}', to_jsonb(replacement))
                     WHEN after#>>'{change,session}' = name
                     THEN jsonb_set(after, '{change,session}', to_jsonb(replacement)) ELSE after END
    WHERE project_id = project
      AND ((subject = name AND action LIKE 'session.%') OR subject = ANY (about)
           OR name IN (before->>'session', after->>'session', before#>>'{change,session}', after#>>'{change,session}'));
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
