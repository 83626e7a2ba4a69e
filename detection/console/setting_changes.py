"""Preview of the changes that saving an override form would make."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render

from detection.console import formatting
from detection.console.access import ProjectRequest
from detection.engine.fields import FIELDS
from detection.engine.policy import Policy
from detection.engine.weakening import is_weaker
from detection.forms import OverrideForm
from detection.services.errors import ServiceError
from detection.services.policies.overrides import checked

_NAME = re.compile(r"`(\w+)`")
DIFF = "diff"
"""The form action that previews changes instead of saving them."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A value that would change."""

    label: str
    before: str
    after: str
    is_weaker: bool = False


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """The changes of a form.

    Attributes
    ----------
    by_preset
        Number of other values that change because of the preset.
    problem
        Why the form cannot be saved.
    """

    rows: tuple[SettingChange, ...] = ()
    by_preset: int = 0
    problem: str = ""

    @property
    def is_weaker(self) -> bool:
        """Whether one of the changes weakens detection."""
        return any(row.is_weaker for row in self.rows)


def respond(
    request: ProjectRequest,
    form: OverrideForm,
    inherit: Callable[[Mapping[str, Any]], Policy],
    facts: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> HttpResponse:
    """Return the page fragment with the changes of a form.

    Parameters
    ----------
    inherit
        Returns the policy without an override that contains the given values.
    facts
        The fields of a tool rule other than settings, as stored and as in the form.
    """
    form.is_valid()
    changes = _changes(form, inherit, *facts)
    return render(request, "console/_changes.html", {"changes": changes})


def _changes(
    form: OverrideForm,
    inherit: Callable[[Mapping[str, Any]], Policy],
    facts_before: Mapping[str, Any],
    facts_after: Mapping[str, Any],
) -> SettingChanges:
    try:
        entered = checked(form.scope, form.values)
    except ServiceError as error:
        return SettingChanges(problem=_labelled(error.detail))
    before = {**inherit(form.own).values, **form.own}
    after = {**inherit(entered).values, **entered}
    rows = [
        SettingChange(formatting.word(name).capitalize(), _text(facts_before[name]), _text(facts_after[name]))
        for name in facts_after
        if facts_before.get(name) != facts_after[name]
    ]
    named = {*form.own, *entered}
    by_preset = 0
    for name, field in FIELDS.items():
        old, new = before[name], after[name]
        is_changed = formatting.setting_value(old) != formatting.setting_value(new)
        if name not in named:
            by_preset += is_changed
        elif is_changed:
            rows.append(
                SettingChange(
                    field.label,
                    formatting.setting_value(old, name),
                    formatting.setting_value(new, name),
                    is_weaker(field, old, new),
                )
            )
        elif (name in form.own) != (name in entered):
            words = "inherited", "set here"
            rows.append(
                SettingChange(
                    field.label,
                    f"{formatting.setting_value(old, name)}, {words[name in form.own]}",
                    f"{formatting.setting_value(new, name)}, {words[name in entered]}",
                )
            )
    return SettingChanges(tuple(rows), by_preset)


def _labelled(detail: str) -> str:
    """Return a message with the labels of settings, as the form shows them, instead of their names."""
    return _NAME.sub(lambda found: FIELDS[found[1]].label if found[1] in FIELDS else found[0], detail)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return formatting.setting_value(value) if value not in ("", None) else "none"
