"""Form fields generated from the engine's list of settings, for the console and the admin: one list, one validation.

What a setting is, and which values it may have, is said in `detection.engine.fields` alone. Saving belongs to the services.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from detection.engine import policy
from detection.engine.fields import FIELDS, PRESET_NAMES, Field
from detection.engine.policy import Policy

PREFIX = "set_"
"""Before the name of every generated form field, so that a setting cannot collide with another field of a form."""

GROUPS = {
    "general": "General",
    "reactions": "Reactions",
    "repeat": "Repeats",
    "cycle": "Cycles",
    "similar": "Similar calls",
    "outcome": "Equal outcomes",
    "stagnation": "Stagnation",
    "budget": "Budget",
}
_HIDDEN = frozenset(("judge_available",))
"""Set by the server, not by people."""


def shown_fields() -> Iterator[Field]:
    """Every setting that people may change, in order."""
    return (field for field in FIELDS.values() if field.name not in _HIDDEN)


def form_field(field: Field) -> forms.Field:
    """Return the form field of a setting; an empty one means that the setting is inherited."""
    more: dict[str, Any] = {"required": False, "label": field.label, "help_text": field.help}
    if field.type == "bool":
        return forms.ChoiceField(choices=(("", "inherit"), ("true", "on"), ("false", "off")), **more)
    if field.type == "choice":
        return forms.ChoiceField(
            choices=(
                ("", "inherit"),
                *((word, word.replace("_", " ")) for word in field.choices or PRESET_NAMES),
            ),
            **more,
        )
    if field.type == "ladder":
        return forms.CharField(
            max_length=200,
            widget=forms.TextInput(attrs={"list": "ladders", "autocomplete": "off", "spellcheck": "false"}),
            **more,
        )
    attributes: dict[str, Any] = {"inputmode": "numeric" if field.type == "int" else "decimal"}
    # The engine checks the range and says what is wrong; the browser only helps.
    return forms.CharField(max_length=24, widget=forms.TextInput(attrs=attributes), **more)


def as_text(value: Any) -> str:
    """Return a setting's value as a form shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


class SettingsForm(forms.Form):
    """The settings of one tier.

    Parameters
    ----------
    own
        What the tier sets itself.
    inherited
        What holds without it, with sources.
    """

    note = forms.CharField(max_length=300, required=False)

    def __init__(self, data: Any = None, *, own: Mapping[str, Any], inherited: Policy) -> None:
        initial = {PREFIX + name: as_text(value) for name, value in own.items()}
        super().__init__(data, initial=initial)
        self.own, self.inherited = dict(own), inherited
        self.values: dict[str, Any] = {}
        for field in shown_fields():
            self.fields[PREFIX + field.name] = form_field(field)
            self._show_inherited(field)

    def _show_inherited(self, field: Field) -> None:
        """Put what an empty field means into the field."""
        made, value = self.fields[PREFIX + field.name], self.inherited.values[field.name]
        if isinstance(made, forms.ChoiceField):
            words = ("on" if value else "off") if isinstance(value, bool) else str(value).replace("_", " ")
            made.choices = [("", f"inherit: {words}"), *[*made.choices][1:]]  # type: ignore[misc]
        else:
            made.widget.attrs["placeholder"] = as_text(value)

    def clean(self) -> dict[str, Any]:
        """Check every setting by the engine; the services ask why where one is loosened."""
        cleaned = super().clean() or {}
        self.values = settings_of(self, cleaned)
        try:
            self.values = policy.validate(self.values)
        except policy.PolicyError as error:
            self.add_error(PREFIX + error.field if error.field in FIELDS else None, error.message)
        kept = {name: value for name, value in self.own.items() if name in _HIDDEN}
        self.values = {**kept, **self.values}
        return cleaned


def settings_of(form: forms.BaseForm, cleaned: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the settings that a form sets, each checked by the engine; errors go to their fields."""
    values: dict[str, Any] = {}
    for field in shown_fields():
        text = cleaned.get(PREFIX + field.name)
        if text is None or str(text).strip() == "":
            continue
        try:
            values[field.name] = field.clean(str(text).strip())
        except policy.PolicyError as error:
            form.add_error(PREFIX + field.name, error.message.capitalize() + ".")
    return values


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
    own_count: int
    has_errors: bool


def form_rows(form: SettingsForm) -> list[FormGroup]:
    """Group the rows of a form in the order of the list of settings."""
    groups = []
    for name, title in GROUPS.items():
        rows = tuple(
            FormRow(
                field, form[PREFIX + field.name], field.name in form.own,
                form.inherited.values[field.name], form.inherited.sources[field.name],
            )
            for field in shown_fields() if field.group == name
        )  # fmt: skip
        own = sum(row.is_own for row in rows)
        groups.append(FormGroup(name, title, rows, own, any(row.bound.errors for row in rows)))
    return groups
