"""The first warning about identical calls follows the limit, unless a number is set."""

from typing import Any

import pytest

BOOK = {"book": "b1"}


def read_pages(api, times, session="s-1", tool="show_page"):
    """Show the same page again and again; the numbers of the calls with a message, by decision."""
    found: dict[Any, Any] = {}
    results: list[Any] = []
    for number in range(1, times + 1):
        call = {"call_id": f"{session}-{number}", "tool": tool, "arguments": BOOK}
        answer = api.post("/guard", {"session": session, "results": results, "calls": [call]}).json()
        for one in (*answer["notices"], *answer["verdicts"]):
            found.setdefault(one["decision"], []).append(number)
        results = [{"call_id": call["call_id"], "content": "page"}]
    return {decision: numbers for decision, numbers in found.items() if decision != "allow"}


@pytest.mark.parametrize(
    ("limit", "warned"),
    [(2, None), (3, None), (4, 3), (5, 4), (6, 5), (8, 6), (12, 9), (30, 23)],
)
def test_the_first_warning_comes_at_three_quarters_of_the_limit_and_not_before_the_third_call(
    api, limit, warned
):
    api.put("/overrides", {"values": {"max_repeats": limit}})
    found = read_pages(api, limit)
    assert found.get("warn", [None])[0] == warned
    assert found["block"] == [limit]


def test_who_raises_the_limit_in_the_chat_is_not_warned_at_the_third_call(api):
    api.post("/events", {"session": "s-1", "type": "message", "role": "user",
                         "content": "!/set(tool-loop-max-repeats=30)"})  # fmt: skip
    assert read_pages(api, 22) == {}
    assert api.get("/incidents").json()["items"] == []


def test_beyond_the_raised_limit_the_same_call_is_still_blocked(api):
    api.put("/overrides", {"values": {"max_repeats": 12}})
    assert read_pages(api, 14)["block"] == [12, 13, 14]


def test_a_raised_limit_for_identical_calls_hides_no_loop_of_several(api):
    api.put("/overrides", {"values": {"max_repeats": 30}})
    decisions = []
    results: list[Any] = []
    for number in range(24):
        call = {"call_id": f"c{number}", "tool": f"tool_{'abcd'[number % 4]}", "arguments": {}}
        answer = api.post("/guard", {"session": "s-1", "results": results, "calls": [call]}).json()
        decisions += [one["decision"] for one in (*answer["verdicts"], *answer["notices"])]
        results = [{"call_id": call["call_id"], "content": f"state of {number % 4}"}]
    assert "warn" in decisions


def test_a_number_stays_what_it_is(api):
    api.put("/overrides", {"values": {"max_repeats": 12, "repeat_warn_at": 5}})
    assert read_pages(api, 6)["warn"] == [5]


def test_auto_can_be_set_and_other_words_cannot(api):
    assert api.put("/overrides", {"values": {"repeat_warn_at": "AUTO"}}).json()["values"] == {
        "repeat_warn_at": "auto"
    }
    wrong = api.put("/overrides", {"values": {"repeat_warn_at": "soon"}})
    assert (wrong.status_code, "or auto" in wrong.text) == (422, True)
    assert api.put("/overrides", {"values": {"max_repeats": "auto"}}).status_code == 422


@pytest.mark.parametrize(
    ("preset", "value"), [("standard", "auto"), ("observe", "auto"), ("proxy", 0), ("balanced", 0)]
)
def test_only_the_own_presets_warn_early(api, preset, value):
    api.put("/overrides", {"values": {"preset": preset}})
    assert api.get("/policy").json()["policy"]["repeat_warn_at"]["value"] == value


def test_a_word_cannot_be_raised(api):
    api.call()
    line = api.post("/sessions/s-1/commands", {"text": "!/set(tool-loop-repeat-warn-at=+2)"}).json()["lines"][
        0
    ]
    assert line == "tool-loop-repeat-warn-at is auto, so it cannot be raised: set a number."


def test_pages_that_are_nearly_the_same_are_found_at_the_limit_where_there_is_no_early_warning(api):
    api.put("/overrides", {"values": {"max_repeats": 3, "repeat_warn_at": "auto"}})
    text = "the station clock struck nine as the last train left and nobody on the platform saw {}"
    found = []
    results: list[Any] = []
    for number, end in enumerate(
        ("it go at all", "it leave again today", "that it was late", "where he went"), 1
    ):
        call = {"call_id": f"c{number}", "tool": "transcribe", "arguments": BOOK}
        answer = api.post("/guard", {"session": "s-1", "results": results, "calls": [call]}).json()
        found += [number for one in (*answer["verdicts"], *answer["notices"]) if one["decision"] == "warn"]
        results = [{"call_id": f"c{number}", "content": text.format(end)}]
    assert found == [4]
