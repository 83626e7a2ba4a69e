"""Overrides and tool rules, with a field for each setting, saved by the same services as in the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from detection.admin.base import ProjectFilter, actor_of, administered
from detection.admin.versions import VersionedAdmin, VersionedForm
from detection.engine.fields import FIELDS
from detection.engine.policy import Policy
from detection.engine.scopes import SERVER, Scope
from detection.engine.tool_classes import TOOL_CLASSES
from detection.models import Override, ToolOverride
from detection.selectors.policies import load_overrides
from detection.services.errors import ServiceError
from detection.services.policies import overrides
from detection.services.policies.documents import RULE_FACTS
from detection.services.versions import ChangedMeanwhile
from detection.web.forms import GROUPS, PREFIX, OverrideForm, as_text, shown_fields, shown_value

REASON_HELP = "Required when the change weakens detection."
_ANY_TOOL = Scope("tool", pattern="*")


def _style(field: forms.Field) -> None:
    """Style a generated field like the fields of the theme, where it is installed."""
    try:
        from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget
    except ImportError:
        return
    if isinstance(field, forms.ChoiceField):
        field.widget = UnfoldAdminSelectWidget(choices=field.choices)
    else:
        field.widget = UnfoldAdminTextInputWidget(attrs=field.widget.attrs)


def _in_effect(name: str, own: Mapping[str, Any], inherited: Policy) -> str:
    """Say which value of a setting applies, where it comes from, and what would apply without the override."""
    source = inherited.sources[name].replace(":", " ", 1)
    value = _in_words(name, inherited.values[name])
    if name in own:
        return f"In effect: {_in_words(name, own[name])}, set here. Without it: {value}, from {source}."
    return f"In effect: {value}, from {source}."


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return shown_value(FIELDS[name], value) or "nothing"


class ReasonForm(forms.Form):
    """The reason for deleting an override."""

    note = forms.CharField(
        label="Reason", max_length=overrides.MAX_NOTE_CHARACTERS, required=False, help_text=REASON_HELP
    )

    def __init__(self) -> None:
        super().__init__()
        _style(self.fields["note"])


class StoredOverrideForm(OverrideForm, VersionedForm):
    """An override as a model form."""

    new_scope = SERVER
    """Decides which settings the form of a new override shows."""

    def __init__(self, *args: Any, instance: Override | ToolOverride | None = None, **kwargs: Any) -> None:
        known = {}
        if instance is not None:
            inherited = load_overrides(instance.project_id).inherited(instance.scope, instance.values)
            known = {"scope": instance.scope, "own": instance.values, "inherited": inherited}
        super().__init__(*args, instance=instance, **{"scope": self.new_scope, **known, **kwargs})
        reason = self.fields["note"]
        reason.label, reason.help_text, self.initial["note"] = "Reason", REASON_HELP, ""
        if instance is not None and instance.note:
            reason.help_text += f" Reason of the last change: {instance.note}"
        own = instance.values if instance is not None else {}
        if self.inherited is not None:
            for setting in shown_fields(self.scope):
                self.fields[
                    PREFIX + setting.name
                ].help_text += f" {_in_effect(setting.name, own, self.inherited)}"
        for name, field in self.fields.items():
            if name.startswith(PREFIX) or name in ("note", "tool_class"):
                _style(field)


class ScopeForm(StoredOverrideForm):
    """An override of the server, a project, or an agent, backend or model."""

    row_version = staticmethod(overrides.override_version)

    class Meta:
        model = Override
        fields = ("project", "agent", "backend", "model", "expires_at", "note")

    def clean(self) -> dict[str, object]:
        """Check that something is set: an override without settings does not exist."""
        cleaned = super().clean()
        if not self.values and not self.errors:
            raise ValidationError("Set at least one value. To inherit everything, delete the override.")
        return cleaned


class ToolRuleAdminForm(StoredOverrideForm):
    """A tool rule."""

    new_scope = _ANY_TOOL
    row_version = staticmethod(overrides.override_version)
    tool_class = forms.ChoiceField(
        choices=[("", "built in"), *((name, name) for name in TOOL_CLASSES)], required=False
    )

    class Meta:
        model = ToolOverride
        fields = (
            "project",
            "pattern",
            "tool_class",
            "exempt",
            "ignore_arguments",
            "volatile_result_fields",
            "expires_at",
            "note",
        )


class StoredOverrideAdmin(VersionedAdmin):
    """Base class of the override and tool rule pages."""

    first_fields: tuple[str, ...] = ()
    new_scope = SERVER
    # Each is deleted by itself, so that its reason can be given.
    actions = None
    list_select_related = ("project", "updated_by")
    delete_confirmation_template = "administration/override_delete.html"

    def get_fieldsets(
        self, request: HttpRequest, obj: Override | ToolOverride | None = None
    ) -> list[tuple[str | None, dict[str, object]]]:
        """Show the settings of this override first, and the others in folded groups."""
        scope, own = (obj.scope, obj.values) if obj else (self.new_scope, {})
        sets: list[tuple[str | None, dict[str, object]]] = [(None, {"fields": self.first_fields})]
        fields = [*shown_fields(scope)]
        if own:
            sets.append(("Set here", {"fields": [PREFIX + one.name for one in fields if one.name in own]}))
        for group, title in GROUPS.items():
            names = [PREFIX + one.name for one in fields if one.group == group and one.name not in own]
            classes = () if obj is None and group == "general" else ("collapse",)
            if names:
                sets.append((title, {"fields": names, "classes": classes}))
        return sets

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Confirm the deletion, with a reason where it weakens detection. When it is rejected, show the row again."""
        row = self.get_object(request, unquote(object_id))
        context = {
            "reason_form": ReasonForm(),
            "version": self.form.row_version(row) if row else "",
            **(extra_context or {}),
        }
        try:
            return super().delete_view(request, object_id, context)  # type: ignore[no-any-return]
        except ChangedMeanwhile:
            messages.error(
                request,
                "This was changed in the meantime and was not deleted. Check it before you delete it.",
            )
        except ServiceError as error:
            messages.error(request, error.detail)
        return redirect(request.get_full_path())

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return what applies now: a temporary row instead of the permanent one."""
        rows: Any = super().get_queryset(request)
        return rows.in_effect()  # type: ignore[no-any-return]

    def save_model(self, request: HttpRequest, obj: Any, form: StoredOverrideForm, change: bool) -> None:
        """Save through the service."""
        given = form.cleaned_data
        saved = overrides.save_override(
            obj.project_id,
            obj.scope,
            form.values,
            actor_of(request),
            given["note"],
            obj.expires_at,
            version=given["version"] or None,
            **cast(
                "overrides.RuleFacts",
                {name: given[name] or RULE_FACTS[name] for name in RULE_FACTS if name in given},
            ),
        )
        if saved is not None:
            obj.pk, obj._state.adding = saved.pk, False

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete through the service."""
        note, version = request.POST.get("note", ""), request.POST.get("version")
        overrides.delete_override(obj.project_id, obj.scope, actor_of(request), note, version=version)

    @admin.display(description="settings")
    def settings(self, row: Override | ToolOverride) -> str:
        """The settings in a line."""
        return ", ".join(f"{name} = {as_text(value)}" for name, value in row.values.items())[:200] or "–"

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Do nothing; the service writes the audit."""

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Do nothing; the service writes the audit."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Do nothing; the service writes the audit."""


