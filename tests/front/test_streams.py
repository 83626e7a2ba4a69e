"""A client that accepts a streamed response slowly keeps a thread for a bounded time."""

import asyncio
import threading

import pytest

from loopguard_site.front import wsgi_calls
from loopguard_site.front.wsgi_calls import Responder


class Stream:
    """The response of an application that is streamed, and Granian's protocol with a client of some pace."""

    streaming = True

    def __init__(self, parts, seconds_per_part):
        self.parts, self.seconds_per_part, self.sent = parts, seconds_per_part, []

    def __iter__(self):
        return iter(self.parts)

    def response_stream(self, status, headers):
        return self

    async def send_bytes(self, part):
        await asyncio.sleep(self.seconds_per_part)
        self.sent.append(part)


@pytest.fixture
def loop():
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, daemon=True)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(10)
    running.close()


def respond(stream, loop):
    responder = Responder(stream, loop, lambda: True)
    responder.start("200 OK", [])
    responder.send(stream)


def test_a_slow_reader_loses_the_stream_however_small_its_parts(loop, monkeypatch):
    monkeypatch.setattr(wsgi_calls, "SEND_SECONDS", 0.2)
    slow = Stream([b"x"] * 1000, 0.05)
    with pytest.raises(OSError):
        respond(slow, loop)
    assert len(slow.sent) < 10


def test_a_reader_that_keeps_the_rate_gets_all_of_a_long_stream(loop, monkeypatch):
    monkeypatch.setattr(wsgi_calls, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(wsgi_calls, "MIN_BYTES_PER_SECOND", 1000)
    steady = Stream([b"x" * 500] * 8, 0.05)
    respond(steady, loop)
    assert len(steady.sent) == 8
