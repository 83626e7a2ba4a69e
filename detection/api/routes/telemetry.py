"""Routes for OpenTelemetry: OTLP over HTTP. Spans of agents become events, which are only watched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpResponse
from google.protobuf.message import Message
from ninja import Router

from detection.api import event_parsing, otlp_responses, prometheus
from detection.api.auth import ApiKeyAuth
from detection.api.otlp_responses import JSON, PROTOBUF
from detection.api.problems import Problem, check_disk_space
from detection.api.query_parameters import labels_of_request
from detection.api.request_bodies import TELEMETRY_LIMITS
from detection.api.requests import ApiRequest
from detection.api.routes.agents import LAG_SECONDS_PER_WEIGHT
from detection.api.spike_protection import SAMPLED, check_spike
from detection.integrations.events import ReportedEvent
from detection.integrations.otlp.conversations import Conversations, SpanEvents, read_spans
from detection.integrations.otlp.decoding import Encoding, OtlpError, metrics_in, records_of, spans_of
from detection.integrations.otlp.logs import read_records
from detection.models import KeyScope
from detection.selectors.prices import price_cache
from detection.services.errors import NotStorable
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.attempts import recorder
from detection.services.ingestion.ingest import Accepted
from detection.services.ingestion.lag import project_lag
from detection.services.ingestion.run_import import priced
from detection.services.ingestion.spikes import is_kept, spikes
from detection.services.ingestion.telemetry import TelemetrySpan, ingest_telemetry

router = Router(tags=["telemetry"])
ROUTE: Final = "otlp"
_auth = ApiKeyAuth(KeyScope.INGEST, (PROTOBUF, JSON), attempt=ROUTE, limits=TELEMETRY_LIMITS)
_ANSWER: Final = {200: dict[str, Any]}
_HINTS: Final = {
    "missing_arguments": "Neither arguments nor a result were "
    "recorded. Enable content recording in the instrumentation.",
    "invalid_id": "Trace id and span id must have 16 and 8 bytes.",
}


def _described(what: str, message: str) -> dict[str, Any]:
    body = {"type": "string", "format": "binary", "description": f"`{message}`."}
    document = {"type": "object", "description": f"`{message}` in the JSON encoding of OTLP."}
    return {
        "requestBody": {
            "required": True,
            "description": f"{what}, also compressed with gzip.",
            "content": {PROTOBUF: {"schema": body}, JSON: {"schema": document}},
        }
    }


@router.post(
    "/otlp/v1/traces",
    auth=_auth,
    response=_ANSWER,
    summary="Send traces",
    openapi_extra=_described("Spans as OpenTelemetry exports them", "ExportTraceServiceRequest"),
)
def send_traces(request: ApiRequest) -> HttpResponse:
    """Store what spans report about agents: calls, results, messages and usage. Other spans are ignored.

    A worker evaluates them. The response, in the encoding of the request, comes after commit; errors are a `Status`.
    """
    return _receive(
        request,
        "spans",
        lambda body, encoding: read_spans(spans_of(body, encoding)),
        otlp_responses.traces_response,
    )


@router.post(
    "/otlp/v1/logs",
    auth=_auth,
    response=_ANSWER,
    summary="Send logs",
    openapi_extra=_described("Log records as OpenTelemetry exports them", "ExportLogsServiceRequest"),
)
def send_logs(request: ApiRequest) -> HttpResponse:
    """Store the calls, results, prompts and usage of coding agents' log records. Other records are ignored."""
    return _receive(
        request,
        "log_records",
        lambda body, encoding: read_records(records_of(body, encoding)),
        otlp_responses.logs_response,
    )


@router.post(
    "/otlp/v1/metrics",
    auth=_auth,
    response=_ANSWER,
    summary="Send metrics",
    openapi_extra=_described("Metrics as OpenTelemetry exports them", "ExportMetricsServiceRequest"),
)
def send_metrics(request: ApiRequest) -> HttpResponse:
    """Accept metrics and ignore them: exporters of traces and logs often send them, too, and report each error."""
    encoding = otlp_responses.encoding_of(request.media_type)
    try:
        ignored = metrics_in(request.body, encoding)
    except OtlpError as error:
        raise _problem_of(error) from None
    prometheus.REQUESTS.labels(ROUTE, "200", "").inc()
    prometheus.TELEMETRY.labels("metrics", "ignored", "").inc(ignored)
    body, content_type = otlp_responses.encoded(otlp_responses.metrics_response(), encoding)
    return HttpResponse(body, content_type=content_type)


