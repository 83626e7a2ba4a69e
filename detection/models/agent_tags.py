"""Tags that people give to agents."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from detection.engine.scopes import MAX_NAME_CHARACTERS
from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


class AgentTags(TenantModel):
    """The tags of one agent of a project, by its name; an agent without tags has no row."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="agent_tags")
    agent = models.CharField(max_length=MAX_NAME_CHARACTERS["agent"])
    tags = ArrayField(models.CharField(max_length=64))

    class Meta:
        constraints = (models.UniqueConstraint(fields=("project", "agent"), name="tags_once_per_agent"),)

    def __str__(self) -> str:
        return f"{self.agent}: {', '.join(self.tags)}"
