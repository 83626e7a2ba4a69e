"""However a stream is cut into parts, the client gets the same bytes, and the gateway reads the same answer."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.gateway.protocols.answers import Resolution
from detection.gateway.protocols.anthropic import Anthropic
from detection.gateway.protocols.chat import Chat
from detection.gateway.protocols.responses import Responses
from tests.support.model_answers import STREAMS, call

PROTOCOLS: dict[str, Any] = {"openai": Chat(), "anthropic": Anthropic(), "responses": Responses()}
WORDS = [
    "words ",
    "über ",
    'a "quoted" \\ one',
    '"tool_calls"',
    '{"finish_reason":"stop"}',
    "\n\n",
    "[DONE]",
    "😀",
]
REQUESTS: tuple[dict[str, Any], ...] = ({}, {"stream_options": {"include_usage": True}})


def events_of(shape, texts, calls, request):
    """Return the events of a stream, without the spaces that few servers send; each text is a delta."""
    marks = [f"mark-{n} " for n in range(len(texts))]
    events = []
    for event in STREAMS[shape](7, "".join(marks), calls, request):
        event = event.replace(b'": ', b'":').replace(b', "', b',"')
        for mark, text in zip(marks, texts, strict=True):
            event = event.replace(f'"{mark}"'.encode(), json.dumps(text).encode())
        events.append(event)
    return events


def read(reader, parts):
    """Return what passes, what follows when the first or all calls are blocked, and the answer."""
    passed = b"".join(reader.feed(part) for part in parts)
    reader.finish()
    answer = reader.answer
    if not answer.calls:
        return passed + reader.rest, answer
    some = (
        Resolution("some", frozenset((0,)), "No.")
        if len(answer.calls) > 1
        else Resolution("text", frozenset((0,)), "No.")
    )
    return passed, reader.forwarded(), reader.resolved(some), answer


@pytest.mark.parametrize("shape", PROTOCOLS)
@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.data())
def test_the_parts_of_a_stream_do_not_matter(shape, data):
    protocol, request = PROTOCOLS[shape], data.draw(st.sampled_from(REQUESTS))
    texts = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
    calls = [call(call_id=f"call_{n}", q=f"n{n}") for n in range(data.draw(st.integers(0, 2)))]
    events = events_of(shape, texts, calls, request)
    whole = b"".join(events)
    slow = protocol.reader(request)
    slow.passes_unread = lambda part: False
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=6)))
    ends = [sum(map(len, events[: n + 1])) for n in range(len(events))]
    cuts = sorted({*cuts, *data.draw(st.sets(st.sampled_from(ends), max_size=8))})
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(protocol.reader(request), parts) == read(slow, events)


@pytest.mark.parametrize("shape", PROTOCOLS)
def test_deltas_of_text_pass_unread(shape):
    reader, read_events = PROTOCOLS[shape].reader({}), []
    read_one = reader.read

    def read_and_note(event, *more):
        read_events.append(event)
        return read_one(event, *more)

    reader.read = read_and_note
    texts = ["one ", "two ", "three "]
    events = events_of(shape, texts, [], {})
    assert b"".join(map(reader.feed, events)) + reader.rest == b"".join(events)
    assert not [event for event in read_events for text in texts if json.dumps(text).encode() in event]
