"""Headers on their way through the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from django.conf import settings

from detection.services.gateway.backends import credential_header
from detection.services.gateway.grants import Backend

Headers = list[tuple[bytes, bytes]]
_HOP_BY_HOP: Final = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
_NOT_FORWARDED: Final = _HOP_BY_HOP | frozenset(
    (
        b"host", b"cookie", b"expect", b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host",
        b"x-forwarded-port", b"x-forwarded-proto", b"x-real-ip",
    )
)  # fmt: skip
"""What belongs to this connection, to the reverse proxy before it, or to the console on the same host."""
_PASSED: Final = frozenset(
    (
        b"accept-ranges", b"age", b"apim-request-id", b"cache-control", b"cf-ray", b"content-disposition",
        b"content-encoding", b"content-language", b"content-length", b"content-range", b"content-type", b"date",
        b"deprecation", b"etag", b"expires", b"last-modified", b"request-id", b"retry-after", b"retry-after-ms",
        b"server", b"sunset", b"vary", b"x-correlation-id", b"x-envoy-upstream-service-time", b"x-generation-id",
        b"x-request-id", b"x-should-retry", b"x-trace-id",
    )
)  # fmt: skip
_PASSED_PREFIXES: Final = (
    b"anthropic-", b"azureml-", b"llm_provider-", b"openai-", b"ratelimit", b"x-amzn-", b"x-gemini-", b"x-groq-",
    b"x-litellm-",
    b"x-ms-", b"x-openrouter-", b"x-ratelimit-", b"x-vllm-",
)  # fmt: skip
"""Headers of model servers that clients read. The response comes from the address of the console: on it, cookies,
policies, redirects, challenges and headers for reverse proxies would act."""
_INERT_TYPES: Final = re.compile(
    rb"(?:application/(?:[a-z0-9.-]+\+json|json|jsonl|x-jsonlines|x-ndjson|octet-stream|problem\+json|gzip|zip"
    rb"|vnd\.amazon\.eventstream|x-protobuf)|text/(?:event-stream|plain)|multipart/[a-z.-]+|audio/[a-z0-9.+-]+"
    rb"|video/[a-z0-9.+-]+|image/(?:png|jpeg|gif|webp|avif))"
)
"""Media types that no browser runs or shows as a page."""
SHIELD: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
]
"""What every response of the gateway has, whoever wrote its body."""
_CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_OWN_PREFIX: Final = b"loopguard-"


class RequestHeaders:
    """The headers of a request, read once.

    Attributes
    ----------
    values
        By lowercase name; for a repeated header, the last value.
    """

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.raw: Headers = [(name.lower(), value) for name, value in raw]
        self.values: Mapping[bytes, bytes] = dict(self.raw)

    def text(self, name: str) -> str:
        """Return a header as text, empty if it is absent."""
        return self.values.get(name.encode(), b"").decode("latin-1").strip()

    @property
    def has_credential(self) -> bool:
        """Whether the client sends its own credential."""
        return any(self.values.get(name, b"").strip() not in (b"", b"Bearer") for name in _CREDENTIALS)

    def forwarded(self, backend: Backend, *, with_credential: bool, body_length: int | None) -> Headers:
        """Return the headers for the upstream, without `host`.

        Parameters
        ----------
        with_credential
            Whether the credential of the backend, if it has one, replaces that of the client.
        body_length
            Length of a body that was read, in bytes: it is sent unencoded, and the response is to be unencoded,
            too. None for a body that is passed through.
        """
        dropped = _NOT_FORWARDED | _named_by_connection(self.values)
        credential = settings.GATEWAY_CREDENTIALS.get(backend.credential, "") if with_credential else ""
        extra = {name.lower().encode(): value.encode() for name, value in backend.headers.items()}
        if credential:
            name, value = credential_header(backend.kind, credential)
            dropped |= frozenset(_CREDENTIALS)
            extra[name.encode()] = value.encode()
        if body_length is not None:
            dropped |= {b"content-length", b"content-encoding", b"accept-encoding"}
            extra |= {b"content-length": str(body_length).encode(), b"accept-encoding": b"identity"}
        kept = [
            (name, value)
            for name, value in self.raw
            if name not in dropped
            and name not in extra
            and not name.startswith(_OWN_PREFIX)
            and not (name in _CREDENTIALS and _is_ours(value))
        ]
        return [*kept, *extra.items()]


def response_headers(raw: Iterable[tuple[bytes, bytes]], *without: bytes) -> Headers:
    """Return the headers of a response of the upstream for the client: those that are known to be harmless."""
    headers = [(name.lower(), value) for name, value in raw]
    dropped = _named_by_connection(dict(headers)) | frozenset(without)
    return [
        (name, _inert_type(value) if name == b"content-type" else value)
        for name, value in headers
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and name not in dropped
    ]


def _inert_type(value: bytes) -> bytes:
    """Return a media type of the upstream; another text is plain, and anything else is bytes."""
    media_type, semicolon, parameters = value.strip().partition(b";")
    media_type = media_type.strip().lower()
    if b"," in value:  # of several types, browsers take the last
        return b"application/octet-stream"
    if _INERT_TYPES.fullmatch(media_type):
        return value
    if media_type.startswith(b"text/"):
        return b"text/plain" + semicolon + parameters
    return b"application/octet-stream"


def _named_by_connection(values: Mapping[bytes, bytes]) -> frozenset[bytes]:
    names = values.get(b"connection", b"").lower().split(b",")
    return frozenset(name.strip() for name in names if name.strip())


def _is_ours(value: bytes) -> bool:
    """Return whether a credential is a LoopGuard key, which no provider may see."""
    return value.removeprefix(b"Bearer ").strip().startswith((b"lg_", b"lgw_"))
