"""Reads of the gateway's backends and tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count, Max, QuerySet, Sum
from django.utils import timezone

from detection.models import GatewayBackend, GatewayToken, Session
from detection.selectors.integrations import HEARD_DAYS

GATEWAY = "gateway"
"""The integration of sessions that came through the gateway."""


@dataclass(frozen=True, slots=True)
class HeardBackends:
    """The sessions and calls of the last seven days through some backends."""

    last_heard_at: datetime
    sessions: int
    calls: int


def gateway_url(backend_name: str, token: str = "") -> str:
    """Return the base URL of a backend for agents; with a token for those that send no key."""
    return f"{settings.LIVE_URL}/gateway/{backend_name}{f'/{token}' if token else ''}"


def list_backends(project_id: int) -> QuerySet[GatewayBackend]:
    """Return the backends of a project by name."""
    return GatewayBackend.objects.filter(project_id=project_id).order_by("name")


def list_tokens(backend: GatewayBackend) -> QuerySet[GatewayToken]:
    """Return the newest tokens of a backend, revoked ones too."""
    return backend.tokens.order_by("-id")[:200]


def litellm_url() -> str:
    """Return the address of the guardrail in the configuration of LiteLLM."""
    return f"{settings.LIVE_URL}/gateway/-/litellm"


def heard_through_gateway(project_id: int, backends: Collection[str] | None) -> HeardBackends | None:
    """Return sessions and calls of the last seven days through these backends, or from LiteLLM; None without any."""
    since = timezone.now() - timedelta(days=HEARD_DAYS)
    rows = Session.objects.filter(project_id=project_id, last_event_at__gte=since)
    if backends is None:
        rows = rows.filter(integration="litellm")
    else:
        rows = rows.filter(integration=GATEWAY, backend__in=backends)
    found = rows.aggregate(heard=Max("last_event_at"), number=Count("id"), calls=Sum("call_count"))
    return HeardBackends(found["heard"], found["number"], found["calls"] or 0) if found["number"] else None
