"""The clients of the gateway: real SDKs, raw and with their helpers, LangChain's chat models and the AI SDK.

`python3 manage.py test gateway-matrix` starts these tests with the environments that it has created.
"""

import contextlib
import threading
import time

import pytest
from django.db import connection

from client_tests.proxy import Proxy
from detection.engine.scopes import PROJECT, Scope
from detection.models import Approval, Event, GatewayRewrite, Incident
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM
from detection.services.policies import message_templates, overrides
from tests.support.model_answers import answered, call
from tests.support.model_server import of_json

from .conftest import World
from .matrix import COMMANDS, FORMS, JOB_SECONDS, documented, every_form

if not COMMANDS:
    pytest.skip("run by `python3 manage.py test gateway-matrix`", allow_module_level=True)


@pytest.fixture
def script(world, sdk, form):
    """Let the model answer with the calls, and the text, that a function returns for a turn."""

    def set_script(calls_of_turn, text="Let me see."):
        def answer(asked):
            calls = calls_of_turn(len(world.model.asked))
            return answered(asked, FORMS[sdk][form], text if calls else "Done.", calls)

        world.model.script = answer

    return set_script


def decisions_made():
    return list(Event.objects.filter(type="call").order_by("seq").values_list("decision", flat=True))


STUCK = ["allow", "allow", "warn", "block", "block", "block"]


@every_form
def test_a_repeated_call_is_stopped(world: World, run, script, sdk):
    script(lambda turn: [call()])
    done = run()
    assert (done["runs"], len(world.model.asked)) == documented(sdk)
    assert done["text"]
    assert decisions_made() == STUCK
    assert Incident.objects.get().kind == "repeat"


@every_form
def test_a_healthy_run_is_untouched(world: World, run, script):
    script(lambda turn: [call(q=f"page {turn}"), call("read", q=f"{turn}")] if turn <= 10 else [])
    done = run()
    assert (done["runs"], done["text"].strip()) == (20, "Done.")
    assert decisions_made() == ["allow"] * 20
    assert not GatewayRewrite.objects.exists()
    assert not Incident.objects.exists()


@every_form
def test_a_blocked_call_is_replaced_by_the_next_answer(world: World, run, script):
    script(lambda turn: [call()] if turn < 5 else [call("other", q="5")] if turn == 5 else [])
    done = run()
    assert (done["runs"], done["text"].strip()) == (4, "Done.")
    assert decisions_made() == [*STUCK[:4], "allow"]


@pytest.mark.sample
@every_form
def test_of_parallel_calls_only_the_repeated_one_is_blocked(world: World, run, script, sdk, form):
    message_templates.save_template(world.project.pk, "chance", "", "REFUSED $tool.", SYSTEM)
    for tool in ("read", "other"):
        overrides.save_override(
            world.project.pk, Scope("tool", pattern=tool), {}, exempt=True, actor=SYSTEM, note="for the test"
        )

    def calls_of_turn(turn):
        return [call("read", q=f"{turn}"), call(), call("other", q=f"{turn}")] if turn < 5 else []

    script(calls_of_turn)
    done = run()
    assert (done["runs"], done["text"].strip()) == (11, "Done.")
    assert decisions_made().count("block") == 1
    blocked = Event.objects.get(type="call", decision="block")
    last = world.model.asked[-1].body.decode()
    assert last.count("REFUSED search.") == 1
    assert blocked.call_id in last or FORMS[sdk][form] == "gemini", "its calls have no ids"


@every_form
def test_a_held_call_waits_for_a_decision(world: World, run, script):
    overrides.save_override(
        world.project.pk, PROJECT, {"mode": "ask", "max_repeats": 3}, SYSTEM, "for the test"
    )
    script(lambda turn: [call()] if turn <= 3 else [])

    def decide():
        with contextlib.closing(connection):
            deadline = time.monotonic() + JOB_SECONDS
            while time.monotonic() < deadline:
                if found := Approval.objects.filter(state="open", project=world.project).first():
                    decisions.decide(world.project.pk, found.public_id, "allow_once", SYSTEM)
                    return
                time.sleep(0.05)

    operator = threading.Thread(target=decide, daemon=True)
    operator.start()
    done = run()
    operator.join(10)
    assert (done["runs"], done["text"].strip()) == (3, "Done.")
    assert Approval.objects.get().decision == "allow"


@every_form
def test_a_request_repeated_after_an_error_of_the_model_server_counts_once(world: World, run, sdk, form):
    def script(asked):
        if len(world.model.asked) == 2:
            return of_json({"error": {"type": "api_error", "message": "overloaded"}}, 500)
        return answered(asked, FORMS[sdk][form], "Let me see.", [call()])

    world.model.script = script
    assert run()["runs"] == 3
    assert decisions_made() == STUCK


@every_form
def test_a_request_repeated_because_its_answer_was_lost_counts_once(world: World, run, sdk, form):
    if sdk == "google":
        pytest.skip("google-genai does not repeat a request after a lost connection")

    with Proxy(world.url).running() as proxy:

        def script(asked):
            proxy.mode = "lose" if len(world.model.asked) == 1 else "pass"
            return answered(asked, FORMS[sdk][form], "Let me see.", [call()])

        world.model.script = script
        runs = run(through=proxy)["runs"]
    assert runs == 3
    assert decisions_made() == STUCK
