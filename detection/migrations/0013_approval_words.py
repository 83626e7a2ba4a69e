"""Rename remembered choices to decisions and raised_by to raise_by, keeping all rows; reword help texts."""

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import detection.models.keys

_FORWARD = """
UPDATE detection_approval SET reason = 'expired' WHERE reason = 'unanswered';
UPDATE detection_incidentactivity SET action = 'approval_requested' WHERE action = 'asked';
UPDATE detection_incidentactivity SET action = 'approval_decided' WHERE action = 'decided';
UPDATE detection_incidentactivity SET action = 'approval_expired' WHERE action = 'unanswered';
UPDATE detection_incidentactivity SET action = 'approval_withdrawn' WHERE action = 'withdrawn';
UPDATE detection_alertevent SET facts = (facts - 'question') || jsonb_build_object(
    'approval', ((facts->'question') - 'raised_by' - 'answered_by') || jsonb_build_object(
        'raise_by', facts->'question'->'raised_by',
        'decided_by', facts->'question'->'answered_by',
        'state', CASE facts->'question'->>'state' WHEN 'answered' THEN 'decided' ELSE facts->'question'->>'state' END,
        'reason', CASE facts->'question'->>'reason' WHEN 'answered' THEN 'decided' WHEN 'unanswered' THEN 'expired'
            WHEN 'refused' THEN 'skipped' ELSE facts->'question'->>'reason' END))
WHERE jsonb_exists(facts, 'question');
"""


