"""How values read: hidden characters shown, differences by path, spans."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.console import differences, formatting


@pytest.mark.parametrize(
    "character", ["\u202e", "\u2066", "\u200b", "\ufeff", "\u00ad", "\x00", "\x1b", "\U000e0041", "\u2028"]
)
def test_characters_that_hide_or_turn_text_are_shown(character):
    shown = formatting.visible(f"safe{character}txt")
    assert character not in shown
    assert len(shown) > len("safetxt")


def test_blocks_keep_their_line_breaks_and_show_the_rest():
    assert formatting.visible_block("a\n\tb\x07") == "a\n\tb⟦U+0007⟧"
    assert formatting.visible("a\nb") == "a⏎b"


def test_letters_of_other_scripts_are_left_alone():
    assert formatting.visible("Überprüfung 日本語 עברית مرحبا 👍") == "Überprüfung 日本語 עברית مرحبا 👍"


def test_differences_name_the_path_and_both_values():
    (change,) = differences.between('{"q":"a","deep":{"limit":10}}', '{"deep":{"limit":20},"q":"a"}')
    assert change.path == "deep.limit"
    assert change.parts == (("old", "10"), ("new", "20"))


def test_identical_arguments_in_another_order_do_not_differ():
    assert differences.between('{"a":1,"b":2}', '{"b":2,"a":1}') == ()


def test_words_inside_a_text_are_compared_one_by_one():
    (change,) = differences.between('{"q":"reset admin password"}', '{"q":"reset user password"}')
    assert change.parts == (("same", "reset"), ("old", "admin"), ("new", "user"), ("same", "password"))


def test_differences_of_huge_arguments_are_bounded():
    old = "[" + ",".join(str(n) for n in range(5000)) + "]"
    new = "[" + ",".join(str(n + 1) for n in range(5000)) + "]"
    assert len(differences.between(old, new)) == differences.MAX_PATHS + 1


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59, "59 s"), (61, "1 min"), (7500, "2 h 5 min"), (200000, "2 d")]
)
def test_spans(seconds, words):
    assert formatting.span(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "now"), (-0.4, "now"), (90, "1 min ago"), (-7200, "in 2 h"), (3, "3 s ago")]
)
def test_moments_are_seen_from_now_and_never_in_0_s(seconds, words):
    now = timezone.now()
    assert formatting.relative(now - timedelta(seconds=seconds), now) == words


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("preset:standard", "preset standard"),
        ("environment", "environment"),
        ("agent:triage", "agent triage"),
        ("model:a%2Fb/org/gpt-5", "model a/b / org/gpt-5"),
        ("tool:search_*", "tools search_*"),
        ("session", "session"),
    ],
)
def test_sources_of_settings(source, words):
    assert formatting.source_name(source) == words
