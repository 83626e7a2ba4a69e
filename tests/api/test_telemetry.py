"""POST /api/v1/otlp/v1/traces and /logs: the payloads were recorded from the instrumentations themselves."""

import gzip
import itertools
import json
from pathlib import Path

import orjson
import pytest
from google.protobuf import json_format
from google.rpc import code_pb2, status_pb2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from detection.models import Event, Incident, Session
from detection.services.sessions.evaluation import evaluate
from tests.support.projects import make_key

PAYLOADS = Path(__file__).with_name("otlp_payloads")
PROTOBUF = "application/x-protobuf"
RECORDED = sorted(path.name.removesuffix(".pb.gz") for path in PAYLOADS.glob("*.pb.gz"))


def recorded(name):
    return ExportTraceServiceRequest.FromString(gzip.decompress((PAYLOADS / f"{name}.pb.gz").read_bytes()))


def spans_of(request):
    return [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]


def send(api, request, path="/otlp/v1/traces", **headers):
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return api.raw(path, body, content_type=PROTOBUF, **headers)


def accepted(response):
    assert response.status_code == 200, response.content
    assert response.headers["content-type"] == PROTOBUF
    return ExportTraceServiceResponse.FromString(response.content).partial_success


def history(session):
    rows = Event.objects.filter(session__external_id=session).order_by("seq")
    return [(row.type, row.tool, row.arguments, row.content, row.is_error) for row in rows]


def evaluated():
    """All sessions, once what was sent is evaluated; by agent."""
    for session in Session.objects.all():
        while evaluate(session.key):
            pass
    return {session.agent: session for session in Session.objects.all()}


def tool_span(request=None, trace=b"t" * 16, span=b"s" * 8, start=10**18, **attributes):
    """A request with a span of a tool."""
    request = request or ExportTraceServiceRequest()
    one = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=trace, span_id=span, start_time_unix_nano=start, end_time_unix_nano=start + 10**6)
    )
    names = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
    for key, value in (names | attributes).items():
        one.attributes.add(key=key).value.string_value = value
    return request


SEARCHES = [("search", "0 hits", False)] * 3


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_agent_appears_with_its_calls_results_usage_and_loop(api, name):
    done = accepted(send(api, recorded(name)))
    assert (done.rejected_spans, done.error_message) == (0, "")
    rows = evaluated()
    main = rows.get("finder") or next(iter(rows.values()))
    assert main.integration == "otlp"
    assert (main.state, main.outcome) == ("ended", "completed" if "agents" in name else "failed")
    calls = [event for event in main.events.order_by("seq") if event.type == "call"]
    results = {event.closes: event for event in main.events.all() if event.type == "result"}
    answered = [(call.tool, results[call.seq].content, results[call.seq].is_error) for call in calls]
    assert answered[:3] == SEARCHES
    assert ["x" in call.arguments for call in calls[:3]] == [True] * 3
    assert len({call.call_key for call in calls[:3]}) == 1
    # Two identical calls of one response are one repetition, and a failure has its message.
    assert len({call.call_key for call in calls if '"p"' in call.arguments or call.arguments == "p"}) == 1
    errors = [content for _, content, is_error in answered if is_error]
    assert "down" in errors[-1] or "An error occurred" in errors[-1]
    assert [incident.tool for incident in Incident.objects.all()] == ["search"]
    assert Incident.objects.get().calls_in_loop == 3
    assert bool(main.token_count) == (name in ("pydantic", "lc_oi", "lc_tl"))
    assert [event.content for event in main.events.filter(type="message", role="user")] == (
        [] if "agents" in name else ["Find x."]
    )


def test_an_agent_that_another_one_starts_is_a_session_of_its_own(api):
    accepted(send(api, recorded("pydantic")))
    rows = evaluated()
    assert rows["inner"].parent_external_id == rows["finder"].external_id
    assert rows["inner"].state == "ended"
    assert [event.content for event in rows["inner"].events.filter(type="message")] == ["inner done"]