class Migration(migrations.Migration):
    dependencies = [("detection", "0012_alert_words")]

    operations = [
        migrations.RemoveConstraint("rememberedchoice", "one_remembered_choice"),
        migrations.RemoveConstraint("messagetemplate", "one_text_per_rung_and_shape"),
        migrations.RenameModel("RememberedChoice", "RememberedDecision"),
        migrations.RenameField("remembereddecision", "raised_by", "raise_by"),
        migrations.RenameField("approval", "raised_by", "raise_by"),
        migrations.RunSQL(_FORWARD, migrations.RunSQL.noop),
        migrations.AlterField(
            "remembereddecision",
            "project",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="remembered_decisions",
                to="detection.project",
            ),
        ),
        migrations.AlterField(
            "approval",
            "raise_by",
            models.IntegerField(default=0, help_text="By how much the limit is raised."),
        ),
        migrations.AddConstraint(
            "remembereddecision",
            models.UniqueConstraint(
                fields=("project", "agent", "tool", "kind"), name="one_remembered_decision"
            ),
        ),
        migrations.AddConstraint(
            "messagetemplate",
            models.UniqueConstraint(
                fields=("project", "rung", "shape"), name="one_template_per_rung_and_shape"
            ),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='scopes',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('ingest', 'Ingest: send events'), ('guard', 'Guard: evaluate calls'), ('read', 'Read: sessions, incidents, policies'), ('admin', 'Admin: change sessions, incidents and policies')], max_length=16), default=detection.models.keys.all_scopes, size=None),
        ),
        migrations.AlterField(
            model_name='approval',
            name='held_calls',
            field=models.IntegerField(default=1, help_text='How many calls wait for the decision.'),
        ),
        migrations.AlterField(
            model_name='approval',
            name='message',
            field=models.CharField(blank=True, default='', help_text='Message for the agent.', max_length=2000),
        ),
        migrations.AlterField(
            model_name='approval',
            name='seq',
            field=models.IntegerField(help_text='Sequence number of the held call.'),
        ),
        migrations.AlterField(
            model_name='approval',
            name='state',
            field=models.CharField(choices=[('open', 'Open'), ('decided', 'Decided'), ('expired', 'Expired'), ('withdrawn', 'Withdrawn')], default='open', max_length=10),
        ),
        migrations.AlterField(
            model_name='approval',
            name='summary',
            field=models.CharField(help_text='What was detected, as a sentence.', max_length=300),
        ),
        migrations.AlterField(
            model_name='approval',
            name='unit',
            field=models.CharField(blank=True, default='', help_text='Unit of a budget.', max_length=16),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='code',
            field=models.CharField(blank=True, default='', help_text='Stable code of the error.', max_length=48),
        ),
        migrations.AlterField(
            model_name='attempt',
            name='key_hint',
            field=models.CharField(blank=True, default='', help_text='The part of the key that may be shown.', max_length=24),
        ),
        migrations.AlterField(
            model_name='auditentry',
            name='action',
            field=models.CharField(help_text='What was done, as in session.stop, policy.save or key.create.', max_length=64),
        ),
        migrations.AlterField(
            model_name='auditentry',
            name='subject',
            field=models.CharField(help_text='What was changed.', max_length=300),
        ),
        migrations.AlterField(
            model_name='incident',
            name='decision',
            field=models.CharField(help_text='The strictest decision so far.', max_length=8),
        ),
        migrations.AlterField(
            model_name='incident',
            name='last_call_number',
            field=models.IntegerField(default=0, help_text='Number of calls in the session at the last finding.'),
        ),
        migrations.AlterField(
            model_name='incident',
            name='loop_id',
            field=models.CharField(help_text='Id of the pattern: the same loop in other sessions has the same id.', max_length=32),
        ),
        migrations.AlterField(
            model_name='incident',
            name='recovered',
            field=models.BooleanField(blank=True, help_text='Whether the agent recovered after the last reaction.', null=True),
        ),
        migrations.AlterField(
            model_name='incident',
            name='was_guarded',
            field=models.BooleanField(default=False, help_text='Whether calls were sent to the guard. Observed calls are never blocked.'),
        ),
        migrations.AlterField(
            model_name='incidentactivity',
            name='actor',
            field=models.CharField(help_text='A user name, key:<id> or system.', max_length=150),
        ),
        migrations.AlterField(
            model_name='incidentactivity',
            name='before',
            field=models.JSONField(default=dict, help_text='Changed fields with their previous values, for undo.'),
        ),
        migrations.AlterField(
            model_name='limitnotice',
            name='seq',
            field=models.IntegerField(help_text='Sequence number of the call that crossed the threshold.'),
        ),
        migrations.AlterField(
            model_name='limitnotice',
            name='unit',
            field=models.CharField(help_text='Unit of the limit: rounds, calls, seconds …', max_length=16),
        ),
        migrations.AlterField(
            model_name='membership',
            name='role',
            field=models.CharField(choices=[('viewer', 'Viewer: sees everything in the project'), ('operator', 'Operator: handles incidents, stops and resumes sessions'), ('admin', 'Admin: changes settings, keys and members')], default='viewer', max_length=16),
        ),
        migrations.AlterField(
            model_name='project',
            name='policy_version',
            field=models.BigIntegerField(default=1, editable=False, help_text='Increases with every change of a setting or message template that applies to this project.'),
        ),
        migrations.AlterField(
            model_name='project',
            name='retention_days',
            field=models.PositiveIntegerField(default=30, help_text='Sessions and calls are deleted after this time. Incidents keep their evidence.', validators=[django.core.validators.MinValueValidator(7), django.core.validators.MaxValueValidator(3650)]),
        ),
        migrations.AlterField(
            model_name='project',
            name='stores_payloads',
            field=models.BooleanField(default=True, help_text='If disabled, arguments and results are stored as digests only. Detection still works.'),
        ),
        migrations.AlterField(
            model_name='session',
            name='pending_since',
            field=models.DateTimeField(blank=True, help_text='When the oldest unevaluated event was received.', null=True),
        ),
        migrations.AlterField(
            model_name='session',
            name='policy_values',
            field=models.JSONField(default=dict, help_text='Overrides of this session.'),
        ),
        migrations.AlterField(
            model_name='session',
            name='quarantined',
            field=models.JSONField(default=list, help_text='Quarantined events: [{seq, error}].'),
        ),
    ]
