"""Routes of events and guard, which agents wait for."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from ninja import Router

from detection.api import event_parsing, guard_parsing, prometheus
from detection.api.auth import ApiKeyAuth
from detection.api.message_parsing import message_list_of
from detection.api.problems import Problem, check_disk_space
from detection.api.query_parameters import RENDER_PARAMETER, labels_of_request, rendered_shape
from detection.api.request_bodies import JSON, NDJSON
from detection.api.requests import ApiRequest
from detection.api.responses import json_response
from detection.api.schemas.agents import (
    EventBatchSchema,
    EventSchema,
    GuardRequestSchema,
    GuardResponseSchema,
    IngestResultSchema,
)
from detection.api.spike_protection import SAMPLED, check_spike
from detection.api.typed_bodies import described
from detection.engine import wire_shapes
from detection.models import KeyScope
from detection.services.errors import NotStorable
from detection.services.events.event_records import MAX_EVENTS
from detection.services.ingestion.attempts import recorder
from detection.services.ingestion.guard import CallResponse, GuardRequest, GuardResponse, guard
from detection.services.ingestion.ingest import Accepted, ingest
from detection.services.ingestion.lag import project_lag
from detection.services.ingestion.message_guard import guard_messages
from detection.services.ingestion.spikes import is_kept, spikes
from detection.services.keys import Principal
from detection.web.documents import incident_link, session_link

router = Router(tags=["agents"])
MAX_LINKS = 20
LAG_SECONDS_PER_WEIGHT = 5.0
"""For each such number of seconds of lag, the weight of a project's requests grows by one."""

TIMEOUT_HEADER = "LoopGuard-Timeout-Ms"
_TIMEOUT_PARAMETER = {
    "in": "header",
    "name": TIMEOUT_HEADER,
    "required": False,
    "schema": {"type": "integer", "minimum": 1},
    "description": "How long the client waits, in milliseconds; at most 1500. After this time the response is 503.",
}

_events_auth = ApiKeyAuth(KeyScope.INGEST, (JSON, NDJSON), attempt="events")
_guard_auth = ApiKeyAuth(KeyScope.GUARD, (JSON,), attempt="guard")


def _reference(schema: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema.__name__}"}


@router.post(
    "/events",
    auth=_events_auth,
    response={202: IngestResultSchema},
    summary="Send events",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"anyOf": [_reference(EventSchema), _reference(EventBatchSchema)]}},
                NDJSON: {"schema": {"type": "string", "description": "One event per line."}},
            },
        }
    },
)
def send_events(request: ApiRequest) -> HttpResponse:
    """Store events for evaluation by a worker.

    The response comes after commit. An invalid event does not affect the others in its batch.
    """
    started = time.perf_counter()
    check_disk_space()
    principal = request.principal
    is_sampled = check_spike(request)
    batch = event_parsing.events_of(request.body, is_ndjson=request.media_type == NDJSON)
    sampled = batch.keep(is_kept, SAMPLED) if is_sampled else 0
    done = ingest(principal, batch.events, labels=labels_of_request(request))
    spikes.count(principal, done.accepted + done.duplicate, sampled=sampled)
    if done.rejected and batch.is_single:
        raise NotStorable
    if done.rejected:
        batch.reject_stored(done.rejected)
    # Stored events cost more than their request while the workers have not caught up with the project.
    request.META["loopguard.weight"] = (
        1.0 + project_lag.seconds(principal.project_id) / LAG_SECONDS_PER_WEIGHT
    )
    altered = [_altered(batch, batch.positions[item["index"]], item["marks"]) for item in done.altered]
    _count_events(principal, done, batch.rejected, time.perf_counter() - started)
    return json_response(
        {
            "accepted": done.accepted,
            "duplicate": done.duplicate,
            "altered": altered,
            "rejected": batch.rejected,
            "request_id": request.request_id,
            "links": _links(principal.project_slug, done.sessions),
        },
        202,
    )


def _altered(batch: event_parsing.Batch, index: int, marks: list[str]) -> dict[str, Any]:
    item = {"index": index, "marks": marks}
    unknown = batch.unknown_fields.get(index)
    return item | {"unknown_fields": unknown} if unknown else item


def _links(project: str, sessions: list[str]) -> dict[str, Any]:
    links: dict[str, Any] = {"live": f"{settings.PUBLIC_URL}/p/{project}/"}
    if len(sessions) == 1:
        links["session"] = session_link(project, sessions[0])
    else:
        links["sessions"] = {name: session_link(project, name) for name in sessions[:MAX_LINKS]}
    return links


def _count_events(
    principal: Principal, done: Accepted, rejected: list[dict[str, Any]], seconds: float
) -> None:
    prometheus.REQUESTS.labels("events", "202", "").inc()
    prometheus.REQUEST_SECONDS.labels("events").observe(seconds)
    prometheus.count_events(done)
    for code, number in Counter(item["code"] for item in rejected).items():
        prometheus.EVENTS.labels("rejected", code).inc(number)
    first = rejected[0] if rejected else None
    recorder.note(
        principal.project_id,
        "events",
        202,
        first["code"] if first else "",
        f"events[{first['index']}].{first['path']}: {first['hint']}" if first else "",
        f"lg_{principal.public_id}",
        accepted=done.accepted,
        duplicate=done.duplicate,
        altered=len(done.altered),
        rejected=len(rejected),
    )


