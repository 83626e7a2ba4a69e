"""Create, change, archive and restore projects."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

import re2
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.text import slugify

from detection.models import Membership, Project, Role, SpikeAction
from detection.models.projects import MAX_RETENTION_DAYS, MAX_SPIKE_LIMIT, MIN_PACK_DAYS, MIN_RETENTION_DAYS
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid
from detection.services.keys import principal_cache
from detection.services.projects.members import add_creator
from detection.services.redaction.redaction import compile_pattern, normalized_name
from detection.services.search import indexing
from detection.services.versions import require_version, version_of

MAX_NAME_CHARACTERS = 120
MAX_SLUG_CHARACTERS = 64
MAX_REDACTED_NAMES = 50
MAX_REDACTED_NAME_CHARACTERS = 64
MAX_REDACTION_PATTERNS = 20
MAX_REDACTION_PATTERN_CHARACTERS = 200
_OF_PATTERNS = re.compile(r"[\\^*+?|(){}]")
"""Characters of patterns, which would match no name. Names in forms have brackets, as in ``card[number]``."""
CHANGEABLE = (
    "name",
    "retention_days",
    "pack_after_days",
    "stores_payloads",
    "is_searchable",
    "redacted_names",
    "redaction_patterns",
    "requires_second_factor",
    "spike_action",
    "spike_limit",
)


def checked_name(name: str) -> str:
    """Return a name without surrounding spaces; `Invalid` for an empty, long or unprintable one."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise Invalid(f"`name` must have 1 to {MAX_NAME_CHARACTERS} printable characters.", field="name")
    return name


def may_create_projects(user: Any) -> bool:
    """Return whether a person may create projects: staff, and admins of another project."""
    return user.is_staff or Membership.objects.filter(user_id=user.pk, role=Role.ADMIN).exists()


def create_project(actor: Actor, *, name: str, slug: str = "") -> Project:
    """Create a project with the actor as its admin.

    Parameters
    ----------
    slug
        The name in addresses, which stays when the project is renamed. Empty: made from the name.

    Raises
    ------
    Invalid
        For the field at fault.
    Conflict
        ``name_taken`` for a `slug` that exists.
    """
    name = checked_name(name)
    if slug and (slug != slugify(slug) or len(slug) > MAX_SLUG_CHARACTERS):
        raise Invalid(
            f"`slug` must have 1 to {MAX_SLUG_CHARACTERS} lower-case letters, digits and hyphens.",
            field="slug",
        )
    made = slug or slugify(name)[:MAX_SLUG_CHARACTERS] or "project"
    try:
        return _create(actor, name, made)
    except IntegrityError:
        if slug:
            raise Conflict("This address is taken.", field="slug", code="name_taken") from None
        return _create(actor, name, f"{made[: MAX_SLUG_CHARACTERS - 7]}-{secrets.token_hex(3)}")


@transaction.atomic
def _create(actor: Actor, name: str, slug: str) -> Project:
    project = Project.objects.create(name=name, slug=slug)
    audit.record(actor, "project.create", slug, project_id=project.pk, after={"name": name})
    add_creator(project, actor)
    return project


def _shown(project: Project) -> dict[str, object]:
    return {name: getattr(project, name) for name in CHANGEABLE}


def project_version(project: Project) -> str:
    """Return the version of a project's settings as a form shows it."""
    return version_of(_shown(project))


def check_version(project_id: int, version: str | None) -> Project:
    """Lock a project and return it; `ChangedMeanwhile` if its settings are no longer of this version."""
    project = Project.objects.select_for_update(no_key=True).get(pk=project_id)
    require_version(version, _shown(project))
    return project


@transaction.atomic
def update_project(project_id: int, actor: Actor, *, version: str | None = None, **values: Any) -> Project:
    """Change the given values of a project. They take effect within a second.

    Parameters
    ----------
    version
        `project_version` of what the person has seen; None checks nothing.
    **values
        Those in `CHANGEABLE`.

    Raises
    ------
    Invalid
        For the field at fault.
    ChangedMeanwhile
        When it was changed since.
    """
    stored = Project.objects.get(pk=project_id)
    # What is stored was accepted once, maybe under other rules.
    given = {name: value for name, value in values.items() if value != getattr(stored, name)}
    checked = {name: _CHECKS[name](value) for name, value in given.items()}
    project = check_version(project_id, version)
    changed = {name: value for name, value in checked.items() if value != getattr(project, name)}
    if not changed:
        return project
    before = {name: getattr(project, name) for name in changed}
    for name, value in changed.items():
        setattr(project, name, value)
    project.save(update_fields=[*changed])
    if changed.get("is_searchable"):
        indexing.index_from_the_beginning()
    audit.record(actor, "project.save", project.slug, project_id=project_id, before=before, after=changed)
    transaction.on_commit(principal_cache.clear)
    return project


