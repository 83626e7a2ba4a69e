"""Alerts: events that may be sent, notifications with their attempts, and destinations, routes and silences."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from django.contrib.postgres.fields import ArrayField
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.functions import Now

from detection.models.alert_facts import AlertFacts
from detection.models.incidents import Incident
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class Severity(models.TextChoices):
    """How strong the reaction was, weakest first."""

    INFO = "info", "Info: recorded only"
    WARNING = "warning", "Warning: the agent was warned"
    HIGH = "high", "High: a call was blocked or held"
    CRITICAL = "critical", "Critical: a stop of the session was requested"


class AlertEventType(models.TextChoices):
    """Types of alert events: what happens to a loop and, with a dot in the name, to a session or a project."""

    OPENED = "opened", "Opened"
    RETURNED = "returned", "Returned after it was closed"
    ESCALATED = "escalated", "Escalated"
    REOPENED = "reopened", "Reopened by a stop or an unanswered held call"
    ENDED = "ended", "Ended"
    ASSIGNED = "assigned", "Assigned"
    DONE = "done", "Done"
    LATER = "later", "Later"
    FINE = "fine", "This is fine"
    CONFIRMED = "confirmed", "Confirmed: a loop"
    UNDONE = "undone", "Undone"
    STILL_OPEN = "still_open", "Still open"
    NEAR_LIMIT = "session.near_limit", "A session has nearly reached a limit"
    APPROVAL_REQUESTED = "approval.requested", "A call is held"
    APPROVAL_CLOSED = "approval.closed", "A held call was answered or expired"
    JUDGE_DISABLED = "judge.disabled", "The judge obeyed its data and is disabled for a day"
    CONTAINMENT_CREATED = "containment.created", "Everything of a scope is stopped, held or blocked"
    CONTAINMENT_LIFTED = "containment.lifted", "A containment was lifted"
    CONTAINMENT_ENDED = "containment.ended", "A containment has reached its end"
    WEEKLY_REPORT = "report.weekly", "The report of a week, on Mondays"


LOOP_EVENTS = frozenset(
    {
        AlertEventType.RETURNED, AlertEventType.ASSIGNED, AlertEventType.DONE, AlertEventType.LATER,
        AlertEventType.FINE, AlertEventType.CONFIRMED, AlertEventType.UNDONE,
    }
)  # fmt: skip
"""Types that are about a loop in all its sessions; the facts are those of its newest incident."""


class DestinationKind(models.TextChoices):
    """How a destination is reached."""

    WEBHOOK = "webhook", "Signed webhook"
    APPRISE = "apprise", "Notification service"


class AlertDestination(TenantModel):
    """An address that notifications are sent to, with its circuit breaker.

    `address` and `signing_secrets` are secret: only the sender reads them, and they appear in no log, audit entry or
    response. `shown_address` is what people see. Nothing is sent before `paused_until`.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="alert_destinations")
    public_id = models.CharField(max_length=32, default=partial(new_id, "dst_"), editable=False)
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=8, choices=DestinationKind.choices)
    address = models.TextField(editable=False)
    shown_address = models.CharField(max_length=200)
    signing_secrets = ArrayField(models.CharField(max_length=120), default=list, blank=True, editable=False)
    is_enabled = models.BooleanField(default=True)

    failures_in_row = models.IntegerField(default=0, editable=False)
    paused_until = models.DateTimeField(null=True, blank=True, editable=False)
    last_success_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_failure_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_problem = models.CharField(max_length=300, blank=True, default="", editable=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="alert_destination_id"),
            models.UniqueConstraint(fields=("project", "name"), name="destination_named_once"),
            models.CheckConstraint(
                condition=models.Q(kind__in=DestinationKind.values), name="destination_kind_known"
            ),
        )

    def __str__(self) -> str:
        return self.name


class Matchers(models.Model):
    """Which alert events match. An empty list matches all; text lists hold globs; every list must match."""

    kinds = ArrayField(models.CharField(max_length=16), default=list, blank=True)
    severities = ArrayField(
        models.CharField(max_length=8, choices=Severity.choices), default=list, blank=True
    )
    tools = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    agents = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    backends = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    model_names = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    tags = ArrayField(models.CharField(max_length=128), default=list, blank=True)

    class Meta:
        abstract = True


