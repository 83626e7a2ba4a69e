"""LiteLLM's guardrail route: its documents as LiteLLM 1.106 sends them, and the real proxy where it is installed.

`LOOPGUARD_LITELLM` names the program `litellm`; without it, the tests of the real proxy are skipped visibly.
"""

import json
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from detection.engine.scopes import PROJECT
from detection.models import Approval, Event, Incident, Session
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.sessions import actions
from tests.support.model_answers import answered, call
from tests.support.plain_http import PLAIN
from tests.support.projects import make_key

from .agents import READERS, documents, responses_items
from .conftest import World, wait_for

PROGRAM = os.environ.get("LOOPGUARD_LITELLM", "")
CONFIGURATION = Path(__file__).parents[2] / "docs" / "examples" / "litellm.yaml"
HEADERS = {"host": "127.0.0.1:4000", "user-agent": "OpenAI/Python 3.54.0", "authorization": "[present]"}


class Proxy:
    """Shows one conversation to the route as LiteLLM does, and runs the calls of answers that pass."""

    def __init__(self, world, session="", form="chat"):
        self.world, self.form, self.turns, self.messages = world, form, 0, [user("reset my password")]
        self.headers = HEADERS | (
            {"loopguard-session": session} if session else {"x-session-id": "[present]"}
        )
        self.http = httpx.Client(headers={"x-api-key": world.key}, timeout=20, verify=PLAIN)

    def show(self, phase, **more):
        shown = {
            "input_type": phase, "litellm_call_id": f"call-{id(self)}-{self.turns}",
            "litellm_trace_id": f"trace-{self.turns}", "structured_messages": None, "images": None, "tools": None,
            "texts": [], "request_data": {"user_api_key_hash": "88dc28"}, "request_headers": self.headers,
            "litellm_version": "1.106.2", "additional_provider_specific_params": {}, "tool_calls": None, "model": "gpt-x",
        }  # fmt: skip
        url = f"{self.world.url}/gateway/-/litellm/beta/litellm_basic_guardrail_api"
        answer = self.http.post(url, json=shown | more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, text):
        """Answer a request with a text alone; the user asks to continue."""
        self.turns += 1
        self.show("request", structured_messages=self.messages)
        assert self.show("response", texts=[text] if text else [])["action"] == "NONE"
        self.messages = [*self.messages, {"role": "assistant", "content": text}, user("continue")]

    def turn(self, *calls, result="0 hits", text="Let me see."):
        """Return what becomes of a request and of its answer; the calls run if nothing is rejected."""
        self.turns += 1
        texts = [one["content"] for one in self.messages if isinstance(one["content"], str)]
        before = self.show("request", structured_messages=self.messages, texts=texts)
        if before["action"] == "BLOCKED":
            return before, None
        written = [document(one) for one in calls]
        # Of a response, LiteLLM shows the ids of its items.
        in_answer = [
            one | {"id": f"fc_{self.turns}_{place}"} if self.form == "responses" else one
            for place, one in enumerate(written)
        ]
        after = self.show("response", texts=[text], tool_calls=in_answer or None)
        if after["action"] != "BLOCKED":
            self.messages = [*self.messages, {"role": "assistant", "content": None, "tool_calls": written}]
            self.messages += [
                {"role": "tool", "tool_call_id": one["id"], "content": result} for one in written
            ]
        return before, after


def user(content):
    return {"role": "user", "content": content}


def document(one):
    return {"id": one[0], "type": "function", "function": {"name": one[1], "arguments": json.dumps(one[2])}}


def calls_of(name=None):
    found = Event.objects.filter(type="call").order_by("seq")
    return list(found.filter(session__external_id=name) if name else found)


@pytest.mark.parametrize("form", ["chat", "responses"])
@pytest.mark.parametrize("session", ["", "s-1"])
def test_a_stuck_run_is_warned_and_then_rejected(world: World, form, session):
    proxy = Proxy(world, session, form)
    made = [proxy.turn(call()) for _ in range(3)]
    assert [after["action"] for _, after in made] == ["NONE", "NONE", "NONE"]
    before, after = proxy.turn(call())
    assert before["action"] == "GUARDRAIL_INTERVENED"
    warned = before["structured_messages"][-1]
    assert warned["tool_call_id"] == proxy.messages[-1]["tool_call_id"]
    assert warned["content"].endswith("\n\n0 hits")
    assert before["texts"][-1] == warned["content"]
    assert before["structured_messages"][:-1] == proxy.messages[:-1]
    assert after["action"] == "BLOCKED"
    assert "search" in after["blocked_reason"]
    assert [one.decision for one in calls_of()] == ["allow", "allow", "warn", "block"]
    row = Session.objects.get()
    assert (row.integration, row.backend, row.model) == ("litellm", "litellm", "gpt-x")
    assert row.external_id == session or row.external_id.startswith("chat-")
    assert Incident.objects.get().kind == "repeat"


