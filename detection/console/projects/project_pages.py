"""The settings of a project."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console import edits
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.projects.system import packed_words
from detection.models import Project, Role, Session, SpikeAction
from detection.models.projects import MAX_RETENTION_DAYS, MIN_PACK_DAYS, MIN_RETENTION_DAYS
from detection.selectors.packed_events import packed_sum
from detection.services.errors import Invalid, ServiceError
from detection.services.projects import projects as service
from detection.services.redaction.redaction import normalized_name
from detection.services.versions import ChangedMeanwhile

MAX_COUNTED = 10_000
_SEPARATORS = re.compile(r"[,\n]")


@never_cache
@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def settings_page(request: ProjectRequest) -> HttpResponse:
    """Show or save the settings of the project, archive it, or restore it."""
    project = request.project
    context: dict[str, Any] = {
        "form": {
            "name": project.name,
            "retention_days": project.retention_days,
            "pack_after_days": project.pack_after_days,
            "stores_payloads": project.stores_payloads,
            "is_searchable": project.is_searchable,
            "redacted_names": ", ".join(project.redacted_names),
            "redaction_patterns": "\n".join(project.redaction_patterns),
            "requires_second_factor": project.requires_second_factor,
            "spike_action": project.spike_action,
            "spike_limit": project.spike_limit,
        },
        "spike_actions": SpikeAction.choices,
        "limits": (MIN_RETENTION_DAYS, MAX_RETENTION_DAYS),
        "min_pack_days": MIN_PACK_DAYS,
        "packed": packed_words(packed_sum(project.pk)),
        "max_name": service.MAX_NAME_CHARACTERS,
        "version": service.project_version(project),
    }
    if request.method != "POST":
        return render(request, "projects/settings.html", context)
    action = request.POST.get("action", "")
    if action in ("archive", "restore"):
        service.archive_project(project.pk, actor_of(request), is_archived=action == "archive")
        messages.success(
            request,
            "Project archived. Its agents are rejected within a second."
            if action == "archive"
            else "Project restored. It accepts events again.",
        )
        return redirect("console:project_settings", project.slug)
    if action != "save":
        raise Http404
    try:
        _save(request)
    except ServiceError as error:
        given: dict[str, Any] = {name: request.POST.get(name, "") for name in service.CHANGEABLE}
        given["requires_second_factor"] = given["requires_second_factor"] == "yes"
        context |= {
            "form": given,
            "error": error,
            "asks_to_confirm": error.code == "deletes_sessions",
            "version": request.POST.get("version", context["version"]),
        }
        if isinstance(error, ChangedMeanwhile):
            entered = {
                **given,
                "name": given["name"].strip(),
                "stores_payloads": given["stores_payloads"] == "yes",
                "is_searchable": given["is_searchable"] == "yes",
                "redacted_names": [
                    *filter(None, map(normalized_name, _SEPARATORS.split(given["redacted_names"])))
                ],
                "redaction_patterns": given["redaction_patterns"].splitlines(),
                "pack_after_days": _number(given["pack_after_days"]),
                "spike_limit": _number(given["spike_limit"]),
            }
            context |= {"error": None, **edits.conflict(error, entered)}
        return render(request, "projects/settings.html", context, status=error.status)
    messages.success(request, "Project saved. Changes take effect within a second.")
    return redirect("console:project_settings", project.slug)


def _save(request: ProjectRequest) -> None:
    project, form = request.project, request.POST
    retention_days = _number(form.get("retention_days", ""))
    if (
        MIN_RETENTION_DAYS <= retention_days < project.retention_days
        and form.get("deletes") != str(retention_days)
        and (count := _expiring(project, retention_days))
    ):
        raise Invalid(
            f"This deletes {'more than ' if count > MAX_COUNTED else ''}{min(count, MAX_COUNTED):,}"
            f" session{'' if count == 1 else 's'} with their calls. Confirm below.",
            field="retention_days",
            code="deletes_sessions",
        )
    service.update_project(
        project.pk,
        actor_of(request),
        version=form.get("version"),
        name=form.get("name", ""),
        retention_days=retention_days,
        pack_after_days=_number(form.get("pack_after_days") or "0"),
        stores_payloads=form.get("stores_payloads") == "yes",
        is_searchable=form.get("is_searchable") == "yes",
        redacted_names=_SEPARATORS.split(form.get("redacted_names", "")),
        redaction_patterns=form.get("redaction_patterns", "").splitlines(),
        requires_second_factor=form.get("requires_second_factor") == "yes",
        spike_action=form.get("spike_action", project.spike_action),
        spike_limit=_number(form.get("spike_limit") or "0"),
    )


def _number(text: str) -> int:
    """Return the number that was typed; -1 for what is none, which no setting accepts."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1


def _expiring(project: Project, retention_days: int) -> int:
    """Count the sessions that a shorter retention would delete, up to `MAX_COUNTED` + 1."""
    before = timezone.now() - timedelta(days=retention_days)
    rows = Session.objects.filter(project=project, last_event_at__lt=before)
    return len(rows.values_list("pk")[: MAX_COUNTED + 1])
