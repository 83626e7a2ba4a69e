"""API keys, created and revoked by the service. The token is shown once, after creation."""

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
    """Form of a new key."""

    scopes = forms.MultipleChoiceField(
        choices=KeyScope.choices, widget=forms.CheckboxSelectMultiple, initial=["ingest", "guard", "read"]
    )

    class Meta:
        model = ApiKey
        fields = ("project", "name", "scopes", "expires_at")


@admin.register(ApiKey)
class KeyPage(ProjectAdmin):
    """API keys."""

    form = KeyForm
    list_display = (
        "name",
        "hint",
        "project",
        "scope_list",
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

    @admin.display(description="scopes")
    def scope_list(self, key: ApiKey) -> str:
        """The scopes in a line."""
        return ", ".join(key.scopes)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        """Create the key and show its token once."""
        made, token = keys.create_key(
            obj.project,
            obj.name,
            actor_of(request),
            scopes=form.cleaned_data["scopes"],
            expires_at=obj.expires_at,
        )
        obj.pk, obj.public_id, obj._state.adding = made.pk, made.public_id, False
        messages.warning(request, f"Key created. Copy the token now, it is not shown again: {token}")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Do nothing; the service writes the audit."""

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Return False: keys cannot be edited."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Return False: keys are revoked, never deleted, so the audit keeps their names."""
        return False

    @admin.action(description="Revoke", permissions=["add"])
    def revoke(self, request: HttpRequest, rows: QuerySet[ApiKey]) -> None:
        """Revoke the selected keys; they stop working within a second."""
        chosen = list(rows.select_related("project"))
        for row in chosen:
            keys.revoke_key(row.project, row.public_id, actor_of(request))
        messages.success(request, f"{len(chosen)} key{'' if len(chosen) == 1 else 's'} revoked.")