@dataclass(slots=True)
class _Parsed:
    """The valid spans of a request, their records in order, and what is wrong with the others.

    Attributes
    ----------
    sampled
        Events of spans outside of the sample.
    """

    spans: list[TelemetrySpan]
    ordered: list[EventRecord]
    rejected: Counter[str]
    hint: str = ""
    sampled: int = 0

    def reject_stored(self, numbers: Iterable[int]) -> None:
        """Count the spans with a valid event that could not be stored, given by its place in the order."""
        lost = {id(self.ordered[number]) for number in numbers}
        spans = sum(1 for span in self.spans if lost and any(id(one) in lost for one in span.records))
        if spans:
            self.rejected[NotStorable.code] += spans
            self.hint = self.hint or NotStorable().detail


def _receive(
    request: ApiRequest,
    signal: str,
    read: Callable[[bytes, Encoding], Conversations],
    response: Callable[[int, str], Message],
) -> HttpResponse:
    started = time.perf_counter()
    check_disk_space()
    principal = request.principal
    is_sampled = check_spike(request)
    encoding = otlp_responses.encoding_of(request.media_type)
    try:
        found = read(request.body, encoding)
    except OtlpError as error:
        raise _problem_of(error) from None
    parsed = _parsed(principal.project_id, found.spans, is_sampled=is_sampled)
    done = ingest_telemetry(principal, parsed.spans, parsed.ordered, labels_of_request(request))
    spikes.count(principal, done.accepted + done.duplicate, sampled=parsed.sampled)
    parsed.reject_stored(done.rejected)
    # As for events: stored events cost more while the workers have not caught up.
    request.META["loopguard.weight"] = (
        1.0 + project_lag.seconds(principal.project_id) / LAG_SECONDS_PER_WEIGHT
    )
    _count(request, signal, found, parsed, done, time.perf_counter() - started)
    reason = "; ".join(f"{code}: {number}" for code, number in sorted(parsed.rejected.items()))
    reason = f"{reason}. {parsed.hint}" if reason else ""
    body, content_type = otlp_responses.encoded(response(parsed.rejected.total(), reason), encoding)
    return HttpResponse(body, content_type=content_type)


def _problem_of(error: OtlpError) -> Problem:
    return Problem(400 if error.code == "not_otlp" else 413, error.code, error.detail)


def _parsed(project_id: int, found: list[SpanEvents], *, is_sampled: bool) -> _Parsed:
    """Check the events of each span; an invalid event rejects only its own span."""
    parsed = _Parsed([], [], Counter())
    prices = price_cache.get(project_id)
    placed: list[tuple[tuple[int, int], EventRecord]] = []
    for span in found:
        if span.rejected:
            parsed.rejected[span.rejected] += 1
            parsed.hint = parsed.hint or _HINTS[span.rejected]
            continue
        if is_sampled and not is_kept(span.trace_id or span.session):
            parsed.rejected[SAMPLED.code] += 1
            parsed.sampled += len(span.events)
            parsed.hint = parsed.hint or SAMPLED.detail
            continue
        shared = {"session": span.session or span.trace_id}
        if span.parent_session:
            shared["parent_session"] = span.parent_session
        try:
            records = [(place, _record(priced(event, None, prices), shared)) for place, event in span.events]
        except Problem as problem:
            parsed.rejected[problem.code] += 1
            parsed.hint = parsed.hint or problem.detail
            continue
        if records:
            own = TelemetrySpan(
                span.session, span.trace_id, span.span_id, span.started_by, [record for _, record in records]
            )
            parsed.spans.append(own)
            placed += records
    placed.sort(key=lambda one: one[0])
    parsed.ordered = [record for _, record in placed]
    return parsed


def _record(event: ReportedEvent, shared: dict[str, str]) -> EventRecord:
    usage = event.get("usage")
    if usage is not None:  # tokens of caches are among those of the input
        kept = usage.copy()
        kept.pop("cached_tokens", None)
        kept.pop("cache_write_tokens", None)
        event = event | {"usage": kept}
    return event_parsing.event_record(event, shared=shared, size=event_parsing.event_size(event))


def _count(
    request: ApiRequest, signal: str, found: Conversations, parsed: _Parsed, done: Accepted, seconds: float
) -> None:
    principal, rejected = request.principal, parsed.rejected.total()
    prometheus.REQUESTS.labels(ROUTE, "200", "").inc()
    prometheus.REQUEST_SECONDS.labels(ROUTE).observe(seconds)
    prometheus.TELEMETRY.labels(signal, "accepted", "").inc(len(found.spans) - rejected)
    prometheus.TELEMETRY.labels(signal, "ignored", "").inc(found.ignored)
    for code, number in parsed.rejected.items():
        prometheus.TELEMETRY.labels(signal, "rejected", code).inc(number)
    prometheus.count_events(done)
    recorder.note(
        principal.project_id,
        ROUTE,
        200,
        next(iter(parsed.rejected), ""),
        parsed.hint,
        f"lg_{principal.public_id}",
        accepted=done.accepted,
        duplicate=done.duplicate,
        altered=len(done.altered),
        rejected=rejected,
    )
