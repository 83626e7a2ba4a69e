"""Projects with their members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest

from detection.admin.base import BaseInline, actor_of
from detection.admin.versions import VersionedAdmin, VersionedForm
from detection.models import Membership, Project, Role
from detection.services import audit
from detection.services.errors import Invalid
from detection.services.incidents.loop_triage import unassign_former_members
from detection.services.projects import members, projects
from detection.services.projects.projects import (
    checked_pack_after_days,
    checked_redacted_names,
    checked_redaction_patterns,
)


class MembershipFormSet(BaseInlineFormSet):  # type: ignore[type-arg]
    """Members of a project, at least one of whom stays admin."""

    def clean(self) -> None:
        """Reject changes after which nobody is admin."""
        super().clean()
        had_admin = any(form.initial.get("role") == Role.ADMIN for form in self.initial_forms)
        rows = [form.cleaned_data for form in self.forms if getattr(form, "cleaned_data", None)]
        if had_admin and not any(row.get("role") == Role.ADMIN and not row.get("DELETE") for row in rows):
            raise ValidationError(
                "The project needs an admin. Make another member admin first.", "last_admin"
            )


class MembershipInline(BaseInline):
    """Members of a project with their roles."""

    model = Membership
    formset = MembershipFormSet
    extra = 0
    autocomplete_fields = ("user",)
    fields = ("user", "role")

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Label each field: a column heading is no label for screen readers."""
        made = super().formfield_for_dbfield(db_field, request, **kwargs)
        if made is not None:
            made.widget.attrs["aria-label"] = db_field.verbose_name.capitalize()
        return made


class ProjectForm(VersionedForm):
    """Form of a project."""

    row_version = staticmethod(projects.project_version)

    class Meta:
        model = Project
        fields = (
            "name",
            "slug",
            "retention_days",
            "pack_after_days",
            "stores_payloads",
            "is_searchable",
            "redacted_names",
            "redaction_patterns",
            "spike_action",
            "spike_limit",
        )


@admin.register(Project)
class ProjectPage(VersionedAdmin):
    """Projects."""

    project_path = "pk"
    form = ProjectForm
    list_display = ("name", "slug", "retention_days", "stores_payloads", "first_event_at")
    search_fields = ("name", "slug")
    fields = (
        "name",
        "slug",
        "retention_days",
        "pack_after_days",
        "stores_payloads",
        "is_searchable",
        "redacted_names",
        "redaction_patterns",
        "requires_second_factor",
        "spike_action",
        "spike_limit",
        "archived_at",
        "first_event_at",
        "policy_version",
        "created_at",
    )
    readonly_fields = ("archived_at", "first_event_at", "policy_version", "created_at")
    inlines = (MembershipInline,)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Validate days, redacted names and patterns as the service does."""
        made = super().formfield_for_dbfield(db_field, request, **kwargs)
        if made is not None and (check := _CHECKS.get(db_field.name)):
            clean = made.clean
            made.clean = lambda value: _checked(check, clean(value))
        return made

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save the members; the creator of a project becomes its admin, because nobody else could add them."""
        super().save_related(request, form, formsets, change)
        if not change:
            members.add_creator(form.instance, actor_of(request))

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        """Save and write the audit."""
        if change:
            projects.check_version(obj.pk, form.cleaned_data["version"] or None)
        changed = [name for name in form.changed_data if name != "version"]
        before = {name: form.initial.get(name) for name in changed} if change else None
        super().save_model(request, obj, form, change)
        after = {name: form.cleaned_data.get(name) for name in changed}
        if after:
            audit.record(
                actor_of(request), "project.save", obj.slug, project_id=obj.pk, before=before, after=after
            )

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """Save members and write an audit entry for each change."""
        super().save_formset(request, form, formset, change)
        project: Project = form.instance
        changed = [(row, "member.save") for row in formset.new_objects]
        changed += [(row, "member.save") for row, _ in formset.changed_objects]
        changed += [(row, "member.remove") for row in formset.deleted_objects]
        for row, action in changed:
            audit.record(
                actor_of(request),
                action,
                row.user.get_username(),
                project_id=project.pk,
                after={"role": row.role},
            )
        if changed:
            unassign_former_members(project.pk, actor_of(request))

    def has_delete_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        """Return False: a project with its history is not deleted here."""
        return False


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "pack_after_days": checked_pack_after_days,
    "redacted_names": checked_redacted_names,
    "redaction_patterns": checked_redaction_patterns,
}


def _checked(check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except Invalid as error:
        raise ValidationError(error.detail, error.code) from error
