"""Preview of the changes that saving an override form would make."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render

from detection.console import formatting
from detection.console.access import ProjectRequest
from detection.engine.fields import FIELDS
from detection.engine.policy import Policy
from detection.engine.weakening import is_weaker, strictest_rung
from detection.services.errors import Invalid
from detection.services.policies.overrides import checked
from detection.web.forms import PREFIX, OverrideForm

_NAME = re.compile(r"`(\w+)`")
DIFF = "diff"
"""The form action that previews changes instead of saving them."""
REACTIONS = {
    "observe": "the loop is recorded, and the call runs",
    "warn": "the call runs, with a message before its result",
    "delay": "the call does not run until a pause is over",
    "reuse": "the call does not run; the agent gets the earlier result again",
    "chance": "the call does not run; after a different call the reactions start over, otherwise they go on",
    "block": "the call does not run; the run continues",
    "finish": "the call does not run; the agent is asked for an answer without tools",
    "ask": "the call is held until a person decides",
    "judge": "the call is held until the judge decides",
    "stop": "the run ends",
}
"""What a reaction does, for people."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A value that would change; `why` explains why a ladder is weaker."""

    label: str
    before: str
    after: str
    is_weaker: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """The changes of a form.

    Attributes
    ----------
    by_preset
        The other values that change because of the preset.
    problem
        Why the form cannot be saved. The changes are those of the valid values.
    """

    rows: tuple[SettingChange, ...] = ()
    by_preset: tuple[SettingChange, ...] = ()
    problem: str = ""

    @property
    def is_weaker(self) -> bool:
        """Whether one of the changes weakens detection."""
        return any(row.is_weaker for row in (*self.rows, *self.by_preset))

    @property
    def weaker_by_preset(self) -> int:
        """How many values of the preset weaken detection."""
        return sum(row.is_weaker for row in self.by_preset)


def respond(
    request: ProjectRequest,
    form: OverrideForm,
    inherit: Callable[[Mapping[str, Any]], Policy],
    facts: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    *,
    asks_reason: bool = True,
) -> HttpResponse:
    """Return the page fragment with the changes of a form.

    Parameters
    ----------
    inherit
        Returns the policy without an override that contains the given values.
    facts
        The fields of a tool rule other than settings, as stored and as in the form.
    asks_reason
        Whether weaker settings need a reason; those of a session do not.
    """
    form.is_valid()
    changes = _changes(form, inherit, *facts)
    needs_reason = asks_reason and changes.is_weaker
    return render(request, "console/_changes.html", {"changes": changes, "needs_reason": needs_reason})


def _changes(
    form: OverrideForm,
    inherit: Callable[[Mapping[str, Any]], Policy],
    facts_before: Mapping[str, Any],
    facts_after: Mapping[str, Any],
) -> SettingChanges:
    wrong = {field.name for field in form.wrong_settings}
    problem = next((f"{one.label}: {form.errors[PREFIX + one.name][0]}" for one in form.wrong_settings), "")
    try:
        entered = checked(form.scope, _with_own(form, wrong))
    except Invalid as error:
        problem = problem or _labelled(error.detail)
        try:
            entered = checked(form.scope, _with_own(form, wrong | {*error.errors}))
        except Invalid:
            return SettingChanges(problem=problem)
    before = {**inherit(form.own).values, **form.own}
    after = {**inherit(entered).values, **entered}
    rows = [
        SettingChange(formatting.word(name).capitalize(), _text(facts_before[name]), _text(facts_after[name]))
        for name in facts_after
        if facts_before.get(name) != facts_after[name]
    ]
    named = {*form.own, *entered}
    by_preset: list[SettingChange] = []
    for name, field in FIELDS.items():
        old, new = before[name], after[name]
        is_changed = formatting.setting_value(old) != formatting.setting_value(new)
        if is_changed:
            weaker = is_weaker(field, field.effective(before), field.effective(after))
            (rows if name in named else by_preset).append(
                SettingChange(
                    field.label,
                    formatting.setting_value(old, name),
                    formatting.setting_value(new, name),
                    weaker,
                    _why(old, new) if weaker and field.type == "ladder" else "",
                )
            )
        elif name in named and (name in form.own) != (name in entered):
            words = "inherited", "set here"
            rows.append(
                SettingChange(
                    field.label,
                    f"{formatting.setting_value(old, name)}, {words[name in form.own]}",
                    f"{formatting.setting_value(new, name)}, {words[name in entered]}",
                )
            )
    return SettingChanges(tuple(rows), tuple(by_preset), problem)


def _with_own(form: OverrideForm, wrong: Collection[str]) -> dict[str, Any]:
    """Return the entered values, for wrong ones those that are stored."""
    entered = {name: value for name, value in form.values.items() if name not in wrong}
    return entered | {name: form.own[name] for name in wrong if name in form.own}


def _why(old: Any, new: Any) -> str:
    """Return why a ladder is weaker: its strictest reaction is, or else those before it."""
    before, after = strictest_rung(old), strictest_rung(new)
    if before == after:
        return f"Weaker reactions come before {after}."
    return (
        f"The strictest reaction becomes {after} ({REACTIONS[after]}), "
        f"which is weaker than {before} ({REACTIONS[before]})."
    )


def _labelled(detail: str) -> str:
    """Return a message with the labels of settings, as the form shows them, instead of their names."""
    return _NAME.sub(lambda found: FIELDS[found[1]].label if found[1] in FIELDS else found[0], detail)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return formatting.setting_value(value) if value not in ("", None) else "none"
