"""The tables of version 0.1.0 in one step: a first start does not repeat how they came about."""

import detection.models.alerts
import detection.models.approvals
import detection.models.incidents
import detection.models.keys
import detection.models.projects
import django.contrib.postgres.fields
import django.core.serializers.json
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
import django.db.models.lookups
from django.conf import settings
from django.contrib.postgres.operations import TrigramExtension
from django.db import migrations, models

from detection.migrations import _sql_0001, _sql_0005, _sql_0006, _sql_0014


class Migration(migrations.Migration):
    initial = True
    replaces = [
        ("detection", "0001_initial"),
        ("detection", "0002_reactions"),
        ("detection", "0003_alerts_statistics"),
        ("detection", "0004_incident_was_asked"),
        ("detection", "0005_snapshot_storage"),
        ("detection", "0006_partitions_by_the_owner"),
        ("detection", "0007_alert_news"),
        ("detection", "0008_rare_sessions"),
        ("detection", "0009_vocabulary"),
        ("detection", "0010_overrides"),
        ("detection", "0011_session_state"),
        ("detection", "0012_alert_words"),
        ("detection", "0013_approval_words"),
        ("detection", "0014_call_numbers"),
        ("detection", "0015_incident_lifecycle"),
        ("detection", "0016_incident_groups"),
        ("detection", "0017_limit_notice_calls"),
    ]

    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        TrigramExtension(),
        migrations.RunSQL(*_sql_0001.SESSION_COUNTER),
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "session_id", "seq", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("seq", models.IntegerField()),
                (
                    "type",
                    models.CharField(
                        choices=[
                            ("call", "Call"),
                            ("result", "Result"),
                            ("message", "Message"),
                            ("end", "End"),
                        ],
                        max_length=8,
                    ),
                ),
                ("call_id", models.CharField(default="", max_length=256)),
                ("tool", models.CharField(default="", max_length=128)),
                ("arguments", models.TextField(null=True)),
                ("content", models.TextField(null=True)),
                ("content_length", models.IntegerField(default=0)),
                (
                    "tail_digest",
                    models.CharField(
                        default="", help_text="Keyed digest of a result that was cut.", max_length=32
                    ),
                ),
                ("is_error", models.BooleanField(null=True)),
                ("round", models.CharField(default="", max_length=256)),
                ("run", models.CharField(default="", max_length=256)),
                ("backend", models.CharField(default="", max_length=128)),
                ("model", models.CharField(default="", max_length=200)),
                ("agent", models.CharField(default="", max_length=128)),
                ("tokens", models.IntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=12)),
                ("occurred_at", models.DateTimeField(null=True)),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "altered",
                    models.CharField(
                        default="", help_text="Comma-separated marks of what was altered.", max_length=120
                    ),
                ),
                ("call_key", models.CharField(default="", max_length=32)),
                ("result_digest", models.CharField(default="", max_length=32)),
                (
                    "flags",
                    models.CharField(
                        default="", help_text="Flags of the cell in the loop strip.", max_length=12
                    ),
                ),
                ("decision", models.CharField(default="allow", max_length=8)),
                (
                    "call_number",
                    models.IntegerField(
                        default=0,
                        help_text="Which call of its session it is, from 1; 0 until it is evaluated.",
                    ),
                ),
                (
                    "reply",
                    models.TextField(
                        default="", help_text="Of a message: the replies to its in-chat commands, one a line."
                    ),
                ),
                ("verdict", models.JSONField(null=True)),
            ],
            options={
                "db_table": "detection_event",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Project",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slug", models.SlugField(max_length=64, unique=True)),
                ("name", models.CharField(max_length=120)),
                ("digest_secret", models.BinaryField(default=detection.models.projects.new_digest_secret)),
                (
                    "policy_version",
                    models.BigIntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change of a setting or message template that applies to this project.",
                    ),
                ),
                (
                    "stores_payloads",
                    models.BooleanField(
                        default=True,
                        help_text="If disabled, arguments and results are stored as digests only. Detection still works.",
                    ),
                ),
                (
                    "retention_days",
                    models.PositiveIntegerField(
                        default=30,
                        help_text="Sessions and calls are deleted after this time. Incidents keep their evidence.",
                        validators=[
                            django.core.validators.MinValueValidator(7),
                            django.core.validators.MaxValueValidator(3650),
                        ],
                    ),
                ),
                ("first_event_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="AlertDestination",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=detection.models.alerts.new_destination_id,
                        editable=False,
                        max_length=32,
                        unique=True,
                    ),
                ),
                ("name", models.CharField(max_length=80)),
                (
                    "kind",
                    models.CharField(
                        choices=[("webhook", "Signed webhook"), ("apprise", "Notification service")],
                        max_length=8,
                    ),
                ),
                ("address", models.TextField(editable=False)),
                ("shown_address", models.CharField(max_length=200)),
                (
                    "signing_secrets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=120),
                        blank=True,
                        default=list,
                        editable=False,
                        size=None,
                    ),
                ),
                ("is_enabled", models.BooleanField(default=True)),
                ("failures_in_row", models.IntegerField(default=0, editable=False)),
                ("paused_until", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_success_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_failure_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_problem", models.CharField(blank=True, default="", editable=False, max_length=300)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_destinations",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("project", "name"), name="destination_named_once"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["webhook", "apprise"])),
                        name="destination_kind_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        db_default=django.db.models.expressions.RawSQL(
                            "(floor(extract(epoch from now()) / 86400)::bigint << 32) | (nextval('detection_session_counter') & 4294967295)",
                            (),
                        ),
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("external_id", models.CharField(max_length=256)),
                ("agent", models.CharField(blank=True, default="", max_length=128)),
                ("backend", models.CharField(blank=True, default="", max_length=128)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("parent_external_id", models.CharField(blank=True, default="", max_length=256)),
                ("is_demo", models.BooleanField(default=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("looping", "Looping"),
                            ("held", "Held"),
                            ("stopped", "Stopped"),
                            ("ended", "Ended"),
                        ],
                        default="running",
                        help_text="As stored; idle follows from the last event's age.",
                        max_length=16,
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        blank=True, default="", help_text="completed, failed or cancelled", max_length=16
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("last_event_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("last_seq", models.IntegerField(default=0)),
                ("evaluated_seq", models.IntegerField(default=0)),
                (
                    "pending_since",
                    models.DateTimeField(
                        blank=True, help_text="When the oldest unevaluated event was received.", null=True
                    ),
                ),
                ("call_count", models.IntegerField(default=0)),
                ("blocked_count", models.IntegerField(default=0)),
                ("token_count", models.BigIntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=14)),
                ("last_tool", models.CharField(blank=True, default="", max_length=128)),
                ("meter_kind", models.CharField(blank=True, default="", max_length=16)),
                ("meter_count", models.IntegerField(default=0)),
                ("meter_limit", models.IntegerField(default=0)),
                (
                    "strip",
                    models.JSONField(
                        default=list,
                        encoder=django.core.serializers.json.DjangoJSONEncoder,
                        help_text="The last 60 calls as [seq, key, flags, number], oldest first.",
                    ),
                ),
                ("policy_values", models.JSONField(default=dict, help_text="Overrides of this session.")),
                (
                    "stopped_by_kind",
                    models.CharField(
                        blank=True,
                        choices=[("", "Not stopped"), ("person", "Person"), ("detection", "Detection")],
                        db_default="",
                        default="",
                        max_length=16,
                    ),
                ),
                ("stopped_at", models.DateTimeField(blank=True, null=True)),
                (
                    "stopped_by",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The person, or the detector that decided.",
                        max_length=150,
                    ),
                ),
                ("stop_reason", models.CharField(blank=True, default="", max_length=300)),
                (
                    "would_have_stopped_at_call",
                    models.IntegerField(
                        blank=True,
                        help_text="Number of the first observed call that would have been stopped.",
                        null=True,
                    ),
                ),
                (
                    "has_active_incident",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Whether an incident of the session has no end; healthy sessions cost no query.",
                    ),
                ),
                (
                    "exempt_tools",
                    models.JSONField(
                        db_default=models.Value([], models.JSONField()),
                        default=list,
                        help_text="Tools that a person exempted in this session.",
                    ),
                ),
                (
                    "quarantined",
                    models.JSONField(default=list, help_text="Quarantined events: [{seq, error}]."),
                ),
                (
                    "changed_xid",
                    models.BigIntegerField(
                        db_default=django.db.models.expressions.RawSQL(
                            "pg_current_xact_id()::text::bigint", ()
                        ),
                        editable=False,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sessions",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["project", "-last_event_at", "-id"], name="session_newest"),
                    models.Index(fields=["project", "changed_xid"], name="session_changes"),
                    models.Index(
                        condition=models.Q(("evaluated_seq__lt", models.F("last_seq"))),
                        fields=["pending_since"],
                        name="session_pending",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ("looping", "held", "stopped"))),
                        fields=["project", "-last_event_at", "-id"],
                        name="session_remarkable",
                    ),
                    models.Index(
                        condition=models.Q(("has_active_incident", True)),
                        fields=["last_event_at"],
                        name="session_with_active_incident",
                    ),
                    models.Index(
                        condition=models.Q(("is_demo", True)),
                        fields=["project", "-last_event_at", "-id"],
                        name="session_of_demo",
                    ),
                    models.Index(
                        condition=models.Q(("quarantined", []), _negated=True),
                        fields=["project"],
                        name="session_quarantined",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("project", "external_id"), name="session_named_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("evaluated_seq__gte", 0), ("evaluated_seq__lte", models.F("last_seq"))
                        ),
                        name="evaluated_within_received",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["running", "looping", "held", "stopped", "ended"])),
                        name="session_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("stopped_at", None), ("stopped_by_kind", "")),
                            models.Q(
                                ("stopped_at__isnull", False),
                                ("stopped_by_kind__in", ("person", "detection")),
                            ),
                            _connector="OR",
                        ),
                        name="session_stop_has_kind_and_time",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CountedSession",
            fields=[
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="detection.session",
                    ),
                ),
                ("counted_seq", models.IntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="TrackerState",
            fields=[
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="tracker",
                        serialize=False,
                        to="detection.session",
                    ),
                ),
                ("version", models.PositiveSmallIntegerField()),
                ("snapshot", models.BinaryField()),
                ("updated_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="CountingCursor",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("seen_xid", models.BigIntegerField(default=0)),
                ("counted_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="one_counting_cursor")
                ],
            },
        ),
        migrations.CreateModel(
            name="Incident",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=detection.models.incidents.new_public_id,
                        editable=False,
                        max_length=32,
                        unique=True,
                    ),
                ),
                ("session_name", models.CharField(max_length=256)),
                ("agent", models.CharField(blank=True, default="", max_length=128)),
                ("backend", models.CharField(blank=True, default="", max_length=128)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("is_demo", models.BooleanField(default=False)),
                (
                    "loop_id",
                    models.CharField(
                        help_text="Id of the pattern: the same loop in other sessions has the same id.",
                        max_length=32,
                    ),
                ),
                (
                    "group_id",
                    models.CharField(
                        db_default="",
                        default="",
                        help_text="Public id of the first incident about the same calls; related incidents share it.",
                        max_length=32,
                    ),
                ),
                ("kind", models.CharField(max_length=16)),
                (
                    "tool",
                    models.CharField(
                        help_text="The tool, or the tools of a cycle joined by arrows.", max_length=128
                    ),
                ),
                ("count", models.IntegerField()),
                ("limit", models.IntegerField()),
                ("window_seconds", models.FloatField(blank=True, null=True)),
                ("confidence", models.FloatField(default=1.0)),
                ("detections", models.IntegerField(default=1)),
                (
                    "was_guarded",
                    models.BooleanField(
                        default=False,
                        help_text="Whether calls were sent to the guard. Observed calls are never blocked.",
                    ),
                ),
                ("calls_blocked", models.IntegerField(default=0)),
                ("calls_in_loop", models.IntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=14)),
                (
                    "unshared_calls",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        help_text="Calls of the loop that no earlier incident counts, for sums.",
                    ),
                ),
                (
                    "unshared_cost_usd",
                    models.DecimalField(
                        db_default=0, decimal_places=6, default=0, help_text="Their cost.", max_digits=14
                    ),
                ),
                ("decision", models.CharField(help_text="The strictest decision so far.", max_length=8)),
                ("rung", models.CharField(blank=True, default="", max_length=16)),
                ("first_seq", models.IntegerField()),
                ("last_seq", models.IntegerField()),
                (
                    "first_call_number",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        help_text="Which call of the session the loop began with, from 1.",
                    ),
                ),
                (
                    "last_call_number",
                    models.IntegerField(
                        default=0, help_text="Number of calls in the session at the last finding."
                    ),
                ),
                ("evidence", models.JSONField(default=dict)),
                ("policy", models.JSONField(default=dict)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("acknowledged", "Acknowledged"),
                            ("snoozed", "Snoozed"),
                            ("ended", "Ended"),
                            ("resolved", "Resolved"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                (
                    "label",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "Not labelled"),
                            ("true_loop", "A loop"),
                            ("false_alarm", "Not a loop"),
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
                (
                    "needs_acknowledgement",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Whether it stays open until someone acknowledges it, although its loop ended.",
                    ),
                ),
                ("snoozed_until", models.DateTimeField(blank=True, null=True)),
                ("snoozed_until_worse", models.BooleanField(default=False)),
                (
                    "recovered",
                    models.BooleanField(
                        blank=True,
                        help_text="Whether the agent recovered after the last reaction.",
                        null=True,
                    ),
                ),
                ("opened_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("last_seen_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="incidents",
                        to="detection.session",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="incidents",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("-last_seen_at", "-id"),
                "indexes": [
                    models.Index(fields=["project", "-last_seen_at", "-id"], name="incident_newest"),
                    models.Index(fields=["project", "status", "-last_seen_at"], name="incident_by_status"),
                    models.Index(fields=["project", "loop_id"], name="incident_by_loop"),
                    models.Index(fields=["group_id"], name="incident_group"),
                    models.Index(
                        condition=models.Q(("status", "snoozed")),
                        fields=["snoozed_until"],
                        name="incident_snoozed",
                    ),
                    models.Index(fields=["session", "first_seq"], name="incident_in_session"),
                    models.Index(
                        condition=models.Q(("is_demo", True)), fields=["project"], name="incident_of_demo"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("session", "loop_id"),
                        name="one_active_incident_per_loop",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("status__in", ["open", "acknowledged", "snoozed", "ended", "resolved"])
                        ),
                        name="incident_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("label__in", ["", "true_loop", "false_alarm"])),
                        name="incident_label_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=detection.models.approvals.new_approval_id,
                        editable=False,
                        max_length=32,
                        unique=True,
                    ),
                ),
                (
                    "decider",
                    models.CharField(
                        choices=[("person", "A person"), ("judge", "The judge")],
                        default="person",
                        max_length=8,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("decided", "Decided"),
                            ("expired", "Expired"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("seq", models.IntegerField(help_text="Sequence number of the held call.")),
                ("call_id", models.CharField(max_length=256)),
                ("call_key", models.CharField(max_length=32)),
                (
                    "held_calls",
                    models.IntegerField(default=1, help_text="How many calls wait for the decision."),
                ),
                ("tool", models.CharField(max_length=128)),
                ("agent", models.CharField(blank=True, default="", max_length=128)),
                ("run", models.CharField(blank=True, default="", max_length=256)),
                ("loop_id", models.CharField(max_length=32)),
                ("kind", models.CharField(max_length=16)),
                ("count", models.IntegerField()),
                ("limit", models.IntegerField()),
                ("window_seconds", models.FloatField(blank=True, null=True)),
                (
                    "unit",
                    models.CharField(blank=True, default="", help_text="Unit of a budget.", max_length=16),
                ),
                ("summary", models.CharField(help_text="What was detected, as a sentence.", max_length=300)),
                ("requested_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("deadline", models.DateTimeField()),
                (
                    "unattended",
                    models.CharField(
                        choices=[
                            ("block", "The call is skipped"),
                            ("stop", "The run is stopped"),
                            ("allow", "The call is allowed once"),
                            ("disable", "Detection is disabled for the session"),
                        ],
                        default="block",
                        max_length=8,
                    ),
                ),
                (
                    "choice",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("skip", "Skip this call"),
                            ("allow_once", "Allow once"),
                            ("raise", "Raise the limit"),
                            ("exempt", "Exempt the tool for this session"),
                            ("disable", "Disable for this session"),
                        ],
                        default="",
                        max_length=10,
                    ),
                ),
                ("raise_by", models.IntegerField(default=0, help_text="By how much the limit is raised.")),
                (
                    "decision",
                    models.CharField(blank=True, default="", help_text="allow, block or stop", max_length=8),
                ),
                (
                    "message",
                    models.CharField(
                        blank=True, default="", help_text="Message for the agent.", max_length=2000
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, default="", help_text="Stable code of how it was closed.", max_length=32
                    ),
                ),
                ("decided_by", models.CharField(blank=True, default="", max_length=150)),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="detection.session",
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="approvals",
                        to="detection.incident",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("-requested_at", "-id"),
                "indexes": [
                    models.Index(fields=["project", "-requested_at", "-id"], name="approval_newest"),
                    models.Index(
                        condition=models.Q(("state", "open")), fields=["deadline"], name="approval_due"
                    ),
                    models.Index(fields=["session", "call_key", "-id"], name="approval_of_call"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")),
                        fields=("session", "loop_id"),
                        name="one_open_approval_per_loop",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["open", "decided", "expired", "withdrawn"])),
                        name="approval_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("decided_at__isnull", True), ("decision", ""), ("state", "open")),
                            models.Q(
                                models.Q(("state", "open"), _negated=True),
                                ("decided_at__isnull", False),
                                ("decision__in", ("allow", "block", "stop")),
                            ),
                            _connector="OR",
                        ),
                        name="approval_open_or_decided",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="IncidentActivity",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("actor", models.CharField(help_text="A user name, key:<id> or system.", max_length=150)),
                ("action", models.CharField(max_length=32)),
                ("note", models.CharField(blank=True, default="", max_length=1000)),
                (
                    "before",
                    models.JSONField(
                        default=dict, help_text="Changed fields with their previous values, for undo."
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="activity",
                        to="detection.incident",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "incident activity",
                "ordering": ("at", "id"),
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "Viewer: sees everything in the project"),
                            ("operator", "Operator: handles incidents, stops and resumes sessions"),
                            ("admin", "Admin: changes settings, keys and members"),
                        ],
                        default="viewer",
                        max_length=16,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("project", "user"), name="one_role_per_member"),
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["viewer", "operator", "admin"])),
                        name="membership_role_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Override",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("values", models.JSONField(blank=True, default=dict)),
                (
                    "note",
                    models.CharField(
                        blank=True, default="", help_text="Reason of the last change.", max_length=300
                    ),
                ),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("agent", models.CharField(blank=True, default="", max_length=128)),
                ("backend", models.CharField(blank=True, default="", max_length=128)),
                (
                    "model",
                    models.CharField(blank=True, default="", help_text="Requires a backend.", max_length=200),
                ),
                (
                    "updated_by",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: every project.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="overrides",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("project", "agent", "backend", "model"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project", "agent", "backend", "model"),
                        name="one_override_per_scope",
                        nulls_distinct=False,
                        violation_error_message="This scope already has an override. Change that one.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("agent", ""), ("backend", ""), ("model", "")),
                            models.Q(
                                ("project__isnull", False),
                                models.Q(
                                    models.Q(
                                        models.Q(("backend", ""), ("model", "")),
                                        models.Q(("agent", ""), _negated=True),
                                    ),
                                    models.Q(
                                        models.Q(("agent", "")), models.Q(("backend", ""), _negated=True)
                                    ),
                                    _connector="OR",
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="override_names_a_scope",
                        violation_error_message="An agent or a backend needs a project, a model needs a backend, and an agent has neither.",
                    ),
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            models.Func(
                                models.F("values"), function="jsonb_typeof", output_field=models.TextField()
                            ),
                            models.Value("object"),
                        ),
                        name="override_values_are_an_object",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Notification",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=detection.models.alerts.new_notification_id,
                        editable=False,
                        max_length=32,
                        unique=True,
                    ),
                ),
                ("route_name", models.CharField(blank=True, default="", max_length=80)),
                ("group_key", models.CharField(blank=True, default="", max_length=64)),
                ("is_test", models.BooleanField(default=False)),
                (
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
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("due_at", models.DateTimeField()),
                ("payload", models.TextField(blank=True, default="", editable=False)),
                ("title", models.CharField(blank=True, default="", max_length=300)),
                ("attempt_count", models.IntegerField(default=0)),
                ("tries_left", models.IntegerField(default=0, editable=False)),
                ("claim", models.UUIDField(blank=True, editable=False, null=True)),
                ("claimed_until", models.DateTimeField(blank=True, editable=False, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "destination",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notifications",
                        to="detection.alertdestination",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notifications",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at", "-id"),
                "indexes": [
                    models.Index(fields=["project", "-id"], name="notification_newest"),
                    models.Index(
                        condition=models.Q(("state__in", ("waiting", "sending"))),
                        fields=["destination", "due_at"],
                        name="notification_open",
                    ),
                    models.Index(
                        fields=["destination", "group_key", "-created_at"], name="notification_group"
                    ),
                    models.Index(fields=["created_at"], name="notification_age"),
                ],
            },
        ),
        migrations.CreateModel(
            name="MessageTemplate",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("rung", models.CharField(max_length=16)),
                ("shape", models.CharField(blank=True, default="", max_length=16)),
                ("text", models.CharField(max_length=1000)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "updated_by",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="message_templates",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("rung", "shape"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project", "rung", "shape"), name="one_template_per_rung_and_shape"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="JudgeCall",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("loop_id", models.CharField(max_length=32)),
                ("session_id", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("accepted", "Accepted: more rounds were granted"),
                            ("denied", "Denied"),
                            ("unclear", "Unclear, so denied"),
                            ("failed", "Failed, so denied"),
                            ("skipped", "Not consulted, so denied"),
                            ("obeyed", "Followed instructions in its data, so the judge is disabled"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "error",
                    models.CharField(
                        blank=True, default="", help_text="Stable code of the error.", max_length=64
                    ),
                ),
                ("was_sent", models.BooleanField(default=True, help_text="Whether the endpoint was called.")),
                ("host", models.CharField(blank=True, default="", max_length=255)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("prompt_hash", models.CharField(blank=True, default="", max_length=64)),
                (
                    "request",
                    models.TextField(blank=True, default="", help_text="The request, without the key."),
                ),
                ("response", models.TextField(blank=True, default="", help_text="The response, cut.")),
                ("reason", models.CharField(blank=True, default="", max_length=600)),
                ("guidance", models.CharField(blank=True, default="", max_length=600)),
                ("rounds_proposed", models.IntegerField(default=0)),
                ("rounds_granted", models.IntegerField(default=0)),
                ("policy_version", models.BigIntegerField(default=0)),
                ("latency_ms", models.IntegerField(default=0)),
                ("input_tokens", models.IntegerField(default=0)),
                ("output_tokens", models.IntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=12)),
                (
                    "approval",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="judge_calls",
                        to="detection.approval",
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="judge_calls",
                        to="detection.incident",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="judge_calls",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("-at", "-id"),
                "indexes": [
                    models.Index(fields=["project", "-at"], name="judge_call_newest"),
                    models.Index(fields=["session_id", "loop_id"], name="judge_call_of_loop"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("outcome__in", ["accepted", "denied", "unclear", "failed", "skipped", "obeyed"])
                        ),
                        name="judge_outcome_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("outcome", "accepted"), ("rounds_granted", 0), _connector="OR"),
                        name="judge_grants_only_when_accepted",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="EventKey",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "project_id", "digest", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("digest", models.BinaryField(max_length=16)),
                ("session_id", models.BigIntegerField()),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "project",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="detection.project"),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["received_at"], name="event_key_age")],
            },
        ),
        migrations.CreateModel(
            name="CallCount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("hour", models.DateTimeField()),
                ("is_demo", models.BooleanField(default=False)),
                ("backend", models.CharField(max_length=128)),
                ("model", models.CharField(max_length=200)),
                ("tool", models.CharField(max_length=128)),
                ("checks", models.BigIntegerField(default=0)),
                ("warned", models.BigIntegerField(default=0)),
                ("blocked", models.BigIntegerField(default=0)),
                ("token_count", models.BigIntegerField(default=0)),
                ("cost_usd", models.DecimalField(decimal_places=6, default=0, max_digits=18)),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="call_counts",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project", "hour", "is_demo", "backend", "model", "tool"),
                        name="counted_by_the_hour",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "actor",
                    models.CharField(help_text="A user name, key:<id>, command or system.", max_length=150),
                ),
                (
                    "action",
                    models.CharField(
                        help_text="What was done, as in session.stop, policy.save or key.create.",
                        max_length=64,
                    ),
                ),
                ("subject", models.CharField(help_text="What was changed.", max_length=300)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                ("address", models.GenericIPAddressField(null=True)),
                ("request_id", models.CharField(blank=True, default="", max_length=64)),
                (
                    "project",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="audit",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ("-at", "-id"),
                "indexes": [models.Index(fields=["project", "-at", "-id"], name="audit_newest")],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("route", models.CharField(max_length=32)),
                (
                    "key_hint",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The part of the key that may be shown.",
                        max_length=24,
                    ),
                ),
                ("status", models.PositiveSmallIntegerField()),
                (
                    "code",
                    models.CharField(
                        blank=True, default="", help_text="Stable code of the error.", max_length=48
                    ),
                ),
                ("detail", models.CharField(blank=True, default="", max_length=300)),
                ("accepted", models.IntegerField(default=0)),
                ("duplicate", models.IntegerField(default=0)),
                ("altered", models.IntegerField(default=0)),
                ("rejected", models.IntegerField(default=0)),
                (
                    "project",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["project", "-id"], name="attempt_newest")],
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=80)),
                ("public_id", models.CharField(editable=False, max_length=16, unique=True)),
                ("digest", models.CharField(editable=False, max_length=64)),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("ingest", "Ingest: send events"),
                                ("guard", "Guard: evaluate calls"),
                                ("read", "Read: sessions, incidents, policies"),
                                ("admin", "Admin: change sessions, incidents and policies"),
                            ],
                            max_length=16,
                        ),
                        default=detection.models.keys.all_scopes,
                        size=None,
                    ),
                ),
                (
                    "is_demo",
                    models.BooleanField(
                        default=False,
                        editable=False,
                        help_text="Sessions sent with this key are marked as demo.",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "last_used_at",
                    models.DateTimeField(blank=True, editable=False, help_text="To the minute.", null=True),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "verbose_name": "API key",
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="AlertSilence",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16), blank=True, default=list, size=None
                    ),
                ),
                (
                    "severities",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("info", "Info: recorded only"),
                                ("warning", "Warning: the agent was warned"),
                                ("high", "High: a call was blocked or held"),
                                ("critical", "Critical: the session was stopped"),
                            ],
                            max_length=8,
                        ),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "tools",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=128), blank=True, default=list, size=None
                    ),
                ),
                (
                    "agents",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=128), blank=True, default=list, size=None
                    ),
                ),
                (
                    "backends",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=128), blank=True, default=list, size=None
                    ),
                ),
                (
                    "model_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=200), blank=True, default=list, size=None
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=detection.models.alerts.new_silence_id,
                        editable=False,
                        max_length=32,
                        unique=True,
                    ),
                ),
                (
                    "loop_id",
                    models.CharField(blank=True, default="", help_text="Only this pattern.", max_length=32),
                ),
                ("reason", models.CharField(max_length=300)),
                ("starts_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ends_at", models.DateTimeField()),
                ("caught_up_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_silences",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("-ends_at", "-id"),
                "indexes": [
                    models.Index(fields=["project", "-ends_at"], name="silence_newest"),
                    models.Index(
                        condition=models.Q(("caught_up_at", None)),
                        fields=["ends_at"],
                        name="silence_to_catch_up",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("ends_at__gte", models.F("starts_at"))),
                        name="silence_ends_after_start",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="AlertRoute",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16), blank=True, default=list, size=None
                    ),
                ),
                (
                    "severities",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("info", "Info: recorded only"),
                                ("warning", "Warning: the agent was warned"),
                                ("high", "High: a call was blocked or held"),
                                ("critical", "Critical: the session was stopped"),
                            ],
                            max_length=8,
                        ),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "tools",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=128), blank=True, default=list, size=None
                    ),
                ),
                (
                    "agents",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=128), blank=True, default=list, size=None
                    ),
                ),
                (
                    "backends",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=128), blank=True, default=list, size=None
                    ),
                ),
                (
                    "model_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=200), blank=True, default=list, size=None
                    ),
                ),
                (
                    "public_id",
                    models.CharField(
                        default=detection.models.alerts.new_route_id,
                        editable=False,
                        max_length=32,
                        unique=True,
                    ),
                ),
                ("name", models.CharField(max_length=80)),
                ("position", models.IntegerField(default=0)),
                ("is_enabled", models.BooleanField(default=True)),
                (
                    "event_types",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
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
                                ("session.near_limit", "A session has nearly reached a limit"),
                                ("approval.requested", "A call waits for approval"),
                                ("approval.closed", "An approval was decided or expired"),
                            ],
                            max_length=20,
                        ),
                        default=list,
                        help_text="Empty: every type.",
                        size=None,
                    ),
                ),
                (
                    "continue_matching",
                    models.BooleanField(
                        default=False, help_text="Continue with the next routes after this one matched."
                    ),
                ),
                ("includes_demo", models.BooleanField(default=False)),
                (
                    "group_by",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16),
                        blank=True,
                        default=list,
                        help_text="Empty: one group.",
                        size=None,
                    ),
                ),
                ("group_wait_seconds", models.IntegerField(default=10)),
                ("quiet_from", models.TimeField(blank=True, null=True)),
                ("quiet_until", models.TimeField(blank=True, null=True)),
                ("quiet_zone", models.CharField(blank=True, default="UTC", max_length=64)),
                ("quiet_delays_critical", models.BooleanField(default=False)),
                (
                    "repeat_interval_hours",
                    models.IntegerField(
                        default=0,
                        help_text="Notify again while an incident is open and unacknowledged. 0: never.",
                    ),
                ),
                (
                    "destinations",
                    models.ManyToManyField(
                        blank=True, related_name="routes", to="detection.alertdestination"
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_routes",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("position", "id"),
                "constraints": [
                    models.UniqueConstraint(fields=("project", "name"), name="route_named_once"),
                    models.CheckConstraint(
                        condition=models.Q(("group_wait_seconds__gte", 0), ("group_wait_seconds__lte", 3600)),
                        name="group_wait_within_an_hour",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("repeat_interval_hours__gte", 0), ("repeat_interval_hours__lte", 720)
                        ),
                        name="repeat_interval_within_thirty_days",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("quiet_from__isnull", True), ("quiet_until__isnull", True)),
                            models.Q(("quiet_from__isnull", False), ("quiet_until__isnull", False)),
                            _connector="OR",
                        ),
                        name="quiet_hours_whole",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AlertEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "type",
                    models.CharField(
                        choices=[
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
                            ("session.near_limit", "A session has nearly reached a limit"),
                            ("approval.requested", "A call waits for approval"),
                            ("approval.closed", "An approval was decided or expired"),
                        ],
                        max_length=20,
                    ),
                ),
                ("actor", models.CharField(max_length=150)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("facts", models.JSONField(encoder=django.core.serializers.json.DjangoJSONEncoder)),
                (
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
                (
                    "silence",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="suppressed_events",
                        to="detection.alertsilence",
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alert_events",
                        to="detection.incident",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="detection.project"
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "pending")), fields=["id"], name="outbox_pending"
                    ),
                    models.Index(fields=["at"], name="outbox_age"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RememberedDecision",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("agent", models.CharField(blank=True, default="", max_length=128)),
                ("tool", models.CharField(max_length=128)),
                ("kind", models.CharField(max_length=16)),
                (
                    "choice",
                    models.CharField(
                        choices=[
                            ("skip", "Skip this call"),
                            ("allow_once", "Allow once"),
                            ("raise", "Raise the limit"),
                            ("exempt", "Exempt the tool for this session"),
                            ("disable", "Disable for this session"),
                        ],
                        max_length=10,
                    ),
                ),
                ("raise_by", models.IntegerField(default=0)),
                ("times_used", models.IntegerField(default=0)),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("expires_at", models.DateTimeField()),
                (
                    "created_by_user",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="remembered_decisions",
                        to="detection.project",
                    ),
                ),
            ],
            options={
                "ordering": ("agent", "tool", "kind"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("project", "agent", "tool", "kind"), name="one_remembered_decision"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ToolOverride",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("values", models.JSONField(blank=True, default=dict)),
                (
                    "note",
                    models.CharField(
                        blank=True, default="", help_text="Reason of the last change.", max_length=300
                    ),
                ),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "pattern",
                    models.CharField(
                        help_text="Glob on the tool name: search_*, mcp__github__*", max_length=128
                    ),
                ),
                (
                    "tool_class",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="other, read, change, poll, wait, message, fallible, exempt; empty for the built-in class.",
                        max_length=16,
                    ),
                ),
                (
                    "ignore_arguments",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text='Argument paths that identity ignores: ["request_id", "meta.nonce"]',
                    ),
                ),
                (
                    "volatile_result_fields",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text='Result fields that change without meaning: ["timestamp"]',
                    ),
                ),
                ("exempt", models.BooleanField(default=False, help_text="Never counted, never stopped.")),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tool_overrides",
                        to="detection.project",
                    ),
                ),
                (
                    "updated_by",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "tool rule",
                "ordering": ("pattern",),
                "constraints": [
                    models.UniqueConstraint(fields=("project", "pattern"), name="one_rule_per_pattern"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "tool_class__in",
                                (
                                    "",
                                    "other",
                                    "read",
                                    "change",
                                    "poll",
                                    "wait",
                                    "message",
                                    "fallible",
                                    "exempt",
                                ),
                            )
                        ),
                        name="tool_rule_class_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            django.db.models.lookups.Exact(
                                models.Func(
                                    models.F("values"),
                                    function="jsonb_typeof",
                                    output_field=models.TextField(),
                                ),
                                models.Value("object"),
                            ),
                            django.db.models.lookups.Exact(
                                models.Func(
                                    models.F("ignore_arguments"),
                                    function="jsonb_typeof",
                                    output_field=models.TextField(),
                                ),
                                models.Value("array"),
                            ),
                            django.db.models.lookups.Exact(
                                models.Func(
                                    models.F("volatile_result_fields"),
                                    function="jsonb_typeof",
                                    output_field=models.TextField(),
                                ),
                                models.Value("array"),
                            ),
                        ),
                        name="tool_rule_lists_and_values",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitNotice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(help_text="The detector of the limit.", max_length=16)),
                (
                    "unit",
                    models.CharField(help_text="Unit of the limit: rounds, calls, seconds …", max_length=16),
                ),
                ("used", models.FloatField()),
                ("limit", models.FloatField()),
                (
                    "seq",
                    models.IntegerField(help_text="Sequence number of the call that crossed the threshold."),
                ),
                ("call_number", models.IntegerField(help_text="Which call of the session that was, from 1.")),
                ("tool", models.CharField(max_length=128)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="limit_notices",
                        to="detection.session",
                    ),
                ),
            ],
            options={
                "ordering": ("at", "id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("session", "kind", "unit", "limit"), name="one_notice_per_limit"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DeliveryAttempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.IntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("duration_ms", models.IntegerField()),
                ("is_success", models.BooleanField()),
                (
                    "status",
                    models.IntegerField(
                        blank=True, help_text="HTTP status of the response, if any.", null=True
                    ),
                ),
                ("problem", models.CharField(blank=True, default="", max_length=300)),
                (
                    "response",
                    models.TextField(
                        blank=True, default="", help_text="First 4 KB of the response, for admins only."
                    ),
                ),
                (
                    "notification",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="detection.notification",
                    ),
                ),
            ],
            options={
                "ordering": ("number",),
                "constraints": [
                    models.UniqueConstraint(fields=("notification", "number"), name="attempt_numbered_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="NotificationItem",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "destination",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="detection.alertdestination",
                    ),
                ),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="detection.alertevent",
                    ),
                ),
                (
                    "notification",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="detection.notification",
                    ),
                ),
            ],
            options={
                "ordering": ("event_id",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("event", "destination"), name="one_notification_per_event"
                    )
                ],
            },
        ),
        migrations.AddField(
            "project",
            "members",
            models.ManyToManyField(
                related_name="projects", through="detection.Membership", to=settings.AUTH_USER_MODEL
            ),
        ),
        *(
            migrations.RunSQL(*pair)
            for pair in (
                _sql_0001.EVENT_TABLE,
                _sql_0001.FILLFACTOR,
                _sql_0001.AUDIT_APPEND_ONLY,
                _sql_0001.CACHE_TABLE,
                _sql_0005.PACKED_SNAPSHOTS,
                _sql_0006.PARTITIONS_BY_THE_OWNER,
                _sql_0014.ADD_COLUMNS,
            )
        ),
    ]
