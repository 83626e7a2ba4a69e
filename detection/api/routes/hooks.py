"""The route that hooks of coding agents call: each in its own format, there and back."""

from __future__ import annotations

import time
from typing import Any, Literal

from django.http import HttpResponse
from ninja import Path, Router

from detection.api import event_parsing, prometheus
from detection.api.auth import ApiKeyAuth
from detection.api.problems import Problem, check_disk_space
from detection.api.query_parameters import check_parameter_names
from detection.api.request_bodies import JSON
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.engine import wire_shapes
from detection.integrations.hosts import HOSTS, HookError, HookEvent, read_hook
from detection.models import KeyScope
from detection.services.ingestion.attempts import recorder
from detection.services.ingestion.hooks import HookAnswer, handle_hook
from detection.services.sessions.event_records import EventRecord
from detection.strict_json import loads

router = Router(tags=["agents"])
# What curl sends by default; the body is JSON nevertheless.
FORM = "application/x-www-form-urlencoded"
_auth = ApiKeyAuth(KeyScope.GUARD, (JSON, FORM), attempt="hooks")
HostName = Literal["claude-code", "codex", "gemini-cli", "copilot", "opencode"]


@router.post(
    "/hooks/{host}",
    auth=_auth,
    response={200: dict[str, Any]},
    summary="Evaluate a hook",
    openapi_extra={
        "parameters": [
            {
                "in": "query",
                "name": "event",
                "required": False,
                "schema": {"type": "string", "maxLength": 64},
                "description": "The moment, for hooks whose body has no `hook_event_name`.",
            }
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
    """Record what a coding agent reports, and evaluate the call that it asks about. The response is in the format of the host."""
    check_disk_space()
    check_parameter_names(request, ["event"])
    known = HOSTS[host]
    try:
        event = read_hook(known, loads(request.body), request.GET.get("event", "")[:64])
    except HookError as error:
        raise Problem(422, "invalid_type", str(error)) from None
    is_large = len(request.body) > event_parsing.MAX_EVENT_BYTES
    records = [_record(event, data, is_large=is_large) for data in event.events]
    started = time.perf_counter()
    answer = handle_hook(request.principal, known, event, records)
    _count(request, host, answer, time.perf_counter() - started)
    return json_response(_document(known.shape, event, answer))


def _record(event: HookEvent, data: dict[str, Any], *, is_large: bool) -> EventRecord:
    names = {
        "session": event.session,
        "parent_session": event.parent_session,
        "agent": event.agent,
        "model": event.model,
    }
    shared = {key: value for key, value in names.items() if value}
    return event_parsing.event_record(
        data, shared=shared, size=event_parsing.event_size(data) if is_large else 0
    )


def _document(shape: wire_shapes.Shape, event: HookEvent, answer: HookAnswer) -> dict[str, Any]:
    if event.moment not in ("before_tool", "after_tool"):
        return {}
    moment: wire_shapes.Moment = "before" if event.moment == "before_tool" else "after"
    call_id = answer.verdict.call_id if answer.verdict else ""
    rendered = wire_shapes.render(shape, answer.decision, answer.message, call_id, moment=moment)
    assert isinstance(rendered, dict)  # noqa: S101 - of the shapes, only plain text is no object
    return rendered


def _count(request: ApiRequest, host: str, answer: HookAnswer, seconds: float) -> None:
    prometheus.REQUESTS.labels("hooks", "200", "").inc()
    is_duplicate = False
    if answer.response is not None and answer.response.verdicts:
        prometheus.VERDICT_SECONDS.observe(seconds)
        is_duplicate = answer.response.verdicts[0].duplicate
        prometheus.VERDICTS.labels(answer.decision).inc()
    recorder.note(
        request.principal.project_id,
        f"hooks/{host}",
        200,
        key_hint=f"lg_{request.principal.public_id}",
        accepted=int(not is_duplicate),
        duplicate=int(is_duplicate),
    )
