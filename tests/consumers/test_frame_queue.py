import pytest

from detection.consumers.frame_queue import FrameQueue


def hint(number: int, change: str = "changed") -> dict[str, str]:
    return {"topic": "session", "id": f"run-{number}", "change": change}


async def test_nothing_waits_in_a_new_outbox():
    assert FrameQueue().take() == []


async def test_the_newest_hint_of_an_object_is_sent():
    queue = FrameQueue()
    queue.add_hint(hint(1))
    queue.add_hint(hint(1, "ended"))
    assert queue.take() == [{"type": "hints", "hints": [hint(1, "ended")]}]
    assert queue.take() == []


@pytest.mark.promise("REL-20")
async def test_what_waits_is_bounded_and_overflow_is_one_resync():
    queue = FrameQueue(max_hints=10)
    for number in range(20_000):
        queue.add_hint(hint(number))
    assert len(queue._hints) <= 10
    assert queue.take() == [{"type": "resync"}]


async def test_hints_are_sent_again_after_a_resync():
    queue = FrameQueue(max_hints=1)
    queue.add_hint(hint(1))
    queue.add_hint(hint(2))
    queue.take()
    queue.add_hint(hint(3))
    assert queue.take() == [{"type": "hints", "hints": [hint(3)]}]


async def test_frames_go_before_hints():
    queue = FrameQueue()
    queue.add_hint(hint(1))
    queue.add_frame({"type": "pong"})
    assert [frame["type"] for frame in queue.take()] == ["pong", "hints"]
