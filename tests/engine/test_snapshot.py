"""A state as bytes and back."""

from __future__ import annotations

import pytest

from detection.engine import snapshot
from detection.engine.snapshot import SnapshotVersionError
from tests.engine.play import Player


@pytest.mark.parametrize(
    "preset", ["standard", "proxy", "balanced", "similarity", "advisory", "interactive", "justified"]
)
def test_a_stored_session_continues_like_one_that_never_was(preset):
    kept, stored = Player(preset), Player(preset)
    for i in range(60):
        arguments, answer = {"k": i % 3 if i < 30 else i % 2}, f"answer {i % 4}"
        one = kept.step("t", arguments, answer, is_error=i % 5 == 0)
        other = stored.step("t", arguments, answer, is_error=i % 5 == 0)
        stored.state = snapshot.load(snapshot.dump(stored.state))

        assert one == other

    assert snapshot.dump(kept.state) == snapshot.dump(stored.state)


def test_the_state_holds_no_arguments_and_no_results_in_plain_text():
    player = Player()
    for i in range(5):
        player.step(
            "login", {"password": "hunter2 correct horse", "n": i}, "token sk-live-verysecret", is_error=i > 2
        )

    body = snapshot.dump(player.state)

    for secret in (b"hunter2", b"horse", b"verysecret", b"password"):
        assert secret not in body


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"v":999}', b'{"v":2}', b'{"v":2,"c":"","x":[],"l":{"":[1]}}', b"\xff"],
)
def test_anything_else_is_rejected(data):
    with pytest.raises(SnapshotVersionError):
        snapshot.load(data)
