"""The Connect page: create a key, run a snippet, watch the attempts; and a sample loop."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from detection.console import permalinks
from detection.console.access import ProjectRequest, in_project
from detection.console.integrations import client_wheel
from detection.console.integrations.base_urls import BASE_URL_GUIDES
from detection.console.integrations.connect_keys import key_context
from detection.console.integrations.guides import GUIDES
from detection.models import Role, Session
from detection.models.sessions import IMPORTED
from detection.selectors import dashboard
from detection.selectors.integrations import heard_integrations
from detection.services.events.event_records import EventRecord
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardRequest
from detection.services.keys import PROJECT_ARCHIVED, Principal

SHOWN_ATTEMPTS = 30
SAMPLE_CALLS = (
    ("read_file", '{"path":"docs/faq.md"}', "# Approvals\nHow do I reset my password? …"),
    ("search_web", '{"q":"reset admin password","limit":10}', "0 results"),
    ("read_file", '{"path":"docs/admin.md"}', "# Administration\n…"),
    ("search_web", '{"q":"reset admin password self-hosted","limit":10}', "0 results"),
    ("search_web", '{"q":"reset admin password","limit":10}', "0 results"),
    ("search_web", '{"q":"reset admin password","limit":10}', "0 results"),
    ("search_web", '{"q":"reset admin password","limit":10}', "0 results"),
    ("search_web", '{"q":"reset admin password","limit":10}', "0 results"),
)

IMPORT_COMMAND = "import_transcripts claude-code ~/.claude/projects --usd-per-million-tokens 3 15"


@never_cache
@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show the three steps, or create a key. Only the response to the form has the key, a reload does not."""
    project = request.project
    integrations = heard_integrations(project.pk)
    context: dict[str, Any] = {
        "public_url": settings.PUBLIC_URL,
        "import_command": f"{settings.PROGRAM} {IMPORT_COMMAND} --project {project.slug}",
        "client_requirement": client_wheel.requirement(),
        "guides": GUIDES.values(),
        "base_url_guides": BASE_URL_GUIDES.values(),
        "integrations": integrations,
        "has_watched": any(one.watched_sessions for one in integrations),
        **key_context(request),
        **_attempts(request),
        **_first_session(request),
    }
    return render(request, "integrations/connect.html", context)


@in_project()
@require_safe
def attempts(request: ProjectRequest) -> HttpResponse:
    """Return the attempts or, with `first`, the first event of an agent, to refresh a part of the page."""
    if "first" in request.GET:
        return render(
            request, "integrations/_first_event.html", {**_first_session(request), "is_update": True}
        )
    return render(request, "integrations/_attempts.html", _attempts(request, is_own="own" in request.GET))


def _attempts(request: ProjectRequest, *, is_own: bool = True) -> dict[str, Any]:
    rows = dashboard.attempts(request.project.pk, SHOWN_ATTEMPTS, without_demo=is_own)
    return {"attempts": rows, "is_own": is_own}


def _first_session(request: ProjectRequest) -> dict[str, Any]:
    # Sessions of the demo and of imports complete no step: they say nothing about the agents of this project.
    own = Session.objects.filter(project=request.project, is_demo=False).exclude(
        integration__startswith=IMPORTED
    )
    return {"first_session": own.order_by("id").first()}


@in_project(Role.OPERATOR)
@require_POST
def send_sample(request: ProjectRequest) -> HttpResponse:
    """Run a short loop through the guard, marked as demo, and open its session."""
    project = request.project
    if project.archived_at:
        messages.error(request, PROJECT_ARCHIVED)
        return redirect("console:connect", project.slug)
    name = f"sample-{timezone.now():%H%M%S}-{request.user.pk}"
    sender = Principal.of_project(project, "sample", ("guard",), is_demo=True)
    decision = "allow"
    for index, (tool, arguments, answer) in enumerate(SAMPLE_CALLS):
        call = EventRecord(type="call", session=name, call_id=f"call_{index}", tool=tool, arguments=arguments)
        verdict = guard.guard(
            sender,
            GuardRequest(session=name, backend="openai", model="gpt-5", agent="sample-agent", calls=(call,)),
        )
        decision = verdict.decision
        if decision in ("block", "hold", "stop"):
            break
        result = EventRecord(
            type="result", session=name, call_id=f"call_{index}", content=answer, is_error=False
        )
        guard.guard(sender, GuardRequest(session=name, results=(result,)))
    messages.success(
        request,
        f"Sample loop sent. The verdict on its last call was “{decision}”.",
    )
    return redirect(permalinks.session_url(project.slug, name))
