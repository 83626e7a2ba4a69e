"""Where the word about incidents goes: destinations, routes, silences, the outbox, and what was sent with every attempt.

How these rows are worked with is in the services `destinations`, `alerts` (from the outbox to messages) and `delivery`.
"""

from __future__ import annotations

import secrets

from django.contrib.postgres.fields import ArrayField
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.functions import Now

from detection.models.incidents import PUBLIC_ID_ALPHABET, Incident
from detection.models.projects import Project


def _opaque(prefix: str) -> str:
    return prefix + "".join(secrets.choice(PUBLIC_ID_ALPHABET) for _ in range(20))


def new_destination_id() -> str:
    """Name a destination."""
    return _opaque("dst_")


def new_route_id() -> str:
    """Name a route."""
    return _opaque("rte_")


def new_silence_id() -> str:
    """Name a silence."""
    return _opaque("sil_")


def new_delivery_id() -> str:
    """Name a message; the receiver sees the same name with every attempt, 100 random bits."""
    return _opaque("msg_")


class Severity(models.TextChoices):
    """How strong the reaction was, from mild to strict."""

    INFO = "info", "Info: seen, nothing done"
    WARNING = "warning", "Warning: the agent was warned"
    HIGH = "high", "High: a call was blocked or held"
    CRITICAL = "critical", "Critical: the session was stopped"


class Transition(models.TextChoices):
    """What is worth a message: changes of an incident, and (with a dot) news of a session."""

    OPENED = "opened", "Opened"
    ESCALATED = "escalated", "Got worse"
    WOKE = "woke", "Woke from a snooze"
    ENDED = "ended", "Ended"
    ACKNOWLEDGED = "acknowledged", "Acknowledged"
    SNOOZED = "snoozed", "Snoozed"
    RESOLVED = "resolved", "Resolved"
    REOPENED = "reopened", "Reopened"
    LABELLED = "labelled", "Labelled"
    UNDONE = "undone", "Taken back"
    STILL_OPEN = "still_open", "Still open"
    NEAR_LIMIT = "session.near_limit", "A session has used most of a limit"
    REQUESTED = "approval.requested", "A call waits for approval"
    CLOSED = "approval.closed", "An approval was decided or expired"


class DestinationKind(models.TextChoices):
    """How a destination is spoken to."""

    WEBHOOK = "webhook", "Signed webhook"
    APPRISE = "apprise", "Notification service"


class AlertDestination(models.Model):
    """A place that messages are sent to, with the state of its breaker.

    `address` and `signing_secrets` are secrets: they leave the row only to send, are in no log, no audit entry and no
    answer; `shown_address` is what people see. While `paused_until` lies ahead nothing is sent, so that a
    destination that is down costs one attempt now and then.
    """

    public_id = models.CharField(max_length=32, unique=True, default=new_destination_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alert_destinations")
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
            models.UniqueConstraint(fields=("project", "name"), name="destination_named_once"),
            models.CheckConstraint(
                condition=models.Q(kind__in=DestinationKind.values), name="destination_kind_known"
            ),
        )

    def __str__(self) -> str:
        return self.name


class Matchers(models.Model):
    """Which incidents are meant. An empty list matches all; patterns are globs; all lists that are set must match."""

    kinds = ArrayField(models.CharField(max_length=16), default=list, blank=True)
    severities = ArrayField(
        models.CharField(max_length=8, choices=Severity.choices), default=list, blank=True
    )
    tools = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    agents = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    backends = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    model_names = ArrayField(models.CharField(max_length=200), default=list, blank=True)

    class Meta:
        abstract = True


class AlertRoute(Matchers):
    """Which transitions of which incidents go where, when and how gathered. Routes are tried in order of `position`."""

    public_id = models.CharField(max_length=32, unique=True, default=new_route_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alert_routes")
    name = models.CharField(max_length=80)
    position = models.IntegerField(default=0)
    is_enabled = models.BooleanField(default=True)
    destinations = models.ManyToManyField(AlertDestination, related_name="routes", blank=True)
    transitions = ArrayField(models.CharField(max_length=20, choices=Transition.choices), default=list)
    goes_on = models.BooleanField(default=False, help_text="Try the routes after this one, too.")
    includes_demo = models.BooleanField(default=False)
    group_by = ArrayField(
        models.CharField(max_length=16), default=list, blank=True, help_text="Empty: one group."
    )
    group_wait_seconds = models.IntegerField(default=10)
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    quiet_zone = models.CharField(max_length=64, blank=True, default="UTC")
    quiet_holds_critical = models.BooleanField(default=False)
    repeat_hours = models.IntegerField(
        default=0, help_text="Tell again while an incident stays open; 0: never."
    )

    class Meta:
        ordering = ("position", "id")
        constraints = (
            models.UniqueConstraint(fields=("project", "name"), name="route_named_once"),
            models.CheckConstraint(
                condition=models.Q(group_wait_seconds__gte=0) & models.Q(group_wait_seconds__lte=3600),
                name="group_wait_within_an_hour",
            ),
            models.CheckConstraint(
                condition=models.Q(repeat_hours__gte=0) & models.Q(repeat_hours__lte=720),
                name="repeat_within_thirty_days",
            ),
            models.CheckConstraint(
                condition=models.Q(quiet_from__isnull=True, quiet_until__isnull=True)
                | models.Q(quiet_from__isnull=False, quiet_until__isnull=False),
                name="quiet_hours_whole",
            ),
        )

    def __str__(self) -> str:
        return self.name


class AlertSilence(Matchers):
    """No messages about the matching incidents until `ends_at`; what it holds back stays counted and visible.

    After its end, what is open still and was never told is told; `caught_up_at` says that this was done.
    """

    public_id = models.CharField(max_length=32, unique=True, default=new_silence_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alert_silences")
    loop_id = models.CharField(max_length=32, blank=True, default="", help_text="Only this loop.")
    reason = models.CharField(max_length=300)
    starts_at = models.DateTimeField(db_default=Now())
    ends_at = models.DateTimeField()
    caught_up_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-ends_at", "-id")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(ends_at__gte=models.F("starts_at")), name="silence_ends_after_start"
            ),
        )
        indexes = (
            models.Index(fields=("project", "-ends_at"), name="silence_newest"),
            models.Index(
                fields=("ends_at",), name="silence_to_catch_up", condition=models.Q(caught_up_at=None)
            ),
        )

    def __str__(self) -> str:
        return self.reason


