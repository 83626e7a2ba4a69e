"""Texts of the assistant: announcements, and text that repeats itself within one answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.engine import Guard
from detection.engine.detectors.talk import is_announcement
from detection.engine.text_repetition import (
    MAX_PERIOD_TOKENS,
    MIN_REPEATS,
    RepetitionScanner,
    longest_repetition,
)

LIMIT = 120
BLOCK = " ".join(f"word{number}" for number in range(90))
PROSE = " ".join(
    f"Line {number} says that {number * 7} of {number * 13} pages were read." for number in range(200)
)
ZEROS = "[" + ", ".join(["0"] * 784) + "]"
TABLE = "| name | count |\n|---|---|\n" + "".join(
    f"| row {number} | {number % 3} |\n" for number in range(80)
)
CHORUS = "And we will sing this song again, until the morning comes.\n" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Okay, now let me look at the tests.", True),
        ("Next, I’ll run the build.", True),
        ("I will run the build. Is that all right?", False),
        ("The build has passed: all 312 tests are green.", False),
        ("I will explain. " + "The reason is this. " * 40, False),
        ("", False),
    ],
)
def test_an_announcement_says_what_comes_next_and_no_more(text, expected):
    assert is_announcement(text) is expected


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("court " * 5000, 1),
        ("I will now check the file.\n" * 30, 7),
        (f"{BLOCK}\n" * 8, 90),
        ("ha" * 2000, 1),
        ("我现在检查文件，然后继续。" * 80, None),
        (PROSE + "the end of the " * 200, 4),
        ("the end of the " * 200 + PROSE, 4),
        ("- " * 3000, 1),
    ],
)
def test_a_word_a_line_or_a_block_without_end_is_found(text, block):
    found = longest_repetition(text, LIMIT)
    assert found is not None
    assert found.repeats >= MIN_REPEATS
    assert block in (None, found.block)


@pytest.mark.parametrize("text", [PROSE, ZEROS, TABLE, CHORUS, "-" * 400, BLOCK * 3, "", "very " * 30])
def test_prose_tables_numbers_and_a_chorus_are_not_degenerate(text):
    assert longest_repetition(text, LIMIT) is None


WORDS = st.lists(st.sampled_from(("a", "bb", "c1", "1", "我", "-", "extraordinarilylong")), max_size=12)


def _naive(words: list[str], limit: int, spare: int = 0) -> bool:
    """Whether some stretch of words is a block in a row, by trying every place and every length of a block.

    With so many words to spare above the share that a repetition needs.
    """
    for period in range(1, len(words) // MIN_REPEATS + 1):
        run = letters = 0
        for place in range(period, len(words)):
            is_same = words[place] == words[place - period]
            run, letters = (run + 1, letters + words[place][0].isalpha()) if is_same else (0, 0)
            if run + period >= limit and run >= (MIN_REPEATS - 1) * period and letters >= run / 4 + spare:
                return True
    return False


@given(
    before=WORDS,
    block=WORDS.filter(bool),
    times=st.integers(1, 40),
    after=WORDS,
    sizes=st.lists(st.integers(1, 9)),
)
def test_the_scanner_finds_what_a_search_of_every_place_finds_however_the_text_is_cut(
    before, block, times, after, sizes
):
    text = " ".join([*before, *block * times, *after])
    # Too long for one piece.
    words = [piece for word in text.split() for piece in re.findall(".{1,16}", word)]
    found = longest_repetition(text, 40)
    if found is not None:
        assert _naive(words, 40)
    elif times >= 40 // len(block) + MIN_REPEATS + 2:
        # Blocks within the block may take the scanner a lap or two to see through, and it counts to the end of the
        # stretch, which may lie within a block.
        assert not _naive(words, 40 + 2 * len(block), spare=len(block))
    scanner, at = RepetitionScanner(40), 0
    for size in sizes:
        scanner.feed(text[at : at + size])
        at += size
    scanner.feed(text[at:])
    assert scanner.finish() == found


def test_the_memory_of_a_scanner_does_not_grow_with_the_text():
    scanner = RepetitionScanner(LIMIT)
    for number in range(20_000):
        scanner.feed(f"word{number} ")
    assert len(scanner._ring) == MAX_PERIOD_TOKENS
    assert len(scanner._last) <= 2 * MAX_PERIOD_TOKENS + 1


def test_a_degenerate_text_gets_advice_and_prose_gets_none():
    guard = Guard()
    assert guard.message(PROSE, role="assistant").decision == "allow"
    verdict = guard.message("the court of the " * 100, role="assistant")
    assert verdict.decision == "warn"
    assert verdict.finding is not None
    assert verdict.finding.kind == "degenerate"
    assert "your text repeats itself over and over" in verdict.message


def test_empty_answers_are_texts_like_any_other():
    guard = Guard()
    guard.call("lookup", {"name": "ann"})
    verdicts = [guard.message("", role="assistant") for _ in range(3)]
    assert [one.decision for one in verdicts] == ["allow", "allow", "warn"]
    assert "you answered with nothing 3 times" in verdicts[-1].message
    guard.call("lookup", {"name": "bob"})
    assert guard.message("", role="assistant").decision == "allow"


def test_five_announcements_without_a_call_get_advice_and_a_call_ends_them():
    announcements = (
        "Let me write it.",
        "I'll assemble the text now.",
        "Now let me create the file.",
        "Writing the file now.",
    )
    guard = Guard()
    for text in announcements:
        assert guard.message(text, role="assistant").decision == "allow"
    verdict = guard.message("I am going to put the document together.", role="assistant")
    assert verdict.decision == "warn"
    assert "announced the next step 5 times without making a call" in verdict.message
    guard = Guard()
    for text in announcements * 3:
        guard.call("write", {"text": text})
        assert guard.message(text, role="assistant").decision == "allow"


def test_who_answers_or_is_answered_announces_nothing():
    guard = Guard()
    for subject in ("tests", "build", "docs", "wheel", "image", "logs", "charts"):
        guard.message(f"I will look into the {subject}.", role="assistant")
        answer = f"Looked: of the {subject}, {len(subject)} are {subject[::-1]}."
        assert guard.message(answer, role="assistant").decision == "allow"
    guard = Guard()
    for subject in ("tests", "build", "docs", "wheel", "image", "logs", "charts"):
        guard.message(f"Please see about the {subject}")
        assert guard.message(f"I will look into the {subject}.", role="assistant").decision == "allow"
