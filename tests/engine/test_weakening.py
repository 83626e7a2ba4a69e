"""Which changes of settings weaken detection."""

import pytest

from detection.engine.fields import FIELDS
from detection.engine.policy import PROJECT, resolve
from detection.engine.weakening import is_weaker, weakened


@pytest.mark.parametrize(
    ("name", "old", "new", "weaker"),
    [
        ("max_repeats", 4, 6, True),
        ("max_repeats", 6, 4, False),
        ("ttl_seconds", 120, 60, True),
        ("enabled", True, False, True),
        ("repeat_enabled", False, True, False),
        ("result_aware", False, True, True),
        ("mode", "break", "observe", True),
        ("mode", "warn", "break", False),
        ("repeat_warn_at", 3, 0, True),
        ("budget_max_calls", 0, 1000, False),
        ("budget_max_calls", 1000, 0, True),
        ("budget_max_extensions", 1, 0, False),
        ("budget_max_extensions", 0, 1, True),
        ("escalation_decay_calls", 20, 0, False),
        ("escalation_decay_calls", 20, 5, True),
        ("mode", ("stop",), ("warn", "stop"), True),
        ("unattended_reaction", "block", "allow", True),
        ("unattended_reaction", "allow", "stop", False),
        ("repeat_scope", "run", "consecutive", True),
        ("similar_method", "sketch", "literal", False),
        ("result_aware", True, True, False),
    ],
)
def test_a_change_of_one_setting_weakens_detection_or_not(name, old, new, weaker):
    assert is_weaker(FIELDS[name], old, new) is weaker


@pytest.mark.parametrize(
    ("before", "after", "weaker"),
    [
        ({"repeat_warn_at": "auto"}, {"repeat_warn_at": 3}, []),
        ({"repeat_warn_at": 3}, {"repeat_warn_at": "auto"}, []),
        ({"repeat_warn_at": "auto"}, {"repeat_warn_at": 4}, ["repeat_warn_at"]),
        ({"max_repeats": 9}, {"max_repeats": 9, "repeat_warn_at": 3}, []),
        (
            {"max_repeats": 9, "repeat_warn_at": 3},
            {"max_repeats": 9, "repeat_warn_at": "auto"},
            ["repeat_warn_at"],
        ),
        (
            {"max_repeats": 4, "repeat_warn_at": "auto"},
            {"max_repeats": 8, "repeat_warn_at": "auto"},
            ["max_repeats"],
        ),
    ],
)
def test_a_word_weakens_detection_as_the_number_that_it_stands_for(before, after, weaker):
    named = frozenset(before) | frozenset(after)
    assert weakened(resolve([(PROJECT, before)]), resolve([(PROJECT, after)]), named) == weaker


def test_every_ordered_choice_lists_all_its_words():
    for field in FIELDS.values():
        assert not field.strictest_first or set(field.strictest_first) == set(field.choices)


def test_removing_a_strict_value_weakens_detection():
    strict = resolve([(PROJECT, {"max_repeats": 2})])
    assert weakened(strict, resolve([]), frozenset(["max_repeats"])) == ["max_repeats"]


def test_a_preset_is_compared_by_its_values():
    standard, observe = resolve([]), resolve([(PROJECT, {"preset": "observe"})])
    assert weakened(standard, observe, frozenset(["preset"])) == ["preset"]
    assert weakened(observe, standard, frozenset(["preset"])) == []
    kept = resolve([(PROJECT, {"preset": "observe", "mode": "warn"})])
    assert weakened(standard, kept, frozenset(["preset", "mode"])) == ["preset", "mode"]
