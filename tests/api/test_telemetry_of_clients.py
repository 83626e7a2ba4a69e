"""OpenTelemetry of programs of which only the model's client is instrumented: calls and results are in its messages."""

import gzip
import json
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from detection.models import Event, Incident, Session
from detection.services.sessions.evaluation import evaluate
from tests.api.test_telemetry import accepted, send, tool_span

PAYLOADS = Path(__file__).with_name("otlp_payloads") / "clients"
RECORDED = sorted(path.name.removesuffix(".pb.gz") for path in PAYLOADS.glob("*.pb.gz"))


def recorded(name):
    """A program that asked five times for the same search and then gave up, as its instrumentation reported it."""
    return ExportTraceServiceRequest.FromString(gzip.decompress((PAYLOADS / f"{name}.pb.gz").read_bytes()))


def one_by_one(request):
    """Each span of a request in one of its own."""
    for group in request.resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                one = ExportTraceServiceRequest()
                part = one.resource_spans.add(resource=group.resource).scope_spans.add(scope=scope.scope)
                part.spans.append(span)
                yield one


def evaluated():
    for session in Session.objects.all():
        while evaluate(session.key):
            pass


def asked(number, *calls, history=(), prompt="Find it.", scope="", parent=b"", **more):
    """One request of a model's client, after a history of pairs of a call and its result."""
    before = [{"role": "user", "parts": [{"type": "text", "content": prompt}]}]
    for call_id, query, result in history:
        call = {"type": "tool_call", "id": call_id, "name": "search", "arguments": {"q": query}}
        before.append({"role": "assistant", "parts": [call]})
        answer = {"type": "tool_call_response", "id": call_id, "response": result}
        before.append({"role": "tool", "parts": [answer]})
    said = [
        {"type": "tool_call", "id": call_id, "name": "search", "arguments": {"q": query}}
        for call_id, query in calls
    ]
    request = tool_span(
        trace=bytes([97 + number]) * 16,
        span=bytes([97 + number]) * 8,
        start=10**18 + number * 10**9,
        **{
            "gen_ai.operation.name": "chat",
            "gen_ai.tool.name": "",
            "gen_ai.input.messages": json.dumps(before),
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": said}]),
        },
        **more,
    )
    group = request.resource_spans[0].scope_spans[0]
    group.scope.name, group.spans[0].parent_span_id = scope, parent
    return request


def calls():
    return [
        (one.tool, json.loads(one.arguments), one.call_id)
        for one in Event.objects.filter(type="call").order_by("session_id", "seq")
    ]


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("way", ["at once", "one by one and again"])
def test_a_conversation_is_one_session_and_its_loop_an_incident(api, name, way):
    whole = recorded(name)
    requests = [whole] if way == "at once" else [*one_by_one(whole), *one_by_one(whole)]
    for request in requests:
        assert not accepted(send(api, request)).error_message
    evaluated()
    session = Session.objects.get()
    assert (session.call_count, session.agent) == (5, "helper")
    assert session.token_count == sum(20 * number + 9 for number in range(1, 7))
    assert {(tool, *arguments.items()) for tool, arguments, _ in calls()} == {("search", ("query", "x"))}
    results = Event.objects.filter(type="result")
    assert [one.content for one in results] == ["0 hits"] * 5
    assert not results.filter(closes=0).exists()
    assert [one.content for one in Event.objects.filter(type="message", role="assistant")] == ["I give up."]
    incident = Incident.objects.get()
    assert (incident.tool, incident.kind) == ("search", "repeat")


def test_different_searches_are_none(api):
    words = ("apples", "boats", "clouds", "drums", "engines", "forests")
    history: list[tuple[str, str, str]] = []
    for number, word in enumerate(words):
        accepted(send(api, asked(number, (f"c{number}", word), history=history)))
        history.append((f"c{number}", word, f"{word} are {number * 7919} of a kind"))
    evaluated()
    assert Session.objects.get().call_count == len(words)
    assert not Incident.objects.exists()


