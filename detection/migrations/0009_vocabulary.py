"""Rename questions to approvals, waiting sessions to held ones, and parked events to quarantined ones, keeping all rows."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


_TRANSITIONS = [
    ("opened", "Opened"),
    ("escalated", "Got worse"),
    ("woke", "Woke from a snooze"),
    ("ended", "Ended"),
    ("acknowledged", "Acknowledged"),
    ("snoozed", "Snoozed"),
    ("resolved", "Resolved"),
    ("reopened", "Reopened"),
    ("labelled", "Labelled"),
    ("undone", "Taken back"),
    ("still_open", "Still open"),
    ("session.near_limit", "A session has used most of a limit"),
    ("approval.requested", "A call waits for approval"),
    ("approval.closed", "An approval was decided or expired"),
]

# Each row at most once: one that is updated twice has foreign keys to check at commit, and the indexes that follow cannot wait.
_RENAME_VALUES = """
UPDATE detection_approval SET state = CASE state WHEN 'answered' THEN 'decided' ELSE state END,
    reason = CASE reason WHEN 'answered' THEN 'decided' ELSE reason END
WHERE 'answered' IN (state, reason);
UPDATE detection_event SET verdict = verdict - 'question' || jsonb_build_object('approval', verdict->'question')
WHERE jsonb_exists(verdict, 'question');
UPDATE detection_session SET state = 'held' WHERE state = 'waiting';
UPDATE detection_alerttransition SET transition = 'approval.requested' WHERE transition = 'question.asked';
UPDATE detection_alerttransition SET transition = 'approval.closed' WHERE transition = 'question.closed';
UPDATE detection_alertroute SET transitions =
    array_replace(array_replace(transitions, 'question.asked', 'approval.requested'), 'question.closed', 'approval.closed');
UPDATE detection_incidentactivity SET action = 'approval_requested' WHERE action = 'asked';
UPDATE detection_incidentactivity SET action = 'decided' WHERE action = 'answered';
"""


class Migration(migrations.Migration):
    dependencies = [("detection", "0008_rare_sessions")]

    operations = [
        migrations.RemoveConstraint("question", "one_open_question_per_loop"),
        migrations.RemoveConstraint("question", "question_state_known"),
        migrations.RemoveConstraint("question", "question_open_or_decided"),
        migrations.RemoveConstraint("session", "session_state_known"),
        migrations.RemoveIndex("session", "session_remarkable"),
        migrations.RemoveIndex("session", "session_parked"),
        migrations.RemoveIndex("question", "question_newest"),
        migrations.RenameModel("Question", "Approval"),
        migrations.RenameField("approval", "asked_of", "decider"),
        migrations.RenameField("approval", "asked_at", "requested_at"),
        migrations.RenameField("approval", "answered_by", "decided_by"),
        migrations.RenameField("approval", "answered_at", "decided_at"),
        migrations.RenameField("judgecall", "question", "approval"),
        migrations.RenameField("incident", "was_asked", "was_guarded"),
        migrations.RenameField("session", "parked", "quarantined"),
        migrations.RenameIndex("approval", new_name="approval_due", old_name="question_due"),
        migrations.RenameIndex("approval", new_name="approval_of_call", old_name="question_of_call"),
        migrations.RunSQL(_RENAME_VALUES, migrations.RunSQL.noop),
        migrations.AlterModelOptions(
            name="approval",
            options={"ordering": ("-requested_at", "-id")},
        ),
        migrations.AlterField(
            model_name="alertroute",
            name="transitions",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(choices=_TRANSITIONS, max_length=20), default=list, size=None
            ),
        ),
        migrations.AlterField(
            model_name="alerttransition",
            name="transition",
            field=models.CharField(choices=_TRANSITIONS, max_length=20),
        ),
        migrations.AlterField(
            model_name="approval",
            name="incident",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="approvals",
                to="detection.incident",
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="project",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="approvals", to="detection.project"
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="session",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="approvals", to="detection.session"
            ),
        ),
        migrations.AlterField(
            model_name="approval",
            name="state",
            field=models.CharField(
                choices=[
                    ("open", "Waiting"),
                    ("decided", "Decided"),
                    ("expired", "Nobody answered in time"),
                    ("withdrawn", "Withdrawn"),
                ],
                default="open",
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="session",
            name="state",
            field=models.CharField(
                choices=[
                    ("running", "Running"),
                    ("looping", "Looping"),
                    ("held", "Held"),
                    ("stopped", "Stopped"),
                    ("ended", "Ended"),
                ],
                default="running",
                max_length=16,
            ),
        ),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(fields=["project", "-requested_at", "-id"], name="approval_newest"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("state__in", ("looping", "held", "stopped"))),
                fields=["project", "-last_event_at", "-id"],
                name="session_remarkable",
            ),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("quarantined", []), _negated=True),
                fields=["project"],
                name="session_quarantined",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "open")),
                fields=("session", "loop_id"),
                name="one_open_approval_per_loop",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["open", "decided", "expired", "withdrawn"])),
                name="approval_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("decided_at__isnull", True), ("decision", ""), ("state", "open")),
                    models.Q(
                        models.Q(("state", "open"), _negated=True),
                        ("decided_at__isnull", False),
                        ("decision__in", ("allow", "block", "stop")),
                    ),
                    _connector="OR",
                ),
                name="approval_open_or_decided",
            ),
        ),
        migrations.AddConstraint(
            model_name="session",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["running", "looping", "held", "stopped", "ended"])),
                name="session_state_known",
            ),
        ),
    ]
