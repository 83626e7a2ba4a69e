"""Google's protocol: whole, as server-sent events, and as a stream that is one list. Requests of other paths are counted."""

from zlib import crc32

import pytest
from django.test import Client
from django.urls import reverse

from detection.engine.scopes import Scope
from detection.gateway import traffic
from detection.gateway.routes import is_harmless, protocol_of
from detection.models import Event, Incident, Session
from detection.selectors.gateway_traffic import traffic_totals
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.support.model_answers import answered, call, gemini_whole
from tests.support.model_server import of_json
from tests.support.projects import make_member

from .agents import Agent
from .conftest import World, wait_for

forms = pytest.mark.parametrize("is_stream", [False, True])
MODELS = "/v1beta/models"


def decisions():
    return [*Event.objects.filter(type="call").order_by("seq").values_list("decision", flat=True)]


def found(one):
    """The result of a call: something else for each argument."""
    return f"{crc32(one[2]['q'].encode()):,} lines"


def stuck(world, **more):
    world.model.script = lambda asked: answered(asked, "gemini", "Let me see.", [call(**more)])


@forms
@pytest.mark.parametrize("session", ["", "s-1"])
def test_a_stuck_run_is_warned_then_blocked_then_ended(world: World, is_stream, session):
    stuck(world)
    agent = Agent(world, "gemini", is_stream, session)
    last = agent.run()
    assert agent.runs == 3
    assert decisions() == ["allow", "allow", "warn", "block", "block", "block"]
    assert "LoopGuard blocked every call of this answer, so it ends here. The call was not run." in last.text
    assert last.text.endswith(f"/sessions/{Session.objects.get().external_id}")
    assert Incident.objects.get().kind == "repeat"
    row = Session.objects.get()
    assert (row.model, row.token_count) == ("gemini-x", 6 * 940)
    warned = world.model.asked[3].document["contents"][-1]["parts"][0]["functionResponse"]["response"]
    assert "3 times" in warned["loopguard"]
    assert warned["output"] == "0 hits"


@forms
def test_the_model_is_asked_again_with_what_it_said_and_the_reason(world: World, is_stream):
    stuck(world)
    Agent(world, "gemini", is_stream).run()
    asked = world.model.asked[4].document
    assert set(asked) == {"contents"}
    said, refused = asked["contents"][-2:]
    assert [*said["parts"][-1 if not is_stream else -2]] == ["functionCall", "thoughtSignature"]
    assert "was not run" in refused["parts"][0]["functionResponse"]["response"]["error"]


@forms
def test_a_healthy_run_is_untouched(world: World, is_stream):
    def script(asked):
        turn = len(world.model.asked)
        return answered(
            asked, "gemini", "So.", [call(q=f"page {turn}"), call("read", q=f"{turn}")] if turn <= 8 else []
        )

    world.model.script = script
    agent = Agent(world, "gemini", is_stream, "")
    assert agent.run(result=found).text.strip() == "So."
    assert agent.runs == 16
    assert decisions() == ["allow"] * 16
    assert world.model.asked[-1].document["contents"] == agent.messages[:-1]
    wait_for(lambda: Event.objects.filter(type="result").count() == 16)
    assert Session.objects.count() == 1


@forms
def test_of_several_calls_the_blocked_one_is_put_back(world: World, is_stream):
    read = Scope("tool", pattern="read")
    overrides.save_override(world.project.pk, read, {}, exempt=True, actor=SYSTEM, note="for the test")

    def script(asked):
        turn = len(world.model.asked)
        return answered(asked, "gemini", "", [call("read", q=f"{turn}"), call()] if turn <= 5 else [])

    world.model.script = script
    agent = Agent(world, "gemini", is_stream)
    agent.run(result=lambda one: "0 hits" if one[1] == "search" else found(one))
    assert agent.runs == 8
    assert decisions().count("block") == 2
    contents = world.model.asked[-1].document["contents"]
    *_, said, results = contents
    assert [part["functionCall"]["name"] for part in said["parts"]] == ["read", "search"]
    assert {part["functionResponse"]["name"] for part in results["parts"]} == {"read", "search"}


def test_a_stream_that_is_a_list_is_read(world: World):
    def script(asked):
        number = len(world.model.asked)
        chunks = [gemini_whole(number, "Let me see.", []), gemini_whole(number, "", [call()])]
        return of_json(chunks)

    world.model.script = script
    contents = [{"role": "user", "parts": [{"text": "reset my password"}]}]
    texts = []
    for _ in range(5):
        with world.http("gemini", **{"LoopGuard-Session": "s-1"}) as http:
            got = http.post(f"{MODELS}/gemini-x:streamGenerateContent", json={"contents": contents}).json()
        assert isinstance(got, list)
        parts = [part for chunk in got for part in chunk["candidates"][0]["content"]["parts"]]
        texts.append("".join(part.get("text", "") for part in parts))
        contents.append({"role": "model", "parts": parts})
        results = [
            {"name": "search", "response": {"output": "0 hits"}} for part in parts if "functionCall" in part
        ]
        contents.append(
            {"role": "user", "parts": [{"functionResponse": one} for one in results] or [{"text": "go"}]}
        )
        if not results:
            break
    assert len(texts) == 4
    assert "was not run" in texts[-1]


