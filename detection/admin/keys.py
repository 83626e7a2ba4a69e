"""API keys: made and revoked by the service; the token is shown once, on the page after it was made."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from detection.admin.base import ProjectAdmin, ProjectFilter, actor_of
from detection.models import ApiKey, KeyScope
from detection.services import keys


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    """What is asked for a new key."""

    scopes = forms.MultipleChoiceField(
        choices=KeyScope.choices, widget=forms.CheckboxSelectMultiple, initial=["ingest", "guard", "read"]
    )

    class Meta:
        model = ApiKey
        fields = ("project", "name", "scopes", "expires_at")


@admin.register(ApiKey)
class KeyPage(ProjectAdmin):
    """Keys."""

    form = KeyForm
    list_display = (
        "name",
        "hint",
        "project",
        "may",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    )
    list_filter = (("project", ProjectFilter),)
    search_fields = ("name", "public_id")
    list_select_related = ("project",)
    actions = ("revoke",)

    @admin.display(description="key")
    def hint(self, key: ApiKey) -> str:
        """The readable part of the key."""
        return f"lg_{key.public_id}…"

    @admin.display(description="may")
    def may(self, key: ApiKey) -> str:
        """The scopes in a line."""
        return ", ".join(key.scopes)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        """Make the key and show its token, this once."""
        made, token = keys.create_key(
            obj.project,
            obj.name,
            actor_of(request),
            scopes=form.cleaned_data["scopes"],
            expires_at=obj.expires_at,
        )
        obj.pk, obj.public_id, obj._state.adding = made.pk, made.public_id, False
        messages.warning(request, f"The key is {token} — copy it now, it cannot be shown again.")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Leave the record to the audit, which the service writes."""

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """A key does not change: make another and revoke this one."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """A key is revoked, so that what it did keeps its name."""
        return False

    @admin.action(description="Revoke", permissions=["add"])
    def revoke(self, request: HttpRequest, rows: QuerySet[ApiKey]) -> None:
        """Revoke the chosen keys; they are refused within a second."""
        for row in rows.select_related("project"):
            keys.revoke_key(row.project, row.public_id, actor_of(request))
        messages.success(request, "Revoked.")
