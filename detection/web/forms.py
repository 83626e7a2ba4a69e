"""The form of an override, generated from the engine's list of settings: one base for the console and the admin.

The form only collects what was entered. The services validate it, and `add_service_error` shows what they reject.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from detection.engine import durations
from detection.engine.detectors import DETECTORS
from detection.engine.fields import FIELDS, Field
from detection.engine.policy import Policy
from detection.engine.scopes import SERVER, Scope
from detection.services.errors import Invalid, ServiceError
from detection.services.policies.overrides import MAX_NOTE_CHARACTERS

PREFIX = "set_"
"""Prefix of every generated form field, so that a setting cannot collide with another field of a form."""

GROUPS = {
    "general": "General",
    "reactions": "Reactions",
    **{detector.kind: detector.label for detector in DETECTORS},
}
"""Titles of the groups of settings."""
FIRST = ("enabled", "preset", "mode", "max_repeats", "cycle_min_laps", "budget_max_cost_usd")
"""The settings that a page shows first, before the groups."""
MOST_USED = "Most used"


def grouped_fields() -> list[tuple[str, list[Field]]]:
    """Return every setting in groups with their titles, the most used first."""
    first = (MOST_USED, [FIELDS[name] for name in FIRST])
    others = [field for field in FIELDS.values() if field.name not in FIRST]
    groups = [(title, [field for field in others if field.group == name]) for name, title in GROUPS.items()]
    return [first, *((title, fields) for title, fields in groups if fields)]


def shown_fields(scope: Scope = SERVER) -> Iterator[Field]:
    """Every setting that an override of this scope may contain, in order."""
    return (field for field in FIELDS.values() if scope.kind in field.scopes)


def _fields_of_forms() -> list[Field]:
    """Return every setting that any override may contain; a few apply to one kind of scope only."""
    return [field for field in FIELDS.values() if set(field.scopes) - {"environment"}]


def form_field(field: Field) -> forms.Field:
    """Return the form field of a setting; an empty one means that the setting is inherited."""
    more: dict[str, Any] = {"required": False, "label": field.label, "help_text": field.help.replace("`", "")}
    if field.type == "bool":
        return forms.ChoiceField(choices=(("", "inherit"), ("true", "on"), ("false", "off")), **more)
    if field.type == "choice":
        choices = ((word, word.replace("_", " ")) for word in field.choices)
        return forms.ChoiceField(choices=(("", "inherit"), *choices), **more)
    if field.type == "ladder":
        attributes = {"list": "ladders", "autocomplete": "off", "spellcheck": "false"}
        return forms.CharField(max_length=200, widget=forms.TextInput(attrs=attributes), **more)
    is_time = field.unit in durations.OF_UNIT
    has_words = is_time or field.auto is not None
    attributes = {} if has_words else {"inputmode": "numeric" if field.type == "int" else "decimal"}
    # The engine checks the range and says what is wrong; the browser only helps.
    return forms.CharField(max_length=24, widget=forms.TextInput(attrs=attributes), **more)


_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(d|h|min|s)", re.ASCII)


def typed_value(field: Field | None, text: str) -> str:
    """Return what was typed for a setting as the engine reads it: ``2 min`` as ``120``; anything else as it is."""
    if field is None or field.unit not in durations.OF_UNIT:
        return text
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return text
    total = sum(float(count) * durations.UNITS[name] for count, name in parts) / durations.OF_UNIT[field.unit]
    return str(int(total)) if total.is_integer() else f"{total:g}"


def shown_value(field: Field, value: Any) -> str:
    """Return the value of a setting as its form field shows it."""
    is_time = (
        field.unit in durations.OF_UNIT and isinstance(value, int | float) and not isinstance(value, bool)
    )
    return durations.exact(value, field.unit) if is_time else as_text(value)


def as_text(value: Any) -> str:
    """Return a value as a form shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_SettingFields: Any = type(
    "_SettingFields", (forms.Form,), {PREFIX + field.name: form_field(field) for field in _fields_of_forms()}
)


