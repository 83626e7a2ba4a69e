"""Every text of an event at its documented limit, one above it and in every kind of character, through each entry point."""

import json
import re
from decimal import Decimal

import pytest
from django.db import connection

from detection.api.app import api as ninja_api
from detection.models import Event, QuarantinedEvent, Session
from detection.models.sessions import MAX_COST_USD
from detection.services.sessions.evaluation import evaluate

from .test_telemetry import accepted, send, tool_span

KINDS = ("call", "heartbeat", "result", "message", "usage", "compaction", "end")
LETTERS = {
    "ascii": "a", "two bytes": "é", "three bytes": "漢", "four bytes": "\U00010348", "combining": "e\u0301", "right to left": "ש",
}  # fmt: skip
ESCAPES = [r"\u0000", r"\ud800", r"\udc00", r"\ud800\ud800", r"\udfff\ud800", r"\u202e", r"\u200d", r"\n"]
GOOD = {"type": "call", "session": "neighbour", "tool": "read_file"}
FORMS = ("single", "batch", "lines", "guard call", "guard result")


def limits(schema):
    """The documented maximum of each text of a schema."""
    properties = ninja_api.get_openapi_schema()["components"]["schemas"][schema]["properties"]
    texts = {name: one.get("anyOf", [one])[0] for name, one in properties.items()}
    return {name: text["maxLength"] for name, text in texts.items() if "maxLength" in text}


LIMITS = limits("EventSchema")


def text_of(letter, length):
    return (letter * length)[:length]


def event_of(kind, **texts):
    needed = {"session": "s-1", "tool": "t", "call_id": "c-1", "usage": {"input_tokens": 1}}
    event = {"type": kind, **needed, **texts}
    dropped = {"usage": kind != "usage", "content_digest": kind == "heartbeat"}
    return {name: value for name, value in event.items() if not dropped.get(name)}


def post(api, form, events):
    """Send events, given as objects or as the JSON text of one."""
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    if form == "lines":
        return api.raw("/events", "\n".join(texts).encode(), content_type="application/x-ndjson")
    if form == "batch":
        return api.raw("/events", f'{{"events": [{", ".join(texts)}]}}'.encode())
    return api.raw("/events", texts[0].encode())


def evaluated():
    """Evaluate everything, and return how many events were quarantined."""
    for session in Session.objects.all():
        evaluate(session.key)
    return QuarantinedEvent.objects.count()


def test_the_texts_that_are_tried_are_those_of_events():
    assert {*LIMITS} > {"session", "tool", "content_digest", "cwd", "model"}
    assert LIMITS["content_digest"] == 128


@pytest.mark.promise("REL-35")
@pytest.mark.parametrize("form", ["batch", "lines"])
@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
def test_the_documented_maximum_is_stored_whole(api, form, letter):
    texts = {name: text_of(letter, length) for name, length in LIMITS.items()}
    events = [event_of(kind, **texts | {"id": f"{number}{letter}"}) for number, kind in enumerate(KINDS)]
    done = post(api, form, [*events, GOOD]).json()
    assert (done["accepted"], done["rejected"], done["altered"]) == (len(KINDS) + 1, [], [])
    assert evaluated() == 0
    session = Session.objects.get(external_id=texts["session"])
    assert (session.agent, session.model) == (texts["agent"], texts["model"])
    call = Event.objects.get(session=session, type="call")
    for name in ("tool", "call_id", "cwd", "round", "run", "backend"):
        assert getattr(call, name) == texts[name]
    for path in ("/sessions", f"/sessions/{texts['session']}", "/incidents", "/loops", "/statistics"):
        assert api.get(path).status_code == 200


@pytest.mark.promise("REL-35")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
def test_one_character_more_rejects_its_event_alone(api, kind, letter):
    has_digest = kind not in ("call", "heartbeat", "usage")
    names = [name for name in LIMITS if has_digest or name != "content_digest"]
    events = [event_of(kind, **{name: text_of(letter, LIMITS[name] + 1)}) for name in names]
    done = post(api, "batch", [GOOD, *events, GOOD]).json()
    assert done["accepted"] == 2
    found = [(one["index"], one["path"], one["code"]) for one in done["rejected"]]
    assert found == [(number, name, "too_long") for number, name in enumerate(names, start=1)]
    for name, event in zip(names, events, strict=True):
        answer = post(api, "single", [event])
        assert (answer.status_code, answer.json()["path"], answer.json()["code"]) == (422, name, "too_long")


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_no_name_may_contain_rejects_its_event_alone(api, escape):
    events = [
        json.dumps(event_of("result", **{name: "@"})).replace("@", f"a{escape}b") for name in sorted(LIMITS)
    ]
    for form in ("batch", "lines"):
        done = post(api, form, [GOOD, *events, GOOD]).json()
        assert done["accepted"] == 2
        assert {one["code"] for one in done["rejected"]} == {"invalid_characters"}
        assert len(done["rejected"]) == len(LIMITS)
    texts = json.dumps(event_of("result", content="@", arguments="@")).replace("@", f"a{escape}b")
    done = post(api, "batch", [GOOD, texts]).json()
    assert (done["accepted"], done["rejected"]) == (2, [])
    assert evaluated() == 0


