from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0006_later'),
    ]

    operations = [
        migrations.AddField(
            model_name='gatewaytraffic',
            name='unguarded',
            field=models.BigIntegerField(db_default=0, default=0, help_text='Requests of paths that are not guarded, except for lists of models and counts of tokens.'),
        ),
        migrations.AlterField(
            model_name='gatewaybackend',
            name='kind',
            field=models.CharField(choices=[('openai', 'OpenAI: chat completions and responses'), ('anthropic', 'Anthropic: messages'), ('gemini', 'Google: Gemini')], default='openai', max_length=12),
        ),
        migrations.RemoveConstraint(model_name='gatewaybackend', name='gateway_backend_kind_known'),
        migrations.AddConstraint(
            model_name='gatewaybackend',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['openai', 'anthropic', 'gemini'])), name='gateway_backend_kind_known'),
        ),
    ]