@pytest.mark.parametrize("order", ["as they end", "parents first"])
def test_spans_may_come_one_by_one_in_any_order_and_again(api, order):
    spans = spans_of(recorded("pydantic"))
    requests = []
    for span in spans if order == "as they end" else reversed(spans):
        request = ExportTraceServiceRequest()
        request.resource_spans.add().scope_spans.add().spans.append(span)
        requests.append(request)
    for request in (*requests, *requests, recorded("pydantic")):
        assert not accepted(send(api, request)).error_message
    rows = evaluated()
    assert rows["inner"].parent_external_id == rows["finder"].external_id
    assert (rows["finder"].call_count, rows["inner"].call_count) == (8, 1)
    # Calls whose spans came after that of their agent did not open its session again.
    assert {(one.state, one.outcome) for one in rows.values()} == {
        ("ended", "completed"),
        ("ended", "failed"),
    }
    assert rows["finder"].token_count == 587
    assert Event.objects.filter(type="result", closes=0).count() == 0
    assert Event.objects.filter(type="message", role="assistant").count() == 1
    assert {incident.kind for incident in Incident.objects.all()} == {"repeat"}


def test_json_and_gzip_say_the_same_as_protobuf(api):
    document = json_format.MessageToDict(recorded("agents_v2"))
    for group in document["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for span, message in zip(scope["spans"], spans_of(recorded("agents_v2")), strict=True):
                span |= {"traceId": message.trace_id.hex(), "spanId": message.span_id.hex(), "unknown": 1}
                if message.parent_span_id:
                    span["parentSpanId"] = message.parent_span_id.hex()
    packed = gzip.compress(orjson.dumps(document))
    answer = api.raw("/otlp/v1/traces", packed, **{"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()) == (200, {})
    assert answer.headers["content-type"] == "application/json"
    number = Event.objects.count()
    assert number == 17
    # Claude Code sends the header as it stands in the environment.
    api.headers = {"Authorization": api.headers["Authorization"].replace(" ", "%20")}
    accepted(
        send(api, gzip.compress(recorded("agents_v2").SerializeToString()), **{"Content-Encoding": "gzip"})
    )
    assert Event.objects.count() == number


def of_ai_sdk(number, *, session="chat-7", query="x", result="0 hits"):
    """What the AI SDK reports of one step with its own names: the request to the model, and the tool's call."""
    call = json.dumps([{"toolCallId": f"call_{number}", "toolName": "search", "input": {"q": query}}])
    about = {
        "ai.telemetry.functionId": "finder",
        **({"ai.telemetry.metadata.sessionId": session} if session else {}),
    }
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    prompt = [{"role": "user", "content": [{"type": "text", "text": "Find x."}]}]
    start = 10**18 + number * 10**9
    for place, (name, values) in enumerate(
        [
            (
                "ai.generateText.doGenerate",
                {
                    "gen_ai.system": "openai.chat",
                    "gen_ai.request.model": "gpt-5",
                    "ai.prompt.messages": json.dumps(prompt[: 1 if number == 0 else 0]),
                    "ai.response.toolCalls": call,
                },
            ),
            (
                "ai.toolCall",
                {
                    "ai.toolCall.name": "search",
                    "ai.toolCall.id": f"call_{number}",
                    "ai.toolCall.args": json.dumps({"q": query}),
                    "ai.toolCall.result": json.dumps(result),
                },
            ),
        ]
    ):
        at = start + place * 10**8
        one = spans.add(
            trace_id=b"t" * 16,
            span_id=bytes([64 + number, place + 1]) * 4,
            name=name,
            start_time_unix_nano=at,
            end_time_unix_nano=at + 10**7,
        )
        for key, value in (values | about | {"ai.operationId": name}).items():
            one.attributes.add(key=key).value.string_value = value
    one = spans[0]
    one.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = 90
    return request


def test_the_names_of_the_ai_sdk_are_read_and_a_loop_becomes_an_incident(api):
    for number in range(4):
        accepted(send(api, of_ai_sdk(number)))
    evaluated()
    session = Session.objects.get()
    assert (session.external_id, session.agent, session.model) == ("chat-7", "finder", "gpt-5")
    assert session.token_count == 4 * 90
    calls = Event.objects.filter(type="call").order_by("seq")
    assert [(one.tool, one.arguments, one.call_id) for one in calls] == [
        ("search", '{"q": "x"}', f"call_{number}") for number in range(4)
    ]
    assert Event.objects.filter(type="message", role="user").get().content == "Find x."
    assert not Event.objects.filter(type="message", role="assistant").exists()
    assert Incident.objects.get().tool == "search"


def test_different_calls_of_the_ai_sdk_are_none(api):
    words = ("apples", "boats", "clouds", "drums", "engines", "forests")
    for number, word in enumerate(words):
        accepted(send(api, of_ai_sdk(number, session="", query=word, result=f"{word * 3} {number * 7919}")))
    evaluated()
    assert Session.objects.count() == 1
    assert not Incident.objects.exists()


def said(number, text, **more):
    parts = json.dumps(
        [
            {
                "role": "assistant",
                "parts": text if isinstance(text, list) else [{"type": "text", "content": text}],
            }
        ]
    )
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "talk",
        "gen_ai.output.messages": parts,
    }
    return tool_span(span=bytes([64 + number]) * 8, start=10**18 + number * 10**9, **about, **more)


FLAT = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "talk"}


@pytest.mark.parametrize(
    "spans",
    [
        [said(n, "I will write the document now.") for n in range(1, 4)],
        [said(n, "") for n in range(1, 4)],
        [
            tool_span(
                span=bytes([64 + n]) * 8, start=10**18 + n, **FLAT, **{"gen_ai.completion.0.content": ""}
            )
            for n in range(1, 4)
        ],
    ],
)
def test_the_third_equal_answer_of_a_model_without_a_call_is_an_incident(api, spans):
    for number, span in enumerate(spans):
        assert not Incident.objects.exists(), number
        accepted(send(api, span))
        evaluated()
    assert Incident.objects.get().kind == "talk"


@pytest.mark.parametrize(
    "more",
    [
        {
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "tool_call", "name": "search"}]}]
            )
        },
        {"gen_ai.completion.0.content": "", "gen_ai.completion.0.tool_calls.0.name": "search"},
        {"gen_ai.completion.0.content": "", "gen_ai.completion.0.finish_reason": "tool_calls"},
        {"llm.output_messages.0.message.content": "", "gen_ai.response.finish_reasons": '["tool_use"]'},
        {"gen_ai.response.model": "m-1"},
    ],
)
def test_answers_with_calls_and_answers_that_are_not_recorded_are_no_empty_texts(api, more):
    for number in range(1, 6):
        accepted(send(api, tool_span(span=bytes([64 + number]) * 8, start=10**18 + number, **FLAT, **more)))
    evaluated()
    assert not Event.objects.filter(type="message").exists()
    assert not Incident.objects.exists()


