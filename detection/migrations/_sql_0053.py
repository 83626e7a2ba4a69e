"""SQL of the migration that has an erasure remove more from the audit."""

ERASE_FROM_AUDIT = r"""
CREATE OR REPLACE FUNCTION detection_erase_from_audit(project bigint, name text, replacement text, about text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    changed integer;
    -- Of exceptions and silences that name an incident; ids hold no character with a meaning in an expression.
    noted CONSTANT text := '(' || coalesce(nullif(array_to_string(
        ARRAY(SELECT one FROM unnest(about) AS one WHERE one ~ '^inc_\w+$'), '|'), ''), 'none') || ')\)?$';
BEGIN
    PERFORM set_config('loopguard.erasing', 'on', true);
    UPDATE detection_auditentry SET
        subject = CASE WHEN (subject = name AND action LIKE 'session.%')
                         OR (subject = ANY (about) AND (action LIKE 'view.%' OR action IN ('approval.remember', 'approval.forget')))
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
DO $$ BEGIN
    -- Replacing a function removes its settings.
    EXECUTE 'ALTER FUNCTION detection_erase_from_audit(bigint, text, text, text[]) SET '
            || format('search_path = %I, pg_temp', current_schema());
END $$;
"""
