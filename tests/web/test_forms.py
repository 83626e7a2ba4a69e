"""The form of an override: its fields, what an empty field means, and where errors are shown."""

import pytest

from detection.engine.fields import FIELDS
from detection.engine.policy import PROJECT, resolve
from detection.engine.scopes import SESSION, Scope
from detection.services.errors import Invalid
from detection.web.forms import OverrideForm, form_settings, typed_value


def names(form):
    return {name.removeprefix("set_") for name in form.fields if name.startswith("set_")}


def test_the_form_has_every_setting_that_its_scope_may_contain():
    assert set(FIELDS) - names(OverrideForm(scope=PROJECT)) == {"judge_available"}
    of_projects = {"judge_sees_request"}
    assert names(OverrideForm(scope=SESSION)) == names(OverrideForm(scope=PROJECT)) - of_projects
    rule = OverrideForm(scope=Scope("tool", pattern="search_*"))
    of_sessions = {
        "judge_available",
        "family_budget_enabled",
        "family_enabled",
        "handoff_enabled",
        "spawns_enabled",
        "stalled_enabled",
        "stalled_run_seconds",
        "judge_temperature",
        "counting_scope",
        "message_begins_run",
        "program_repeats",
        "program_seconds",
        "attended",
    }
    assert set(FIELDS) - names(rule) == of_sessions | of_projects
    shown = form_settings(rule)
    listed = [row.field.name for group in (shown.first, *shown.groups) for row in group.rows]
    assert sorted(listed) == sorted(names(rule))
    assert len(shown.first.rows) == 6


def test_an_empty_field_shows_what_is_inherited():
    form = OverrideForm(scope=PROJECT, own={"mode": ["warn", "stop"]}, inherited=resolve([]))
    assert form.fields["set_max_repeats"].widget.attrs["placeholder"] == "4"
    assert form.fields["set_repeat_enabled"].choices[0] == ("", "inherit: on")
    assert form["set_mode"].value() == "warn, stop"


def test_the_form_collects_what_was_entered_and_nothing_else():
    form = OverrideForm({"set_max_repeats": " 1 ", "set_enabled": "", "other": "x"}, scope=PROJECT)
    assert form.is_valid()
    assert form.values == {"max_repeats": "1"}


def test_errors_of_the_service_are_shown_beside_every_field_to_blame():
    form = OverrideForm({}, scope=PROJECT)
    assert form.is_valid()
    form.add_service_error(
        Invalid("first", errors={"max_repeats": "Too low.", "note": "Missing.", "backend": "Unknown."})
    )
    assert form.errors == {"set_max_repeats": ["Too low."], "note": ["Missing."], "__all__": ["Unknown."]}


def test_help_texts_show_no_marks_of_the_documentation():
    assert not [field.help_text for field in OverrideForm().fields.values() if "`" in field.help_text]


@pytest.mark.parametrize(
    ("typed", "value", "shown"),
    [
        ("2 min", 120, "2 min"),
        ("90", 90, "1 min 30 s"),
        ("1h30min", 5400, "1 h 30 min"),
        ("2 d", 172800, "2 d"),
        ("1.5 min", 90, "1 min 30 s"),
    ],
)
def test_times_are_typed_and_shown_with_their_units(typed, value, shown):
    form = OverrideForm({"set_ttl_seconds": typed, "set_max_repeats": "3"}, scope=PROJECT)
    assert form.is_valid()
    assert form.values == {"ttl_seconds": str(value), "max_repeats": "3"}
    again = OverrideForm(scope=PROJECT, own={"ttl_seconds": value})
    assert f'value="{shown}"' in str(again["set_ttl_seconds"])
    assert typed_value(FIELDS["ttl_seconds"], "2 minutes or so") == "2 minutes or so"
