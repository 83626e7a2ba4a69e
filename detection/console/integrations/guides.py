"""The Connect pages, one per integration: what to run, what it prevents, and whether calls have arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.conf import settings
from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console.access import ProjectRequest, in_project
from detection.console.integrations import client_wheel
from detection.console.integrations.connect_keys import key_context
from detection.integrations.hosts import HOSTS, hook_settings
from detection.models import Role
from detection.models.sessions import OTLP
from detection.selectors.integrations import heard_integrations

AWAY: Final = (
    "While LoopGuard is unreachable, calls run as without hooks. With --fail-closed, they do not run."
)
_HELD_BY_USER: Final = "For a held call, {title} asks its own user."
_HELD_BY_OPERATOR: Final = (
    "A held call does not run, and the model reads that an operator has been asked. The decision applies when the "
    "same call is made again. The settings below wait up to 45 s for it."
)
_ENDS: Final = "A stop ends the run."
_DENIES: Final = (
    "A hook cannot end a run of {title}: after a stop, every further call is blocked, and the model is asked until it "
    "gives up. The gateway ends the run; connect {title} there to save these requests."
)


@dataclass(frozen=True, slots=True)
class Guide:
    """A way to connect an agent.

    Attributes
    ----------
    name, title
        Name in URLs, and title for people.
    integrations
        Values of `Session.integration` that its sessions have.
    summary
        One sentence.
    prevents
        What happens to calls, and the limits of that.
    check
        How to verify that it works.
    trust
        Steps that a person has to take after the installation.
    """

    name: str
    title: str
    integrations: tuple[str, ...]
    summary: str
    prevents: tuple[str, ...]
    check: str
    trust: str = ""

    @property
    def is_host(self) -> bool:
        """Whether it is a coding agent with hooks or plugins."""
        return self.name in HOSTS

    @property
    def commands(self) -> str:
        """What to run after the client is installed."""
        if not self.is_host:
            return ""
        return f"loopguard hooks install {self.name} --url {settings.PUBLIC_URL}\nloopguard hooks check {self.name}"

    @property
    def settings_file(self) -> str:
        """The file with its hooks; empty if it has none."""
        return HOSTS[self.name].settings_file if self.is_host else ""

    @property
    def by_hand(self) -> str:
        """What its settings file has to contain; empty if it has no settings file."""
        if not self.settings_file:
            return ""
        return orjson.dumps(
            hook_settings(HOSTS[self.name], settings.PUBLIC_URL), option=orjson.OPT_INDENT_2
        ).decode()


def _host(name: str, *more: str, held: str, stop: str, trust: str = "") -> Guide:
    title = HOSTS[name].title
    return Guide(
        name,
        title,
        (f"hooks/{name}",),
        f"{title} asks LoopGuard before each tool call, using its own hooks. The program itself is not changed.",
        (
            "A blocked call does not run, and the model reads the message as its result.",
            stop.format(title=title),
            held.format(title=title),
            *more,
            AWAY,
        ),
        "The command check runs the installed hook as the program does, and reports success or the exact problem.",
        trust,
    )


_GUIDES: Final = (
    _host("claude-code", held=_HELD_BY_USER, stop=_ENDS),
    _host(
        "codex",
        held=_HELD_BY_OPERATOR,
        stop=_DENIES,
        trust="Codex silently skips hooks that are not trusted. "
        "Start codex, enter /hooks and trust LoopGuard's hooks. The check fails until you do.",
    ),
    _host(
        "gemini-cli",
        "Gemini CLI itself ends a run at the fifth identical call. LoopGuard adds cycles, similar calls, failures "
        "and a record of calls.",
        held=_HELD_BY_OPERATOR,
        stop=_ENDS,
    ),
    _host("copilot", held=_HELD_BY_USER, stop=_DENIES),
    *(
        _host(name, held=_HELD_BY_OPERATOR.rpartition(" The settings")[0], stop=_ENDS)
        for name in ("opencode", "kilo")
    ),
    Guide(
        "python",
        "Python and frameworks",
        ("client", "guard"),
        "A decorator, a context manager, or an adapter for LangChain, "
        "LangGraph, OpenAI Agents SDK, pydantic-ai and CrewAI.",
        (
            "A blocked call does not run, and the model reads the message as its result.",
            "A stop ends the run, as far as the framework allows.",
            "A held call waits for its approval.",
            (
                "While LoopGuard is unreachable, the client counts identical calls itself. Tools in fail_closed do "
                "not run."
            ),
        ),
        "Run the snippet: the fourth call returns a message instead of a result, and its session is listed under Live.",
    ),
    Guide(
        "mcp",
        "MCP servers",
        ("client", "guard"),
        "A wrapper around a stdio MCP server guards its tools, whichever program uses them.",
        (
            "A blocked call is answered with isError and its message; a warning precedes the result.",
            "MCP cannot end a run: after a stop, every further call is answered with an error.",
            "LoopGuard sees only MCP tools, and no user messages.",
        ),
        "Restart the MCP client and use a tool: its session is listed under Live, with the client's name as the "
        "agent.",
    ),
    Guide(
        "opentelemetry",
        "OpenTelemetry",
        (OTLP,),
        "An agent that is instrumented for OpenTelemetry exports its spans here. Nothing else about it changes.",
        (
            "Spans are sent after a call has run, so nothing is blocked: loops are reported within seconds.",
            "Calls, results, errors, tokens, costs, prompts and agents come from spans. Other spans are ignored.",
            "Calls without recorded arguments are rejected and listed under Ingest: enable content recording.",
            "While LoopGuard is unreachable, the exporter retries for a while and then drops its spans.",
        ),
        "Run the agent: its session is listed under Live a few seconds later, named after its conversation or trace.",
    ),
)
GUIDES: Final[Mapping[str, Guide]] = {guide.name: guide for guide in _GUIDES}
"""The guides by name."""


@never_cache
@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest, name: str) -> HttpResponse:
    """Show one guide, or create the key of its snippets."""
    guide = GUIDES.get(name)
    if guide is None:
        raise Http404
    heard = [one for one in heard_integrations(request.project.pk) if one.name in guide.integrations]
    context: dict[str, Any] = {
        "guide": guide,
        "guides": _GUIDES,
        "heard": heard[0] if heard else None,
        "public_url": settings.PUBLIC_URL,
        "client_requirement": client_wheel.requirement(),
        **key_context(request),
    }
    return render(request, "integrations/guide.html", context)
