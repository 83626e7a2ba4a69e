"""Reads request bodies with limits on their size, also after decompression, before anything is kept in memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, Protocol

from django.http import HttpRequest
from django.http.request import UnreadablePostError

from detection.api.long_texts import MAX_RAW_BYTES, LongTextCutter, cut_long_texts
from detection.api.problems import Problem

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
MAX_PACKED_BYTES: Final = 1024 * 1024
MAX_TELEMETRY_BYTES: Final = 20 * 1024 * 1024
"""Limits that the OTLP specification recommends, before and after decompression."""
_CHUNK: Final = 256 * 1024
_GZIP: Final = 31
INCOMPLETE: Final = "The body is shorter than its `Content-Length`. Nothing of it was stored; send it again."
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body in bytes: uncompressed, and compressed with gzip."""

    size: int = MAX_BODY_BYTES
    packed: int = MAX_PACKED_BYTES


LIMITS: Final = BodyLimits()
TELEMETRY_LIMITS: Final = BodyLimits(MAX_TELEMETRY_BYTES, MAX_TELEMETRY_BYTES)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def media_type(request: HttpRequest, allowed: tuple[str, ...] = (JSON,)) -> str:
    """Return the content type of the body.

    Raises
    ------
    Problem
        415 for a content type that is not allowed, or a charset other than UTF-8.
    """
    given: str = request.META.get("CONTENT_TYPE", "")
    kind, _, parameters = given.lower().partition(";")
    kind = kind.strip()
    if kind not in allowed:
        raise Problem(
            415,
            "unsupported_media_type",
            f"`Content-Type` must be {' or '.join(allowed)}.",
            headers={"Accept": ", ".join(allowed)},
        )
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            raise Problem(415, "unsupported_charset", "The charset must be UTF-8.")
    return kind


def read_body(request: HttpRequest, *, cuts: bool = False, limits: BodyLimits = LIMITS) -> bytes:
    """Return the whole body, decompressed.

    Parameters
    ----------
    cuts
        Cut long strings as they arrive: the limit then applies to the rest, and the body may have 32 MB.
    limits
        Of the body.

    Raises
    ------
    Problem
        413 above the limits; 415 for an encoding other than gzip; 400 for an incomplete body. At most the
        limit and one chunk are in memory.
    """
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise Problem(
            415,
            "unsupported_encoding",
            "`Content-Encoding` must be gzip or absent.",
            headers={"Accept-Encoding": "gzip"},
        )
    is_packed = encoding.endswith("gzip")
    limit = limits.packed if is_packed else limits.size
    declared = request.META.get("CONTENT_LENGTH") or ""
    cutter = LongTextCutter() if cuts and not is_packed else None
    if declared.isdecimal() and int(declared) > (limit if cutter is None else MAX_RAW_BYTES):
        raise too_large(limits)
    try:
        body = _read(_stream(request, has_length=bool(declared)), limit, cutter, limits)
    except (UnreadablePostError, OSError) as error:
        raise Problem(400, "incomplete_body", INCOMPLETE) from error
    received = len(body) if cutter is None else cutter.received
    if declared.isdecimal() and received < int(declared):
        raise Problem(400, "incomplete_body", INCOMPLETE)
    if not is_packed:
        return body
    body = _unpack(body, limits)
    return cut_long_texts(body) if cuts else body


def _stream(request: HttpRequest, *, has_length: bool) -> _Readable:
    raw: _Readable | None = request.META.get("wsgi.input")
    # Django reads nothing without a length; a chunked body is read from the server, which marks its end.
    if not has_length and raw is not None and request.META.get("wsgi.input_terminated"):
        return raw
    return request


def _read(stream: _Readable, limit: int, cutter: LongTextCutter | None, limits: BodyLimits) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := stream.read(_CHUNK if cutter else min(_CHUNK, limit + 1 - size)):
        if cutter is not None:
            chunk = cutter.feed(chunk)
        chunks.append(chunk)
        size += len(chunk)
        if size > limit or (cutter is not None and cutter.received > MAX_RAW_BYTES):
            raise too_large(limits)
    if cutter is not None:
        chunks.append(cutter.finish())
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _unpack(packed: bytes, limits: BodyLimits) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        body = unpacker.decompress(packed, limits.size + 1)
    except zlib.error as error:
        raise Problem(400, "broken_encoding", "The body is not valid gzip.") from error
    if len(body) > limits.size:
        raise too_large(limits)
    if not unpacker.eof or unpacker.unused_data:
        raise Problem(400, "broken_encoding", "The body is not one complete gzip stream.")
    return body


def too_large(limits: BodyLimits = LIMITS) -> Problem:
    """Return the problem of a body above the limit."""
    return Problem(
        413,
        "too_large",
        f"A body can have at most {limits.size:,} bytes, and {limits.packed:,} compressed with gzip.",
        headers={"Connection": "close"},
    )
