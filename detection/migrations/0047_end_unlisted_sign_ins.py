from django.db import migrations

# Sessions from before sign-ins were listed: nothing that ends the sign-ins of a person would find them.
END_UNLISTED = """
    DELETE FROM django_session
    WHERE NOT EXISTS (
        SELECT FROM detection_signin WHERE detection_signin.session_id = django_session.session_key
    )
"""


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0046_judge_disabled'),
        ('sessions', '0001_initial'),
    ]

    operations = [
        migrations.RunSQL(END_UNLISTED, migrations.RunSQL.noop),
    ]
