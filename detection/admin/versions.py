"""Two editors of one row: forms of the admin send the version that they show, as those of the console do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse

from detection.admin.base import ProjectAdmin
from detection.engine.fields import FIELDS
from detection.services.errors import Invalid, ServiceError
from detection.services.versions import ChangedMeanwhile, version_of
from detection.web.forms import PREFIX, as_text, typed_value


class VersionedForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that is rejected if its row has changed since it was shown.

    Attributes
    ----------
    row_version
        Returns the version of a row, as its service checks it.
    service_error
        What the service rejected when the form was sent.
    """

    row_version: Callable[[Any], str]
    service_error: ServiceError | None = None
    version = forms.CharField(required=False, max_length=16, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.initial["version"] = type(self).row_version(self.instance)
        if isinstance(self.service_error, ChangedMeanwhile) and self.is_bound:
            # Both values are on the page now, so the next submission replaces the stored one.
            self.data = data = self.data.copy()  # type: ignore[attr-defined]
            data["version"] = version_of(self.service_error.current)

    def clean(self) -> dict[str, object]:
        """Show what the service rejected."""
        cleaned: dict[str, object] = super().clean() or self.cleaned_data
        error = self.service_error
        if isinstance(error, ChangedMeanwhile):
            self.add_error(
                None, "This was changed in the meantime. Nothing was saved. Save again to replace it."
            )
            self._show_stored(error.current, cleaned)
        elif error is not None:
            errors = error.errors if isinstance(error, Invalid) else {error.field: error.detail}
            for name, message in errors.items():
                shown = next((one for one in (PREFIX + name, name) if one in self.fields), None)
                self.add_error(shown, message)
        return cleaned

    def _show_stored(self, stored: Mapping[str, Any], entered: Mapping[str, Any]) -> None:
        """Show the stored value beside every field that differs."""
        values = stored.get("values")
        facts = {**stored, **values} if isinstance(values, dict) else dict(stored)
        for name in self.fields:
            key = name.removeprefix(PREFIX)
            if name in ("note", "version", "project") or not (name.startswith(PREFIX) or key in facts):
                continue
            theirs, yours = as_text(facts.get(key)), as_text(entered.get(name))
            if name.startswith(PREFIX):
                yours = typed_value(FIELDS[key], yours)
            if theirs != yours:
                self.add_error(name, f"Stored now: {theirs or 'nothing'}. Yours: {yours or 'nothing'}.")


class VersionedAdmin(ProjectAdmin):
    """An admin page whose form is a `VersionedForm`, saved by a service that checks the version."""

    change_form_template = "administration/versioned_form.html"

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Leave the version to the template."""
        return [name for name in super().get_fields(request, obj) if name != "version"]

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm[Any]]:
        """Pass the error of the service to the form; see `changeform_view`."""
        form = super().get_form(request, obj, change, **kwargs)
        form.service_error = getattr(request, "service_error", None)
        return form  # type: ignore[no-any-return]

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the form or save it. When the service rejects it, show the form again with the errors."""
        try:
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[no-any-return]
        except ServiceError as error:
            request.service_error = error  # type: ignore[attr-defined]
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[no-any-return]
