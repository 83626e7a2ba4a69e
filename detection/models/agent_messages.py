"""Messages that people leave for agents."""

from __future__ import annotations

from functools import partial

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from detection.engine.scopes import MAX_NAME_CHARACTERS
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.tenants import ProjectKey, TenantModel


class AgentMessage(TenantModel):
    """A message for a session, or for an agent whichever of its sessions calls next; handed out once, with a verdict.

    `delivered_at` is written in the transaction of the verdict that has the message.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="agent_messages")
    public_id = models.CharField(max_length=32, default=partial(new_id, "msg_"), editable=False)
    session = models.CharField(max_length=256, blank=True, default="", help_text="Name of the session.")
    agent = models.CharField(max_length=MAX_NAME_CHARACTERS["agent"], blank=True, default="")
    text = models.CharField(max_length=1000)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())
    delivered_at = models.DateTimeField(null=True, blank=True)
    delivered_to = models.CharField(
        max_length=256, blank=True, default="", help_text="Name of the session whose agent got it."
    )
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="agent_message_id"),
            models.CheckConstraint(name="agent_message_for_one", condition=Q(session="") ^ Q(agent="")),
        )
        indexes = (
            models.Index(
                fields=("project",),
                name="agent_message_waiting",
                condition=Q(delivered_at__isnull=True, withdrawn_at__isnull=True),
            ),
        )

    def __str__(self) -> str:
        return f"{self.public_id} for {self.session or self.agent}"