@router.post(
    "/guard",
    auth=_guard_auth,
    response={200: GuardResponseSchema},
    summary="Evaluate calls",
    openapi_extra={
        "parameters": [RENDER_PARAMETER, _TIMEOUT_PARAMETER],
        **described(GuardRequestSchema, required=True),
    },
)
def guard_calls(request: ApiRequest) -> HttpResponse:
    """Evaluate calls before they run. The response comes after commit.

    A call whose decision is `hold` must not run yet: request `approval.wait_url` of its verdict until that responds
    with a `decision`.
    """
    check_disk_space()
    principal = request.principal
    _check_timeout(request)
    shape = rendered_shape(request)
    body = guard_parsing.guard_body(request.body)
    if body.get("messages") is not None or body.get("shape") is not None:
        return json_response(_guard_messages(request, body, shape))
    guard_request, altered = guard_parsing.guard_of(
        body, len(request.body), _integration(request), labels_of_request(request)
    )
    started = time.perf_counter()
    out = guard(principal, guard_request)
    seconds = time.perf_counter() - started
    _count_guard(principal, out, len(altered), seconds)
    return json_response(guard_document(request, principal, guard_request, out, shape, altered))


def _integration(request: ApiRequest) -> str:
    """Return how a request came in; see `Session.integration`."""
    sender = request.META.get("HTTP_USER_AGENT", "")
    if not sender.startswith("loopguard-client"):
        return "guard"
    return "mcp" if sender.endswith(" mcp") else "client"


def _guard_messages(
    request: ApiRequest, body: dict[str, Any], shape: wire_shapes.Shape | None
) -> dict[str, Any]:
    """Evaluate the calls that a list of messages ends with; return the response."""
    principal = request.principal
    parsed = message_list_of(body, len(request.body), principal.digest_secret, labels_of_request(request))
    started = time.perf_counter()
    done = guard_messages(
        principal,
        replace(parsed.about, integration=_integration(request)),
        parsed.messages,
        parsed.record,
        round_name=parsed.round,
        max_events=MAX_EVENTS,
    )
    _count_guard(principal, done.response, len(parsed.altered), time.perf_counter() - started)
    sent = replace(done.request, session=parsed.about.session)
    document = guard_document(request, principal, sent, done.response, shape, parsed.altered)
    read = {
        "messages": parsed.count,
        "new": done.new.count,
        "resent": done.new.is_resent,
        "condensed": done.new.is_condensed,
    }
    return document | {"read": read}


def _check_timeout(request: ApiRequest) -> None:
    """Reject a time to wait that the front of `web` could not read."""
    given = request.META.get("HTTP_LOOPGUARD_TIMEOUT_MS", "1")
    if not (given.isascii() and given.isdigit() and len(given) < 10 and int(given)):
        raise Problem(
            422,
            "invalid",
            f"`{TIMEOUT_HEADER}` must be a number of milliseconds, 1 or more.",
            path=TIMEOUT_HEADER,
        )


def guard_document(
    request: ApiRequest,
    principal: Principal,
    guard_request: GuardRequest,
    out: GuardResponse,
    shape: wire_shapes.Shape | None,
    altered: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the response to a guard request."""
    verdicts = [_verdict(one, shape) for one in out.verdicts]
    notices = [_verdict(one, shape) for one in out.notices]
    if shape:
        for verdict, call in zip(verdicts, guard_request.calls, strict=True):
            _render(verdict, shape, call.model, call.tool)
        for notice in notices:
            tool = (notice["finding"] or {}).get("tool", "")
            _render(notice, shape, guard_request.model, tool, "after")
    links = {"session": session_link(principal.project_slug, out.session)}
    incident = next((one.verdict.incident for one in out.verdicts if one.verdict.incident), None)
    if incident:
        links["incident"] = incident_link(principal.project_slug, incident)
    document: dict[str, Any] = {
        "session": guard_request.session,
        "decision": out.decision,
        "verdicts": verdicts,
        "notices": notices,
        "request_id": request.request_id,
        "links": links,
    }
    if altered:
        document["altered"] = altered
    return document


def _verdict(response: CallResponse, shape: wire_shapes.Shape | None) -> dict[str, Any]:
    verdict, answer = response.verdict, response.answer
    document = {
        "call_id": response.call_id,
        "decision": response.decision,
        "message": response.message(shape),
        "incident": verdict.incident,
        "rung": verdict.rung,
        "detection_number": verdict.detection_number,
        "ending": verdict.ending,
        "retry_after_seconds": response.retry_after_seconds,
        "reused": answer and {"seq": answer.seq, "age_seconds": round(answer.age_seconds)},
        "finding": verdict.finding,
        "policy": verdict.policy,
        "duplicate": response.duplicate,
    }
    if response.approval is not None:
        document["approval"] = response.approval
    return document


def _render(
    document: dict[str, Any],
    shape: wire_shapes.Shape,
    model: str,
    tool: str,
    moment: wire_shapes.Moment = "before",
) -> None:
    has_something = bool(document["message"]) or wire_shapes.answers_always(shape)
    document["rendered"] = (
        wire_shapes.render(
            shape,
            document["decision"],
            document["message"],
            document["call_id"],
            model,
            tool,
            moment=moment,
            is_answer=document["reused"] is not None,
        )
        if has_something
        else None
    )


def _count_guard(principal: Principal, out: GuardResponse, altered: int, seconds: float) -> None:
    prometheus.REQUESTS.labels("guard", "200", "").inc()
    prometheus.VERDICT_SECONDS.observe(seconds)
    duplicates = 0
    for one in out.verdicts:
        prometheus.VERDICTS.labels(one.decision).inc()
        if one.verdict.ending:
            prometheus.ENDINGS.labels(one.verdict.ending).inc()
        duplicates += one.duplicate
    recorder.note(
        principal.project_id,
        "guard",
        200,
        "",
        "",
        f"lg_{principal.public_id}",
        decision=out.decision,
        accepted=len(out.verdicts) - duplicates,
        duplicate=duplicates,
        altered=altered,
    )
