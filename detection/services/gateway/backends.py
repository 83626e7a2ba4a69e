"""Create, change, test and delete backends of the gateway, and the tokens that give access to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from detection.models import BackendKind, GatewayBackend, GatewayToken, Project
from detection.services import audit, keys, outgoing_http
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found
from detection.services.outgoing_http import AddressNotAllowed, Unreachable
from detection.services.versions import require_version, version_of

TOKEN_PREFIX: Final = "lgw_"  # noqa: S105 (no secret)
MAX_BACKENDS: Final = 50
MAX_TOKENS: Final = 100
MAX_HEADERS: Final = 20
MAX_HEADER_CHARACTERS: Final = 1_000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]+", re.ASCII)
_OWN_HEADERS = frozenset(
    (
        "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type",
        "cookie", "expect", "host", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "x-api-key",
    )
)  # fmt: skip
"""Headers that the gateway sets or passes on; credentials come from the deployment, never from a row that is shown."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The response of a backend to a request for its models.

    Attributes
    ----------
    status
        None without a response.
    """

    __test__ = False

    is_success: bool
    status: int | None
    detail: str


MODELS_PATHS: Final = {
    BackendKind.OPENAI: "/models",
    BackendKind.ANTHROPIC: "/v1/models",
    BackendKind.GEMINI: "/v1beta/models",
}
"""Where a backend lists its models, below its base URL."""


def credential_header(kind: str, credential: str) -> tuple[str, str]:
    """Return the header that carries a credential to a backend of a kind."""
    if kind == BackendKind.ANTHROPIC:
        return "x-api-key", credential
    if kind == BackendKind.GEMINI:
        return "x-goog-api-key", credential
    return "authorization", f"Bearer {credential}"


def is_allowed_upstream(base_url: str) -> bool:
    """Return whether the deployment allows backends at this address, by origin and whole segments of the path."""
    return any(base_url == one or base_url.startswith(f"{one}/") for one in settings.GATEWAY_UPSTREAMS)


def _checked_url(base_url: str) -> str:
    """Return the address without a trailing slash.

    Raises
    ------
    Invalid
        If it is not on the allow-list, or not allowed for outgoing requests.
    """
    base_url = base_url.strip().rstrip("/")
    try:
        outgoing_http.parse(base_url)
    except AddressNotAllowed as error:
        detail = str(error).replace("`address`", "`base_url`")
        raise Invalid(detail, field="base_url", code="address_not_allowed") from error
    has_dots = any(
        part in (".", "..") for part in base_url.replace("%2e", ".").replace("%2E", ".").split("/")
    )
    if len(base_url) > 500 or "?" in base_url or "#" in base_url or has_dots:
        raise Invalid(
            "`base_url` must have at most 500 characters, and neither a query nor `..`.", field="base_url"
        )
    if not is_allowed_upstream(base_url):
        allowed = ", ".join(settings.GATEWAY_UPSTREAMS) or "nothing"
        raise Invalid(
            f"`base_url` must be under an address in LOOPGUARD_GATEWAY_UPSTREAMS. Allowed: {allowed}.",
            field="base_url",
            code="address_not_allowed",
        )
    return base_url


def _checked_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    if len(headers) > MAX_HEADERS:
        raise Invalid(f"`headers` must have at most {MAX_HEADERS} entries.", field="headers")
    for name, value in headers.items():
        is_own = name.lower() in _OWN_HEADERS or name.lower().startswith("loopguard-")
        if not _HEADER_NAME.fullmatch(name) or is_own:
            raise Invalid(f"`headers` must not contain `{name[:64]}`.", field="headers")
        is_text = isinstance(value, str) and len(value) <= MAX_HEADER_CHARACTERS
        if not is_text or not _HEADER_VALUE.fullmatch(value.strip()):
            raise Invalid(
                f"`headers.{name}` must be printable ASCII of 1 to {MAX_HEADER_CHARACTERS:,} characters.",
                field="headers",
            )
    return {name: value.strip() for name, value in headers.items()}


def check_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked values of the given fields; raises `Invalid` for the field at fault."""
    checked = dict(values)
    if "name" in values and not _NAME.fullmatch(values["name"]):
        raise Invalid(
            "`name` must have 1 to 64 lowercase letters, digits, dots, hyphens or underscores, and start with a "
            "letter or digit.",
            field="name",
        )
    if "kind" in values and values["kind"] not in BackendKind.values:
        raise Invalid(f"`kind` must be one of {', '.join(BackendKind.values)}.", field="kind")
    if "base_url" in values:
        checked["base_url"] = _checked_url(values["base_url"])
    if values.get("credential") and values["credential"] not in settings.GATEWAY_CREDENTIALS:
        raise Invalid(
            "`credential` must be a name in LOOPGUARD_GATEWAY_CREDENTIALS of the deployment, or empty.",
            field="credential",
        )
    if "headers" in values:
        checked["headers"] = _checked_headers(values["headers"])
    return checked


