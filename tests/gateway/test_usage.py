"""Tokens and costs of the answers: a budget in money needs nothing but a base URL, and the client sees what it asked for."""

import json
from decimal import Decimal

import pytest
from django.test import Client

from detection.engine.scopes import PROJECT
from detection.gateway import traffic
from detection.models import Event, GatewayTraffic, Incident, Session
from detection.services.audit import SYSTEM
from detection.services.gateway import prices
from detection.services.policies import overrides
from tests.console.scenes import text
from tests.support.model_answers import answered, call, chat_chunk, sse
from tests.support.model_server import Answer, of_events, of_json
from tests.support.projects import make_member

from .agents import Agent
from .conftest import World, wait_for
from .forms import forms_in_turns

ASKED = {"include_usage": True}


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.05)


def price(world, **amounts):
    amounts = {"input_usd": 1_000, "output_usd": 1_000} | amounts
    return prices.save_price(world.project.pk, SYSTEM, **{"model": "*-x", **amounts})


def healthy(asked, shape, world):
    return answered(asked, shape, "", [call(q=f"page {len(world.model.asked)}")])


@forms_in_turns
def test_a_budget_in_money_stops_an_agent_that_only_has_a_base_url(world: World, shape, is_stream):
    """Each answer costs 0.94 dollars; the calls differ, so that nothing else is found."""
    price(world)
    limits = {"budget_enabled": True, "budget_max_cost_usd": 3.0, "budget_ladder": "break"}
    overrides.save_override(world.project.pk, PROJECT, limits, SYSTEM, "for the test")
    world.model.script = lambda asked: healthy(asked, shape, world)
    agent = Agent(world, shape, is_stream, session="", asks_usage=False)
    last = agent.run(result=lambda one: f"found {one[2]}")
    assert agent.runs == 3
    assert "US dollars" in last.text
    session = Session.objects.get()
    assert (session.state, float(session.cost_usd)) == ("stopped", 3.76)
    assert Incident.objects.filter(kind="budget", session=session).exists()


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_answer_without_calls_costs_too_and_an_unknown_model_has_no_cost(world: World, is_stream):
    world.model.script = lambda asked: answered(asked, "anthropic", "Done.")
    agent = Agent(world, "anthropic", is_stream)
    agent.turn()
    wait_for(lambda: Event.objects.filter(type="usage", session__external_id="s-1").count() == 1)
    rows = GatewayTraffic.objects.filter(period=0, backend=world.backend("anthropic"))
    wait_for(lambda: rows.filter(unpriced_tokens=940, cost_usd=0, cached_tokens=100).exists())
    price(world)
    other = Agent(world, "anthropic", is_stream, session="s-2")
    # Prices are at most a second old.
    wait_for(lambda: other.ask() and Session.objects.filter(external_id="s-2", cost_usd__gt=0).exists())
    first = Session.objects.get(external_id="s-1")
    assert (first.token_count, first.cost_usd) == (940, Decimal(0))
    wait_for(lambda: rows.filter(unpriced_tokens=940, cost_usd__gt=0, cached_tokens__gte=200).exists())


def test_an_answer_that_is_asked_for_again_by_an_sdk_costs_again_and_its_calls_count_once(world: World):
    price(world)
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    agent = Agent(world)
    for count in range(3):
        agent.headers = {"x-stainless-retry-count": str(count)}
        agent.ask()
    session = Session.objects.get()
    assert (session.call_count, session.token_count, float(session.cost_usd)) == (1, 3 * 940, 2.82)


# What the client sees


def stream(world, **more):
    request = {"model": "gpt-x", "stream": True, "messages": [{"role": "user", "content": "x"}], **more}
    return world.http(**{"LoopGuard-Session": "s-1"}).post("/chat/completions", json=request).content


def as_servers_do(asked, calls=()):
    """Chunks of a server that has an empty usage in each of them, once it is asked."""
    is_asked = bool((asked.document.get("stream_options") or {}).get("include_usage"))
    null = {"usage": None} if is_asked else {}
    parts = [chat_chunk(1, {"role": "assistant", "content": 'say ,"usage":null'}, **null)]
    parts.append(chat_chunk(1, {"content": " twice"}, **null) + chat_chunk(1, {"content": "."}, **null))
    for one in calls:
        function = {"name": one[1], "arguments": json.dumps(one[2])}
        fragment = {"index": 0, "id": one[0], "type": "function", "function": function}
        parts.append(chat_chunk(1, {"tool_calls": [fragment]}, **null))
    parts.append(chat_chunk(1, {}, "tool_calls" if calls else "stop", **null))
    if is_asked:
        usage = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940}
        parts.append(
            sse({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        )
    return of_events([*parts, sse("[DONE]")])


@pytest.mark.parametrize("calls", [(), (call("read"),)])
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}]
)
def test_a_client_that_does_not_ask_for_usage_gets_the_same_bytes_as_without_us(world: World, calls, options):
    world.model.script = lambda asked: as_servers_do(asked, calls)
    got = stream(world, **options)
    asked = world.model.asked[0]
    assert asked.document["stream_options"] == ASKED
    if not options:
        assert asked.body.endswith(b',"stream_options":{"include_usage":true}}')
    asked.body = asked.body.replace(b"true}", b"false}")
    assert got == b"".join(as_servers_do(asked, calls).parts)
    wait_for(lambda: Session.objects.filter(token_count=940).exists())


