"""Rename alert transitions to events and deliveries to notifications, and the settings of routes, keeping all rows."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import detection.models.alerts

_TYPES = [
    ("opened", "Opened"),
    ("escalated", "Escalated"),
    ("woke", "Snooze ended"),
    ("ended", "Ended"),
    ("acknowledged", "Acknowledged"),
    ("snoozed", "Snoozed"),
    ("resolved", "Resolved"),
    ("reopened", "Reopened"),
    ("labelled", "Labelled"),
    ("undone", "Undone"),
    ("still_open", "Still open"),
    ("session.near_limit", "A session has used most of a budget"),
    ("approval.requested", "A call waits for approval"),
    ("approval.closed", "An approval was decided or expired"),
]
_SEVERITIES = [
    ("info", "Info: recorded only"),
    ("warning", "Warning: the agent was warned"),
    ("high", "High: a call was blocked or held"),
    ("critical", "Critical: the session was stopped"),
]
_OUTCOMES = [
    ("accepted", "Accepted: more rounds were granted"),
    ("denied", "Denied"),
    ("unclear", "Unclear, so denied"),
    ("failed", "Failed, so denied"),
    ("skipped", "Not consulted, so denied"),
    ("obeyed", "Followed instructions in its data, so the judge is disabled"),
]


class Migration(migrations.Migration):
    dependencies = [("detection", "0011_session_state")]

    operations = [
        migrations.RemoveConstraint("alertroute", "repeat_within_thirty_days"),
        migrations.RemoveConstraint("alertdeliveryitem", "one_message_per_transition"),
        migrations.RemoveConstraint("alertattempt", "attempt_numbered_once"),
        migrations.RemoveConstraint("judgecall", "judge_outcome_known"),
        migrations.RenameModel("AlertTransition", "AlertEvent"),
        migrations.RenameModel("AlertDelivery", "Notification"),
        migrations.RenameModel("AlertDeliveryItem", "NotificationItem"),
        migrations.RenameModel("AlertAttempt", "DeliveryAttempt"),
        migrations.RenameField("alertevent", "transition", "type"),
        migrations.RenameField("notificationitem", "delivery", "notification"),
        migrations.RenameField("notificationitem", "transition", "event"),
        migrations.RenameField("deliveryattempt", "delivery", "notification"),
        migrations.RenameField("deliveryattempt", "answer", "response"),
        migrations.RenameField("judgecall", "answer", "response"),
        migrations.RenameField("alertroute", "transitions", "event_types"),
        migrations.RenameField("alertroute", "goes_on", "continue_matching"),
        migrations.RenameField("alertroute", "quiet_holds_critical", "quiet_delays_critical"),
        migrations.RenameField("alertroute", "repeat_hours", "repeat_interval_hours"),
        migrations.RenameIndex("notification", new_name="notification_newest", old_name="delivery_newest"),
        migrations.RenameIndex("notification", new_name="notification_open", old_name="delivery_open"),
        migrations.RenameIndex("notification", new_name="notification_group", old_name="delivery_group"),
        migrations.RenameIndex("notification", new_name="notification_age", old_name="delivery_age"),
        migrations.RunSQL(
            """
            UPDATE detection_judgecall SET outcome = 'skipped' WHERE outcome = 'refused';
            UPDATE detection_approval SET reason = 'skipped' WHERE reason = 'refused';
            """,
            """
            UPDATE detection_judgecall SET outcome = 'refused' WHERE outcome = 'skipped';
            UPDATE detection_approval SET reason = 'refused' WHERE reason = 'skipped';
            """,
        ),
        migrations.AlterModelOptions("notification", {"ordering": ("-created_at", "-id")}),
        migrations.AlterModelOptions("notificationitem", {"ordering": ("event_id",)}),
        migrations.AlterField(
            "alertevent",
            "incident",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="alert_events",
                to="detection.incident",
            ),
        ),
        migrations.AlterField(
            "alertevent",
            "silence",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="suppressed_events",
                to="detection.alertsilence",
            ),
        ),
        migrations.AlterField(
            "alertevent",
            "state",
            models.CharField(
                choices=[
                    ("pending", "Waiting for routing"),
                    ("routed", "Routed"),
                    ("silenced", "Silenced"),
                    ("unrouted", "Matched no route"),
                    ("failed", "Routing failed"),
                ],
                default="pending",
                max_length=8,
            ),
        ),
        migrations.AlterField("alertevent", "type", models.CharField(choices=_TYPES, max_length=20)),
        migrations.AlterField(
            "alertroute",
            "event_types",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(choices=_TYPES, max_length=20),
                default=list,
                help_text="Empty: every type.",
                size=None,
            ),
        ),
        *(
            migrations.AlterField(
                model,
                "severities",
                django.contrib.postgres.fields.ArrayField(
                    base_field=models.CharField(choices=_SEVERITIES, max_length=8),
                    blank=True,
                    default=list,
                    size=None,
                ),
            )
            for model in ("alertroute", "alertsilence")
        ),
        migrations.AlterField(
            "alertroute",
            "continue_matching",
            models.BooleanField(
                default=False, help_text="Continue with the next routes after this one matched."
            ),
        ),
        migrations.AlterField(
            "alertroute",
            "repeat_interval_hours",
            models.IntegerField(
                default=0, help_text="Notify again while an incident is open and unacknowledged. 0: never."
            ),
        ),
        migrations.AlterField(
            "alertsilence",
            "loop_id",
            models.CharField(blank=True, default="", help_text="Only this pattern.", max_length=32),
        ),
        migrations.AlterField(
            "notification",
            "public_id",
            models.CharField(
                default=detection.models.alerts.new_notification_id,
                editable=False,
                max_length=32,
                unique=True,
            ),
        ),
        migrations.AlterField(
            "notification",
            "project",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="notifications",
                to="detection.project",
            ),
        ),
        migrations.AlterField(
            "notification",
            "destination",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="notifications",
                to="detection.alertdestination",
            ),
        ),
        migrations.AlterField(
            "notification",
            "state",
            models.CharField(
                choices=[
                    ("waiting", "Waiting"),
                    ("sending", "Sending"),
                    ("delivered", "Delivered"),
                    ("failed", "Failed"),
                ],
                default="waiting",
                max_length=9,
            ),
        ),
        migrations.AlterField(
            "deliveryattempt",
            "status",
            models.IntegerField(blank=True, help_text="HTTP status of the response, if any.", null=True),
        ),
        migrations.AlterField(
            "deliveryattempt",
            "response",
            models.TextField(
                blank=True, default="", help_text="First 4 KB of the response, for admins only."
            ),
        ),
        migrations.AlterField(
            "judgecall", "outcome", models.CharField(choices=_OUTCOMES, max_length=8)
        ),
        migrations.AlterField(
            "judgecall",
            "error",
            models.CharField(blank=True, default="", help_text="Stable code of the error.", max_length=64),
        ),
        migrations.AlterField(
            "judgecall",
            "was_sent",
            models.BooleanField(default=True, help_text="Whether the endpoint was called."),
        ),
        migrations.AlterField(
            "judgecall",
            "request",
            models.TextField(blank=True, default="", help_text="The request, without the key."),
        ),
        migrations.AlterField(
            "judgecall",
            "response",
            models.TextField(blank=True, default="", help_text="The response, cut."),
        ),
        migrations.AddConstraint(
            "alertroute",
            models.CheckConstraint(
                condition=models.Q(("repeat_interval_hours__gte", 0), ("repeat_interval_hours__lte", 720)),
                name="repeat_interval_within_thirty_days",
            ),
        ),
        migrations.AddConstraint(
            "notificationitem",
            models.UniqueConstraint(fields=("event", "destination"), name="one_notification_per_event"),
        ),
        migrations.AddConstraint(
            "deliveryattempt",
            models.UniqueConstraint(fields=("notification", "number"), name="attempt_numbered_once"),
        ),
        migrations.AddConstraint(
            "judgecall",
            models.CheckConstraint(
                condition=models.Q(
                    ("outcome__in", ["accepted", "denied", "unclear", "failed", "skipped", "obeyed"])
                ),
                name="judge_outcome_known",
            ),
        ),
    ]
