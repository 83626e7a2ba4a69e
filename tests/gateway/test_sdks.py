"""The real packages `openai` and `anthropic`, raw and with their stream helpers, through the gateway.

`LOOPGUARD_SDK_PYTHON` names a Python with `sdks/requirements.txt`; without one these tests are skipped visibly.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.model_answers import answered, call

from .conftest import World

PYTHON = os.environ.get("LOOPGUARD_SDK_PYTHON", "")
LOOP = Path(__file__).parent / "sdks" / "loop.py"
SDKS = {
    "chat_create": "openai", "chat_stream_helper": "openai", "responses_create": "responses",
    "responses_stream_helper": "responses", "anthropic_create": "anthropic", "anthropic_stream_helper": "anthropic",
}  # fmt: skip
pytestmark = pytest.mark.skipif(not PYTHON, reason="LOOPGUARD_SDK_PYTHON names no Python with the packages")


def run(world, sdk):
    backend = "anthropic" if SDKS[sdk] == "anthropic" else "openai"
    done = subprocess.run(
        [PYTHON, LOOP, sdk, world.base_url(backend), world.key, "sdk-1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("sdk", SDKS)
def test_a_stuck_loop_is_stopped(world: World, sdk):
    world.model.script = lambda asked: answered(asked, SDKS[sdk], "Let me search.", [call()])
    out = run(world, sdk)
    assert out["runs"] == 3
    assert out["text"]


@pytest.mark.parametrize("sdk", SDKS)
def test_a_blocked_call_is_replaced_by_the_next_answer(world: World, sdk):
    def script(asked):
        turn = len(world.model.asked)
        calls = [call()] if turn < 5 else [call("other"), call("another")] if turn == 5 else []
        return answered(asked, SDKS[sdk], "Hm." if turn % 2 else "Done.", calls)

    world.model.script = script
    out = run(world, sdk)
    assert out["runs"] == 5
    assert out["text"].strip() == "Done."


@pytest.mark.parametrize("sdk", SDKS)
def test_a_healthy_run_is_left_alone(world: World, sdk):
    def script(asked):
        turn = len(world.model.asked)
        return answered(
            asked, SDKS[sdk], "Hm.", [call(q=f"page {turn}"), call("read", n=turn)] if turn < 12 else []
        )

    world.model.script = script
    out = run(world, sdk)
    assert out["runs"] == 22
