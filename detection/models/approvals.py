"""Approvals of held calls, and remembered decisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from detection.models.incidents import Incident
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.sessions import Session, SessionKey
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel

CONTAINMENT = "containment"
"""The kind of an approval of calls that a containment holds, whose id stands for the loop."""


class Decider(models.TextChoices):
    """Who decides."""

    PERSON = "person", "A person"
    JUDGE = "judge", "The judge"


class ApprovalState(models.TextChoices):
    """State of an approval. Only an open one can be decided."""

    OPEN = "open", "Open"
    DECIDED = "decided", "Decided"
    EXPIRED = "expired", "Expired"
    WITHDRAWN = "withdrawn", "Withdrawn"


class Choice(models.TextChoices):
    """What a person can choose."""

    SKIP = "skip", "Skip this call"
    ALLOW_ONCE = "allow_once", "Allow once"
    RAISE = "raise", "Raise the limit"
    EXEMPT = "exempt", "Exempt the tool for this session"
    DISABLE = "disable", "Disable for this session"
    STOP = "stop", "Stop the session"


DONE: Mapping[str, str] = {
    Choice.SKIP: "skipped the call",
    Choice.ALLOW_ONCE: "allowed the call once",
    Choice.RAISE: "raised the limit by {by}",
    Choice.EXEMPT: "exempted the tool for this session",
    Choice.DISABLE: "disabled detection for this session",
    Choice.STOP: "requested a stop of the session",
}
"""What a person did, by choice; `{by}` is the amount of a raise."""


class Unattended(models.TextChoices):
    """The unattended reaction: what applies if nobody decides in time."""

    BLOCK = "block", "The call is skipped"
    STOP = "stop", "A stop of the run is requested"
    ALLOW = "allow", "The call is allowed once"
    DISABLE = "disable", "Detection is disabled for the session"


class Approval(TenantModel):
    """A held call, with identical calls of the same loop, that waits for a person or the judge.

    A session has at most one open approval per loop. Approvals change only under the session's row lock; `decision` is
    empty exactly while one is open.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="approvals")
    public_id = models.CharField(max_length=32, default=partial(new_id, "apr_"), editable=False)
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="approvals")
    incident = TenantForeignKey(
        Incident, null=True, blank=True, on_delete=models.SET_NULL, related_name="approvals"
    )
    decider = models.CharField(max_length=8, choices=Decider.choices, default=Decider.PERSON)
    state = models.CharField(max_length=10, choices=ApprovalState.choices, default=ApprovalState.OPEN)

    seq = models.IntegerField(help_text="Sequence number of the held call.")
    call_id = models.CharField(max_length=256)
    call_key = models.CharField(max_length=32)
    held_calls = models.IntegerField(default=1, help_text="How many calls wait for the decision.")
    retry_keys = ArrayField(
        models.CharField(max_length=32),
        default=list,
        db_default=[],
        blank=True,
        help_text="Keys of the calls whose agent does not wait: each gets the decision when it is made again.",
    )
    tool = models.CharField(max_length=128)
    agent = models.CharField(max_length=128, blank=True, default="")
    run = models.CharField(max_length=256, blank=True, default="")
    calls_digest = models.CharField(max_length=32)
    kind = models.CharField(max_length=16)
    count = models.IntegerField()
    limit = models.IntegerField()
    window_seconds = models.FloatField(null=True, blank=True)
    unit = models.CharField(max_length=16, blank=True, default="", help_text="Unit of a budget.")
    summary = models.CharField(max_length=300, help_text="What was detected, as a sentence.")

    requested_at = models.DateTimeField(db_default=Now())
    deadline = models.DateTimeField()
    unattended = models.CharField(max_length=8, choices=Unattended.choices, default=Unattended.BLOCK)

    choice = models.CharField(max_length=10, choices=Choice.choices, blank=True, default="")
    raise_by = models.IntegerField(default=0, help_text="By how much the limit is raised.")
    decision = models.CharField(max_length=8, blank=True, default="", help_text="allow, block or stop")
    message = models.CharField(max_length=2000, blank=True, default="", help_text="Message for the agent.")
    reason = models.CharField(
        max_length=32, blank=True, default="", help_text="Stable code of how it was closed."
    )
    decided_by = models.CharField(max_length=150, blank=True, default="")
    decided_at = models.DateTimeField(null=True, blank=True)
    delivered_at = models.DateTimeField(
        null=True, blank=True, help_text="When an agent first received the decision."
    )
    answered_in = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text="The decision about its group, if any.",
    )

    class Meta:
        ordering = ("-requested_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="approval_id"),
            models.UniqueConstraint(
                fields=("project", "session", "calls_digest"),
                name="one_open_approval_per_loop",
                condition=models.Q(state="open"),
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=ApprovalState.values), name="approval_state_known"
            ),
            models.CheckConstraint(
                name="approval_open_or_decided",
                condition=models.Q(state="open", decision="", decided_at__isnull=True)
                | models.Q(
                    ~models.Q(state="open"),
                    decision__in=("allow", "block", "stop"),
                    decided_at__isnull=False,
                ),
            ),
        )
        indexes = (
            models.Index(fields=("project", "-requested_at", "-id"), name="approval_newest"),
            models.Index(fields=("deadline",), name="approval_due", condition=models.Q(state="open")),
            models.Index(fields=("session", "call_key", "-id"), name="approval_of_call"),
            models.Index(
                fields=("project", "answered_in"),
                name="approval_of_answer",
                condition=~models.Q(answered_in=""),
            ),
        )

    def __str__(self) -> str:
        return f"{self.public_id}: {self.tool} in {self.session_id}"

    @property
    def session_key(self) -> SessionKey:
        """The key of its session's row."""
        return SessionKey(self.project_id, self.session_id)

    @property
    def is_open(self) -> bool:
        """Whether it is not decided yet. Past the deadline it is open until it is closed."""
        return self.state == ApprovalState.OPEN

    def is_overdue(self, now: datetime) -> bool:
        """Whether it is open past its deadline."""
        return self.is_open and self.deadline <= now


class RememberedDecision(TenantModel):
    """A decision that applies to later approvals of the same agent, tool and detector, until it expires."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="remembered_decisions")
    agent = models.CharField(max_length=128, blank=True, default="")
    tool = models.CharField(max_length=128)
    kind = models.CharField(max_length=16)
    choice = models.CharField(max_length=10, choices=Choice.choices)
    raise_by = models.IntegerField(default=0)
    times_used = models.IntegerField(default=0)
    created_by = models.CharField(max_length=150)
    created_by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ("agent", "tool", "kind")
        constraints = (
            models.UniqueConstraint(
                fields=("project", "agent", "tool", "kind"), name="one_remembered_decision"
            ),
        )

    def __str__(self) -> str:
        return f"{self.choice} for {self.tool} of {self.agent or 'any unnamed agent'}"
