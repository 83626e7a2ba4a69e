"""How many identical requests a row of attempts stands for."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0059_calls_allowed_later'),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='times',
            field=models.IntegerField(db_default=1, default=1, help_text='Identical requests within half a second are one row.'),
        ),
    ]