@forms
def test_commands_in_a_prompt_are_executed_and_kept_from_the_model(world: World, is_stream):
    world.model.script = lambda asked: answered(asked, "gemini", "Done.")
    agent = Agent(world, "gemini", is_stream)
    agent.run()
    agent.say("go on !/set(tool-loop-max-repeats=7)")
    assert agent.run().text.startswith("[LoopGuard: tool-loop-max-repeats is now 7.]")
    assert "!/set" not in world.model.asked[-1].body.decode()
    agent.say("!/set(tool-loop-max-repeats=8)")
    asked = len(world.model.asked)
    assert agent.run().text == "tool-loop-max-repeats is now 8."
    assert len(world.model.asked) == asked
    assert Session.objects.get().policy_values == {"max_repeats": 8}


@forms
def test_a_program_that_continues_an_ended_run_is_answered_without_the_model(world: World, is_stream):
    stuck(world)
    agent = Agent(world, "gemini", is_stream)
    for _ in range(6):
        last = agent.run()
        agent.say("go")
    assert (agent.runs, len(world.model.asked)) == (3, 8)
    assert last.text.startswith("LoopGuard ended this run")


def as_googles_packages_return_it(messages):
    """One message for each part of an answer, and signatures in the letters of addresses."""
    for message in messages:
        if message["role"] != "model":
            yield message
            continue
        for part in message["parts"]:
            signature = part.get("thoughtSignature", "").translate(str.maketrans("+/", "-_"))
            yield {"role": "model", "parts": [part | ({"thoughtSignature": signature} if signature else {})]}


def as_gemini_cli_returns_it(messages):
    """With ids of its own, and where a call has no signature, one that says so."""
    made = 0
    for message in messages:
        parts = []
        for part in message["parts"]:
            for kind in ("functionCall", "functionResponse"):
                if kind in part:
                    made += kind == "functionCall"
                    own = {"id": f"{part[kind]['name']}_{1795909255018 + made}_0"}
                    signed = {"thoughtSignature": "skip_thought_signature_validator", **part}
                    part = signed | {kind: {**part[kind], **own}}
            parts.append(part)
        yield message | {"parts": parts}


@forms
@pytest.mark.parametrize("is_signed", [True, False])
def test_calls_with_ids_of_the_client_count_once(world: World, is_stream, is_signed):
    def script(asked):
        answer = answered(asked, "gemini", "Let me see.", [call()])
        if not is_signed:
            answer.parts = [answer.body.replace(b"thoughtSignature", b"other")]
        return answer

    world.model.script = script
    agent = Agent(world, "gemini", is_stream, session="")
    for _ in range(12):
        given = agent.turn()
        agent.messages = [*as_gemini_cli_returns_it(agent.messages)]
        if not given.calls:
            break
    assert agent.runs == 3
    assert decisions() == ["allow", "allow", "warn", "block", "block", "block"]
    assert Session.objects.count() == 1


@forms
def test_answers_that_come_back_in_parts_and_in_other_letters_count_once(world: World, is_stream):
    world.model.script = lambda asked: answered(asked, "gemini", "Let me see.", [call(), call("read")])
    agent = Agent(world, "gemini", is_stream)
    for _ in range(12):
        given = agent.turn()
        agent.messages = [*as_googles_packages_return_it(agent.messages)]
        if not given.calls:
            break
    calls = Event.objects.filter(type="call").order_by("seq")
    assert [*calls.values_list("tool", flat=True)] == ["search", "read"] * len(world.model.asked)


def test_the_credential_of_the_deployment_travels_in_the_header_of_google(world: World):
    world.change("gemini", credential="MAIN")
    stuck(world)
    Agent(world, "gemini", headers={"Authorization": "Bearer lgx", "x-goog-api-key": "of-the-client"}).turn()
    headers = world.model.asked[0].headers
    assert (headers["x-goog-api-key"], headers.get("authorization")) == ("sk-of-the-deployment", None)


@pytest.mark.parametrize(
    ("path", "query", "is_guarded"),
    [
        (b"/v1beta/models/gemini-x:generateContent", b"", True),
        (b"/v1beta/models/gemini-x:streamGenerateContent", b"alt=sse&key=k", True),
        (b"/v1/projects/p/locations/eu/publishers/google/models/gemini-x:generateContent", b"", True),
        (b"/v1beta/models/gemini-x:countTokens", b"", False),
        (b"/v1beta/models/gemini-x:embedContent", b"", False),
        (b"/v1beta/generateContent", b"", False),
    ],
)
def test_paths_of_google_that_are_guarded(path, query, is_guarded):
    assert bool(protocol_of(b"POST", path, query)) is is_guarded
    assert protocol_of(b"GET", path, query) is None
    assert is_harmless(b"POST", path) is path.endswith(b":countTokens")


def test_requests_of_other_paths_are_counted_as_not_guarded(world: World, monkeypatch):
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.1)
    world.model.script = lambda asked: of_json({"embedding": {"values": []}})
    with world.http("gemini") as http:
        for path in ("gemini-x:embedContent", "gemini-x:countTokens"):
            assert http.post(f"{MODELS}/{path}", json={}).status_code == 200
        assert http.get(MODELS).status_code == 200
    stuck(world)
    Agent(world, "gemini").turn()
    wait_for(lambda: traffic_totals() and traffic_totals()[0][2].requests == 4)
    assert traffic_totals()[0][2].unguarded == 1
    console = Client()
    console.force_login(make_member(world.project))
    page = console.get(reverse("console:gateway_traffic", args=[world.project.slug]))
    assert b"1 not guarded" in page.content
