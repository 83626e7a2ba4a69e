"""What a guard request was answered, for the attempts on Connect."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0060_attempt_times'),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='decision',
            field=models.CharField(blank=True, db_default='', default='', help_text='What a guard request was answered.', max_length=8),
        ),
    ]