def test_ids_that_a_server_gives_again_are_calls_of_their_own(api):
    history: list[tuple[str, str, str]] = []
    for number in range(4):
        accepted(send(api, asked(number, ("call_0", "x"), history=history)))
        history.append(("call_0", "x", "0 hits"))
    evaluated()
    assert [call_id for _, _, call_id in calls()] == ["call_0", "call_0#2", "call_0#3", "call_0#4"]
    assert Incident.objects.get().calls_in_loop >= 3


def test_two_conversations_with_the_same_prompt_are_two_sessions(api):
    accepted(send(api, asked(0, ("a1", "x"))))
    accepted(send(api, asked(1, ("b1", "x"))))
    accepted(send(api, asked(2, ("a2", "x"), history=[("a1", "x", "0 hits")])))
    assert (
        sorted(Session.objects.values_list("call_count", flat=True)) == [0, 0] or Session.objects.count() == 2
    )
    by_session = Event.objects.filter(type="call").values_list("session__external_id", "call_id")
    names = {call_id: name for name, call_id in by_session}
    assert names["a1"] == names["a2"] != names["b1"]


def test_an_answer_that_was_lost_is_known_from_the_next_request(api):
    accepted(send(api, asked(0, ("a1", "x"))))
    history = [("a1", "x", "0 hits"), ("a2", "x", "0 hits")]
    accepted(send(api, asked(2, ("a3", "x"), history=history)))
    assert [call_id for _, _, call_id in calls()] == ["a1", "a2", "a3"]
    assert Event.objects.filter(type="result").count() == 1


def test_six_calls_of_one_answer_are_one_round(api):
    accepted(send(api, asked(0, *[(f"a{number}", "x") for number in range(6)])))
    evaluated()
    assert len(calls()) == 6
    assert not Incident.objects.exists()


@pytest.mark.parametrize(
    ("scope", "is_read"),
    [
        ("opentelemetry.instrumentation.openai.v1", True),
        ("openinference.instrumentation.anthropic", True),
        ("logfire.openai", True),
        ("pydantic-ai", False),
        ("opentelemetry.instrumentation.openai_agents", False),
        ("", False),
    ],
)
def test_below_a_span_that_is_not_here_only_clients_are_read(api, scope, is_read):
    """An agent's span comes after those below it, and its tools have spans of their own."""
    accepted(send(api, asked(0, ("a1", "x"), scope=scope, parent=b"p" * 8)))
    assert len(calls()) == (1 if is_read else 0)


def test_a_call_that_has_a_span_of_its_own_counts_once(api):
    request = asked(0, ("a1", "x"), **{"gen_ai.conversation.id": "talk"})
    about = {"gen_ai.tool.call.arguments": '{"q": "x"}', "gen_ai.tool.call.id": "a1"}
    tool_span(request, trace=b"a" * 16, span=b"z" * 8, **about, **{"gen_ai.conversation.id": "talk"})
    accepted(send(api, request))
    assert len(calls()) == 1


def test_below_an_agent_its_tools_have_spans_of_their_own(api):
    request = asked(0, ("a1", "x"), parent=b"p" * 8, scope="opentelemetry.instrumentation.openai.v1")
    about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "finder"}
    tool_span(request, trace=b"a" * 16, span=b"p" * 8, **about)
    accepted(send(api, request))
    assert not calls()


def test_the_messages_of_an_answer_may_be_anything(api):
    wrong = ["[]", "{}", "[1, null, {}]", '[{"parts": [1, {"type": "tool_call"}]}]', "x", "[" * 50]
    for number, text in enumerate(wrong):
        about = {
            "gen_ai.operation.name": "chat",
            "gen_ai.output.messages": text,
            "gen_ai.input.messages": text,
        }
        accepted(send(api, tool_span(span=bytes([64 + number]) * 8, **about)))
    flat = {f"llm.output_messages.{at}.message.tool_calls.{at}.tool_call.id": "x" for at in (0, 7, 999999)}
    accepted(send(api, tool_span(**flat, **{"openinference.span.kind": "LLM"})))
    assert not calls()
