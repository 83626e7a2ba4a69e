"""The key of the snippets of Connect."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.utils import timezone

from detection.console.access import ProjectRequest, actor_of
from detection.console.single_submission import shows_secret
from detection.models import ApiKey, KeyScope
from detection.services import keys
from detection.services.errors import ServiceError

SCOPES = [KeyScope.INGEST.value, KeyScope.GUARD.value]


def key_context(request: ProjectRequest) -> dict[str, Any]:
    """Return the key context of the snippets; creates a key if the request is the form that asks for one."""
    made = ""
    if request.method == "POST" and request.POST.get("action") == "create_key":
        try:
            _, made = keys.create_key(request.project, "Connect", actor_of(request), scopes=SCOPES)
            shows_secret(request)
        except ServiceError as error:
            messages.error(request, error.detail)
    valid = ApiKey.objects.filter(project=request.project, revoked_at=None).exclude(
        expires_at__lte=timezone.now()
    )
    keys_by_id = dict(valid.values_list("public_id", "is_demo"))
    return {"key": made, "has_key": not all(keys_by_id.values()), "public_ids": " ".join(keys_by_id)}