@transaction.atomic
def archive_project(project_id: int, actor: Actor, *, is_archived: bool = True) -> Project:
    """Archive a project, or restore it.

    Events, calls and imports of an archived project are rejected with ``project_archived``. Everything can still be
    read, and retention continues.
    """
    project = Project.objects.select_for_update(no_key=True).get(pk=project_id)
    if (project.archived_at is not None) == is_archived:
        return project
    project.archived_at = timezone.now() if is_archived else None
    project.save(update_fields=["archived_at"])
    audit.record(
        actor, "project.archive" if is_archived else "project.restore", project.slug, project_id=project_id
    )
    transaction.on_commit(principal_cache.clear)
    return project


def _retention_days(value: Any) -> int:
    if not isinstance(value, int) or not MIN_RETENTION_DAYS <= value <= MAX_RETENTION_DAYS:
        raise Invalid(
            f"`retention_days` must be between {MIN_RETENTION_DAYS} and {MAX_RETENTION_DAYS:,}.",
            field="retention_days",
        )
    return value


def checked_pack_after_days(value: Any) -> int:
    """Return the number of days; `Invalid` for one that is too small or too large."""
    if not isinstance(value, int) or not (value == 0 or MIN_PACK_DAYS <= value <= MAX_RETENTION_DAYS):
        raise Invalid(
            f"`pack_after_days` must be 0 (never), or between {MIN_PACK_DAYS} and {MAX_RETENTION_DAYS:,}.",
            field="pack_after_days",
        )
    return value


def _spike_action(value: Any) -> str:
    if value not in SpikeAction.values:
        raise Invalid(f"`spike_action` must be one of {', '.join(SpikeAction.values)}.", field="spike_action")
    return str(value)


def _spike_limit(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_SPIKE_LIMIT:
        raise Invalid(f"`spike_limit` must be between 0 and {MAX_SPIKE_LIMIT:,}.", field="spike_limit")
    return value


def checked_redacted_names(names: Sequence[str]) -> list[str]:
    """Return names of fields in the spelling that is compared, each once; `Invalid` for what cannot be one."""
    normal = list(dict.fromkeys(filter(None, map(normalized_name, names))))
    if len(normal) > MAX_REDACTED_NAMES:
        raise Invalid(
            f"`redacted_names` can have at most {MAX_REDACTED_NAMES} names.", field="redacted_names"
        )
    for name in normal:
        if len(name) > MAX_REDACTED_NAME_CHARACTERS or not name.isprintable():
            raise Invalid(
                "`redacted_names` must contain names of fields, each with 1 to"
                f" {MAX_REDACTED_NAME_CHARACTERS} printable characters.",
                field="redacted_names",
            )
        if found := _OF_PATTERNS.findall(name):
            raise Invalid(
                f"`redacted_names`: {name!r} contains {' '.join(dict.fromkeys(found))}. Names are compared as a whole;"
                " use `redaction_patterns` for a pattern.",
                field="redacted_names",
            )
    return normal


def checked_redaction_patterns(patterns: Sequence[str]) -> list[str]:
    """Return patterns without surrounding spaces, each once; `Invalid` for one that cannot be used."""
    kept = list(dict.fromkeys(filter(None, map(str.strip, patterns))))
    if len(kept) > MAX_REDACTION_PATTERNS:
        raise Invalid(
            f"`redaction_patterns` can have at most {MAX_REDACTION_PATTERNS} patterns.",
            field="redaction_patterns",
        )
    for pattern in kept:
        if problem := _problem_of_pattern(pattern):
            raise Invalid(f"`redaction_patterns`: {pattern[:60]!r} {problem}", field="redaction_patterns")
    return kept


def _problem_of_pattern(pattern: str) -> str:
    if len(pattern) > MAX_REDACTION_PATTERN_CHARACTERS:
        return f"has more than {MAX_REDACTION_PATTERN_CHARACTERS} characters."
    try:
        finds_nothing = compile_pattern(pattern).search("") is not None
    except re2.error as error:
        return f"is not a valid RE2 pattern: {error.args[0].decode(errors='replace')}."
    return "also matches an empty text, and would redact everything." if finds_nothing else ""


_CHECKS: dict[str, Any] = {
    "name": checked_name,
    "retention_days": _retention_days,
    "stores_payloads": bool,
    "is_searchable": bool,
    "requires_second_factor": bool,
    "spike_action": _spike_action,
    "pack_after_days": checked_pack_after_days,
    "spike_limit": _spike_limit,
    "redacted_names": checked_redacted_names,
    "redaction_patterns": checked_redaction_patterns,
}
