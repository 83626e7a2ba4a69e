"""Let people label the rulings of the judge."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("detection", "0019_quarantined_events")]

    operations = [
        migrations.AddField(
            "judgecall",
            "label",
            models.CharField(
                blank=True,
                choices=[("", "Not labelled"), ("right", "Right"), ("wrong", "Wrong")],
                db_default="",
                default="",
                help_text="What people say about the ruling.",
                max_length=5,
            ),
        ),
        migrations.AddField(
            "judgecall",
            "labelled_by",
            models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
        migrations.AddField("judgecall", "labelled_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddConstraint(
            "judgecall",
            models.CheckConstraint(
                condition=models.Q(label__in=["", "right", "wrong"]), name="judge_label_known"
            ),
        ),
    ]
