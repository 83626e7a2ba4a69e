"""Reads of the gateway's backends and tokens."""

from __future__ import annotations

from django.conf import settings
from django.db.models import QuerySet

from detection.models import GatewayBackend, GatewayToken


def gateway_url(backend_name: str, token: str = "") -> str:
    """Return the base URL of a backend for agents; with a token for those that send no key."""
    return f"{settings.LIVE_URL}/gateway/{backend_name}{f'/{token}' if token else ''}"


def list_backends(project_id: int) -> QuerySet[GatewayBackend]:
    """Return the backends of a project by name."""
    return GatewayBackend.objects.filter(project_id=project_id).order_by("name")


def list_tokens(backend: GatewayBackend) -> QuerySet[GatewayToken]:
    """Return the newest tokens of a backend, revoked ones too."""
    return backend.tokens.order_by("-id")[:200]
