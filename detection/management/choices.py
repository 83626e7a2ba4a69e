"""Options that several commands share."""

from __future__ import annotations

from django.core.management.base import CommandError

from detection.models import Project


def chosen_project(slug: str | None) -> Project:
    """Return the project of `--project`, or the only one; `CommandError` if there is none, or several."""
    projects = Project.objects.filter(slug=slug) if slug else Project.objects.all()
    found = [*projects[:2]]
    if len(found) == 1:
        return found[0]
    slugs = ", ".join(Project.objects.values_list("slug", flat=True)[:20])
    reason = f"There is no project `{slug}`." if slug else "There are several projects."
    raise CommandError(f"{reason} Name one with --project: {slugs}." if slugs else "There is no project yet.")
