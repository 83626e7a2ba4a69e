"""Backends of the gateway and the tokens that give access to them."""

from __future__ import annotations

from functools import partial

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class BackendKind(models.TextChoices):
    """The API of a backend. The kind decides in which header its credential is sent."""

    OPENAI = "openai", "OpenAI: chat completions and responses"
    ANTHROPIC = "anthropic", "Anthropic: messages"
    GEMINI = "gemini", "Google: Gemini"


class GatewayBackend(TenantModel):
    """A model server that the gateway forwards to.

    The credential itself is never stored: `credential` names one that the deployment has, in `GATEWAY_CREDENTIALS`.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="gateway_backends")
    public_id = models.CharField(max_length=32, default=partial(new_id, "bck_"), editable=False)
    name = models.CharField(max_length=64, help_text="Part of the address that agents use.")
    kind = models.CharField(max_length=12, choices=BackendKind.choices, default=BackendKind.OPENAI)
    base_url = models.CharField(
        "base URL", max_length=500, help_text="Must be below an address in LOOPGUARD_GATEWAY_UPSTREAMS."
    )
    credential = models.CharField(
        max_length=64,
        blank=True,
        default="",
        help_text="A name in LOOPGUARD_GATEWAY_CREDENTIALS. Empty: that of the client is passed through.",
    )
    headers = models.JSONField(default=dict, blank=True, help_text="Headers that every request gets.")
    fails_closed = models.BooleanField(
        default=False, help_text="Whether tool calls are withheld while LoopGuard cannot evaluate them."
    )
    requests_usage = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Whether streamed chat completions are asked for their usage where the agent does not ask.",
    )
    is_enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="gateway_backend_id"),
            models.UniqueConstraint(fields=("project", "name"), name="gateway_backend_named_once"),
            models.CheckConstraint(
                condition=models.Q(kind__in=BackendKind.values), name="gateway_backend_kind_known"
            ),
        )

    def __str__(self) -> str:
        return self.name


class GatewayToken(models.Model):
    """A token for the path of a base URL, for programs that cannot set a header. It gives access to one backend only.

    As with keys, `public_id` is the readable part and `digest` the SHA-256 of the whole token.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="gateway_tokens")
    backend = TenantForeignKey(GatewayBackend, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField(db_default=Now())
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} (lgw_{self.public_id}…)"


class GatewayRewrite(TenantModel):
    """What the gateway adds to the history of a session around one answer, in every later request.

    `answer` is a digest of the id of the answer's first call, and how often that id occurred as one. `body` is JSON:
    calls that did not run, without their secrets, with their results, and warnings.
    """

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="gateway_rewrites")
    answer = models.CharField(max_length=48)
    body = models.TextField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("project", "session", "answer"), name="one_rewrite_per_answer"),
        )

    def __str__(self) -> str:
        return f"rewrite of {self.answer}"