def said():
    told = Event.objects.filter(type="message", role="assistant").order_by("seq")
    return list(told.values_list("content", flat=True))


@pytest.mark.parametrize(
    ("answers", "kinds"),
    [
        (["I will write it now."] * 3, ["talk"]),
        ([""] * 3, ["talk"]),
        (["The draft is ready.", "The tests pass.", "Nothing is left."], []),
        (["I will write it now."] * 2, []),
        (["so it goes on and on " * 60], ["degenerate"]),
    ],
)
def test_answers_without_calls_are_recorded_and_judged_as_texts(world: World, answers, kinds):
    proxy = Proxy(world, "s-1")
    proxy.messages = [user("continue")]
    for number, text in enumerate(answers, 1):
        proxy.say(text)
        wait_for(lambda number=number: len(said()) == number)
    wait_for(lambda: Incident.objects.count() == len(kinds))
    assert [one.kind for one in Incident.objects.all()] == kinds
    assert [one.strip() for one in said()] == [one.strip() for one in answers]


def test_a_request_that_is_sent_again_says_nothing_twice(world: World):
    proxy = Proxy(world, "s-1")
    asked = proxy.messages
    for _ in range(4):
        proxy.messages = asked
        proxy.say("I will write it now.")
    proxy.turn(call())
    assert len(said()) == 1
    assert not Incident.objects.exists()


@pytest.mark.parametrize(
    ("text", "kinds"), [("round and round it goes " * 60, ["degenerate"]), ("Let me see.", [])]
)
def test_a_text_beside_calls_is_recorded_if_it_repeats_itself(world: World, text, kinds):
    proxy = Proxy(world, "s-1")
    for number in range(2):
        proxy.turn(call(q=f"page {number}"), result=f"text of page {number}", text=text)
    assert [one.kind for one in Incident.objects.all()] == kinds
    assert len(said()) == 2 * len(kinds)


def test_a_warning_is_in_every_later_request_in_the_same_words(world: World):
    proxy = Proxy(world)
    for _ in range(3):
        proxy.turn(call())
    seen = [proxy.turn(call("other", n=n), result=f"found {n}")[0]["structured_messages"] for n in range(4)]
    assert all(later[: len(seen[0])] == seen[0] for later in seen)


def test_a_stopped_session_is_rejected_before_the_model_is_asked(world: World):
    proxy = Proxy(world, "s-1")
    proxy.turn(call())
    actions.stop(world.project.pk, "s-1", SYSTEM, "enough")
    before, after = proxy.turn(call())
    assert (before["action"], after) == ("BLOCKED", None)
    assert "enough" in before["blocked_reason"]


def test_an_answer_waits_for_the_decision_of_a_person(world: World):
    overrides.save_override(
        world.project.pk, PROJECT, {"mode": "ask", "max_repeats": 2}, SYSTEM, "for the test"
    )
    proxy = Proxy(world, "s-1")
    proxy.turn(call())
    other = Proxy(world, "s-1")
    other.messages, other.turns = proxy.messages, 7
    seen = []
    thread = threading.Thread(target=lambda: seen.append(other.turn(call())), daemon=True)
    thread.start()
    wait_for(lambda: Approval.objects.filter(state="open").exists())
    decisions.decide(world.project.pk, Approval.objects.get().public_id, "allow_once", SYSTEM)
    thread.join(15)
    assert seen[0][1]["action"] == "NONE"


def test_different_conversations_are_different_sessions_and_a_repeated_answer_counts_once(world: World):
    first, second = Proxy(world), Proxy(world)
    for proxy in (first, second, first, second):
        proxy.turn(call())
    assert sorted(Session.objects.values_list("call_count", flat=True)) == [2, 2]
    again = [document(call(call_id="call_again"))]
    first.turns += 1
    for _ in range(3):  # as while a stream is sampled
        first.show("response", texts=["x"], tool_calls=again)
    assert len(calls_of()) == 5