class OverrideForm(_SettingFields):  # type: ignore[misc]
    """The settings of one override.

    Parameters
    ----------
    scope
        Where the override applies; settings that it cannot contain have no field.
    own
        The values of the override.
    inherited
        The policy without the override, if the scope is known.

    Attributes
    ----------
    conflict
        (label, stored, entered) of each difference, if another person has changed the override since.
    """

    conflict: list[tuple[str, str, str]] | None = None

    note = forms.CharField(max_length=MAX_NOTE_CHARACTERS, required=False)

    def __init__(
        self,
        *args: Any,
        scope: Scope = SERVER,
        own: Mapping[str, Any] | None = None,
        inherited: Policy | None = None,
        **kwargs: Any,
    ) -> None:
        self.own = dict(own or {})
        initial = {PREFIX + name: shown_value(FIELDS[name], value) for name, value in self.own.items()}
        super().__init__(*args, initial={**initial, **kwargs.pop("initial", {})}, **kwargs)
        self.scope, self.inherited = scope, inherited
        allowed = {field.name for field in shown_fields(scope)}
        for field in _fields_of_forms():
            if field.name not in allowed:
                del self.fields[PREFIX + field.name]
            elif inherited is not None:
                self._show_inherited(field, inherited.values[field.name])

    def _show_inherited(self, field: Field, value: Any) -> None:
        """Show the inherited value in an empty field."""
        made = self.fields[PREFIX + field.name]
        if isinstance(made, forms.ChoiceField):
            words = ("on" if value else "off") if isinstance(value, bool) else str(value).replace("_", " ")
            made.choices = [("", f"inherit: {words}"), *[*made.choices][1:]]  # type: ignore[misc]
        else:
            made.widget.attrs["placeholder"] = shown_value(field, value)

    @property
    def values(self) -> dict[str, str]:
        """The entered values by setting; the services parse and validate them."""
        entered = {
            field.name: self.cleaned_data.get(PREFIX + field.name, "") for field in shown_fields(self.scope)
        }
        return {name: typed_value(FIELDS[name], text) for name, text in entered.items() if text}

    @property
    def wrong_settings(self) -> list[Field]:
        """The settings with invalid values, in order."""
        return [field for field in shown_fields(self.scope) if PREFIX + field.name in self.errors]

    def add_service_error(self, error: ServiceError) -> None:
        """Show the errors of a service beside the fields at fault, or above the form."""
        errors = error.errors if isinstance(error, Invalid) else {error.field: error.detail}
        for name, message in errors.items():
            shown = PREFIX + name if PREFIX + name in self.fields else name if name in self.fields else None
            self.add_error(shown, message)


@dataclass(frozen=True, slots=True)
class FormRow:
    """One setting of a form with what it inherits."""

    field: Field
    bound: Any
    is_own: bool
    inherited: Any
    source: str


@dataclass(frozen=True, slots=True)
class FormGroup:
    """Settings that belong together."""

    name: str
    title: str
    rows: tuple[FormRow, ...]

    @property
    def own_count(self) -> int:
        """Settings of the group that the override contains."""
        return sum(row.is_own for row in self.rows)

    @property
    def has_errors(self) -> bool:
        """Whether a value in the group is invalid."""
        return any(row.bound.errors for row in self.rows)


@dataclass(frozen=True, slots=True)
class FormSettings:
    """The settings of a form as pages show them.

    Attributes
    ----------
    first
        The settings of `FIRST`, which people change most.
    groups
        All others.
    base_source
        The source of most values; shown once.
    """

    first: FormGroup
    groups: tuple[FormGroup, ...]
    base_source: str

    @property
    def count(self) -> int:
        """Number of settings."""
        return sum(len(group.rows) for group in (self.first, *self.groups))


def form_settings(form: OverrideForm) -> FormSettings:
    """Return the settings of a form: the first ones, then the groups in the order of the list of settings."""
    rows = {field.name: _row(form, field) for field in shown_fields(form.scope)}
    first = FormGroup("first", MOST_USED, tuple(rows[name] for name in FIRST if name in rows))
    groups = (
        FormGroup(
            name,
            title,
            tuple(row for row in rows.values() if row.field.group == name and row.field.name not in FIRST),
        )
        for name, title in GROUPS.items()
    )
    sources = Counter(row.source for row in rows.values())
    return FormSettings(first, tuple(group for group in groups if group.rows), sources.most_common(1)[0][0])


def _row(form: OverrideForm, field: Field) -> FormRow:
    policy = form.inherited
    return FormRow(
        field,
        form[PREFIX + field.name],
        field.name in form.own,
        policy.values[field.name] if policy else None,
        policy.sources[field.name] if policy else "",
    )
