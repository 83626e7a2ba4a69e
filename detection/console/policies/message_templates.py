"""The Message templates page: templates per rung and wire shape, with a preview."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.engine import messages as defaults
from detection.models import Role
from detection.services.errors import ServiceError
from detection.services.policies import message_templates as service
from detection.services.versions import ChangedMeanwhile

RUNG_WORDS = {
    "warn": ("Warning", "The call runs. The message precedes its result."),
    "delay": ("Delay", "The call does not run yet. The length of the pause follows the message."),
    "reuse": ("Reuse", "The call does not run. Its known answer, with its age, follows the message."),
    "chance": (
        "Second chance",
        "The call does not run. The message is its result and asks for another approach.",
    ),
    "block": ("Block", "The call does not run. The message is its result and the run continues."),
    "finish": (
        "Finish",
        "The call does not run. The message is its result and asks for an answer without tools.",
    ),
    "ask": ("Held call", "The message while the call waits for a person."),
    "judge": ("Judge", "The message while the call waits for a justification."),
    "skipped": ("Skipped", "The result of a held call that an operator skips."),
    "expired": (
        "Not answered in time",
        "The result of a held call that nobody decides before its deadline.",
    ),
    "expired_stop": ("Not answered in time, stop", "The same, where the run is stopped then."),
    "contained": ("Everything stopped", "The result of a call of what is stopped or blocked as a whole."),
    "denied": (
        "Denied by the judge",
        "Ends a run whose justification is not accepted. The message is for the user.",
    ),
    "stop": ("Stop", "The run should end. The message is for the user."),
}
SHAPE_WORDS = {
    "": "All formats",
    "text": "Plain text",
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "gemini": "Gemini",
    "mcp": "MCP",
    "claude_code": "Claude Code hook",
    "codex": "Codex hook",
    "gemini_cli": "Gemini CLI hook",
    "copilot": "Copilot CLI hook",
    "opencode": "OpenCode plugin",
    "qwen_code": "Qwen Code hook",
    "cursor": "Cursor hook",
    "goose": "Goose hook",
    "openhands": "OpenHands hook",
    "windsurf": "Windsurf hook",
    "kiro": "Kiro hook",
    "openclaw": "OpenClaw plugin",
}


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """A message template as the page shows it."""

    rung: str
    name: str
    help: str
    shape: str
    shape_words: str
    text: str
    is_own: bool
    preview: str

    @property
    def has_shapes(self) -> bool:
        """Whether each format may have its own text."""
        return self.rung not in defaults.CLOSINGS

    @property
    def version(self) -> str:
        """The version of the template that the form shows."""
        return service.template_version(self.text if self.is_own else "")


@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show the templates; a post previews or saves one, or restores the default."""
    context: dict[str, Any] = {}
    status = 200
    if request.method == "POST":
        rung, shape, text = (request.POST.get(name, "")[:2000] for name in ("rung", "shape", "text"))
        try:
            if request.POST.get("action") == "preview":
                context = {
                    "tried_version": request.POST.get("version", ""),
                    "tried": TemplateRow(
                        rung,
                        *RUNG_WORDS.get(rung, ("", "")),
                        shape,
                        SHAPE_WORDS.get(shape, ""),
                        text,
                        True,
                        _preview(rung, shape, text),
                    ),
                }
            else:
                is_reset = request.POST.get("action") == "reset"
                version = request.POST.get("version") if request.POST.get("seen_shape") == shape else None
                text_ = "" if is_reset else text
                service.save_template(
                    request.project.pk, rung, shape, text_, actor_of(request), version=version
                )
                messages.success(
                    request,
                    "Default restored. It takes effect on the next verdict."
                    if is_reset
                    else "Message template saved. It takes effect on the next verdict.",
                )
                return redirect("console:message_templates", request.project.slug)
        except ServiceError as error:
            status = 409 if isinstance(error, ChangedMeanwhile) else 422
            context = {
                "problem": error.detail,
                "stored_now": error.current["text"] if isinstance(error, ChangedMeanwhile) else None,
                "tried_version": service.template_version(error.current["text"])
                if isinstance(error, ChangedMeanwhile)
                else request.POST.get("version", ""),
                "tried": TemplateRow(
                    rung, *RUNG_WORDS.get(rung, ("", "")), shape, SHAPE_WORDS.get(shape, ""), text, True, ""
                ),
            }
    rows = [
        TemplateRow(
            one.rung,
            *RUNG_WORDS[one.rung],
            one.shape,
            SHAPE_WORDS[one.shape],
            one.text if one.is_own else "",
            one.is_own,
            _preview(one.rung, one.shape, one.text if one.is_own else ""),
        )
        for one in service.list_templates(request.project.pk)
    ]
    context |= {
        "rows": rows,
        "shapes": SHAPE_WORDS.items(),
        "placeholders": [f"${name}" for name in service.PLACEHOLDERS],
        "maximum": service.MAX_CHARACTERS,
    }
    return render(request, "policies/messages.html", context, status=status)


def _preview(rung: str, shape: str, text: str) -> str:
    if rung not in defaults.TEMPLATES:
        return ""
    shown = service.preview(rung, shape, text)
    return shown if isinstance(shown, str) else orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode()
