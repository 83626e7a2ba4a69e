"""Find the sessions that a session has started."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("detection", "0031_abandoned_gateway_requests")]

    operations = [
        migrations.AddIndex(
            model_name="session",
            index=models.Index(
                condition=models.Q(("parent_external_id", ""), _negated=True),
                fields=["project", "parent_external_id"],
                name="session_of_parent",
            ),
        ),
    ]