def test_spans_without_a_session_join_that_of_their_trace(api):
    chat = tool_span(span=b"c" * 8, **{"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "talk"})
    accepted(send(api, chat))
    assert not Session.objects.exists()  # nothing happened in it yet
    about = {"gen_ai.tool.call.arguments": "{}"}
    accepted(send(api, tool_span(span=b"a" * 8, **about, **{"gen_ai.conversation.id": "talk"})))
    accepted(send(api, tool_span(span=b"b" * 8, **about)))
    accepted(send(api, tool_span(trace=b"u" * 16, **about)))
    assert {row.external_id: row.last_seq for row in Session.objects.all()} == {"talk": 4, "75" * 16: 2}


def test_a_call_after_the_end_of_a_session_opens_it_again_if_it_began_after_it(api):
    about = {"gen_ai.conversation.id": "talk", "gen_ai.tool.call.arguments": "{}"}
    second = 10**9
    accepted(send(api, tool_span(span=b"a" * 8, **about)))
    run = {"gen_ai.conversation.id": "talk", "gen_ai.operation.name": "invoke_agent"}
    accepted(send(api, tool_span(span=b"r" * 8, start=10**18 + 5 * second, **run)))
    for span, start, state in ((b"b", 4, "ended"), (b"c", 9, "running"), (b"d", 4, "running")):
        about["gen_ai.tool.call.arguments"] = f'{{"page": {start}}}'
        accepted(send(api, tool_span(span=span * 8, start=10**18 + start * second, **about)))
        (session,) = evaluated().values()
        assert session.state == state
    assert (session.call_count, session.outcome) == (4, "")


def test_what_is_wrong_with_a_span_rejects_it_alone(api):
    request = recorded("agents_v2")
    tool_span(request, span=b"n" * 8)
    tool_span(request, trace=b"short", **{"gen_ai.tool.call.arguments": "{}"})
    tool_span(request, span=b"l" * 8, **{"gen_ai.tool.call.arguments": "[" * 100 + "]" * 100})
    # Nothing is wrong with the span of a machine whose clock was never set.
    tool_span(request, span=b"e" * 8, start=1, **{"gen_ai.tool.call.arguments": "{}"})
    done = accepted(send(api, request))
    assert done.rejected_spans == 3
    assert done.error_message.startswith("invalid_id: 1; missing_arguments: 1; too_deep: 1. ")
    assert Event.objects.filter(type="call").count() == 9
    text = api.client.get("http://127.0.0.1/metrics", headers=api.headers).text
    assert 'loopguard_otlp_records_total{outcome="rejected",reason="too_deep",signal="spans"}' in text
    assert 'loopguard_otlp_records_total{outcome="ignored",reason="",signal="spans"}' in text


def test_telemetry_adds_nothing_to_a_session_that_is_reported_otherwise(api):
    about = {"gen_ai.conversation.id": "s-1", "gen_ai.tool.call.arguments": "{}"}
    accepted(send(api, tool_span(**about)))
    assert Session.objects.get().integration == "otlp"
    api.call(session="s-1")
    assert Session.objects.get().integration == "guard"
    accepted(send(api, tool_span(span=b"b" * 8, **about)))
    assert Event.objects.filter(type="call").count() == 2


@pytest.mark.parametrize(
    "path", sorted((PAYLOADS / "logs").iterdir()), ids=lambda path: path.name.split(".")[0]
)
def test_the_log_records_of_coding_agents_are_their_calls_prompts_and_usage(api, path):
    kind = PROTOBUF if ".pb" in path.name else "application/json"
    for _ in range(2):
        answer = api.raw("/otlp/v1/logs", gzip.decompress(path.read_bytes()), content_type=kind)
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    (session,) = evaluated().values()
    assert (session.integration, session.agent) == ("otlp", path.name.split(".")[0])
    assert session.call_count == 4
    assert session.token_count >= 75
    kinds = [event.type for event in session.events.order_by("seq")]
    assert kinds[:4] == ["message", "call", "usage", "result"]
    assert Event.objects.filter(type="usage", closes__gt=0).count() == 4
    assert {event.is_error for event in session.events.filter(type="result")} == {False}
    assert Incident.objects.get().calls_in_loop == 4


def test_metrics_are_accepted_and_ignored(api):
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="gemini_cli.tool.call.count")
    metric.sum.data_points.add(as_int=3)
    answer = send(api, request, "/otlp/v1/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, PROTOBUF)
    assert not ExportMetricsServiceResponse.FromString(answer.content).HasField("partial_success")
    answer = api.raw("/otlp/v1/metrics", json_format.MessageToJson(request).encode())
    assert (answer.status_code, answer.json()) == (200, {})
    assert not Session.objects.exists()
    for body, kind in ((b"\x0a\xff", PROTOBUF), (b"[]", "application/json"), (b"{", "application/json")):
        answer = api.raw("/otlp/v1/metrics", body, content_type=kind)
        assert answer.status_code == 400
        assert status_of(answer, kind).message.startswith("not_otlp: ")


def status_of(response, content_type=PROTOBUF):
    assert response.headers["content-type"] == content_type
    if content_type == PROTOBUF:
        return status_pb2.Status.FromString(response.content)
    return json_format.Parse(response.content, status_pb2.Status())


def test_errors_are_a_status_in_the_encoding_of_the_request(api, wsgi_client, project, settings):
    def broken(**more):
        return api.raw("/otlp/v1/traces", b"{", **more)

    answer = broken(content_type=PROTOBUF)
    assert answer.status_code == 400
    assert status_of(answer).code == code_pb2.INVALID_ARGUMENT
    assert status_of(answer).message.startswith("not_otlp: ")
    answer = broken()
    assert answer.status_code == 400
    assert status_of(answer, "application/json").message.startswith("not_otlp: ")
    assert broken(content_type="text/plain").status_code == 415
    assert send(api, b"", "/otlp/v1/profiles").status_code == 404
    assert status_of(send(api, b"", "/otlp/v1/profiles")).code == code_pb2.NOT_FOUND
    denied = wsgi_client.post(
        "/otlp/v1/logs",
        content=b"",
        headers={"Content-Type": PROTOBUF, "Authorization": f"Bearer {make_key(project, scopes=['read'])}"},
    )
    assert (denied.status_code, status_of(denied).code) == (403, code_pb2.PERMISSION_DENIED)
    settings.KEY_REQUESTS_PER_SECOND = 0.001
    late = [send(api, b"") for _ in range(2)][-1]
    assert (late.status_code, status_of(late).code) == (429, code_pb2.RESOURCE_EXHAUSTED)
    assert int(late.headers["retry-after"]) > 0


def test_a_request_may_have_20_mib_before_and_after_decompression(api):
    limit = 20 * 1024 * 1024
    # An unknown field of protobuf, so that the request is valid and empty.
    body = b"\xfa\x3f\xfa\xff\xff\x09" + bytes(limit - 6)
    assert len(body) == limit
    assert send(api, body).status_code == 200
    assert send(api, gzip.compress(body), **{"Content-Encoding": "gzip"}).status_code == 200
    for too_large in (body + b"x", gzip.compress(body + b"x")):
        headers = {"Content-Encoding": "gzip"} if too_large[:1] == b"\x1f" else {}
        answer = send(api, too_large, **headers)
        assert (answer.status_code, status_of(answer).message[:9]) == (413, "too_large")


def within(number, content):
    """A field of a message that contains another one."""
    size, length = len(content), b""
    while size > 127:
        size, length = size >> 7, length + bytes((size & 127 | 128,))
    return bytes((number << 3 | 2,)) + length + bytes((size,)) + content


def test_messages_are_counted_before_they_are_parsed(api):
    """Twenty kilobytes could otherwise become two gigabytes."""
    spans = within(1, within(2, b"\x12\x00" * 10_000_000))
    value = within(2, within(5, b"\x0a\x00" * 10_000_000))
    values = within(1, within(1, within(1, value)))
    logs = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + b"{}," * 100_000 + b"{}]}]}]}"
    for path, body, kind in (
        ("traces", spans, PROTOBUF),
        ("traces", values, PROTOBUF),
        ("logs", logs, "application/json"),
        ("logs", b"[" + b"{}," * 6_000_000 + b"{}]", "application/json"),
    ):
        answer = api.raw(
            f"/otlp/v1/{path}", gzip.compress(body, 1), content_type=kind, **{"Content-Encoding": "gzip"}
        )
        assert answer.status_code == 413, body[:60]
        assert status_of(answer, kind).message.startswith("too_many_records: ")
    cut = within(1, bytes(300_000))[:-7]
    assert status_of(send(api, cut)).message.startswith("not_otlp: ")


STRANGE = [
    {"intValue": "-5"}, {"doubleValue": "NaN"}, {"boolValue": True}, {"bytesValue": "AAAA"}, {}, {"stringValue": "\x00\x7f"},
    {"stringValue": "[[" * 500}, {"stringValue": '{"a":' * 40 + "1"},
    {"stringValue": '{"a":' * 1000 + '"' + "x" * 20_000 + '"' + "}" * 1000}, {"stringValue": "[" * 1000 + "1" * 17_000 + "]" * 1000},
    {"arrayValue": {"values": [{"intValue": 1}]}},
    {"kvlistValue": {"values": [{"key": "k" * 300, "value": {"stringValue": "v"}}]}}, {"stringValue": "9" * 70_000},
]  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_no_value_of_an_attribute_is_an_error_of_the_server(api, name):
    request = ExportTraceServiceRequest()
    numbers = itertools.count(1)
    for span in spans_of(recorded(name)):
        for at, attribute in enumerate(span.attributes):
            one = request.resource_spans.add().scope_spans.add().spans.add()
            one.CopyFrom(span)
            one.span_id = next(numbers).to_bytes(8)
            one.start_time_unix_nano = 2**64 - 1 if at % 2 else 0
            value = STRANGE[(at + len(request.resource_spans)) % len(STRANGE)]
            one.attributes[at].value.CopyFrom(json_format.ParseDict(value, type(attribute.value)()))
    assert send(api, request).status_code == 200
    evaluated()


@pytest.mark.parametrize(
    ("said", "text", "is_person"),
    [
        ("Done.", "and the next page", True),
        ("Done.", "Tool call error: No tool calls found", False),
        ("Action: search(q)", "Observation: 0 hits", False),
        ("What is it?", "Observation: it flickers", True),
    ],
)
@pytest.mark.parametrize("is_flat", [False, True])
def test_a_text_of_a_program_at_the_end_of_a_request_is_no_prompt(api, said, text, is_person, is_flat):
    listed = [("user", "look it up"), ("assistant", said), ("user", text)]
    if is_flat:
        inputs = {
            f"llm.input_messages.{at}.message.{name}": value
            for at, pair in enumerate(listed)
            for name, value in zip(("role", "content"), pair, strict=True)
        }
    else:
        parts = [{"role": role, "parts": [{"type": "text", "content": one}]} for role, one in listed]
        inputs = {"gen_ai.input.messages": json.dumps(parts)}
    names = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "s-1", "gen_ai.request.model": "m"}
    usage = {"gen_ai.usage.input_tokens": "7"}
    accepted(send(api, tool_span(**names, **usage, **inputs)))
    prompts = [row.content for row in Event.objects.filter(type="message", role="user")]
    assert prompts == ([text] if is_person else [])
