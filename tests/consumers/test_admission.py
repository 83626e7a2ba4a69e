import pytest

from detection.consumers.admission import Admission

from .sockets import Socket


async def greet(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    await receive()


async def outcome(application):
    socket = Socket(application, "/")
    return await socket.connect() or socket


@pytest.mark.promise("REL-19")
async def test_a_burst_above_the_limit_gets_retry_after():
    gate = Admission(greet, burst_accepts=3, accepts_per_second=0.001)
    outcomes = [await outcome(gate) for _ in range(5)]
    assert outcomes[3:] == [503, 503]
    for socket in outcomes[:3]:
        await socket.leave()


@pytest.mark.promise("REL-19")
async def test_sockets_beyond_the_limit_wait_until_others_have_left():
    gate = Admission(greet, max_sockets=1)
    first = await outcome(gate)
    assert await outcome(gate) == 503
    await first.leave()
    second = await outcome(gate)
    assert second != 503
    await second.leave()
