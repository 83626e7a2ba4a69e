"""Options that several commands share."""

from __future__ import annotations

from django.core.management.base import CommandError

from detection.models import Project


def chosen_project(slug: str | None) -> Project:
    """Return the project of `--project`, or the only one; `CommandError` if there is none, or several."""
    projects = Project.objects.filter(slug=slug) if slug else Project.objects.all()
    found = [*projects[:2]]
    if len(found) != 1:
        several = "`--project` is required: there are several."
        raise CommandError(
            several if found else f"There is no project `{slug}`." if slug else "There is no project."
        )
    return found[0]
