"""How many incidents a bulk action changed besides its targets."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0057_labelled_incidents'),
    ]

    operations = [
        migrations.AddField(
            model_name='bulkaction',
            name='along',
            field=models.IntegerField(db_default=0, default=0, help_text='Other incidents that were changed, because they are about the same calls.'),
        ),
    ]