@admin.register(Override)
class OverrideAdmin(StoredOverrideAdmin):
    """Overrides of the server, a project, an agent, a backend or a model."""

    form = ScopeForm
    list_display = ("__str__", "project", "settings", "expires_at", "updated_by", "updated_at")
    list_filter = (("project", ProjectFilter),)
    search_fields = ("agent", "backend", "model", "note")
    first_fields = ("project", "agent", "backend", "model", "expires_at", "note")

    def get_readonly_fields(self, request: HttpRequest, obj: Override | None = None) -> tuple[str, ...]:
        """The scope of an override does not change."""
        return ("project", "agent", "backend", "model") if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Override | None = None) -> bool:
        """The server's override applies to every project, so it is for superusers."""
        is_server = obj is not None and obj.project_id is None
        return super().has_change_permission(request, obj) and (request.user.is_superuser or not is_server)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, object]:
        """Start with the project that this person administers."""
        first = administered(request).first()
        return {**({"project": first} if first else {}), **super().get_changeform_initial_data(request)}

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the server scope (all projects) to superusers only."""
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if db_field.name == "project" and not request.user.is_superuser:
            field.required = True
        return field


@admin.register(ToolOverride)
class ToolRuleAdmin(StoredOverrideAdmin):
    """Tool rules."""

    form = ToolRuleAdminForm
    list_display = ("pattern", "project", "tool_class", "exempt", "settings", "updated_by", "updated_at")
    list_filter = (("project", ProjectFilter), "exempt")
    search_fields = ("pattern", "note")
    new_scope = _ANY_TOOL
    first_fields = (
        "project",
        "pattern",
        "tool_class",
        "exempt",
        "ignore_arguments",
        "volatile_result_fields",
        "expires_at",
        "note",
    )

    def get_readonly_fields(self, request: HttpRequest, obj: ToolOverride | None = None) -> tuple[str, ...]:
        """Project and pattern name the rule."""
        return ("project", "pattern") if obj else ()
