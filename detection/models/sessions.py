"""Sessions and the tracker state that detection keeps for each."""

from __future__ import annotations

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from detection.models.projects import Project

NEW_SESSION_ID = RawSQL(
    "(floor(extract(epoch from now()) / 86400)::bigint << 32) | (nextval('detection_session_counter') & 4294967295)",
    (),
)
"""A session's id is the day of its start (days since 1970) above 32 bits of a counter."""


class SessionState(models.TextChoices):
    """What a session is doing, as far as its calls tell. Idle is not stored: it follows from the last event's age."""

    RUNNING = "running", "Running"
    LOOPING = "looping", "Looping"
    HELD = "held", "Held"
    STOPPED = "stopped", "Stopped"
    ENDED = "ended", "Ended"


class Session(models.Model):
    """One agent conversation, named by the client within its project.

    The row's lock orders everything that happens to a session. `last_seq` is the sequence number given last,
    `evaluated_seq` how far detection has come; a session with work to do is one where the two differ.
    `changed_xid` is the transaction that touched the row last: the live page's cursor, free of gaps.
    """

    id = models.BigIntegerField(primary_key=True, db_default=NEW_SESSION_ID, editable=False)
    # No index of its own: three others begin with the project, and every call has to keep each of them up.
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="sessions", db_index=False)
    external_id = models.CharField(max_length=256)
    agent = models.CharField(max_length=128, blank=True, default="")
    backend = models.CharField(max_length=128, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    parent_external_id = models.CharField(max_length=256, blank=True, default="")
    is_demo = models.BooleanField(default=False)

    state = models.CharField(max_length=16, choices=SessionState.choices, default=SessionState.RUNNING)
    outcome = models.CharField(
        max_length=16, blank=True, default="", help_text="completed, failed or cancelled"
    )
    started_at = models.DateTimeField(db_default=Now())
    last_event_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)

    last_seq = models.IntegerField(default=0)
    evaluated_seq = models.IntegerField(default=0)
    pending_since = models.DateTimeField(
        null=True, blank=True, help_text="When the oldest unevaluated event came in."
    )
    call_count = models.IntegerField(default=0)
    blocked_count = models.IntegerField(default=0)
    token_count = models.BigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=14, decimal_places=6, default=0)
    last_tool = models.CharField(max_length=128, blank=True, default="")
    meter_kind = models.CharField(max_length=16, blank=True, default="")
    meter_count = models.IntegerField(default=0)
    meter_limit = models.IntegerField(default=0)
    strip = models.JSONField(
        default=list,
        encoder=DjangoJSONEncoder,
        help_text="The last 60 calls as [seq, key, flags], oldest first.",
    )

    policy_values = models.JSONField(default=dict, help_text="The session's own override.")
    stopped_at = models.DateTimeField(null=True, blank=True)
    stopped_by = models.CharField(max_length=150, blank=True, default="")
    stop_reason = models.CharField(max_length=300, blank=True, default="")
    quarantined = models.JSONField(
        default=list, help_text="Events set aside because evaluating them failed: [{seq, error, at}]."
    )
    changed_xid = models.BigIntegerField(
        db_default=RawSQL("pg_current_xact_id()::text::bigint", ()), editable=False
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("project", "external_id"), name="session_named_once"),
            models.CheckConstraint(
                condition=models.Q(evaluated_seq__gte=0) & models.Q(evaluated_seq__lte=models.F("last_seq")),
                name="evaluated_within_received",
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=SessionState.values), name="session_state_known"
            ),
        )
        indexes = (
            models.Index(fields=("project", "-last_event_at", "-id"), name="session_newest"),
            models.Index(fields=("project", "changed_xid"), name="session_changes"),
            models.Index(
                fields=("pending_since",),
                name="session_pending",
                condition=models.Q(evaluated_seq__lt=models.F("last_seq")),
            ),
            # Of few sessions each, so that every other call keeps no more than the indexes above.
            models.Index(
                fields=("project", "-last_event_at", "-id"),
                name="session_remarkable",
                condition=models.Q(state__in=("looping", "held", "stopped")),
            ),
            models.Index(
                fields=("project", "-last_event_at", "-id"),
                name="session_of_demo",
                condition=models.Q(is_demo=True),
            ),
            models.Index(
                fields=("project",), name="session_quarantined", condition=~models.Q(quarantined=[])
            ),
        )

    def __str__(self) -> str:
        return self.external_id

    @property
    def is_stopped(self) -> bool:
        """Whether a person stopped the session and nobody resumed it."""
        return self.stopped_at is not None


class TrackerState(models.Model):
    """The engine's snapshot of one session: versioned, bounded, and rebuilt from the stored events when outdated."""

    session = models.OneToOneField(
        Session, primary_key=True, on_delete=models.CASCADE, related_name="tracker"
    )
    version = models.PositiveSmallIntegerField()
    snapshot = models.BinaryField()
    updated_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"state of {self.session_id}"