def test_an_answer_without_its_request_is_evaluated_by_itself(world: World):
    """Another process of `live` has seen the request."""
    proxy = Proxy(world, "s-1")
    shown = [
        proxy.show("response", litellm_call_id=f"other-{n}", tool_calls=[document(call())]) for n in range(4)
    ]
    assert shown[-1]["action"] == "BLOCKED"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ({}, {}, 400, "invalid_body"),
        ({"input_type": "other"}, {}, 400, "invalid_body"),
        ({"input_type": "request"}, {"x-api-key": "lg_x"}, 401, "unknown_key"),
        ({"input_type": "request"}, {"x-api-key": ""}, 401, "unknown_key"),
    ],
)
def test_what_is_not_accepted_has_a_code(world: World, body, headers, status, code):
    url = f"{world.url}/gateway/-/litellm/beta/litellm_basic_guardrail_api"
    answer = httpx.post(url, json=body, headers={"x-api-key": world.key} | headers, verify=PLAIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_key_without_the_scope_is_rejected(world: World):
    url = f"{world.url}/gateway/-/litellm/beta/litellm_basic_guardrail_api"
    key = make_key(world.project, scopes=["ingest"])
    answer = httpx.post(url, json={"input_type": "request"}, headers={"x-api-key": key})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


@pytest.mark.parametrize(
    "odd",
    [
        {"structured_messages": [1, None, {"role": 7}]}, {"structured_messages": "x"}, {"request_headers": [1]},
        {"request_data": None}, {"litellm_call_id": None}, {"model": 7}, {"additional_provider_specific_params": "x"},
    ],
)  # fmt: skip
def test_odd_documents_pass(world: World, odd):
    assert Proxy(world).show("request", **odd) == {"action": "NONE"}
    assert Proxy(world).show("response", tool_calls=[7, {"id": 1}, {"function": {"name": 3}}], **odd) == {
        "action": "NONE"
    }


# The real proxy


@pytest.fixture
def litellm(world: World, tmp_path):
    """The proxy with the documented configuration; its address and key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    configuration = CONFIGURATION.read_text().replace("https://loopguard.example", world.url)
    (tmp_path / "litellm.yaml").write_text(configuration)
    key = "sk-of-the-tests-4f7c1d9be2a8"
    env = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": key, "LOOPGUARD_KEY": world.key, "OPENAI_API_KEY": "sk-x", "ANTHROPIC_API_KEY": "sk-x",
        "OPENAI_BASE_URL": f"{world.model.url}/v1", "ANTHROPIC_API_BASE": world.model.url,
    }  # fmt: skip
    command = [PROGRAM, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            httpx.get(f"{url}/health/liveliness")
            break
        except httpx.TransportError:
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.5)
    yield httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    process.terminate()
    process.wait(20)


REAL = {
    "openai": ("/v1/chat/completions", "messages", "gpt-x", {}),
    "anthropic": ("/v1/messages", "messages", "claude-x", {"max_tokens": 100}),
    "responses": ("/v1/responses", "input", "gpt-x", {}),
}


def conversation_after(shape, given, messages):
    """Append an answer and the results of its calls, as a client does."""
    messages = [*messages, *given.messages]
    if shape == "anthropic":
        results = [{"type": "tool_result", "tool_use_id": one[0], "content": "0 hits"} for one in given.calls]
        return [*messages, {"role": "user", "content": results}]
    if shape == "responses":
        return [
            *messages,
            *({"type": "function_call_output", "call_id": one[0], "output": "0 hits"} for one in given.calls),
        ]
    return [
        *messages,
        *({"role": "tool", "tool_call_id": one[0], "content": "0 hits"} for one in given.calls),
    ]


@pytest.mark.skipif(not PROGRAM, reason="LOOPGUARD_LITELLM names no program `litellm`")
def test_the_real_proxy_warns_and_rejects_in_every_protocol(world: World, litellm):
    for shape in REAL:
        for is_stream in (False, True):
            name = f"{shape}-{is_stream}"
            path, key, model, more = REAL[shape]
            world.model.asked.clear()
            world.model.script = lambda asked, shape=shape: answered(asked, shape, "Let me see.", [call()])
            messages = [user("reset my password")]
            for _ in range(6):
                request = {"model": model, "stream": is_stream, key: messages, **more}
                answer = litellm.post(path, json=request, headers={"loopguard-session": name})
                if answer.status_code >= 400 or re.search(rb'"error": ?\{', answer.content):
                    break
                given = read(shape, is_stream, answer.content)
                messages = conversation_after(shape, given, messages)
            decided = [one.decision for one in calls_of(name)]
            assert (name, decided) == (name, ["allow", "allow", "warn", "block"])
            assert b"search" in answer.content, name
            if not is_stream:
                assert answer.status_code == 400, (name, answer.text)
            warned = calls_of(name)[2].verdict.message
            assert json.dumps(warned, ensure_ascii=False)[1:-1] in world.model.asked[-1].body.decode(), name


def read(shape, is_stream, content):
    """Read an answer; LiteLLM leaves out some of what model servers send in streams of responses."""
    if (shape, is_stream) == ("responses", True):
        done = next(one for one in documents(content) if one["type"] == "response.completed")
        return responses_items(done["response"]["output"])
    return READERS[shape, is_stream](content)
