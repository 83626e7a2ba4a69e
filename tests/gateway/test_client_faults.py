"""Faults through real SDKs: what a client sees behind the gateway is what it sees without it, and the outcome is counted.

Started like the matrix of clients, by `python3 manage.py test gateway-matrix`.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from detection.gateway import traffic
from detection.models import GatewayTraffic, TrafficPeriod
from tests.support.model_answers import PATHS, answered, call, is_streamed
from tests.support.model_server import Answer, Asked, of_json

from .conftest import BACKENDS, World, wait_for
from .matrix import COMMANDS, FORMS, case
from .test_unusual_answers import two_choices

if not COMMANDS:
    pytest.skip("run by `python3 manage.py test gateway-matrix`", allow_module_level=True)
JSON = {"Content-Type": "application/json"}


def rate_limited(asked: Asked, shape: str) -> Answer:
    error = {"type": "rate_limit_error", "message": "slow down", "code": "rate_limit_exceeded"}
    return of_json({"type": "error", "error": error}, 429, **{"Retry-After": "0", "retry-after-ms": "1"})


def cut(asked: Asked, shape: str) -> Answer:
    """In the middle of a call, or of a document."""
    answer = answered(asked, shape, "Let me see.", [call()])
    last = {"openai": -4, "gemini": -1}.get(shape, -3)
    answer.parts = answer.parts[:last] if is_streamed(asked) else [answer.body[:50]]
    answer.ends = "cut"
    return answer


def silent(asked: Asked, shape: str) -> Answer:
    """After the first words, or before the head of a document, which the gateway passes on with it."""
    answer = answered(asked, shape, "Let me see.")
    if not is_streamed(asked):
        return Answer(ends="mute")
    is_text = [b"Let " in part if isinstance(part, bytes) else False for part in answer.parts]
    answer.parts, answer.ends = answer.parts[: is_text.index(True) + 1], "silent"
    return answer


def choices(asked: Asked, shape: str) -> Answer:
    return two_choices(
        asked,
        [call("read", "call_1", q="a"), call("other", "call_2", q="b")],
        [call("read", "call_3", q="c")],
    )


@dataclass
class Fault:
    """What the model server does, how the client asks, and which count rises with each request."""

    script: Callable[[Asked, str], Answer]
    counted: str
    job: dict[str, Any] = field(default_factory=dict)
    fits: Callable[[str, str, str], bool] = lambda sdk, form, shape: True


def shows_text(sdk: str, form: str, shape: str) -> bool:
    """Tool runners pass no text on, and have no end before that of the run."""
    return "stream" in form and "runner" not in form


FAULTS = {
    "rate_limited": Fault(rate_limited, "rate_limited"),
    "cut": Fault(cut, "cut", {"max_retries": 0}),
    "silent": Fault(silent, "abandoned", {"max_retries": 0, "timeout": 1}),
    "cancelled": Fault(silent, "abandoned", {"max_retries": 0, "cancels": True}, shows_text),
    # The AI SDK cannot ask for several choices; LangChain shows the first.
    "choices": Fault(choices, "", {"n": 2}, lambda sdk, form, shape: shape == "openai" and sdk != "ai_sdk"),
}
every_fault = pytest.mark.parametrize(
    ("sdk", "form", "fault"),
    [
        case(sdk, form, name)
        for sdk in COMMANDS
        for form, shape in FORMS.get(sdk, {}).items()
        for name, fault in FAULTS.items()
        if fault.fits(sdk, form, shape)
    ],
)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.05)


def outcome(world, done, asked_before):
    """What the agent saw, and how often the model server was asked."""
    names = ("runs", "type", "status", "seen")
    text = done["text"]
    with contextlib.suppress(ValueError):
        text = json.loads(text)  # several choices
    return {name: done.get(name) for name in names} | {
        "text": text,
        "asked": len(world.model.asked) - asked_before,
    }


@every_fault
def test_a_client_sees_the_same_fault_and_it_is_counted(world: World, run, sdk, form, fault):
    told, shape = FAULTS[fault], FORMS[sdk][form]
    backend = PATHS[shape][0]
    world.model.script = lambda asked: told.script(asked, shape)
    job = {**told.job, "is_faulty": True}
    direct = outcome(world, run(base_url=world.model.url + BACKENDS[backend][1], **job), 0)
    before = len(world.model.asked)
    through = outcome(world, run(**job), before)
    assert through == direct
    assert (direct["type"] is None) == (fault == "choices"), direct
    if fault in ("cut", "silent", "cancelled") and shows_text(sdk, form, shape):
        assert direct["seen"].startswith("Let")
    if told.counted == "abandoned":
        wait_for(lambda: world.model.gone == 2)
    rows = GatewayTraffic.objects.filter(period=TrafficPeriod.ALWAYS, backend=world.backend(backend))
    count = {told.counted: through["asked"]} if told.counted else {}
    wait_for(lambda: rows.filter(requests=through["asked"], **count).exists())
    errors = rows.values(
        "rate_limited", "cut", "abandoned", "unreachable", "timeouts", "server_errors", "unreadable"
    )[0]
    assert {name: number for name, number in errors.items() if number} == count
