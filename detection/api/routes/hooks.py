"""The route for hooks of coding agents. Requests and responses are in the format of each host."""

from __future__ import annotations

import time
from typing import Literal

from django.conf import settings
from django.http import HttpResponse
from ninja import Path, Router

from detection.api import event_parsing, prometheus
from detection.api.auth import ApiKeyAuth
from detection.api.long_texts import CUT
from detection.api.problems import Problem, check_disk_space
from detection.api.query_parameters import check_parameter_names, labels_of_request
from detection.api.request_bodies import JSON
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.engine import wire_shapes
from detection.integrations.events import ReportedEvent
from detection.integrations.hosts import HOSTS, HookError, HookEvent, Host, read_hook
from detection.models import KeyScope
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.attempts import recorder
from detection.services.ingestion.hooks import HookAnswer, handle_hook
from detection.strict_json import loads
from detection.web.documents import stop_notice

MAX_WAIT_SECONDS = 60
router = Router(tags=["agents"])
# What curl sends by default; the body is JSON nevertheless.
FORM = "application/x-www-form-urlencoded"
_auth = ApiKeyAuth(KeyScope.GUARD, (JSON, FORM), attempt="hooks", cuts=True)
HostName = Literal[
    "claude-code",
    "codex",
    "gemini-cli",
    "copilot",
    "opencode",
    "kilo",
    "qwen-code",
    "cline",
    "pi",
    "droid",
    "cursor",
    "goose",
    "openhands",
    "windsurf",
    "kiro",
    "openclaw",
]


@router.post(
    "/hooks/{host}",
    auth=_auth,
    response={200: dict[str, object]},
    summary="Evaluate a hook",
    openapi_extra={
        "parameters": [
            {
                "in": "query",
                "name": "event",
                "required": False,
                "schema": {"type": "string", "maxLength": 64},
                "description": "The hook event, for hooks whose body has no `hook_event_name`.",
            },
            {
                "in": "query",
                "name": "wait",
                "required": False,
                "schema": {"type": "integer", "minimum": 1, "maximum": 60},
                "description": "How many seconds the hook can wait for an operator. A held call is then answered "
                "with `wait_url`, which responds in the host's format.",
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"type": "object", "description": "The body as the host sends it."}}
            },
        },
    },
)
def evaluate_hook(request: ApiRequest, host: Path[HostName]) -> HttpResponse:
    """Record what a coding agent reports, evaluate the call it asks about, and respond in the format of the host."""
    check_disk_space()
    check_parameter_names(request, ["event", "wait"])
    wait_seconds = _wait_seconds(request)
    known = HOSTS[host]
    try:
        event = read_hook(known, loads(request.body), request.GET.get("event", "")[:64])
    except HookError as error:
        raise Problem(422, "invalid_type", str(error)) from None
    is_large = len(request.body) > event_parsing.MAX_EVENT_BYTES
    records = [_record(event, data, is_large=is_large) for data in event.events]
    started = time.perf_counter()
    answer = handle_hook(request.principal, known, event, records, labels_of_request(request))
    _count(request, host, event.moment, answer, time.perf_counter() - started)
    address = _wait_url(known, answer, wait_seconds)
    return json_response(
        {"wait_url": address}
        if address
        else _document(known.shape, event, answer, request.principal.project_slug)
    )


def _wait_seconds(request: ApiRequest) -> int:
    given = request.GET.get("wait", "0")
    if "wait" in request.GET and not (
        given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= MAX_WAIT_SECONDS
    ):
        detail = f"`wait` must be between 1 and {MAX_WAIT_SECONDS} seconds."
        raise Problem(422, "invalid_value", detail, path="wait")
    return int(given)


def _wait_url(host: Host, answer: HookAnswer, wait_seconds: int) -> str:
    """Return where a hook waits for the decision on a held call; empty if it does not."""
    approval = answer.response.approval if answer.response is not None else None
    if approval is None or not wait_seconds or answer.decision != "hold":
        return ""
    if wire_shapes.action_of(host.shape, "hold") != "wait":
        return ""
    return f"{settings.LIVE_URL}/api/v1/approvals/{approval['id']}?wait={wait_seconds}&hook={host.name}"


def _record(event: HookEvent, data: ReportedEvent, *, is_large: bool) -> EventRecord:
    names = {
        "session": event.session,
        "parent_session": event.parent_session,
        "agent": event.agent,
        "model": event.model,
    }
    shared = {key: value for key, value in names.items() if value}
    content = data.get("content")
    cut = CUT.search(content) if isinstance(content, str) else None
    if cut is not None:  # as the body arrived
        data = data | {"content_length": int(cut[1]), "content_digest": cut[2]}
    return event_parsing.event_record(
        data, shared=shared, size=event_parsing.event_size(data) if is_large else 0
    )


def _document(
    shape: wire_shapes.Shape, event: HookEvent, answer: HookAnswer, project: str
) -> dict[str, object]:
    notice = stop_notice(answer.message, project, event.session) if answer.decision == "stop" else ""
    if event.moment == "end" and notice and not event.parent_session:
        return wire_shapes.ended(shape, notice)
    if event.moment not in ("before_tool", "after_tool"):
        return {}
    moment: wire_shapes.Moment = "before" if event.moment == "before_tool" else "after"
    call_id = answer.response.call_id if answer.response else ""
    rendered = wire_shapes.render(
        shape, answer.decision, answer.message, call_id, moment=moment, notice=notice
    )
    assert isinstance(rendered, dict)  # noqa: S101 - of the shapes, only plain text is no object
    return rendered


def _count(request: ApiRequest, host: str, moment: str, answer: HookAnswer, seconds: float) -> None:
    prometheus.REQUESTS.labels("hooks", "200", "").inc()
    response, is_duplicate = answer.response, False
    if response is not None and moment == "before_tool":
        prometheus.VERDICT_SECONDS.observe(seconds)
        is_duplicate = response.duplicate
        prometheus.VERDICTS.labels(answer.decision).inc()
        if response.verdict.ending:
            prometheus.ENDINGS.labels(response.verdict.ending).inc()
    recorder.note(
        request.principal.project_id,
        f"hooks/{host}",
        200,
        key_hint=f"lg_{request.principal.public_id}",
        decision=answer.decision if response or answer.message else "",
        accepted=int(not is_duplicate),
        duplicate=int(is_duplicate),
    )
