import detection.models.tenants
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0003_containment'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveIndex('incident', 'incident_by_loop'),
        migrations.RemoveIndex('incident', 'incident_of_pattern'),
        migrations.RemoveIndex('incident', 'incident_at_work'),
        migrations.RemoveIndex('incident', 'incident_without_pattern'),
        migrations.RemoveConstraint('incident', 'one_active_incident_per_loop'),
        migrations.RemoveConstraint('incident', 'one_active_incident_of_family'),
        migrations.RemoveConstraint('approval', 'one_open_approval_per_loop'),
        migrations.RemoveIndex('judgecall', 'judge_call_of_loop'),
        migrations.RemoveIndex('alertsilence', 'silence_of_pattern'),
        migrations.RemoveIndex('incidentactivity', 'activity_pattern_change'),
        migrations.RemoveConstraint('pattern', 'pattern_id'),
        migrations.RemoveConstraint('pattern', 'one_pattern_per_identity'),
        migrations.RemoveConstraint('pattern', 'pattern_label_known'),
        migrations.RemoveIndex('pattern', 'pattern_of_person'),
        migrations.RemoveConstraint('patternactivity', 'pattern_change_reverted_once'),
        migrations.RemoveIndex('patternactivity', 'pattern_activity_unfinished'),
        migrations.RenameModel('Pattern', 'Loop'),
        migrations.RenameModel('PatternActivity', 'LoopActivity'),
        migrations.RenameField('incident', 'loop_id', 'calls_digest'),
        migrations.RenameField('approval', 'loop_id', 'calls_digest'),
        migrations.RenameField('judgecall', 'loop_id', 'calls_digest'),
        migrations.RenameField('alertsilence', 'loop_id', 'calls_digest'),
        migrations.RenameField('incident', 'pattern', 'loop'),
        migrations.RenameField('alertsilence', 'pattern', 'loop'),
        migrations.RenameField('incidentactivity', 'pattern_change', 'loop_change'),
        migrations.RenameField('loopactivity', 'pattern', 'loop'),
        migrations.AlterModelOptions(
            name='loopactivity',
            options={'ordering': ('at', 'id'), 'verbose_name_plural': 'loop activity'},
        ),
        migrations.AlterField(
            model_name='alertsilence',
            name='baseline',
            field=models.IntegerField(blank=True, help_text='Of a loop that is muted until it gets worse: more incidents than this in 24 hours end the silence.', null=True),
        ),
        migrations.AlterField(
            model_name='alertsilence',
            name='loop',
            field=detection.models.tenants.TenantForeignKey(blank=True, db_index=False, help_text='Only this loop, which is muted.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='silences', to='detection.loop'),
        ),
        migrations.AlterField(
            model_name='bulkaction',
            name='list',
            field=models.CharField(help_text='Name of the list: incidents or loops.', max_length=16),
        ),
        migrations.AlterField(
            model_name='incident',
            name='calls_digest',
            field=models.CharField(help_text='Digest of the detector and the calls: the same calls in other sessions have the same.', max_length=32),
        ),
        migrations.AlterField(
            model_name='incidentactivity',
            name='loop_change',
            field=detection.models.tenants.TenantForeignKey(db_index=False, help_text='The action on the loop that it is a part of.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='incident_activity', to='detection.loopactivity'),
        ),
        migrations.AlterField(
            model_name='loop',
            name='project',
            field=detection.models.tenants.ProjectKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='loops', to='detection.project'),
        ),
        migrations.AlterField(
            model_name='loopactivity',
            name='bulk_action',
            field=detection.models.tenants.TenantForeignKey(help_text='The action on many loops that it is a part of.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='loop_activity', to='detection.bulkaction'),
        ),
        migrations.AddIndex(
            model_name='alertsilence',
            index=models.Index(condition=models.Q(('loop__isnull', False)), fields=['loop', '-ends_at'], name='silence_of_loop'),
        ),
        migrations.AddIndex(
            model_name='incident',
            index=models.Index(fields=['project', 'calls_digest'], name='incident_by_calls'),
        ),
        migrations.AddIndex(
            model_name='incident',
            index=models.Index(fields=['loop', '-last_seen_at', '-id'], name='incident_in_loop'),
        ),
        migrations.AddIndex(
            model_name='incident',
            index=models.Index(condition=models.Q(('status__in', ('open', 'acknowledged', 'snoozed'))), fields=['project', 'status', 'loop'], name='incident_at_work'),
        ),
        migrations.AddIndex(
            model_name='incident',
            index=models.Index(condition=models.Q(('loop', None)), fields=['id'], name='incident_without_loop'),
        ),
        migrations.AddIndex(
            model_name='incidentactivity',
            index=models.Index(condition=models.Q(('loop_change__isnull', False)), fields=['loop_change'], name='activity_loop_change'),
        ),
        migrations.AddIndex(
            model_name='judgecall',
            index=models.Index(fields=['session_id', 'calls_digest'], name='judge_call_of_loop'),
        ),
        migrations.AddIndex(
            model_name='loop',
            index=models.Index(condition=models.Q(('assignee__isnull', False)), fields=['assignee'], name='loop_of_person'),
        ),
        migrations.AddIndex(
            model_name='loopactivity',
            index=models.Index(condition=models.Q(('finished_at', None)), fields=['id'], name='loop_activity_unfinished'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'open')), fields=('project', 'session', 'calls_digest'), name='one_open_approval_per_loop'),
        ),
        migrations.AddConstraint(
            model_name='incident',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at__isnull', True), ('is_of_family', False)), fields=('project', 'session', 'calls_digest'), name='one_active_incident_per_loop'),
        ),
        migrations.AddConstraint(
            model_name='incident',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at__isnull', True), ('is_of_family', True)), fields=('project', 'session_name', 'calls_digest'), name='one_active_incident_of_family'),
        ),
        migrations.AddConstraint(
            model_name='loop',
            constraint=models.UniqueConstraint(fields=('project', 'public_id'), name='loop_id'),
        ),
        migrations.AddConstraint(
            model_name='loop',
            constraint=models.UniqueConstraint(fields=('project', 'key'), name='one_loop_per_identity'),
        ),
        migrations.AddConstraint(
            model_name='loop',
            constraint=models.CheckConstraint(condition=models.Q(('label__in', ['', 'true_loop', 'false_alarm'])), name='loop_label_known'),
        ),
        migrations.AddConstraint(
            model_name='loopactivity',
            constraint=models.UniqueConstraint(fields=('project', 'reverts'), name='loop_change_reverted_once'),
        ),
    ]