def _shown(row: GatewayBackend) -> dict[str, Any]:
    names = (
        "name",
        "kind",
        "base_url",
        "credential",
        "headers",
        "fails_closed",
        "requests_usage",
        "is_enabled",
    )
    return {name: getattr(row, name) for name in names}


def find_backend(project_id: int, public_id: str) -> GatewayBackend:
    """Return a backend; raises `NotFound`."""
    return found(GatewayBackend.objects.filter(project_id=project_id, public_id=public_id).first())


def _locked(project_id: int, public_id: str) -> GatewayBackend:
    rows = GatewayBackend.objects.select_for_update(no_key=True)
    return found(rows.filter(project_id=project_id, public_id=public_id).first())


def create_backend(project_id: int, actor: Actor, **values: Any) -> GatewayBackend:
    """Create a backend.

    Parameters
    ----------
    **values
        `name`, `kind`, `base_url`, and optionally `credential`, `headers`, `fails_closed`, `requests_usage` and
        `is_enabled`.

    Raises
    ------
    Invalid
        For the field at fault.
    Conflict
        ``too_many`` or ``name_taken``.
    """
    checked = check_values(values)
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project_id)
        existing = GatewayBackend.objects.filter(project_id=project_id)
        if existing.count() >= MAX_BACKENDS:
            raise Conflict(f"A project can have at most {MAX_BACKENDS} backends.", code="too_many")
        _check_name(existing, checked["name"])
        row = GatewayBackend.objects.create(project_id=project_id, **checked)
        audit.record(actor, "backend.create", row.public_id, project_id=project_id, after=_shown(row))
    return row


def _check_name(others: Any, name: str) -> None:
    if others.filter(name=name).exists():
        raise Conflict("A backend with this name already exists.", field="name", code="name_taken")


def backend_version(row: GatewayBackend) -> str:
    """Return the version of a backend as a form shows it."""
    return version_of(_shown(row))


def update_backend(
    project_id: int, public_id: str, actor: Actor, *, version: str | None = None, **values: Any
) -> GatewayBackend:
    """Change the given fields; see `create_backend`. Takes effect within a second.

    Raises
    ------
    ChangedMeanwhile
        When its version is no longer `version`, as `backend_version` gave it; None checks nothing.
    """
    checked = check_values(values)
    with transaction.atomic():
        row = _locked(project_id, public_id)
        before = _shown(row)
        require_version(version, before)
        for name, value in checked.items():
            setattr(row, name, value)
        if row.name != before["name"]:
            _check_name(GatewayBackend.objects.filter(project_id=project_id), row.name)
        row.save()
        audit.record(
            actor, "backend.change", row.public_id, project_id=project_id, before=before, after=_shown(row)
        )
    return row


