"""The index that contents are searched with."""

import django.db.models.deletion
from django.db import migrations, models

import detection.models.tenants


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0004_loops'),
    ]

    operations = [
        migrations.AddField(
            model_name='project',
            name='is_searchable',
            field=models.BooleanField(db_default=True, default=True, help_text='If disabled, no index of arguments, results and messages is kept, and they cannot be searched.'),
        ),
        migrations.CreateModel(
            name='IndexingCursor',
            fields=[
                ('id', models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('seen_xid', models.BigIntegerField(default=0)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='one_indexing_cursor')],
            },
        ),
        migrations.CreateModel(
            name='SearchBlock',
            fields=[
                ('pk', models.CompositePrimaryKey('project_id', 'session_id', 'first_seq', blank=True, editable=False, primary_key=True, serialize=False)),
                ('project', detection.models.tenants.ProjectKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='detection.project')),
                ('session', detection.models.tenants.TenantForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='detection.session')),
                ('first_seq', models.IntegerField()),
                ('last_seq', models.IntegerField()),
                ('calls', models.IntegerField(help_text='Number of calls among the events.')),
                ('bare_calls', models.IntegerField(help_text='Of these, calls stored without their arguments.')),
                ('events', models.IntegerField(help_text='Number of events with a text.')),
                ('bits', models.IntegerField(help_text='Length of the signature in bits.')),
                ('signature', models.BinaryField()),
            ],
        ),
        # A signature is read with every other one, and hardly gets smaller by compression.
        migrations.RunSQL(
            "ALTER TABLE detection_searchblock ALTER COLUMN signature SET STORAGE EXTERNAL,"
            " SET (fillfactor = 80)",
            "",
        ),
    ]