@pytest.mark.parametrize("part", ["calls", "results"])
@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
def test_the_guard_has_the_same_limits(api, part, letter):
    shared = {name: text_of(letter, length) for name, length in limits("GuardRequestSchema").items()}
    own = limits({"calls": "GuardCallSchema", "results": "GuardResultSchema"}[part])
    item = {name: text_of(letter, length) for name, length in own.items()}
    assert api.post("/guard", shared | {part: [item]}).status_code == 200
    for name, length in own.items():
        answer = api.post("/guard", {"session": "s-1", part: [{"tool": "t"} | {name: letter * (length + 1)}]})
        assert (answer.status_code, answer.json()["path"]) == (422, f"{part}[0].{name}")
    for name in shared:
        answer = api.post("/guard", {"session": "s-1", part: [{"tool": "t"}]} | {name: shared[name] + letter})
        assert (answer.status_code, answer.json()["path"]) == (422, name)
    assert evaluated() == 0


@pytest.mark.parametrize("length", [1, 32, 33, 64, 128])
@pytest.mark.parametrize("kind", ["result", "message"])
def test_a_digest_without_its_content_is_kept_by_a_keyed_digest(api, kind, length):
    events = [event_of(kind, content_digest=letter * length, call_id="") for letter in "abа"]
    assert post(api, "batch", [*events, GOOD]).json()["accepted"] == 4
    stored = [*Event.objects.filter(type=kind).order_by("seq").values_list("tail_digest", flat=True)]
    assert len({*stored}) == 3
    assert {len(one) for one in stored} == {32}
    guarded = {"session": "s-2", "results": [{"tool": "t", "content_digest": "a" * length}]}
    assert api.post("/guard", guarded).status_code == 200


@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
@pytest.mark.parametrize("extra", [0, 1, 5000])
def test_no_text_of_a_span_costs_another_span(api, letter, extra):
    names = {
        "gen_ai.tool.name": 128, "gen_ai.tool.call.id": 256, "gen_ai.agent.name": 128, "gen_ai.conversation.id": 256,
        "gen_ai.request.model": 200, "gen_ai.tool.call.result": 16_384, "gen_ai.provider.name": 128,
    }  # fmt: skip
    request = tool_span(span=b"good-1--", **{"gen_ai.tool.call.arguments": "{}"})
    for number, (name, length) in enumerate(names.items()):
        text = {name: text_of(letter, length + extra), "gen_ai.tool.call.arguments": "{}"}
        tool_span(request, span=b"span-%03d" % number, **text)
    tool_span(request, span=b"good-2--", **{"gen_ai.tool.call.arguments": "{}"})
    done = accepted(send(api, request))
    assert done.rejected_spans == 0
    assert Event.objects.filter(type="call").count() == len(names) + 2
    assert evaluated() == 0


@pytest.mark.parametrize("letter", LETTERS.values(), ids=LETTERS)
@pytest.mark.parametrize("extra", [0, 1, 5000])
def test_no_text_of_a_hook_makes_it_fail(api, letter, extra):
    texts = {
        "session_id": 256, "tool_name": 128, "tool_use_id": 256, "cwd": 1024, "agent_id": 256, "agent_type": 128, "model": 200,
        "prompt": 1000, "transcript_path": 300,
    }  # fmt: skip
    body = {name: text_of(letter, length + extra) for name, length in texts.items()}
    for moment in ("PreToolUse", "PostToolUse", "UserPromptSubmit", "SubagentStop", "SessionEnd"):
        hook = body | {"hook_event_name": moment, "tool_input": {"a": "b"}, "tool_response": letter * 20_000}
        assert api.post("/hooks/claude-code", hook).status_code == 200
    assert evaluated() == 0


