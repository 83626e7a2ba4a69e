"""Exceptions that were saved, and their undo; `loops.fine_page` has the form that creates them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from detection.console import permalinks
from detection.console.access import ProjectRequest, actor_of, in_project, next_page
from detection.console.loops import incident_text
from detection.engine.scopes import Scope
from detection.models import AuditEntry, Incident, IncidentActivity, Project, Role
from detection.selectors import incidents as selector
from detection.services.errors import NotFound, ServiceError
from detection.services.exceptions import exceptions

MAX_EXCEPTIONS = 200


@dataclass(frozen=True, slots=True)
class SavedException:
    """A row of the list."""

    activity: IncidentActivity
    incident: Incident
    title: str
    url: str
    expires_at: datetime | None
    is_changed_since: bool
    """Nothing of it is left to undo."""

    @property
    def words(self) -> str:
        """What it changes, without the time that `expires_at` has."""
        return self.activity.note.removesuffix(exceptions.until_words(self.expires_at))

    @property
    def is_expired(self) -> bool:
        """Whether it has no effect any more."""
        return self.expires_at is not None and self.expires_at < timezone.now()


def saved(project: Project) -> list[SavedException]:
    """Return the exceptions that were saved and not undone, newest first; three queries."""
    found = selector.exceptions(project.pk).select_related("incident__loop")[:MAX_EXCEPTIONS]
    urls = _urls(project.slug, found)
    changed = exceptions.changed_since(project.pk, found)
    return [
        SavedException(
            one,
            one.incident,
            incident_text.title(one.incident),
            urls.get(one.pk, ""),
            _expiry_of(one),
            is_changed_since=one.pk in changed,
        )
        for one in found
    ]


def saved_of(incident: Incident) -> dict[str, Any]:
    """Return the context of the exception that was saved from an incident, if there is one."""
    current = exceptions.current(incident)
    is_changed = current is not None and bool(exceptions.changed_since(incident.project_id, [current]))
    return {
        "current_exception": current,
        "exception_url": _url_of(incident, current),
        "is_exception_changed_since": is_changed,
    }


def _expiry_of(saved: IncidentActivity) -> datetime | None:
    expires_at = saved.before.get("expires_at")
    return datetime.fromisoformat(expires_at) if expires_at else None


def _urls(slug: str, saved: Iterable[IncidentActivity]) -> dict[int, str]:
    """Return the addresses of the settings of exceptions: the override, the tool rule, the session, or the history."""
    entries = {one.before.get("entry"): one.pk for one in saved}
    rows = AuditEntry.objects.filter(pk__in=[pk for pk in entries if pk]).only("action", "subject")
    return {entries[row.pk]: _url(slug, row) for row in rows}


def _url(slug: str, entry: AuditEntry) -> str:
    if entry.action == "policy.save":
        return f"{reverse('console:policy_settings', args=[slug])}?{urlencode({'scope': entry.subject})}"
    if entry.action == "policy.tool_rule":
        pattern = Scope.parse(entry.subject).pattern
        return f"{reverse('console:tool_rules', args=[slug])}?{urlencode({'pattern': pattern})}"
    if entry.action == "session.policy":
        return permalinks.session_url(slug, entry.subject)
    return reverse("console:policy_history", args=[slug])


def _url_of(incident: Incident, current: IncidentActivity | None) -> str:
    if current is None or incident.project is None:
        return ""
    return _urls(incident.project.slug, [current]).get(current.pk, "")


@in_project(Role.ADMIN)
@require_POST
def undo_exception(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Restore what the exception of an incident has set, where it was not changed since."""
    try:
        exceptions.undo_exception(request.project.pk, public_id, actor_of(request))
        messages.success(request, "Exception undone. It takes effect on the next call.")
    except NotFound:
        raise Http404 from None
    except ServiceError as error:
        messages.error(request, error.detail)
    incident = reverse("console:incident", args=[request.project.slug, public_id])
    return HttpResponseRedirect(next_page(request, incident))
