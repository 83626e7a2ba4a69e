"""Backends of the gateway and their tokens, changed through the services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from detection.admin.base import BaseInline, ProjectFilter, ReadOnlyMixin, actor_of
from detection.admin.versions import VersionedAdmin, VersionedForm
from detection.models import GatewayBackend, GatewayToken, ModelPrice
from detection.services.errors import ServiceError
from detection.services.gateway import backends, prices


class BackendForm(VersionedForm):
    """Form of a backend, with the checks of the service."""

    row_version = staticmethod(backends.backend_version)

    class Meta:
        model = GatewayBackend
        fields = (
            "project",
            "name",
            "kind",
            "base_url",
            "credential",
            "headers",
            "fails_closed",
            "requests_usage",
            "is_enabled",
        )

    def clean(self) -> dict[str, Any]:
        """Show what the service would reject."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        try:
            backends.check_values(
                {name: value for name, value in cleaned.items() if name not in ("project", "version")}
            )
        except ServiceError as error:
            self.add_error(error.field if error.field in self.fields else None, error.detail)
        return cleaned


class TokenInline(ReadOnlyMixin, BaseInline):
    """Tokens of a backend; the console creates and revokes them."""

    model = GatewayToken
    extra = 0
    fields = ("name", "public_id", "created_at", "revoked_at")
    readonly_fields = fields


@admin.register(GatewayBackend)
class BackendPage(VersionedAdmin):
    """Backends of the gateway."""

    list_display = ("name", "project", "kind", "base_url", "credential", "fails_closed", "is_enabled")
    list_filter = ("kind", "is_enabled", ("project", ProjectFilter))
    search_fields = ("public_id__exact", "name", "base_url")
    list_select_related = ("project",)
    form = BackendForm
    after_deletion = "Its tokens are deleted too. Agents that use it get 404 within a second."
    inlines = (TokenInline,)
    actions = ("test",)

    def get_readonly_fields(self, request: HttpRequest, obj: GatewayBackend | None = None) -> tuple[str, ...]:
        """Return the project, which cannot change."""
        return ("project",) if obj else ()

    def save_model(self, request: HttpRequest, obj: GatewayBackend, form: Any, change: bool) -> None:
        """Create or change the backend through the service."""
        names = form.changed_data if change else list(form.cleaned_data)
        values = {name: form.cleaned_data[name] for name in names if name not in ("project", "version")}
        if change:
            version = form.cleaned_data["version"] or None
            backends.update_backend(
                obj.project_id, obj.public_id, actor_of(request), version=version, **values
            )
        else:
            made = backends.create_backend(obj.project_id, actor_of(request), **values)
            obj.pk, obj.public_id, obj._state.adding = made.pk, made.public_id, False

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Do nothing; the service writes the audit."""

    def delete_model(self, request: HttpRequest, obj: GatewayBackend) -> None:
        """Delete the backend through the service."""
        version = request.POST.get("version")
        backends.delete_backend(obj.project_id, obj.public_id, actor_of(request), version=version)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[GatewayBackend]) -> None:
        """Delete the chosen backends one by one."""
        for row in queryset:
            self.delete_model(request, row)

    @admin.action(description="Test")
    def test(self, request: HttpRequest, rows: QuerySet[GatewayBackend]) -> None:
        """Request the models of the chosen backends."""
        for row in rows[:5]:
            result = backends.test_backend(row.project_id, row.public_id, actor_of(request))
            level = messages.SUCCESS if result.is_success else messages.ERROR
            messages.add_message(request, level, f"{row.name}: {result.detail}")


class PriceForm(VersionedForm):
    """Form of a price, with the checks of the service."""

    row_version = staticmethod(prices.price_version)

    class Meta:
        model = ModelPrice
        fields = ("project", "backend", "model", *prices.AMOUNTS)

    def clean(self) -> dict[str, Any]:
        """Show what the service would reject."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        try:
            names = ("backend", "model", *prices.AMOUNTS)
            prices.check_values({name: cleaned.get(name, getattr(self.instance, name)) for name in names})
        except ServiceError as error:
            self.add_error(error.field if error.field in self.fields else None, error.detail)
        return cleaned


@admin.register(ModelPrice)
class PricePage(VersionedAdmin):
    """Prices of models, in US dollars per million tokens."""

    list_display = ("model", "backend", "project", *prices.AMOUNTS, "updated_at")
    list_filter = (("project", ProjectFilter),)
    search_fields = ("public_id__exact", "model", "backend")
    list_select_related = ("project",)
    form = PriceForm
    after_deletion = "The cost of its models is then unknown, unless another price matches."

    def get_readonly_fields(self, request: HttpRequest, obj: ModelPrice | None = None) -> tuple[str, ...]:
        """Return the fields that identify a price."""
        return ("project", "backend", "model") if obj else ()

    def save_model(self, request: HttpRequest, obj: ModelPrice, form: Any, change: bool) -> None:
        """Save the price through the service."""
        values = {name: getattr(obj, name) for name in ("backend", "model", *prices.AMOUNTS)}
        version = form.cleaned_data["version"] or None
        saved = prices.save_price(obj.project_id, actor_of(request), version=version, **values)
        obj.pk, obj.public_id, obj._state.adding = saved.pk, saved.public_id, False

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Do nothing; the service writes the audit."""

    def delete_model(self, request: HttpRequest, obj: ModelPrice) -> None:
        """Delete the price through the service."""
        version = request.POST.get("version")
        prices.delete_price(obj.project_id, obj.public_id, actor_of(request), version=version)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[ModelPrice]) -> None:
        """Delete the chosen prices one by one."""
        for row in queryset:
            self.delete_model(request, row)