@pytest.mark.parametrize("calls", [(), (call("read"),)])
def test_a_client_that_asks_for_usage_gets_it(world: World, calls):
    world.model.script = lambda asked: as_servers_do(asked, calls)
    got = stream(world, stream_options=ASKED)
    assert got == b"".join(as_servers_do(world.model.asked[0], calls).parts)


def test_a_backend_can_be_left_as_the_agent_asks(world: World):
    world.change(requests_usage=False)
    world.model.script = as_servers_do
    stream(world)
    assert "stream_options" not in world.model.asked[0].document


def test_a_server_that_rejects_the_option_is_asked_without_it_and_not_again(world: World):
    def script(asked):
        if "stream_options" in asked.document:
            return of_json({"error": {"message": "Unrecognized request argument: stream_options"}}, 400)
        return as_servers_do(asked)

    world.model.script = script
    for _ in range(2):
        assert b"[DONE]" in stream(world)
    assert ["stream_options" in one.document for one in world.model.asked] == [True, False, False]


def test_every_other_error_arrives_as_it_is(world: World):
    error = json.dumps({"error": {"message": "too long " * 20_000}}).encode()
    world.model.script = lambda asked: Answer([error], 400)
    assert stream(world) == error
    assert len(world.model.asked) == 1


# Counts


def numbers(world, name="openai"):
    return GatewayTraffic.objects.filter(backend=world.backend(name), period=0).values().first() or {}


def test_requests_tokens_and_added_time_are_counted(world: World):
    world.model.script = lambda asked: healthy(asked, "openai", world)
    agent = Agent(world)
    for _ in range(3):
        agent.turn(lambda one: f"found {one[2]}")
    wait_for(lambda: sum(numbers(world).get("added_counts", ())) == 3)
    found = numbers(world)
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (3, 2_700, 120)
    assert found["added_ms"] > 0
    models = GatewayTraffic.objects.filter(backend=world.backend(), period=60).values_list("model", flat=True)
    assert set(models) == {"gpt-x"}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("rate_limited", lambda asked: of_json({}, 429)),
        ("client_errors", lambda asked: of_json({}, 404)),
        ("server_errors", lambda asked: of_json({}, 503)),
        ("unreachable", lambda asked: Answer(ends="refused")),
        ("cut", lambda asked: Answer([b'{"cho'], ends="cut")),
        ("unreadable", lambda asked: Answer([b"no json"])),
        ("unreadable", lambda asked: Answer([b"<p>"], headers={"Content-Type": "text/html"})),
    ],
)
def test_errors_of_the_model_server_are_counted_by_kind(world: World, kind, answer):
    world.model.script = answer
    request = {"model": "gpt-x", "messages": [{"role": "user", "content": "x"}]}
    try:
        world.http().post("/chat/completions", json=request)
    except Exception as error:  # noqa: BLE001 (a cut response, in one case)
        assert kind == "cut", error
    wait_for(lambda: numbers(world).get(kind) == 1)
    assert numbers(world)["requests"] == 1
    is_rejected = kind in ("rate_limited", "client_errors", "server_errors", "unreachable")
    wait_for(lambda: sum(numbers(world)["added_counts"]) == 1)
    models = GatewayTraffic.objects.filter(backend=world.backend(), period=60).values_list("model", flat=True)
    assert set(models) == {"" if is_rejected else "gpt-x"}


def test_paths_that_pass_unread_are_counted(world: World):
    world.http().get("/files")
    wait_for(lambda: numbers(world).get("requests") == 1)


def test_the_page_of_a_session_tells_how_it_came_in_and_that_its_cost_is_unknown(world: World):
    world.model.script = lambda asked: healthy(asked, "openai", world)
    Agent(world).turn()
    console = Client()
    console.force_login(make_member(world.project))
    page = text(console.get(f"/p/{world.project.slug}/sessions/s-1"))
    assert "gateway, backend openai" in page
    assert "cost – · 940 tokens" in page


@pytest.mark.parametrize(
    ("name", "path", "count"), [("openai", "/chat/completions", 0), ("anthropic", "/v1/messages", 1)]
)
def test_clients_that_leave_are_counted_unless_they_have_the_whole_answer(world: World, name, path, count):
    """The stream of one ends but for the connection; that of the other falls silent in the middle."""

    def script(asked):
        answer = answered(asked, name, "Hm.")
        answer.parts, answer.ends = answer.parts[: 4 if count else None], "silent"
        return answer

    world.model.script = script
    request = {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}], "stream_options": {"include_usage": True},
    }  # fmt: skip
    end = b"Hm." if count else b"[DONE]"
    with world.http(name, **{"LoopGuard-Session": "s-1"}).stream("POST", path, json=request) as answer:
        next(part for part in answer.iter_raw() if end in part)
    wait_for(lambda: world.model.gone == 1)
    wait_for(lambda: numbers(world, name).get("input_tokens") == 900)
    wait_for(lambda: Event.objects.filter(type="usage").count() == 1)
    assert (numbers(world, name)["requests"], numbers(world, name)["abandoned"]) == (1, count)
