from detection.consumers.outbox import Outbox


def hint(number: int, change: str = "changed") -> dict[str, str]:
    return {"topic": "session", "id": f"run-{number}", "change": change}


async def test_nothing_waits_in_a_new_outbox():
    assert Outbox().take() == []


async def test_the_newest_hint_of_a_thing_is_told():
    outbox = Outbox()
    outbox.add_hint(hint(1))
    outbox.add_hint(hint(1, "ended"))
    assert outbox.take() == [{"type": "hints", "hints": [hint(1, "ended")]}]
    assert outbox.take() == []


async def test_what_waits_is_bounded_and_overflow_is_one_resync():
    outbox = Outbox(max_hints=10)
    for number in range(20_000):
        outbox.add_hint(hint(number))
    assert len(outbox._hints) <= 10
    assert outbox.take() == [{"type": "resync"}]


async def test_hints_are_told_again_after_a_resync():
    outbox = Outbox(max_hints=1)
    outbox.add_hint(hint(1))
    outbox.add_hint(hint(2))
    outbox.take()
    outbox.add_hint(hint(3))
    assert outbox.take() == [{"type": "hints", "hints": [hint(3)]}]


async def test_frames_go_before_hints():
    outbox = Outbox()
    outbox.add_hint(hint(1))
    outbox.add_frame({"type": "pong"})
    assert [frame["type"] for frame in outbox.take()] == ["pong", "hints"]
