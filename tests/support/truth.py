"""Sessions with a table of the truth: what each of them does, and how many loops that is.

The sessions of a shape do the same with other words, so that none explains another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Event = dict[str, Any]
LIMITED_AGENT = "limited"
"""An agent that may make four calls at most: the test sets the limit."""


class Shape(NamedTuple):
    """What a session does.

    Attributes
    ----------
    events
        Makes the events of a session of this name, as programs post them.
    loops
        How many loops the session has; a spent limit counts as one.
    """

    events: Callable[[str], Iterator[Event]]
    loops: int


def _call(session: str, number: int, tool: str, arguments: Any, content: str, **more: Any) -> Iterator[Event]:
    call_id = f"call-{number}"
    yield {
        "type": "call", "session": session, "call_id": call_id, "tool": tool, "arguments": arguments,
        "agent": "triage", "usage": {"cost_usd": 0.01},
    }  # fmt: skip
    yield {"type": "result", "session": session, "call_id": call_id, "content": content, **more}


def _same_call(session: str, first: int = 0, tool: str = "read_file") -> Iterator[Event]:
    for number in range(first, first + 9):
        yield from _call(session, number, tool, {"path": f"{session}.md"}, f"The text of {session}.")


def _lap_of_three(session: str) -> Iterator[Event]:
    for number in range(27):
        tool = ("read_file", "grep", "list_files")[number % 3]
        yield from _call(session, number, tool, {"of": session}, f"{tool} of {session} as before")


def _same_error(session: str) -> Iterator[Event]:
    for number in range(14):
        arguments = {"path": f"{session}.py", "old": f"line {number * 7919}"}
        content = f"Error: no match in {session}"
        yield from _call(session, number, "edit_file", arguments, content, is_error=True)


def _rephrased_search(session: str) -> Iterator[Event]:
    for number in range(14):
        words = f"how do I reset the password of {session} number {'again ' * (number % 3)}please"
        yield from _call(session, number, "search_web", {"q": words, "page": number}, f"0 hits for {session}")


def _nothing_new(session: str) -> Iterator[Event]:
    for number in range(40):
        words = f"{session} {number * number % 11}"
        yield from _call(session, number, "search_web", {"q": words}, f"0 hits for {session}")


def _rate_limit(session: str) -> Iterator[Event]:
    for number in range(16):
        arguments = {"q": f"{session} {number * 7919}"}
        content = "HTTP 429 Too Many Requests: rate limit exceeded"
        yield from _call(session, number, "search_web", arguments, content, is_error=True)


def _same_text(session: str) -> Iterator[Event]:
    for _ in range(9):
        content = f"I am going to have a look at {session} in a moment."
        yield {"type": "message", "role": "assistant", "session": session, "content": content}


def _one_after_the_other(session: str) -> Iterator[Event]:
    yield from _same_call(session)
    yield from _reading_on(session, 9)
    yield from _same_call(session, 29, "grep")


def _reading_on(session: str, first: int = 0) -> Iterator[Event]:
    for number in range(first, first + 20):
        yield from _call(
            session, number, "read_file", {"path": f"{session}/{number}.md"}, f"Chapter {number * 7919}"
        )


def _same_call_beyond_the_limit(session: str) -> Iterator[Event]:
    for event in _same_call(session):
        yield event | ({"agent": LIMITED_AGENT} if event["type"] == "call" else {})


def _fixing_tests(session: str) -> Iterator[Event]:
    for number in range(0, 16, 2):
        change = {"path": f"{session}.py", "old": f"a{number * 7919}", "new": f"b{number * 7907}"}
        yield from _call(session, number, "edit_file", change, f"Edited line {number * 13 + 5}.")
        content = f"{20 - number} tests of {session} failed: test_{number * 7919}"
        yield from _call(session, number + 1, "run_tests", {"suite": session}, content)


def _waiting(session: str) -> Iterator[Event]:
    for number in range(3):
        yield from _call(session, number, "get_status", {"job": session}, "running")
    yield from _call(session, 3, "get_status", {"job": session}, "done")


SHAPES = {
    "same call": Shape(_same_call, 1),
    "lap of three": Shape(_lap_of_three, 1),
    "same error": Shape(_same_error, 1),
    "rephrased search": Shape(_rephrased_search, 1),
    "nothing new": Shape(_nothing_new, 1),
    "rate limit": Shape(_rate_limit, 1),
    "same text": Shape(_same_text, 1),
    "one after the other": Shape(_one_after_the_other, 2),
    "same call beyond the limit": Shape(_same_call_beyond_the_limit, 2),
    "reading on": Shape(_reading_on, 0),
    "fixing tests": Shape(_fixing_tests, 0),
    "waiting": Shape(_waiting, 0),
}


def sessions(count: int) -> Iterator[tuple[str, str]]:
    """Name `count` sessions, the shapes in turn: pairs of session and shape."""
    names = [*SHAPES]
    for number in range(count):
        shape = names[number % len(names)]
        yield f"{shape.replace(' ', '-')}-{number}", shape
