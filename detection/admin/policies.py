"""Overrides: the stored tiers and tool rules, each setting a field of its own, saved by the same services as in the console."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from detection.admin.base import ProjectAdmin, ProjectFilter, actor_of, administered, refused
from detection.engine import policy
from detection.engine.tool_classes import TOOL_CLASSES
from detection.forms import GROUPS, PREFIX, as_text, form_field, settings_of, shown_fields
from detection.models import PolicyTier, TierScope, ToolRule
from detection.services.errors import ServiceError
from detection.services.policies import overrides


def styled(made: forms.Field) -> forms.Field:
    """Give a generated field the look of the admin's own, where that is installed."""
    try:
        from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget
    except ImportError:
        return made
    if isinstance(made, forms.ChoiceField):
        made.widget = UnfoldAdminSelectWidget(choices=made.choices)
    else:
        made.widget = UnfoldAdminTextInputWidget(attrs=made.widget.attrs)
    return made


_SettingFields: Any = type(
    "_SettingFields",
    (forms.Form,),
    {PREFIX + field.name: styled(form_field(field)) for field in shown_fields()},
)


def _note_field() -> forms.Field:
    return styled(
        forms.CharField(
            max_length=overrides.MAX_NOTE_CHARACTERS,
            required=False,
            help_text="Reason; required when the change weakens detection.",
        )
    )


class WhyForm(forms.Form):
    """What is asked before an override is deleted."""

    note = _note_field()


class SettingsModelForm(forms.ModelForm, _SettingFields):  # type: ignore[type-arg]
    """A model form whose `values` are real fields, one per setting; empty means inherited."""

    note = _note_field()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own: dict[str, Any] = dict(self.instance.values or {})
        for name, value in self.own.items():
            if PREFIX + name in self.fields:
                self.initial[PREFIX + name] = as_text(value)
        self.values: dict[str, Any] = {}

    def clean(self) -> dict[str, Any]:
        """Check every setting by the engine."""
        cleaned = super().clean() or self.cleaned_data
        try:
            self.values = policy.validate(settings_of(self, cleaned))
        except policy.PolicyError as error:
            self.add_error(None, str(error))
        self.values |= {name: value for name, value in self.own.items() if PREFIX + name not in self.fields}
        return cleaned

    def ask_why(self, milder: list[str]) -> None:
        """Show beside the note what the service would refuse without one."""
        try:
            overrides.ask_why(milder, self.cleaned_data.get("note", ""))
        except ServiceError as error:
            self.add_error("note", error.detail)


class TierForm(SettingsModelForm):
    """A tier."""

    class Meta:
        model = PolicyTier
        fields = ("scope", "project", "backend", "model", "note")

    def clean(self) -> dict[str, Any]:
        """Check that place and scope fit, and ask why where a setting is loosened."""
        cleaned = super().clean()
        scope, project = cleaned.get("scope"), cleaned.get("project")
        backend, model = cleaned.get("backend", ""), cleaned.get("model", "")
        fits = {
            TierScope.SERVER: not project and not backend and not model,
            TierScope.PROJECT: bool(project) and not backend and not model,
            TierScope.BACKEND: bool(project and backend) and not model,
            TierScope.MODEL: bool(project and backend and model),
        }
        if scope in fits and not fits[TierScope(scope)]:
            raise ValidationError(
                "Server: no project. Project: a project only. Backend: project and backend. Model: project, backend and model."
            )
        taken = PolicyTier.objects.filter(project=project, backend=backend, model=model).exclude(
            pk=self.instance.pk
        )
        if taken.exists():
            raise ValidationError("This place has settings already; change those.")
        if not self.values and not self.errors:
            raise ValidationError("Nothing is set. To inherit everything, delete the override.")
        if not self.errors:
            project_id = project.pk if project else None
            self.ask_why(
                overrides.loosened_by_tier(project_id, cleaned["scope"], backend, model, self.values)
            )
        return cleaned


class RuleForm(SettingsModelForm):
    """A tool rule."""

    tool_class = styled(
        forms.ChoiceField(
            choices=[("", "as shipped"), *((name, name) for name in TOOL_CLASSES)], required=False
        )
    )

    class Meta:
        model = ToolRule
        fields = (
            "project",
            "pattern",
            "tool_class",
            "exempt",
            "ignore_arguments",
            "volatile_result_fields",
            "note",
        )

    def clean(self) -> dict[str, Any]:
        """Check that lists are lists of names."""
        cleaned = super().clean()
        for name in ("ignore_arguments", "volatile_result_fields"):
            value = cleaned.get(name)
            if value is not None and not (
                isinstance(value, list) and all(isinstance(one, str) for one in value)
            ):
                self.add_error(name, 'This is a list of names in JSON: ["request_id"].')
        if not self.errors:
            # Project and pattern of a stored rule are shown, not asked.
            project_id = cleaned["project"].pk if "project" in cleaned else self.instance.project_id
            self.ask_why(
                overrides.loosened_by_rule(
                    project_id,
                    cleaned.get("pattern") or self.instance.pattern,
                    tool_class=cleaned["tool_class"],
                    values=self.values,
                    exempt=cleaned["exempt"],
                )
            )
        return cleaned


def _fieldsets(first: tuple[str, ...]) -> list[tuple[str | None, dict[str, Any]]]:
    sets: list[tuple[str | None, dict[str, Any]]] = [(None, {"fields": first})]
    for group, title in GROUPS.items():
        names = tuple(PREFIX + field.name for field in shown_fields() if field.group == group)
        sets.append(
            (title, {"fields": names, "classes": ("collapse",) if group not in ("general", "repeat") else ()})
        )
    return sets