class AlertRoute(Matchers, TenantModel):
    """Which alert events go to which destinations, and their grouping. Routes are tried in order of `position`."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="alert_routes")
    public_id = models.CharField(max_length=32, default=partial(new_id, "rte_"), editable=False)
    name = models.CharField(max_length=80)
    position = models.IntegerField(default=0)
    is_enabled = models.BooleanField(default=True)
    destinations = models.ManyToManyField(
        AlertDestination, through="RouteDestination", related_name="routes", blank=True
    )
    event_types = ArrayField(
        models.CharField(max_length=20, choices=AlertEventType.choices),
        default=list,
        help_text="Empty: every type except the report of a week.",
    )
    continue_matching = models.BooleanField(
        default=False, help_text="Continue with the next routes after this one matched."
    )
    includes_demo = models.BooleanField(default=False)
    group_by = ArrayField(
        models.CharField(max_length=16), default=list, blank=True, help_text="Empty: one group."
    )
    group_wait_seconds = models.IntegerField(default=10)
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    quiet_zone = models.CharField(max_length=64, blank=True, default="UTC")
    quiet_delays_critical = models.BooleanField(default=False)
    repeat_interval_hours = models.IntegerField(
        default=0, help_text="Notify again while an incident is open and nobody owns its loop. 0: never."
    )

    class Meta:
        ordering = ("position", "id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="alert_route_id"),
            models.UniqueConstraint(fields=("project", "name"), name="route_named_once"),
            models.CheckConstraint(
                condition=models.Q(group_wait_seconds__gte=0) & models.Q(group_wait_seconds__lte=3600),
                name="group_wait_within_an_hour",
            ),
            models.CheckConstraint(
                condition=models.Q(repeat_interval_hours__gte=0) & models.Q(repeat_interval_hours__lte=720),
                name="repeat_interval_within_thirty_days",
            ),
            models.CheckConstraint(
                condition=models.Q(quiet_from__isnull=True, quiet_until__isnull=True)
                | models.Q(quiet_from__isnull=False, quiet_until__isnull=False),
                name="quiet_hours_whole",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def destination_names(self) -> str:
        """Where it sends to, for the administration."""
        return ", ".join(one.name for one in self.destinations.filter(project_id=self.project_id))

    def send_to(self, destinations: Iterable[AlertDestination]) -> None:
        """Store the destinations, instead of those before."""
        RouteDestination.objects.filter(route=self).delete()
        RouteDestination.objects.bulk_create(
            RouteDestination(route=self, destination=one) for one in destinations
        )


class RouteDestination(TenantModel):
    """A destination of a route."""

    pk = models.CompositePrimaryKey("project_id", "route_id", "destination_id")
    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    route = TenantForeignKey(AlertRoute, on_delete=models.CASCADE, related_name="+", db_index=False)
    destination = TenantForeignKey(AlertDestination, on_delete=models.CASCADE, related_name="+")

    def __str__(self) -> str:
        return f"{self.destination_id} of {self.route_id}"


class AlertSilence(Matchers, TenantModel):
    """Suppresses matching alert events until `ends_at`; they stay listed on the silence.

    After it ends, incidents that are still open and were never sent are sent once; `caught_up_at` is when. A loop
    that is put off has a silence with `loop`; see `services.alerting.postponing`.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="alert_silences")
    public_id = models.CharField(max_length=32, default=partial(new_id, "sil_"), editable=False)
    loop = TenantForeignKey(
        "detection.Loop",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        db_index=False,
        related_name="silences",
        help_text="Only this loop, which is put off.",
    )
    baseline = models.IntegerField(
        null=True,
        blank=True,
        help_text="Of a loop that is put off until it gets worse: "
        "more incidents than this in 24 hours end the silence.",
    )
    reason = models.CharField(max_length=300)
    starts_at = models.DateTimeField(db_default=Now())
    ends_at = models.DateTimeField()
    caught_up_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-ends_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="alert_silence_id"),
            models.CheckConstraint(
                condition=models.Q(ends_at__gte=models.F("starts_at")), name="silence_ends_after_start"
            ),
        )
        indexes = (
            models.Index(fields=("project", "-ends_at"), name="silence_newest"),
            models.Index(
                fields=("ends_at",), name="silence_to_catch_up", condition=models.Q(caught_up_at=None)
            ),
            models.Index(
                fields=("loop", "-ends_at"),
                name="silence_of_loop",
                condition=models.Q(loop__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return self.reason


class OutboxState(models.TextChoices):
    """Routing state of an alert event."""

    PENDING = "pending", "Waiting for routing"
    ROUTED = "routed", "Routed"
    SILENCED = "silenced", "Silenced"
    UNROUTED = "unrouted", "Matched no route"
    FAILED = "failed", "Routing failed"


class AlertEvent(TenantModel):
    """A change that may be sent, written to this outbox in the transaction of the change.

    `facts` are the values at that time. `incident` is null for events without one, such as limit notices.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="+")
    incident = TenantForeignKey(
        Incident, null=True, blank=True, on_delete=models.CASCADE, related_name="alert_events"
    )
    type = models.CharField(max_length=20, choices=AlertEventType.choices)
    actor = models.CharField(max_length=150)
    at = models.DateTimeField(db_default=Now())
    facts: models.JSONField[AlertFacts, AlertFacts] = models.JSONField(encoder=DjangoJSONEncoder)
    state = models.CharField(max_length=8, choices=OutboxState.choices, default=OutboxState.PENDING)
    silence = TenantForeignKey(
        AlertSilence, null=True, blank=True, on_delete=models.SET_NULL, related_name="suppressed_events"
    )

    class Meta:
        ordering = ("id",)
        indexes = (
            models.Index(fields=("id",), name="outbox_pending", condition=models.Q(state="pending")),
            models.Index(fields=("at",), name="outbox_age"),
        )

    def __str__(self) -> str:
        return f"{self.type} of {self.incident_id or self.facts.get('session', '')}"


class NotificationState(models.TextChoices):
    """Delivery state of a notification."""

    WAITING = "waiting", "Waiting"
    SENDING = "sending", "Sending"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"


class Notification(TenantModel):
    """One message to one destination, with one alert event or a group of them.

    Events are added until the first attempt; then `payload` is frozen, and every attempt sends the same bytes under the
    same `public_id`. A sender holds it by `claim` until `claimed_until`; another one may then take it over.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="notifications")
    public_id = models.CharField(max_length=32, default=partial(new_id, "msg_"), editable=False)
    destination = TenantForeignKey(AlertDestination, on_delete=models.CASCADE, related_name="notifications")
    route_name = models.CharField(max_length=80, blank=True, default="")
    group_key = models.CharField(max_length=64, blank=True, default="")
    is_test = models.BooleanField(default=False)
    state = models.CharField(
        max_length=9, choices=NotificationState.choices, default=NotificationState.WAITING
    )
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField()
    payload = models.TextField(blank=True, default="", editable=False)
    title = models.CharField(max_length=300, blank=True, default="")
    attempt_count = models.IntegerField(default=0)
    tries_left = models.IntegerField(default=0, editable=False)
    claim = models.UUIDField(null=True, blank=True, editable=False)
    claimed_until = models.DateTimeField(null=True, blank=True, editable=False)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (models.UniqueConstraint(fields=("project", "public_id"), name="notification_id"),)
        indexes = (
            models.Index(fields=("project", "-id"), name="notification_newest"),
            models.Index(
                fields=("destination", "due_at"),
                name="notification_open",
                condition=models.Q(state__in=("waiting", "sending")),
            ),
            models.Index(fields=("destination", "group_key", "-created_at"), name="notification_group"),
            models.Index(fields=("created_at",), name="notification_age"),
        )

    def __str__(self) -> str:
        return self.public_id


class NotificationItem(TenantModel):
    """An alert event in a notification. A destination receives an event once, whatever routes lead there."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    notification = TenantForeignKey(Notification, on_delete=models.CASCADE, related_name="items")
    destination = TenantForeignKey(AlertDestination, on_delete=models.CASCADE, related_name="+")
    event = TenantForeignKey(AlertEvent, on_delete=models.CASCADE, related_name="items")

    class Meta:
        ordering = ("event_id",)
        constraints = (
            models.UniqueConstraint(
                fields=("project", "event", "destination"), name="one_notification_per_event"
            ),
        )

    def __str__(self) -> str:
        return f"{self.event_id} in {self.notification_id}"


class DeliveryAttempt(TenantModel):
    """One attempt to send a notification; written once."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    notification = TenantForeignKey(Notification, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    at = models.DateTimeField(db_default=Now())
    duration_ms = models.IntegerField()
    is_success = models.BooleanField()
    status = models.IntegerField(null=True, blank=True, help_text="HTTP status of the response, if any.")
    problem = models.CharField(max_length=300, blank=True, default="")
    response = models.TextField(
        blank=True, default="", help_text="First 4 KB of the response, for admins only."
    )

    class Meta:
        ordering = ("number",)
        constraints = (
            models.UniqueConstraint(
                fields=("project", "notification", "number"), name="attempt_numbered_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.notification_id}#{self.number}"
