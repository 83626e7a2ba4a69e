"""Decodes OTLP requests, protobuf or JSON, with the maintained message classes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, Literal, TypeVar

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

Encoding = Literal["protobuf", "json"]
Request = TypeVar("Request", bound=Message)
MAX_RECORDS: Final = 100_000
"""Spans or log records of one request, of any kind."""
MAX_MESSAGES: Final = 1_000_000
"""Messages within one request: records, attributes, values. Two bytes each become a hundred when they are parsed."""
_IDS: Final = ("traceId", "spanId", "parentSpanId")


class OtlpError(ValueError):
    """The request cannot be read.

    Attributes
    ----------
    code
        ``not_otlp`` or ``too_many_records``.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class Span:
    """A finished span.

    Parameters
    ----------
    message
        As decoded.
    resource
        Attributes of what sent it.
    scope
        Name of the instrumentation that made it.
    """

    __slots__ = ("__dict__", "_message", "resource", "scope")

    def __init__(self, message: trace_pb2.Span, resource: Mapping[str, Any], scope: str = "") -> None:
        self._message, self.resource, self.scope = message, resource, scope

    @property
    def trace_id(self) -> str:
        """32 hex digits, if it is valid."""
        return self._message.trace_id.hex()

    @property
    def span_id(self) -> str:
        """16 hex digits, if it is valid."""
        return self._message.span_id.hex()

    @property
    def parent_id(self) -> str:
        """Id of the parent; empty for the root of a trace."""
        return self._message.parent_span_id.hex()

    @property
    def name(self) -> str:
        """The name, which depends on the instrumentation."""
        return self._message.name

    @property
    def is_of_server(self) -> bool:
        """Whether it is the other side of a call."""
        return self._message.kind == trace_pb2.Span.SPAN_KIND_SERVER

    @property
    def started_at(self) -> int:
        """Nanoseconds since 1970."""
        return self._message.start_time_unix_nano

    @property
    def ended_at(self) -> int:
        """Nanoseconds since 1970."""
        return self._message.end_time_unix_nano

    @property
    def is_error(self) -> bool:
        """Whether its status is an error."""
        return self._message.status.code == trace_pb2.Status.STATUS_CODE_ERROR

    @property
    def is_identified(self) -> bool:
        """Whether its ids have the length that OTLP requires, and are not zero."""
        trace_id, span_id = self._message.trace_id, self._message.span_id
        return len(trace_id) == 16 and len(span_id) == 8 and any(trace_id) and any(span_id)

    @cached_property
    def attributes(self) -> dict[str, object]:
        """The attributes as plain values."""
        return values_of(self._message.attributes)

    def error_text(self) -> str:
        """Return the message of the last exception, or else of the status."""
        for event in reversed(self._message.events):
            if event.name == "exception":
                found = values_of(event.attributes)
                kind, text = found.get("exception.type"), found.get("exception.message")
                return ": ".join(str(part) for part in (kind, text) if part)
        return self._message.status.message


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log record.

    Attributes
    ----------
    at
        Nanoseconds since 1970; 0 if unknown.
    """

    name: str
    at: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


def spans_of(body: bytes, encoding: Encoding) -> list[Span]:
    """Decode a request with traces.

    Raises
    ------
    OtlpError
        If it is not one, or has more than `MAX_RECORDS` spans.
    """
    request = _decoded(ExportTraceServiceRequest(), body, encoding, ("resourceSpans", "scopeSpans", "spans"))
    spans: list[Span] = []
    for group in request.resource_spans:
        resource = values_of(group.resource.attributes)
        for scope in group.scope_spans:
            _check_number(len(spans) + len(scope.spans))
            spans += [Span(message, resource, scope.scope.name) for message in scope.spans]
    return spans


def records_of(body: bytes, encoding: Encoding) -> list[LogRecord]:
    """Decode a request with logs; raises as `spans_of`."""
    request = _decoded(
        ExportLogsServiceRequest(), body, encoding, ("resourceLogs", "scopeLogs", "logRecords")
    )
    return [*_records(request)]


def _records(request: ExportLogsServiceRequest) -> Iterator[LogRecord]:
    number = 0
    for group in request.resource_logs:
        resource = values_of(group.resource.attributes)
        for scope in group.scope_logs:
            number += len(scope.log_records)
            _check_number(number)
            for message in scope.log_records:
                attributes = values_of(message.attributes)
                # Codex has a place in its own code in the field that is meant for the name.
                name = attributes.get("event.name") or message.event_name or message.body.string_value
                at = message.time_unix_nano or message.observed_time_unix_nano
                yield LogRecord(str(name), at, attributes, resource)


def metrics_in(body: bytes, encoding: Encoding) -> int:
    """Return the number of metrics in a request; nothing else is read of them.

    Raises
    ------
    OtlpError
        As for `spans_of`.
    """
    request = _decoded(
        ExportMetricsServiceRequest(), body, encoding, ("resourceMetrics", "scopeMetrics", "metrics")
    )
    return sum(len(scope.metrics) for group in request.resource_metrics for scope in group.scope_metrics)


def _check_number(number: int) -> None:
    if number > MAX_RECORDS:
        raise OtlpError("too_many_records", f"A request can have at most {MAX_RECORDS:,} spans or records.")


def _check_messages_number(number: int) -> None:
    if number > MAX_MESSAGES:
        raise OtlpError(
            "too_many_records", f"A request can have at most {MAX_MESSAGES:,} records, attributes and values."
        )


@cache
def _messages_in(kind: Descriptor) -> dict[int, Descriptor]:
    """Return the kinds of messages in a message, by tag: number of the field, and its form on the wire."""
    return {field.number << 3 | 2: field.message_type for field in kind.fields if field.message_type}


def _check_messages(body: bytes, kind: Descriptor) -> None:
    """Count the messages in a request before it is parsed; linear, with the memory of its depth."""
    if len(body) <= 2 * MAX_RECORDS:  # no two bytes are more than one
        return
    record = _messages_in(_messages_in(_messages_in(kind)[10])[18])[18]
    ends, tables = [len(body)], [_messages_in(kind)]
    messages = records = position = 0
    try:
        while True:
            while position == ends[-1]:
                ends.pop()
                tables.pop()
                if not ends:
                    return
            tag, position = _varint(body, position)
            wire = tag & 7
            if wire == 0:
                _, position = _varint(body, position)
            elif wire == 2:
                size, position = _varint(body, position)
                inner = tables[-1].get(tag)
                if inner is None:
                    position += size
                else:
                    messages += 1
                    records += inner is record
                    _check_messages_number(messages)
                    _check_number(records)
                    ends.append(position + size)
                    tables.append(_messages_in(inner))
                    if ends[-1] > ends[-2]:
                        raise DecodeError("a message is longer than what contains it")
            elif wire in (1, 5):
                position += 8 if wire == 1 else 4
            else:
                raise DecodeError("a field has an unknown form")
            if position > ends[-1]:
                raise DecodeError("a field is longer than its message")
    except IndexError:
        raise DecodeError("it is cut off") from None


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = body[position]
    position += 1
    if value < 128:
        return value, position
    value &= 127
    for shift in range(7, 70, 7):
        byte = body[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise DecodeError("a number is too long")


def _decoded(request: Request, body: bytes, encoding: Encoding, path: tuple[str, str, str]) -> Request:
    try:
        if encoding == "protobuf":
            _check_messages(body, request.DESCRIPTOR)
            request.ParseFromString(body)
        else:
            # Two objects of JSON, at most, are a message; braces in texts are rare enough.
            _check_messages_number((body.count(b"{") + body.count(b"[")) // 2)
            document = orjson.loads(body)
            if not isinstance(document, dict):
                raise json_format.ParseError("it is not an object")
            _convert_ids(document, path)
            json_format.ParseDict(document, request, ignore_unknown_fields=True)
    except (DecodeError, orjson.JSONDecodeError, json_format.ParseError, RecursionError) as error:
        first = str(error).partition("\n")[0][:200]
        raise OtlpError("not_otlp", f"The body is not an OTLP request in {encoding}: {first}") from None
    return request


def _convert_ids(document: Any, path: Iterable[str]) -> None:
    """Write ids in Base64: OTLP has them in hex, and the parser of protobuf would read another id without an error."""
    found = [document]
    for key in path:
        lists = [one.get(key) for one in found if isinstance(one, dict)]
        found = [one for many in lists if isinstance(many, list) for one in many]
        _check_number(len(found))
    for one in found:
        if not isinstance(one, dict):
            continue
        one.pop("links", None)
        for key in _IDS:
            text = one.get(key)
            if isinstance(text, str):
                try:
                    one[key] = base64.b64encode(bytes.fromhex(text)).decode()
                except (ValueError, binascii.Error):
                    one.pop(key)  # the span is then rejected for its missing id


def values_of(pairs: Iterable[KeyValue]) -> dict[str, object]:
    """Return attributes as a dictionary of plain values."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None or kind == "bytes_value":
        return None
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return values_of(value.kvlist_value.values)
    return getattr(value, kind)
