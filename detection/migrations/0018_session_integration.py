"""Store how the events of a session come in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("detection", "0017_limit_notice_calls")]

    operations = [
        migrations.AddField(
            "session",
            "integration",
            models.CharField(
                max_length=32,
                blank=True,
                default="",
                db_default="",
                help_text="How its first event came: guard, events, hooks/<host> or import/<form>.",
            ),
        ),
    ]
