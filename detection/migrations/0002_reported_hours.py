"""Spike protection: what projects report by the hour, and what happens above their limit."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import detection.models.tenants


class Migration(migrations.Migration):

    dependencies = [('detection', '0001_tables')]

    operations = [
        migrations.CreateModel('ReportedHour', [
            ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
            ('project', detection.models.tenants.ProjectKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='reported_hours', to='detection.project')),
            ('hour', models.DateTimeField()),
            ('events', models.BigIntegerField(default=0, help_text='Valid events, duplicates included.')),
            ('minute', models.SmallIntegerField(default=0, help_text='The newest minute with any, from 0 to 59.')),
            ('minute_events', models.BigIntegerField(default=0, help_text='Those of this minute.')),
            ('rejected', models.BigIntegerField(default=0, help_text='Requests answered with 429 above the limit.')),
            ('sampled', models.BigIntegerField(default=0, help_text='Events above the limit that were not stored.')),
            ('spiked_at', models.DateTimeField(help_text='When the rate was last above the limit.', null=True)),
        ], {'constraints': [models.UniqueConstraint(fields=('project', 'hour'), name='reported_by_the_hour')]}),
        migrations.AddField('project', 'spike_action', models.CharField(choices=[('observe', 'Store them all, and say so'), ('sample', 'Store one session in ten'), ('reject', 'Reject them with 429; senders try again')], db_default='observe', default='observe', help_text='What happens to reported events above the limit. The guard always answers.', max_length=8)),
        migrations.AddField('project', 'spike_limit', models.PositiveIntegerField(db_default=0, default=0, help_text='Reported events in a minute. 0: ten times the usual rate, and at least 3,000.', validators=[django.core.validators.MaxValueValidator(100000000)])),
        migrations.AddConstraint('project', models.CheckConstraint(condition=models.Q(('spike_action__in', ['observe', 'sample', 'reject'])), name='spike_action_known')),
    ]
