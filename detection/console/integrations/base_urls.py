"""The Connect pages for agents that only change their base URL: OpenAI, Anthropic and LiteLLM's proxy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.single_submission import shows_secret
from detection.integrations.reach import Reach, reach_of
from detection.models import BackendKind, KeyScope, Role
from detection.selectors.gateway import gateway_url, heard_through_gateway, list_backends, litellm_url
from detection.services import keys
from detection.services.errors import ServiceError
from detection.services.gateway import backends as service

_FAILURE: Final = (
    "While LoopGuard cannot evaluate, calls pass, or are withheld if the backend says so. "
    "If LoopGuard stops, its open streams end, and SDKs retry."
)
_VERDICTS: Final = (
    "A blocked call never reaches the agent: the model is asked again with the reason as its result, at most twice.",
    "A stop is an ordinary text response that ends the run.",
    "A held call waits for its approval, and its stream is kept alive.",
)


@dataclass(frozen=True, slots=True)
class BaseUrlGuide:
    """A way to connect an agent by its base URL.

    Attributes
    ----------
    name, title, letters
        Name in URLs, title for people, and what its tile shows instead of a logo.
    kind
        Kind of the backends that it uses; empty for LiteLLM, which needs none.
    base_url
        Of the provider.
    summary
        One sentence.
    prevents
        What happens to calls, and the limits of that.
    check
        How to verify that it works.
    """

    name: str
    title: str
    letters: str
    kind: str
    base_url: str
    summary: str
    prevents: tuple[str, ...]
    check: str

    @property
    def reach(self) -> Reach:
        """What can be done to its sessions."""
        return reach_of("gateway" if self.kind else "litellm")


_GUIDES: Final = (
    BaseUrlGuide(
        "openai",
        "OpenAI base URL",
        "OU",
        BackendKind.OPENAI.value,
        "https://api.openai.com/v1",
        "For the OpenAI SDK, Codex and any program that uses the chat completions or responses API.",
        (*_VERDICTS, _FAILURE),
        "Send one request: it appears under Traffic within seconds, and the first tool call starts a session.",
    ),
    BaseUrlGuide(
        "anthropic",
        "Anthropic base URL",
        "AU",
        BackendKind.ANTHROPIC.value,
        "https://api.anthropic.com",
        "For the Anthropic SDK, Claude Code and any program that uses Anthropic's messages API.",
        (*_VERDICTS, _FAILURE),
        "Send one request: it appears under Traffic within seconds, and the first tool call starts a session.",
    ),
    BaseUrlGuide(
        "litellm",
        "LiteLLM",
        "Li",
        "",
        "",
        "For every agent behind LiteLLM's proxy, which passes requests and responses to LoopGuard as a guardrail.",
        (
            (
                "A response with a blocked call is rejected with status 400 and the message. LiteLLM cannot ask the "
                "model again."
            ),
            "A warning precedes the result in the next request.",
            "A held call waits for its approval until the guardrail's timeout.",
            "While LoopGuard is unreachable, unreachable_fallback decides whether responses pass.",
        ),
        "Send one request with a tool call through the proxy: its session is listed.",
    ),
)
BASE_URL_GUIDES: Final = {guide.name: guide for guide in _GUIDES}
"""The guides by name."""


@never_cache
@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest, name: str) -> HttpResponse:
    """Show a guide. Only the response to a form holds the new key or token, so a reload does not show it."""
    guide = BASE_URL_GUIDES.get(name)
    if guide is None:
        raise Http404
    made: dict[str, str] = {}
    if request.method == "POST":
        try:
            made = _carry_out(request, guide)
        except ServiceError as error:
            messages.error(request, error.detail)
    everything = list_backends(request.project.pk) if guide.kind else ()
    rows = [row for row in everything if row.kind == guide.kind and row.is_enabled]
    wanted = request.GET.get("backend", "")
    backend = next((row for row in rows if row.name == wanted), rows[0] if rows else None)
    backend_name = backend.name if backend else guide.kind
    heard = heard_through_gateway(request.project.pk, [row.name for row in rows] if guide.kind else None)
    context: dict[str, Any] = {
        "guide": guide,
        "backends": rows,
        "backend": backend,
        "url": gateway_url(backend_name) if guide.kind else litellm_url(),
        "token_url": made.get("token_url") or gateway_url(backend_name, "lgw_…"),
        "key": made.get("key", "lg_…"),
        "made": made,
        "heard": heard,
        "is_allowed": service.is_allowed_upstream(guide.base_url),
    }
    return render(request, "integrations/base_url.html", context)


def _carry_out(request: ProjectRequest, guide: BaseUrlGuide) -> dict[str, str]:
    project, actor = request.project, actor_of(request)
    action = request.POST.get("action", "")
    if action == "create_backend" and guide.kind:
        row = service.create_backend(
            project.pk, actor, name=guide.kind, kind=guide.kind, base_url=guide.base_url
        )
        messages.success(request, f"Backend {row.name} created.")
        return {}
    if action == "create_key":
        _, token = keys.create_key(project, guide.title, actor, scopes=[KeyScope.GUARD.value])
        shows_secret(request)
        return {"key": token}
    if action == "create_token" and guide.kind:
        made, token = service.create_token(
            project.pk, request.POST.get("id", "")[:40], actor, name=guide.title
        )
        shows_secret(request)
        return {"token_url": gateway_url(made.backend.name, token)}
    raise Http404
