"""Containments, tags and metadata, and messages of people for agents."""

import detection.models.agent_messages
import detection.models.containments
import detection.models.tenants
import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0002_session_reach'),
    ]

    operations = [
        migrations.CreateModel(
            name='AgentMessage',
            fields=[
                ('project', detection.models.tenants.ProjectKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='agent_messages', to='detection.project')),
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=detection.models.agent_messages.new_message_id, editable=False, max_length=32)),
                ('session', models.CharField(blank=True, default='', help_text='Name of the session.', max_length=256)),
                ('agent', models.CharField(blank=True, default='', max_length=128)),
                ('text', models.CharField(max_length=1000)),
                ('created_by', models.CharField(max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('delivered_at', models.DateTimeField(blank=True, null=True)),
                ('delivered_to', models.CharField(blank=True, default='', help_text='Name of the session whose agent got it.', max_length=256)),
                ('withdrawn_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ('-created_at', '-id'),
            },
        ),
        migrations.CreateModel(
            name='AgentTags',
            fields=[
                ('project', detection.models.tenants.ProjectKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='agent_tags', to='detection.project')),
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('agent', models.CharField(max_length=128)),
                ('tags', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), size=None)),
            ],
        ),
        migrations.CreateModel(
            name='Containment',
            fields=[
                ('project', models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='containments', to='detection.project')),
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=detection.models.containments.new_containment_id, editable=False, max_length=32, unique=True)),
                ('scope', models.CharField(choices=[('agent_tool', 'Tool of an agent'), ('tool', 'Tool'), ('family', 'Family'), ('agent', 'Agent'), ('model', 'Model'), ('tag', 'Tag'), ('key', 'Key'), ('project', 'Project'), ('server', 'Server')], max_length=12)),
                ('value', models.CharField(blank=True, default='', help_text='Name in the scope; of a family, its top session.', max_length=256)),
                ('tool', models.CharField(blank=True, default='', help_text='For the tool of an agent.', max_length=128)),
                ('reaction', models.CharField(choices=[('stop', 'Stop'), ('hold', 'Hold'), ('block', 'Block')], max_length=8)),
                ('reason', models.CharField(blank=True, default='', max_length=300)),
                ('until', models.DateTimeField(blank=True, null=True)),
                ('include_new', models.BooleanField(default=True, help_text='Whether it covers sessions that start later.')),
                ('can_stop', models.IntegerField(default=0, help_text='Sessions that it could stop when it was created.')),
                ('can_block', models.IntegerField(default=0)),
                ('watch_only', models.IntegerField(default=0)),
                ('created_by', models.CharField(max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('lifted_by', models.CharField(blank=True, default='', max_length=150)),
                ('lifted_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ('-created_at', '-id'),
            },
        ),
        migrations.RemoveConstraint(
            model_name='session',
            name='session_stop_has_kind_and_time',
        ),
        migrations.AddField(
            model_name='apikey',
            name='tags',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), blank=True, db_default=[], default=list, size=None),
        ),
        migrations.AddField(
            model_name='session',
            name='api_key',
            field=models.CharField(blank=True, db_default='', default='', help_text='Readable part of the key that its newest events came with.', max_length=16),
        ),
        migrations.AddField(
            model_name='session',
            name='metadata',
            field=models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            model_name='session',
            name='tags',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), db_default=[], default=list, size=None),
        ),
        migrations.AlterField(
            model_name='session',
            name='stopped_by_kind',
            field=models.CharField(blank=True, choices=[('', 'Not stopped'), ('person', 'Person'), ('detection', 'Detection'), ('containment', 'Containment')], db_default='', default='', max_length=16),
        ),
        migrations.AddIndex(
            model_name='session',
            index=django.contrib.postgres.indexes.GinIndex(condition=models.Q(('tags', []), _negated=True), fields=['tags'], name='session_with_tags'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.indexes.OpClass('metadata', name='jsonb_path_ops'), condition=models.Q(('metadata', {}), _negated=True), name='session_with_metadata'),
        ),
        migrations.AddConstraint(
            model_name='session',
            constraint=models.CheckConstraint(condition=django.db.models.expressions.RawSQL('(stopped_by_kind = \'\') = (stopped_at IS NULL) AND stopped_by_kind = ANY (\'{"",person,detection,containment}\'::text[])', (), models.BooleanField()), name='session_stop_has_kind_and_time'),
        ),
        migrations.AddIndex(
            model_name='agentmessage',
            index=models.Index(condition=models.Q(('delivered_at__isnull', True), ('withdrawn_at__isnull', True)), fields=['project'], name='agent_message_waiting'),
        ),
        migrations.AddConstraint(
            model_name='agentmessage',
            constraint=models.UniqueConstraint(fields=('project', 'public_id'), name='agent_message_id'),
        ),
        migrations.AddConstraint(
            model_name='agentmessage',
            constraint=models.CheckConstraint(condition=models.Q(('session', ''), ('agent', ''), _connector='XOR'), name='agent_message_for_one'),
        ),
        migrations.AddConstraint(
            model_name='agenttags',
            constraint=models.UniqueConstraint(fields=('project', 'agent'), name='tags_once_per_agent'),
        ),
        migrations.AddIndex(
            model_name='containment',
            index=models.Index(condition=models.Q(('lifted_at__isnull', True)), fields=['project'], name='containment_not_lifted'),
        ),
        migrations.AddIndex(
            model_name='containment',
            index=models.Index(fields=['project', '-created_at', '-id'], name='containment_newest'),
        ),
        migrations.AddConstraint(
            model_name='containment',
            constraint=models.CheckConstraint(condition=models.Q(('scope__in', ['agent_tool', 'tool', 'family', 'agent', 'model', 'tag', 'key', 'project', 'server'])), name='containment_scope_known'),
        ),
        migrations.AddConstraint(
            model_name='containment',
            constraint=models.CheckConstraint(condition=models.Q(('reaction__in', ['stop', 'hold', 'block'])), name='containment_reaction_known'),
        ),
        migrations.AddConstraint(
            model_name='containment',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('project', None), ('scope', 'server')), models.Q(models.Q(('scope', 'server'), _negated=True), ('project__isnull', False)), _connector='OR'), models.Q(models.Q(('scope__in', ('project', 'server')), ('value', '')), models.Q(models.Q(('scope__in', ('project', 'server')), _negated=True), models.Q(('value', ''), _negated=True)), _connector='OR'), models.Q(('scope', 'agent_tool'), ('tool', ''), _connector='XOR')), name='containment_names_its_scope'),
        ),
    ]