def _note_of(request: HttpRequest) -> str:
    note: str = request.POST.get("note", "")
    return note.replace("\x00", "")[: overrides.MAX_NOTE_CHARACTERS]


class OverridePage(ProjectAdmin):
    """What tiers and tool rules share."""

    # Each is deleted by itself, so that its reason can be asked.
    actions = None
    list_select_related = ("project", "updated_by")
    delete_confirmation_template = "administration/remove_override.html"

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the form or save it; what only the service could refuse is said above it."""
        try:
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[no-any-return]
        except ServiceError as error:
            refused(request, error)
            return redirect(request.get_full_path())

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask whether, and where detection becomes milder why."""
        context = {"why": WhyForm(), **(extra_context or {})}
        try:
            return super().delete_view(request, object_id, context)  # type: ignore[no-any-return]
        except ServiceError as error:
            refused(request, error)
            return redirect(request.get_full_path())

    @admin.display(description="sets")
    def sets(self, row: PolicyTier | ToolRule) -> str:
        """The settings in a line."""
        return ", ".join(f"{name} = {as_text(value)}" for name, value in row.values.items())[:200] or "–"

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Leave the record to the audit, which the service writes."""

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Leave the record to the audit, which the service writes."""

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Leave the record to the audit, which the service writes."""


@admin.register(PolicyTier)
class TierPage(OverridePage):
    """Overrides of the server, a project, a backend or a model."""

    form = TierForm
    list_display = ("__str__", "project", "backend", "model", "sets", "updated_by", "updated_at")
    list_filter = ("scope", ("project", ProjectFilter))
    search_fields = ("backend", "model", "note")
    fieldsets = _fieldsets(("scope", "project", "backend", "model", "note"))

    def get_readonly_fields(self, request: HttpRequest, obj: PolicyTier | None = None) -> tuple[str, ...]:
        """The place of an override does not change."""
        return ("scope", "project", "backend", "model") if obj else ()

    def get_form(
        self, request: HttpRequest, obj: PolicyTier | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Keep the place of a stored override in the checks, although it cannot be edited."""
        form = super().get_form(request, obj, change, **kwargs)
        if obj is not None:
            place = {"scope": obj.scope, "project": obj.project, "backend": obj.backend, "model": obj.model}

            class Placed(form):  # type: ignore[misc, valid-type]
                def _clean_form(self) -> None:
                    self.cleaned_data |= place
                    super()._clean_form()

            return Placed
        return form

    def save_model(self, request: HttpRequest, obj: PolicyTier, form: Any, change: bool) -> None:
        """Save by the service."""
        saved = overrides.save_tier(
            obj.project_id,
            obj.scope,
            obj.backend,
            obj.model,
            form.values,
            actor_of(request),
            form.cleaned_data["note"],
        )
        if saved is not None:
            obj.pk, obj._state.adding = saved.pk, False

    def delete_model(self, request: HttpRequest, obj: PolicyTier) -> None:
        """Remove by the service."""
        overrides.delete_tier(
            obj.project_id, obj.scope, obj.backend, obj.model, actor_of(request), _note_of(request)
        )

    def has_change_permission(self, request: HttpRequest, obj: PolicyTier | None = None) -> bool:
        """The server's tier holds for every project, so it is for superusers."""
        is_server = obj is not None and obj.scope == TierScope.SERVER
        return super().has_change_permission(request, obj) and (request.user.is_superuser or not is_server)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin with a model of the project that is administered."""
        initial = super().get_changeform_initial_data(request)
        first = administered(request).first()
        return {"scope": TierScope.MODEL, **({"project": first} if first else {}), **initial}

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the server's tier to superusers only."""
        if db_field.name == "scope" and not request.user.is_superuser:
            kwargs["choices"] = [choice for choice in TierScope.choices if choice[0] != TierScope.SERVER]
        return super().formfield_for_choice_field(db_field, request, **kwargs)


@admin.register(ToolRule)
class RulePage(OverridePage):
    """Tool rules."""

    form = RuleForm
    list_display = ("pattern", "project", "tool_class", "exempt", "sets", "updated_by", "updated_at")
    list_filter = (("project", ProjectFilter), "exempt")
    search_fields = ("pattern", "note")
    fieldsets = _fieldsets(
        ("project", "pattern", "tool_class", "exempt", "ignore_arguments", "volatile_result_fields", "note")
    )

    def get_readonly_fields(self, request: HttpRequest, obj: ToolRule | None = None) -> tuple[str, ...]:
        """Project and pattern name the rule."""
        return ("project", "pattern") if obj else ()

    def save_model(self, request: HttpRequest, obj: ToolRule, form: Any, change: bool) -> None:
        """Save by the service."""
        given = form.cleaned_data
        saved = overrides.save_tool_rule(
            obj.project_id,
            obj.pattern,
            tool_class=given.get("tool_class", ""),
            ignore_arguments=given.get("ignore_arguments") or [],
            volatile_result_fields=given.get("volatile_result_fields") or [],
            values=form.values,
            exempt=given.get("exempt", False),
            note=given.get("note", ""),
            actor=actor_of(request),
        )
        obj.pk, obj._state.adding = saved.pk, False

    def delete_model(self, request: HttpRequest, obj: ToolRule) -> None:
        """Remove by the service."""
        overrides.delete_tool_rule(obj.project_id, obj.pattern, actor_of(request), _note_of(request))
