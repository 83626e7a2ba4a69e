"""The table of texts that programs write, with the examples that it contains, and the rule for circumstances."""

import pytest

from detection.integrations.people import Circumstances, is_program_text
from detection.integrations.program_texts import PROGRAM_TEXTS
from detection.integrations.transcripts import MESSAGE_SHAPES, message_events

ACTION = "Thought: I look it up.\nAction: search(q)"


@pytest.mark.parametrize("form", PROGRAM_TEXTS, ids=lambda form: form.program)
def test_every_form_matches_its_examples_and_no_text_of_people(form):
    before = ACTION if form.after else ""
    assert [text for text in form.examples if not is_program_text(text, before)] == []
    assert [text for text in form.others if is_program_text(text, before)] == []


@pytest.mark.parametrize(
    "form", [form for form in PROGRAM_TEXTS if form.after], ids=lambda form: form.program
)
def test_a_form_that_people_use_too_needs_an_action_before_it(form):
    assert not any(is_program_text(text, "What do you see there?") for text in form.examples)
    assert not any(is_program_text(text) for text in form.examples)


@pytest.mark.parametrize(
    "before",
    [ACTION, "Calling tools:\n[{'name': 'search'}]", "<code>\nsearch('q')\n</code>", "```bash\nls\n```"],
)
def test_actions_in_plain_text_are_recognised(before):
    assert is_program_text("Observation:\n0 hits", before)


def test_a_text_of_any_length_is_read_in_bounded_time():
    for text in ("Error: " + "now " * 500_000, "[" * 1_000_000, "observation " * 200_000, "\n" * 1_000_000):
        assert not is_program_text(text, "```" * 300_000)


@pytest.mark.parametrize(
    ("gaps", "seconds", "follows_block", "is_of_program"),
    [
        ((), None, False, False),
        ((), 0.2, False, False),
        ((), 0.2, True, True),
        ((), 8.0, True, False),
        ((), None, True, False),
        ((0.2, 0.2), 0.2, False, False),
        ((0.2, 0.2, 0.2), 0.2, False, True),
        ((0.2, 9.0, 0.2), 0.2, False, False),
        ((9.0, 0.2, 0.2, 0.2), 0.2, False, True),
        ((0.2, 0.2, 9.0), 9.0, False, False),
    ],
)
def test_circumstances_of_programs(gaps, seconds, follows_block, is_of_program):
    circumstances = Circumstances(gaps, seconds, follows_block)
    assert circumstances.is_of_program(4, 3) is is_of_program
    assert not circumstances.is_of_program(4, 0)


@pytest.mark.parametrize("shape", MESSAGE_SHAPES)
def test_lists_that_are_imported_tell_people_from_programs(shape):
    texts = [
        "look it up",
        "Tool call error: none found",
        "",
        "<system-reminder>It is Monday.</system-reminder>",
        "go on",
    ]
    messages = [{"role": "user", "content": text} for text in texts]
    events = [*message_events(messages, shape, "s-1")]
    people = [one["content"] for one in events if "role" not in one and one["content"]]
    assert people == ["look it up", "go on"]


def test_what_a_host_adds_to_a_prompt_is_not_part_of_it():
    parts = [
        {"type": "text", "text": "<system-reminder>x</system-reminder>"},
        {"type": "text", "text": "go on"},
    ]
    (event,) = message_events([{"role": "user", "content": parts}], "openai", "s-1")
    assert (event["content"], "role" in event) == ("go on", False)


def test_a_picture_is_a_person_s():
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    (event,) = message_events([{"role": "user", "content": parts}], "openai", "s-1")
    assert (event["content"], "role" in event) == (None, False)
