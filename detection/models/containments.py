"""Containments: everything of an agent, a model, a tool or a wider scope is stopped, held or blocked."""

from __future__ import annotations

from functools import partial

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.public_ids import new_id


class ContainmentScope(models.TextChoices):
    """What a containment is about, from the narrowest to the widest."""

    AGENT_TOOL = "agent_tool", "Tool of an agent"
    TOOL = "tool", "Tool"
    FAMILY = "family", "Family"
    AGENT = "agent", "Agent"
    MODEL = "model", "Model"
    TAG = "tag", "Tag"
    KEY = "key", "Key"
    PROJECT = "project", "Project"
    SERVER = "server", "Server"


OF_CALLS = frozenset((ContainmentScope.AGENT_TOOL, ContainmentScope.TOOL))
"""Scopes that cover calls of a tool; all others cover every call of a session."""
WITHOUT_VALUE = frozenset((ContainmentScope.PROJECT, ContainmentScope.SERVER))


class ContainmentReaction(models.TextChoices):
    """What happens to each call of the scope."""

    STOP = "stop", "Stop"
    HOLD = "hold", "Hold"
    BLOCK = "block", "Block"


class Containment(models.Model):
    """One containment, kept after its end. It takes effect with its commit and needs no process to carry it out.

    It is in force until `lifted_at` is set or `until` has passed. It changes nothing in sessions
    to have their calls blocked, so lifting it restores them.
    """

    project = models.ForeignKey(
        Project,
        null=True,
        blank=True,
        db_index=False,  # that of the newest begins with it
        on_delete=models.CASCADE,
        related_name="containments",
    )
    public_id = models.CharField(max_length=32, unique=True, default=partial(new_id, "ctn_"), editable=False)
    scope = models.CharField(max_length=12, choices=ContainmentScope.choices)
    value = models.CharField(
        max_length=256, blank=True, default="", help_text="Name in the scope; of a family, its top session."
    )
    tool = models.CharField(max_length=128, blank=True, default="", help_text="For the tool of an agent.")
    reaction = models.CharField(max_length=8, choices=ContainmentReaction.choices)
    reason = models.CharField(max_length=300, blank=True, default="")
    until = models.DateTimeField(null=True, blank=True)
    include_new = models.BooleanField(default=True, help_text="Whether it covers sessions that start later.")
    can_stop = models.IntegerField(default=0, help_text="Sessions that it could stop when it was created.")
    can_block = models.IntegerField(default=0)
    watch_only = models.IntegerField(default=0)
    end_noted_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its end at `until` was recorded."
    )
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())
    lifted_by = models.CharField(max_length=150, blank=True, default="")
    lifted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (
            models.CheckConstraint(
                name="containment_scope_known", condition=Q(scope__in=ContainmentScope.values)
            ),
            models.CheckConstraint(
                name="containment_reaction_known", condition=Q(reaction__in=ContainmentReaction.values)
            ),
            models.CheckConstraint(
                name="containment_names_its_scope",
                condition=Q(Q(scope="server", project=None) | Q(~Q(scope="server"), project__isnull=False))
                & Q(
                    Q(scope__in=("project", "server"), value="")
                    | Q(~Q(scope__in=("project", "server")), ~Q(value=""))
                )
                & Q(Q(scope="agent_tool") ^ Q(tool="")),
            ),
        )
        indexes = (
            models.Index(
                fields=("project",), name="containment_not_lifted", condition=Q(lifted_at__isnull=True)
            ),
            models.Index(fields=("project", "-created_at", "-id"), name="containment_newest"),
        )

    def __str__(self) -> str:
        return f"{self.public_id}: {self.reaction} {self.scope} {self.value}".rstrip()
