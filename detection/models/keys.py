"""API keys, stored as digests."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Value

from detection.models.projects import Project


class KeyScope(models.TextChoices):
    """What a key may be used for."""

    INGEST = "ingest", "Ingest: send events"
    GUARD = "guard", "Guard: evaluate calls"
    READ = "read", "Read: sessions, loops, policies"
    ADMIN = "admin", "Admin: change sessions, loops and policies"
    METRICS = "metrics", "Metrics: read /metrics"


def all_scopes() -> list[str]:
    """Return every scope, the default of a key."""
    return list(KeyScope.values)


class ApiKey(models.Model):
    """A key of one project. The token is shown once and never stored.

    `public_id` is the readable part of the token. `digest` is the SHA-256 of the whole token; with 256 random bits, a
    slow password hash would only add cost.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    scopes = ArrayField(models.CharField(max_length=16, choices=KeyScope.choices), default=all_scopes)
    is_demo = models.BooleanField(
        default=False, editable=False, help_text="Sessions sent with this key are marked as demo."
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="To five seconds.")
    tags = ArrayField(models.CharField(max_length=64), default=list, db_default=[], blank=True)
    routes = models.JSONField(
        default=dict,
        db_default=Value({}, models.JSONField()),
        editable=False,
        help_text="When each route last accepted a request with it, to five seconds.",
    )

    class Meta:
        ordering = ("-created_at",)
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} (lg_{self.public_id}…)"