@pytest.fixture
def database_rejects(db):
    """Have PostgreSQL reject every event of a tool as too long for its column."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.tool = 'unstorable' THEN RAISE EXCEPTION 'value too long' USING ERRCODE = '22001'; END IF;"
            " RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER reject BEFORE INSERT ON detection_event FOR EACH ROW EXECUTE FUNCTION reject()"
        )


@pytest.mark.one_database("a trigger refuses what is written")
@pytest.mark.promise("REL-35")
@pytest.mark.parametrize("places", [(0,), (6,), (3, 4), (0, 5, 6)], ids=str)
@pytest.mark.usefixtures("database_rejects")
def test_an_event_that_the_database_rejects_is_left_out_and_named(api, places):
    tools = ["unstorable" if number in places else "read_file" for number in range(7)]
    events = [
        {"type": "call", "id": f"e-{n}", "session": f"s-{n % 2}", "tool": tool}
        for n, tool in enumerate(tools)
    ]
    invalid = {"type": "call", "session": "s-1"}
    done = post(api, "batch", [invalid, *events]).json()
    assert done["accepted"] == 7 - len(places)
    codes = [(one["index"], one["code"]) for one in done["rejected"]]
    assert codes == [(0, "missing"), *((place + 1, "not_storable") for place in places)]
    stored = Event.objects.order_by("session_id", "seq").values_list("session__external_id", "seq")
    assert sorted(stored) == sorted(
        (f"s-{parity}", seq)
        for parity in (0, 1)
        for seq in range(1, 1 + sum(n % 2 == parity and n not in places for n in range(7)))
    )
    again = post(api, "batch", events).json()
    assert (again["accepted"], again["duplicate"]) == (0, 7 - len(places))
    assert evaluated() == 0


@pytest.mark.one_database("a trigger refuses what is written")
@pytest.mark.usefixtures("database_rejects")
def test_whoever_sends_only_what_the_database_rejects_gets_an_error(api):
    for answer in (
        post(api, "single", [GOOD | {"tool": "unstorable"}]),
        api.call(tool="unstorable"),
        api.post("/hooks/codex", {"session_id": "s", "tool_name": "unstorable", "hook_event_name": "PreToolUse",
                                  "tool_input": {}}),
    ):  # fmt: skip
        assert (answer.status_code, answer.json()["code"]) == (422, "not_storable")
    assert not Event.objects.exists()
    request = tool_span(**{"gen_ai.tool.name": "unstorable", "gen_ai.tool.call.arguments": "{}"})
    tool_span(request, span=b"good----", **{"gen_ai.tool.call.arguments": "{}"})
    done = accepted(send(api, request))
    assert (done.rejected_spans, done.error_message.split(":")[0]) == (1, "not_storable")
    assert Event.objects.filter(type="call").count() == 1


def test_a_session_of_any_cost_is_evaluated(api):
    usage = {"cost_usd": 100_000, "input_tokens": 2**31 - 1}
    call = {"type": "call", "session": "s-1", "tool": "t", "usage": usage}
    for _ in range(2):
        events = [call | {"arguments": {"n": number % 9}} for number in range(600)]
        assert api.post("/events", {"events": events}).json()["accepted"] == 600
    assert evaluated() == 0
    session = Session.objects.get()
    assert (session.evaluated_seq, session.cost_usd) == (1000, Decimal(MAX_COST_USD))
    late = {"type": "usage", "session": "s-1", "usage": usage}
    assert api.post("/events", late).json()["accepted"] == 1
    assert api.call(session="s-1").status_code == 200
    assert (Session.objects.get().evaluated_seq, evaluated()) == (1202, 0)


def filled(schema, letter, extra, depth=0):
    """A value of a schema whose texts have their longest documented length, and some more."""
    while "$ref" in schema or "anyOf" in schema or "allOf" in schema:
        if "$ref" in schema:
            schema = ninja_api.get_openapi_schema()["components"]["schemas"][
                schema["$ref"].rpartition("/")[2]
            ]
        else:
            choices = schema.get("anyOf") or schema["allOf"]
            schema = next(one for one in choices if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return schema.get("const") or schema["enum"][0]
    if "properties" in schema:
        inner = schema["properties"].items()
        return {name: filled(value, letter, extra, depth + 1) for name, value in inner}
    kind = schema.get("type")
    if kind == "array":
        return [filled(schema["items"], letter, extra, depth + 1)] if depth < 6 else []
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 1), 1)
    if kind == "boolean":
        return True
    if schema.get("format") == "date-time":
        return "2030-01-01T00:00:00Z"
    text = text_of(letter, schema.get("maxLength", 300) + extra)
    return {text[:100]: text} if kind == "object" else text


BODIES = [
    (path, method.upper(), kind["schema"])
    for path, operations in ninja_api.get_openapi_schema()["paths"].items()
    for method, operation in operations.items()
    if (kind := operation.get("requestBody", {}).get("content", {}).get("application/json"))
]


@pytest.mark.promise("REL-35")
@pytest.mark.parametrize("letter", ["a", "\U00010348", "e\u0301"], ids=ascii)
@pytest.mark.parametrize("extra", [0, 1, 4000])
def test_no_text_of_a_body_makes_its_route_fail(api, letter, extra):
    incident = api.loop()["verdicts"][0]["incident"]
    segments = {"session": "s-1", "incident_id": incident, "backend": "openai", "model": "m", "pattern": "*"}
    succeeded = 0
    for path, method, schema in BODIES:
        place = re.sub(r"{(\w+)}", lambda found: segments.get(found[1], "block"), path)
        body = filled(schema, letter, extra)
        for one in [
            body,
            *({name: value} for name, value in (body if isinstance(body, dict) else {}).items()),
        ]:
            answer = api.raw(place.removeprefix("/api/v1"), json.dumps(one).encode(), method=method)
            assert answer.status_code < 500, (path, one)
            succeeded += answer.status_code < 300
    assert succeeded > 10
