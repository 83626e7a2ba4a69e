from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0007_gemini_and_unguarded_traffic'),
    ]

    operations = [
        migrations.AddField(
            model_name='membership',
            name='last_visit_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='End of the visit before this one, or when all was marked as read.', null=True),
        ),
        migrations.AddField(
            model_name='membership',
            name='seen_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When the person last opened a page.', null=True),
        ),
    ]
