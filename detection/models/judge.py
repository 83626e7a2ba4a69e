"""Consultations of the judge. Written once, except for people's labels; never sent back to the judge."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.approvals import Approval
from detection.models.incidents import Incident
from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class JudgeOutcome(models.TextChoices):
    """The outcome of a consultation."""

    ACCEPTED = "accepted", "Accepted: more rounds were granted"
    DENIED = "denied", "Denied"
    UNCLEAR = "unclear", "Unclear, so denied"
    FAILED = "failed", "Failed, so denied"
    SKIPPED = "skipped", "Not consulted, so denied"
    OBEYED = "obeyed", "Followed instructions in its data, so the judge is disabled"


class JudgeLabel(models.TextChoices):
    """A person's label of a ruling."""

    NONE = "", "Not labelled"
    RIGHT = "right", "Right"
    WRONG = "wrong", "Wrong"


class JudgeCall(TenantModel):
    """A consultation of the judge, or the reason why there was none."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="judge_calls")
    approval = TenantForeignKey(Approval, null=True, on_delete=models.SET_NULL, related_name="judge_calls")
    incident = TenantForeignKey(Incident, null=True, on_delete=models.SET_NULL, related_name="judge_calls")
    calls_digest = models.CharField(max_length=32)
    session_id = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())
    outcome = models.CharField(max_length=8, choices=JudgeOutcome.choices)
    error = models.CharField(max_length=64, blank=True, default="", help_text="Stable code of the error.")
    was_sent = models.BooleanField(default=True, help_text="Whether the endpoint was called.")
    host = models.CharField(max_length=255, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    prompt_hash = models.CharField(max_length=64, blank=True, default="")
    request = models.TextField(blank=True, default="", help_text="The request, without the key.")
    response = models.TextField(blank=True, default="", help_text="The response, cut.")
    reason = models.CharField(max_length=600, blank=True, default="")
    guidance = models.CharField(max_length=600, blank=True, default="")
    rounds_proposed = models.IntegerField(default=0)
    rounds_granted = models.IntegerField(default=0)
    policy_version = models.BigIntegerField(default=0)
    latency_ms = models.IntegerField(default=0)
    input_tokens = models.IntegerField(default=0)
    output_tokens = models.IntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=12, decimal_places=6, default=0)
    label = models.CharField(
        max_length=5, choices=JudgeLabel.choices, blank=True, default="", db_default="",
        help_text="What people say about the ruling.",
    )  # fmt: skip
    labelled_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    labelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-at", "-id")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(outcome__in=JudgeOutcome.values), name="judge_outcome_known"
            ),
            models.CheckConstraint(
                condition=models.Q(outcome="accepted") | models.Q(rounds_granted=0),
                name="judge_grants_only_when_accepted",
            ),
            models.CheckConstraint(condition=models.Q(label__in=JudgeLabel.values), name="judge_label_known"),
        )
        indexes = (
            models.Index(fields=("project", "-at"), name="judge_call_newest"),
            models.Index(fields=("session_id", "calls_digest"), name="judge_call_of_loop"),
        )

    def __str__(self) -> str:
        return f"{self.outcome} at {self.at:%Y-%m-%d %H:%M}"
