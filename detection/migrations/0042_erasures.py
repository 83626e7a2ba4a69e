"""Erasures, and the one change of the audit that they may make."""

import detection.models.erasures
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

from detection.migrations import _sql_0042


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0041_sign_ins_and_second_factors'),
    ]

    operations = [
        migrations.CreateModel(
            name='Erasure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=detection.models.erasures.new_erasure_id, editable=False, max_length=32, unique=True)),
                ('of', models.CharField(choices=[('session', 'Session'), ('agent', 'All sessions of an agent')], max_length=8)),
                ('name', models.CharField(blank=True, default='', max_length=256)),
                ('name_digest', models.CharField(help_text="Digest of the name under the project's secret.", max_length=32)),
                ('requested_by', models.CharField(max_length=150)),
                ('requested_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('finished_at', models.DateTimeField(null=True)),
                ('removed', models.JSONField(default=dict, help_text='How many rows of each kind.')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='erasures', to='detection.project')),
            ],
            options={
                'ordering': ('-id',),
                'indexes': [models.Index(fields=['project', '-id'], name='erasure_newest'), models.Index(condition=models.Q(('finished_at', None)), fields=['id'], name='erasure_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(('of__in', ('session', 'agent'))), name='erasure_known'), models.CheckConstraint(condition=models.Q(('finished_at', None), ('name', ''), _connector='XOR'), name='erasure_forgets_the_name')],
            },
        ),
        migrations.RunSQL(*_sql_0042.ERASE_FROM_AUDIT),
    ]
