"""The Agents page: who has called lately and what can be done to it, its tags, and messages that people leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.alerting.alert_pages import words_of
from detection.models import Role
from detection.selectors.agent_messages import list_messages
from detection.selectors.integrations import heard_agents
from detection.services import agent_messages, tags
from detection.services.errors import ServiceError

MAX_MESSAGES = 50


@dataclass(slots=True)
class AgentLine:
    """An agent as the page lists it; one without calls in the last days has no reach."""

    name: str
    reach: str = ""
    sessions: int = 0
    calls: int = 0
    last_heard_at: datetime | None = None
    tags: list[str] = field(default_factory=list)


@never_cache
@in_project(write_role=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """List the agents and the messages for them; tag an agent, leave a message, or withdraw one."""
    error: ServiceError | None = None
    if request.method == "POST":
        try:
            _act(request)
            return redirect("console:agents", request.project.slug)
        except ServiceError as problem:
            error = problem
    context = {
        "agents": _lines(request.project.pk),
        "left": list_messages(request.project.pk, limit=MAX_MESSAGES),
        "longest": agent_messages.MAX_CHARACTERS,
        "given": request.POST,
        "error": error,
    }
    return render(request, "projects/agents.html", context, status=error.status if error else 200)


def _act(request: ProjectRequest) -> None:
    given, actor, project_id = request.POST, actor_of(request), request.project.pk
    agent = given.get("agent", "").strip()
    match given.get("action"):
        case "tags":
            kept = tags.set_agent_tags(project_id, agent, words_of(given, "tags"), actor)
            shown = ", ".join(kept) or "none"
            messages.success(request, f"Tags of {agent}: {shown}. They take effect on the next call.")
        case "message":
            agent_messages.leave(project_id, given.get("text", ""), actor, agent=agent)
            messages.success(request, f"The session of {agent} that calls next gets it with its verdict.")
        case "withdraw":
            agent_messages.withdraw(project_id, given.get("message", ""), actor)
            messages.success(request, "Withdrawn. No agent has got it.")
        case _:
            raise Http404


def _lines(project_id: int) -> list[AgentLine]:
    """Return the agents that called lately, and those that only have tags; two queries."""
    tagged = tags.agent_tags(project_id)
    heard = [
        AgentLine(one.name, one.reach, one.sessions, one.calls, one.last_heard_at, tagged.pop(one.name, []))
        for one in heard_agents(project_id, with_demo=True)
        if one.name
    ]
    return [*heard, *(AgentLine(name, tags=its) for name, its in sorted(tagged.items()))]
