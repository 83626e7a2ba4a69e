"""What passes through the gateway: prices of models, and counts of requests by minute and hour."""

from __future__ import annotations

from functools import partial

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from detection.models.gateway import GatewayBackend
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class ModelPrice(TenantModel):
    """What tokens of the models that match cost, in US dollars per million tokens.

    Of several matching prices, one for the backend takes precedence over one for all backends, then the longest
    pattern applies.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="model_prices")
    public_id = models.CharField(max_length=32, default=partial(new_id, "prc_"), editable=False)
    backend = models.CharField(
        max_length=64, blank=True, default="", help_text="Name of a backend. Empty: all backends."
    )
    model = models.CharField(max_length=200, help_text="Name of a model; * stands for any characters.")
    input_usd = models.DecimalField("input", max_digits=12, decimal_places=6)
    cached_input_usd = models.DecimalField(
        "cached input",
        null=True,
        blank=True,
        help_text="Read from a cache. Empty: as input.",
        max_digits=12,
        decimal_places=6,
    )
    cache_write_usd = models.DecimalField(
        "cache write",
        null=True,
        blank=True,
        help_text="Written to a cache. Empty: as input.",
        max_digits=12,
        decimal_places=6,
    )
    output_usd = models.DecimalField("output", max_digits=12, decimal_places=6)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now())

    class Meta:
        ordering = ("backend", "model")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="model_price_id"),
            models.UniqueConstraint(fields=("project", "backend", "model"), name="one_price_per_pattern"),
            models.CheckConstraint(
                condition=models.Q(input_usd__gte=0, output_usd__gte=0)
                & (models.Q(cached_input_usd=None) | models.Q(cached_input_usd__gte=0))
                & (models.Q(cache_write_usd=None) | models.Q(cache_write_usd__gte=0)),
                name="prices_not_negative",
            ),
        )

    def __str__(self) -> str:
        return f"{self.backend or 'all backends'} / {self.model}"


class TrafficPeriod(models.IntegerChoices):
    """How much time a row of counts covers, in seconds."""

    ALWAYS = 0, "always"
    MINUTE = 60, "minute"
    HOUR = 3600, "hour"


class GatewayTraffic(TenantModel):
    """Counts of the requests of one minute or hour (UTC), backend and model.

    Every request is counted in a row of its minute, in one of its hour, and in one of all time, which has no model.
    Rows of minutes are deleted after two days, rows of hours after a year; see `services.gateway.traffic`.

    `added_counts` are the requests by time that LoopGuard added, in the steps of `selectors.gateway_traffic.ADDED_MS`.
    `cost_usd` is that of the tokens with a price; `unpriced_tokens` are those without one.
    """

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    backend = TenantForeignKey(
        GatewayBackend, on_delete=models.CASCADE, related_name="traffic", db_index=False
    )
    period = models.SmallIntegerField(choices=TrafficPeriod.choices)
    at = models.DateTimeField()
    model = models.CharField(max_length=200, blank=True, default="")
    requests = models.BigIntegerField(default=0)
    unreachable = models.BigIntegerField(default=0)
    timeouts = models.BigIntegerField(default=0)
    rate_limited = models.BigIntegerField(default=0)
    client_errors = models.BigIntegerField(default=0)
    server_errors = models.BigIntegerField(default=0)
    cut = models.BigIntegerField(default=0)
    unreadable = models.BigIntegerField(default=0)
    abandoned = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="Requests whose client left before the end of the response.",
    )
    unguarded = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="Requests of paths that are not guarded, except for lists of models and counts of tokens.",
    )
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    unpriced_tokens = models.BigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=18, decimal_places=6, default=0)
    added_counts = ArrayField(models.BigIntegerField(), default=list)
    added_ms = models.FloatField(default=0.0)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("project", "backend", "period", "at", "model"), name="gateway_traffic_counted_once"
            ),
        )
        indexes = (models.Index(fields=("period", "at"), name="gateway_traffic_age"),)

    def __str__(self) -> str:
        return f"{self.backend_id} {self.at:%Y-%m-%d %H:%M} {self.model}"
