"""Connect: choose what runs, run one command, watch it arrive; then alert, budget and colleague. And a sample loop."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from detection.console import permalinks
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.alerting.alert_services import ALERT_SERVICES
from detection.console.integrations import client_wheel
from detection.console.integrations.base_urls import BASE_URL_GUIDES
from detection.console.integrations.connect_keys import key_context
from detection.console.integrations.guides import GROUPS, GUIDES, Guide
from detection.console.single_submission import shows_secret
from detection.engine.scopes import PROJECT
from detection.integrations.reach import WATCH_ONLY
from detection.models import Role
from detection.selectors import dashboard, setup
from detection.selectors.integrations import heard_integrations
from detection.selectors.policies import rows_at
from detection.services import install_codes
from detection.services.errors import ServiceError
from detection.services.events.event_records import EventRecord
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardRequest
from detection.services.keys import PROJECT_ARCHIVED, Principal
from detection.services.policies.overrides import save_override

SHOWN_ATTEMPTS = 30
BUDGETS_USD: Final = ("1", "5", "20")
"""Offered for one session: around what runs of coding agents cost; a judgement."""
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
def page(request: ProjectRequest, name: str = "") -> HttpResponse:
    """Show the tiles and, of the chosen one, its command; or carry out a form.

    Only the response to a form has the new code or key, a reload does not.
    """
    guide = GUIDES.get(name)
    if name and guide is None:
        raise Http404
    if request.method == "POST" and request.POST.get("action") == "set_budget":
        return _set_budget(request)
    project = request.project
    context: dict[str, Any] = {
        "groups": GROUPS,
        "base_url_guides": BASE_URL_GUIDES.values(),
        "guide": guide,
        "integrations": [(one, guard_url(project.slug, one.name)) for one in heard_integrations(project.pk)],
        "steps": setup.set_up_of(project.pk),
        "costs": setup.session_costs(project.pk),
        "budgets": BUDGETS_USD,
        "attempts": dashboard.attempts(project.pk, SHOWN_ATTEMPTS),
        "alert_services": ALERT_SERVICES,
        **(_of_guide(request, guide) if guide else {}),
    }
    return render(request, "integrations/connect.html", context)


def guard_url(slug: str, integration: str) -> str:
    """Return where to connect what only reports so that it asks: its own guide, else all of them."""
    guide = next((one for one in GUIDES.values() if integration in one.integrations), None)
    if guide is None or guide.reach == WATCH_ONLY:
        return reverse("console:connect", args=[slug])
    return reverse("console:connect_guide", args=[slug, guide.name])


def _of_guide(request: ProjectRequest, guide: Guide) -> dict[str, Any]:
    commands: tuple[str, ...] = ()
    if request.method == "POST" and request.POST.get("action") == "create_code":
        try:
            code, _ = install_codes.create_code(
                request.project,
                actor_of(request),
                integration=guide.name,
                title=guide.title,
                scope=guide.scope,
                key_days=guide.key_days,
            )
            shows_secret(request)
            commands = _commands(guide, code)
        except ServiceError as error:
            messages.error(request, error.detail)
    return {
        "commands": commands,
        "public_url": settings.PUBLIC_URL,
        "import_command": f"{settings.PROGRAM} {IMPORT_COMMAND} --project {request.project.slug}",
        "client_requirement": client_wheel.requirement(),
        **key_context(request),
        **_arriving(request, guide),
    }


def _commands(guide: Guide, code: str) -> tuple[str, ...]:
    """Return the command with a code, in the forms of `pip` and, if no program imports the client, `uvx` and `pipx`."""
    wheel = client_wheel.requirement()
    connect = f"loopguard connect {settings.PUBLIC_URL} {code}"
    by_pip = f"pip install {wheel} && {connect}"
    if guide.is_python:
        return (by_pip,)
    return (by_pip, f"uvx --from {wheel} {connect}", f"pipx run --spec {wheel} {connect}")


def _set_budget(request: ProjectRequest) -> HttpResponse:
    """Limit what one session may cost; the other settings of the project stay."""
    chosen = request.POST.get("budget", "")
    if chosen not in BUDGETS_USD:
        raise Http404
    project = request.project
    row = rows_at(project.pk, PROJECT).filter(expires_at=None).first()
    limits = {"session_budget_enabled": True, "session_budget_max_cost_usd": float(chosen)}
    try:
        note = f"Budget of ${chosen} for one session"
        save_override(project.pk, PROJECT, {**(row.values if row else {}), **limits}, actor_of(request), note)
        messages.success(
            request, f"A session that has cost ${chosen} now asks a person before its next call."
        )
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:connect", project.slug)


@in_project()
@require_safe
def attempts(request: ProjectRequest) -> HttpResponse:
    """Return the part of a page that shows what arrives: of a guide, or every attempt."""
    guide = GUIDES.get(request.GET.get("guide", ""))
    if guide is not None:
        return render(request, "integrations/_arrivals.html", {"guide": guide, **_arriving(request, guide)})
    is_own = "own" in request.GET
    rows = dashboard.attempts(request.project.pk, SHOWN_ATTEMPTS, without_demo=is_own)
    return render(request, "integrations/_attempts.html", {"attempts": rows, "is_own": is_own})


def _arriving(request: ProjectRequest, guide: Guide) -> dict[str, Any]:
    project = request.project
    installation = install_codes.installation_of(project.pk, request.user.pk or 0, guide.name)
    key_id = installation.key_id if installation else ""
    found = setup.arrivals(project.pk, key_id=key_id, integrations=guide.integrations)
    heard = next((one for one in heard_integrations(project.pk) if one.name in guide.integrations), None)
    finding = found.blocked.verdict.finding if found.blocked and found.blocked.verdict else None
    is_repeat = finding is not None and finding["kind"] == "repeat"
    return {
        "installation": installation,
        "arrivals": found,
        "identical": finding["count"] if finding is not None and is_repeat else 0,
        "heard": heard,
    }


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
