"""Tags that people give to agents and keys; those of sessions come with their events."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import F

from detection.integrations.labels import LabelError, checked_tags
from detection.models import AgentTags, ApiKey, Project
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Invalid, found


def set_agent_tags(project_id: int, agent: str, tags: Sequence[str], actor: Actor) -> list[str]:
    """Replace the tags of an agent, which need not have called yet; returns them. Takes effect on the next call.

    Raises
    ------
    Invalid
        For a name or tags that are not valid.
    """
    if not 1 <= len(agent) <= 128 or not agent.isprintable():
        raise Invalid("`agent` must have 1 to 128 printable characters.", field="agent")
    after = _checked(tags)
    with transaction.atomic():
        row = AgentTags.objects.select_for_update().filter(project_id=project_id, agent=agent).first()
        before = row.tags if row is not None else []
        if row is not None and not after:
            row.delete()
        elif after:
            AgentTags.objects.update_or_create(project_id=project_id, agent=agent, defaults={"tags": after})
        _note(project_id, actor, "agent.tags", agent, before, after)
    return after


def set_key_tags(project_id: int, public_id: str, tags: Sequence[str], actor: Actor) -> ApiKey:
    """Replace the tags of a key. Takes effect on the next call.

    Raises
    ------
    NotFound
        If the project has no such key.
    Invalid
        For tags that are not valid.
    """
    after = _checked(tags)
    with transaction.atomic():
        rows = ApiKey.objects.select_for_update(of=("self",)).filter(project_id=project_id)
        key = found(rows.filter(public_id=public_id.removeprefix("lg_")).first())
        before, key.tags = key.tags, after
        key.save(update_fields=["tags"])
        _note(project_id, actor, "key.tags", key.public_id, before, after)
    return key


def agent_tags(project_id: int) -> dict[str, list[str]]:
    """Return the tags of the agents of a project that have any."""
    return dict(AgentTags.objects.filter(project_id=project_id).values_list("agent", "tags"))


def _checked(tags: Sequence[str]) -> list[str]:
    try:
        return [*checked_tags(tags)]
    except LabelError as error:
        raise Invalid(error.detail, field=error.path, code=error.code) from None


def _note(
    project_id: int, actor: Actor, action: str, subject: str, before: list[str], after: list[str]
) -> None:
    """Let every process read what tags mean again at its next call."""
    if before == after:
        return
    audit.record(
        actor, action, subject, project_id=project_id, before={"tags": before}, after={"tags": after}
    )
    Project.objects.filter(pk=project_id).update(policy_version=F("policy_version") + 1)