class OutboxState(models.TextChoices):
    """What became of a transition."""

    PENDING = "pending", "Waiting for its route"
    ROUTED = "routed", "Put into messages"
    SILENCED = "silenced", "Held back by a silence"
    UNROUTED = "unrouted", "No route wanted it"
    FAILED = "failed", "Routing it failed"


class AlertTransition(models.Model):
    """The outbox: one piece of news, written in the transaction that made it, with the facts of then.

    `incident` is null where the news is of none, such as a session that comes close to a limit.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    incident = models.ForeignKey(
        Incident, null=True, blank=True, on_delete=models.CASCADE, related_name="transitions"
    )
    transition = models.CharField(max_length=20, choices=Transition.choices)
    actor = models.CharField(max_length=150)
    at = models.DateTimeField(db_default=Now())
    facts = models.JSONField(encoder=DjangoJSONEncoder)
    state = models.CharField(max_length=8, choices=OutboxState.choices, default=OutboxState.PENDING)
    silence = models.ForeignKey(
        AlertSilence, null=True, blank=True, on_delete=models.SET_NULL, related_name="hidden"
    )

    class Meta:
        ordering = ("id",)
        indexes = (
            models.Index(fields=("id",), name="outbox_pending", condition=models.Q(state="pending")),
            models.Index(fields=("at",), name="outbox_age"),
        )

    def __str__(self) -> str:
        return f"{self.transition} of {self.incident_id or self.facts.get('session', '')}"


class DeliveryState(models.TextChoices):
    """Where a message is."""

    WAITING = "waiting", "Waiting"
    SENDING = "sending", "Being sent"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"


class AlertDelivery(models.Model):
    """One message to one destination, of one transition or of several that were gathered.

    Until it is sent for the first time it gathers; then `payload` is frozen and every attempt sends the same bytes under
    the same `public_id`. A sender claims it by `claim` until `claimed_until`; a claim that ran out may be taken over.
    """

    public_id = models.CharField(max_length=32, unique=True, default=new_delivery_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="alert_deliveries")
    destination = models.ForeignKey(AlertDestination, on_delete=models.CASCADE, related_name="deliveries")
    route_name = models.CharField(max_length=80, blank=True, default="")
    group_key = models.CharField(max_length=64, blank=True, default="")
    is_test = models.BooleanField(default=False)
    state = models.CharField(max_length=9, choices=DeliveryState.choices, default=DeliveryState.WAITING)
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
        verbose_name_plural = "alert deliveries"
        indexes = (
            models.Index(fields=("project", "-id"), name="delivery_newest"),
            models.Index(
                fields=("destination", "due_at"),
                name="delivery_open",
                condition=models.Q(state__in=("waiting", "sending")),
            ),
            models.Index(fields=("destination", "group_key", "-created_at"), name="delivery_group"),
            models.Index(fields=("created_at",), name="delivery_age"),
        )

    def __str__(self) -> str:
        return self.public_id


class AlertDeliveryItem(models.Model):
    """A transition in a message. One destination hears of a transition once, whatever routes lead there."""

    delivery = models.ForeignKey(AlertDelivery, on_delete=models.CASCADE, related_name="items")
    destination = models.ForeignKey(AlertDestination, on_delete=models.CASCADE, related_name="+")
    transition = models.ForeignKey(AlertTransition, on_delete=models.CASCADE, related_name="items")

    class Meta:
        ordering = ("transition_id",)
        constraints = (
            models.UniqueConstraint(fields=("transition", "destination"), name="one_message_per_transition"),
        )

    def __str__(self) -> str:
        return f"{self.transition_id} in {self.delivery_id}"


class AlertAttempt(models.Model):
    """One try to hand a message over; written once."""

    delivery = models.ForeignKey(AlertDelivery, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    at = models.DateTimeField(db_default=Now())
    duration_ms = models.IntegerField()
    is_success = models.BooleanField()
    status = models.IntegerField(null=True, blank=True, help_text="HTTP status, where there was an answer.")
    problem = models.CharField(max_length=300, blank=True, default="")
    answer = models.TextField(blank=True, default="", help_text="The answer's first 4 KB, for admins only.")

    class Meta:
        ordering = ("number",)
        constraints = (models.UniqueConstraint(fields=("delivery", "number"), name="attempt_numbered_once"),)

    def __str__(self) -> str:
        return f"{self.delivery_id}#{self.number}"