@transaction.atomic
def delete_backend(project_id: int, public_id: str, actor: Actor, *, version: str | None = None) -> None:
    """Delete a backend with its tokens. Agents that use it get 404 within a second.

    Raises
    ------
    ChangedMeanwhile
        When its version is no longer `version`; see `update_backend`.
    """
    row = _locked(project_id, public_id)
    before = _shown(row)
    require_version(version, before)
    row.delete()
    audit.record(actor, "backend.delete", public_id, project_id=project_id, before=before)


@transaction.atomic
def create_token(project_id: int, public_id: str, actor: Actor, *, name: str) -> tuple[GatewayToken, str]:
    """Create a token for the path of the base URL of a backend.

    Returns
    -------
    tuple
        The row and the token, which is not stored and cannot be shown again.
    """
    backend = _locked(project_id, public_id)
    if backend.tokens.filter(revoked_at=None).count() >= MAX_TOKENS:
        raise Conflict(f"A backend can have at most {MAX_TOKENS} tokens.", code="too_many")
    readable, token = keys.new_token(TOKEN_PREFIX)
    row = GatewayToken.objects.create(
        project_id=project_id,
        backend=backend,
        name=name.strip()[:80] or "unnamed",
        public_id=readable,
        digest=keys.digest_of(token),
    )
    after = {"name": row.name, "token": f"{TOKEN_PREFIX}{readable}"}
    audit.record(actor, "backend.token_create", public_id, project_id=project_id, after=after)
    return row, token


@transaction.atomic
def revoke_token(project_id: int, public_id: str, token_id: str, actor: Actor) -> GatewayToken:
    """Revoke a token. Takes effect within a second; revoking twice changes nothing."""
    backend = _locked(project_id, public_id)
    row = found(backend.tokens.filter(public_id=token_id.removeprefix(TOKEN_PREFIX)).first())
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        before = {"name": row.name, "token": f"{TOKEN_PREFIX}{row.public_id}"}
        audit.record(actor, "backend.token_revoke", public_id, project_id=project_id, before=before)
    return row


def test_backend(project_id: int, public_id: str, actor: Actor) -> TestResult:
    """Request the models of a backend, with its credential if it has one; waits for at most five seconds.

    Without its own credential, 401 and 403 also show that the backend is reachable.
    """
    row = find_backend(project_id, public_id)
    headers = dict(row.headers) | {"accept": "application/json"}
    credential = settings.GATEWAY_CREDENTIALS.get(row.credential, "")
    if credential:
        name, value = credential_header(row.kind, credential)
        headers[name] = value
    if row.kind == BackendKind.ANTHROPIC:
        headers.setdefault("anthropic-version", "2023-06-01")
    path = MODELS_PATHS[BackendKind(row.kind)]
    result = _test(f"{row.base_url}{path}", headers, has_credential=bool(credential))
    after = {"success": result.is_success, "detail": result.detail}
    with transaction.atomic():
        audit.record(actor, "backend.test", row.public_id, project_id=project_id, after=after)
    return result


def _test(url: str, headers: dict[str, str], *, has_credential: bool) -> TestResult:
    if not is_allowed_upstream(url):
        return TestResult(
            is_success=False, status=None, detail="The address is no longer in LOOPGUARD_GATEWAY_UPSTREAMS."
        )
    try:
        response = outgoing_http.request("GET", url, headers)
    except (AddressNotAllowed, Unreachable) as error:
        return TestResult(is_success=False, status=None, detail=str(error))
    status = response.status
    if 200 <= status < 300:
        return TestResult(is_success=True, status=status, detail="The backend lists its models.")
    if status in (401, 403) and not has_credential:
        return TestResult(
            is_success=True, status=status, detail="The backend responds; agents send their own credentials."
        )
    if status in (401, 403):
        return TestResult(is_success=False, status=status, detail="The backend rejects the credential.")
    return TestResult(is_success=False, status=status, detail=f"The backend responds with status {status}.")
