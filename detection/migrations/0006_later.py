import detection.models.tenants
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0005_search'),
    ]

    operations = [
        migrations.AlterField(
            model_name='alertsilence',
            name='baseline',
            field=models.IntegerField(blank=True, help_text='Of a loop that is put off until it gets worse: more incidents than this in 24 hours end the silence.', null=True),
        ),
        migrations.AlterField(
            model_name='alertsilence',
            name='loop',
            field=detection.models.tenants.TenantForeignKey(blank=True, db_index=False, help_text='Only this loop, which is put off.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='silences', to='detection.loop'),
        ),
    ]
