"""Projects (tenants) and their members."""

from __future__ import annotations

import secrets

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

MIN_RETENTION_DAYS, MAX_RETENTION_DAYS = 7, 3650
MIN_PACK_DAYS = 7
"""No event is that late, and ids of events are kept for as long."""
MAX_SPIKE_LIMIT = 100_000_000
"""Events in a minute: two hundred times what one machine stores (docs/benchmarks.md), so never a limit by mistake."""


def new_digest_secret() -> bytes:
    """Return 256 random bits, the key of all digests of a project."""
    return secrets.token_bytes(32)


class SpikeAction(models.TextChoices):
    """What happens to reported events above the limit of a project."""

    OBSERVE = "observe", "Store them all, and say so"
    SAMPLE = "sample", "Store one session in ten"
    REJECT = "reject", "Reject them with 429; senders try again"


class Project(models.Model):
    """A tenant: owns keys, policies, sessions and incidents."""

    slug = models.SlugField(max_length=64, unique=True)
    name = models.CharField(max_length=120)
    digest_secret = models.BinaryField(default=new_digest_secret, editable=False)
    policy_version = models.BigIntegerField(
        default=1,
        editable=False,
        help_text="Increases with every change of a setting or message template that applies to this project.",
    )
    stores_payloads = models.BooleanField(
        default=True,
        help_text="If disabled, arguments and results are stored as digests only. Detection still works.",
    )
    is_searchable = models.BooleanField(
        default=True,
        db_default=True,
        help_text="If disabled, no index of arguments, results and messages is kept, and they cannot be searched.",
    )
    retention_days = models.PositiveIntegerField(
        default=30,
        validators=[MinValueValidator(MIN_RETENTION_DAYS), MaxValueValidator(MAX_RETENTION_DAYS)],
        help_text="Sessions and calls are deleted after this time. Incidents keep their evidence.",
    )
    pack_after_days = models.PositiveIntegerField(
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MAX_RETENTION_DAYS)],
        help_text="Calls of sessions without an event for this time are stored packed. 0: never.",
    )
    redacted_names = ArrayField(
        models.CharField(max_length=64),
        default=list,
        blank=True,
        help_text="Names of fields whose values are redacted, besides the names of passwords, keys and tokens.",
    )
    redaction_patterns = ArrayField(
        models.CharField(max_length=200),
        default=list,
        blank=True,
        help_text="Patterns in the syntax of RE2. What they find in arguments, results and messages is redacted.",
    )
    requires_second_factor = models.BooleanField(
        default=False,
        help_text="If enabled, members need a second factor to see anything of the project.",
    )
    spike_action = models.CharField(
        max_length=8,
        choices=SpikeAction.choices,
        default=SpikeAction.OBSERVE,
        db_default=SpikeAction.OBSERVE,
        help_text="What happens to reported events above the limit. The guard always answers.",
    )
    spike_limit = models.PositiveIntegerField(
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MAX_SPIKE_LIMIT)],
        help_text="Reported events in a minute. 0: ten times the usual rate, and at least 3,000.",
    )
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    first_event_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, through="Membership", related_name="projects")

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(spike_action__in=SpikeAction.values), name="spike_action_known"
            ),
        )

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member may do; each role includes the ones before it."""

    VIEWER = "viewer", "Viewer: sees everything in the project"
    OPERATOR = "operator", "Operator: handles loops, stops and resumes sessions"
    ADMIN = "admin", "Admin: changes settings, keys and members"


class Membership(models.Model):
    """One person's role in one project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the person last opened a page."
    )
    last_visit_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="End of the visit before this one, or when all was marked as read.",
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("project", "user"), name="one_role_per_member"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        )

    def __str__(self) -> str:
        return f"{self.user} in {self.project}: {self.role}"

    def allows(self, role: str) -> bool:
        """Return whether this membership includes the rights of `role`."""
        order = Role.values
        return order.index(self.role) >= order.index(role)
