"""Responses to OTLP exporters: in the encoding of the request, errors as `google.rpc.Status`.

Exporters retry 429, 502, 503 and 504 and drop the data after any other error, so temporary errors are 503 here.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from detection.integrations.otlp.decoding import Encoding

PATH: Final = "/api/v1/otlp/"
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_STATUS: Final = {408: 503, 409: 503, 411: 400, 422: 400}
"""HTTP statuses that exporters interpret differently or ignore."""
_CODES: Final = {
    400: code_pb2.INVALID_ARGUMENT,
    401: code_pb2.UNAUTHENTICATED,
    403: code_pb2.PERMISSION_DENIED,
    404: code_pb2.NOT_FOUND,
    405: code_pb2.UNIMPLEMENTED,
    413: code_pb2.INVALID_ARGUMENT,
    415: code_pb2.INVALID_ARGUMENT,
    429: code_pb2.RESOURCE_EXHAUSTED,
    500: code_pb2.INTERNAL,
    503: code_pb2.UNAVAILABLE,
}
DESCRIBED_ERROR: Final = {
    JSON: {
        "schema": {
            "type": "object",
            "properties": {
                "code": {"type": "integer", "description": "Of gRPC."},
                "message": {
                    "type": "string",
                    "description": "The code of the error, a colon and its detail.",
                },
            },
        }
    },
    PROTOBUF: {"schema": {"type": "string", "format": "binary", "description": "`google.rpc.Status`."}},
}
"""Of the OpenAPI document."""


def is_otlp(path: str) -> bool:
    """Return whether an exporter reads the response to a path."""
    return path.startswith(PATH)


def encoding_of(content_type: str) -> Encoding:
    """Return the encoding of a request; JSON if it is unknown."""
    return "protobuf" if content_type.partition(";")[0].strip().lower() == PROTOBUF else "json"


def http_status(status: int) -> int:
    """Return the status that tells an exporter whether to retry."""
    return _STATUS.get(status, status)


def error(status: int, code: str, detail: str, content_type: str) -> tuple[bytes, str]:
    """Return body and content type of an error, from the HTTP status and the code of its problem."""
    message = status_pb2.Status(
        code=_CODES.get(http_status(status), code_pb2.UNKNOWN), message=f"{code}: {detail}"
    )
    return encoded(message, encoding_of(content_type))


def encoded(message: Message, encoding: Encoding) -> tuple[bytes, str]:
    """Return body and content type of a message."""
    if encoding == "protobuf":
        return message.SerializeToString(), PROTOBUF
    return json_format.MessageToJson(message, indent=None).encode(), JSON


def traces_response(rejected: int, reason: str) -> ExportTraceServiceResponse:
    """Return the response to a request with traces; a reason without rejected spans is a warning."""
    response = ExportTraceServiceResponse()
    if reason:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = reason
    return response


def logs_response(rejected: int, reason: str) -> ExportLogsServiceResponse:
    """Return the response to a request with logs."""
    response = ExportLogsServiceResponse()
    if reason:
        response.partial_success.rejected_log_records = rejected
        response.partial_success.error_message = reason
    return response


def metrics_response() -> ExportMetricsServiceResponse:
    """Return the response to a request with metrics, all of which are ignored."""
    return ExportMetricsServiceResponse()
