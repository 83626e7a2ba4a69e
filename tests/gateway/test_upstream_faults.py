"""Whatever goes wrong at the model server: through the gateway, a client sees what it sees without it."""

import json

import httpx
import pytest

from detection.models import Event
from tests.support.model_answers import PATHS, answered, call, sse
from tests.support.model_server import Answer, Asked, of_events, of_json
from tests.support.plain_http import PLAIN

from .agents import Agent, outcome
from .conftest import World, wait_for
from .forms import forms_in_turns
from .test_forwarding import SHIELD
from .test_guarding import calls_of

JSON = {"Content-Type": "application/json"}
ERRORS_IN_STREAMS = {
    "openai": [sse({"error": {"message": "overloaded", "type": "server_error"}})],
    "anthropic": [
        sse({"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}, "error")
    ],
    "responses": [
        sse(
            {"type": "error", "sequence_number": 9, "code": "server_error", "message": "overloaded"}, "error"
        ),
        sse(
            {
                "type": "response.failed",
                "sequence_number": 9,
                "response": {
                    "id": "resp_x",
                    "status": "failed",
                    "error": {"message": "overloaded"},
                    "output": [],
                },
            },
            "response.failed",
        ),
    ],
}


def both(world, shape, is_stream, timeout=20.0):
    """What a client gets directly, and through the gateway."""
    backend, path = PATHS[shape]
    key = "input" if shape == "responses" else "messages"
    request = {"model": "m", "stream": is_stream, key: [{"role": "user", "content": "x"}]}
    if shape == "gemini":
        request = {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
        path = path.replace(":generate", ":streamGenerate") + "?alt=sse" if is_stream else path
    if shape == "openai" and is_stream:
        request["stream_options"] = {"include_usage": True}  # so that the gateway does not ask for it
    base_url = world.model.url + ("/v1" if backend == "openai" else "")
    direct = httpx.Client(base_url=base_url, timeout=timeout, verify=PLAIN)
    through = world.http(backend, **{"LoopGuard-Session": "s-1"})
    through.timeout = timeout
    status, headers, *rest = outcome(direct, path, request)
    return (status, as_passed_on(headers), *rest), outcome(through, path, request)


def as_passed_on(headers):
    """The headers of a response after the gateway: no redirect, nothing unknown, and no page."""
    if headers is None:
        return None
    kept = {name: value for name, value in headers.items() if name not in ("location", "x-odd")}
    if kept.get("content-type") == "text/html":
        kept["content-type"] = "text/plain"
    return kept | SHIELD


@forms_in_turns
@pytest.mark.parametrize(
    "fault",
    [
        Answer([b"<html>Bad gateway</html>"], 502, {"Content-Type": "text/html"}),
        Answer([b"<html>Sign in</html>"], 200, {"Content-Type": "text/html"}),
        Answer([b"upstream connect error"], 503, {"Content-Type": "text/plain", "Retry-After": "3"}),
        Answer([b""], 200, JSON),
        Answer([b""], 204, {"X-Odd": "1"}),
        Answer([b'{"choices": [{"mess'], 200, JSON),
        Answer([b"null"], 200, JSON),
        of_json({"error": {"message": "no such model"}}, 404),
        of_json({"error": {"message": "slow down"}}, 429, **{"Retry-After": "7", "x-should-retry": "true"}),
        of_json({"type": "error", "error": {"type": "overloaded_error"}}, 529),
        of_json({"error": {"message": "quota"}}, 200),
        Answer([b""], 307, {"Location": "https://elsewhere.example/v1"}),
        of_events([]),
        of_events([b": only a comment\n\n"]),
        of_events([b"data: half an eve"]),
    ],
    ids=lambda answer: f"{answer.status}-{answer.headers.get('Content-Type', '')}-{len(answer.parts)}-{answer.ends}",
)  # fmt: skip
def test_a_faulty_response_is_the_same(world: World, shape, is_stream, fault):
    world.model.script = lambda asked: Answer(
        [*fault.parts], fault.status, fault.headers, fault.is_chunked, fault.ends
    )
    direct, through = both(world, shape, is_stream)
    without_length = [
        {k: v for k, v in (one[1] or {}).items() if k != "content-length"} for one in (direct, through)
    ]
    assert without_length[0] == without_length[1]
    assert (direct[0], direct[2:]) == (through[0], through[2:])
    assert not Event.objects.exists()


@pytest.mark.parametrize("shape", PATHS)
def test_a_stream_that_is_cut_anywhere_is_cut_there(world: World, shape):
    whole = answered(_ASKED, shape, "Let me see.", [call()])
    for count in range(len(whole.parts)):
        world.model.script = lambda asked, count=count: of_events(whole.parts[:count], ends="cut")
        direct, through = both(world, shape, is_stream=True)
        assert through[3] == direct[3]
        assert direct[2].startswith(through[2])
        assert b"search" not in through[2] or through[2] == direct[2], "a call is never sent in part"
    assert {row.tool for row in calls_of()} <= {"search"}, (
        "those that were complete before the cut are evaluated"
    )


_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_ASKED = Asked("POST", "/", {}, json.dumps(_STREAM).encode(), 0)


@pytest.mark.parametrize(
    ("shape", "error"), [(s, e) for s, errors in ERRORS_IN_STREAMS.items() for e in errors]
)
@pytest.mark.parametrize("calls", [[], [call()]])
def test_an_error_within_a_stream_passes_and_nothing_is_evaluated(world: World, shape, error, calls):
    def script(asked):
        answer = answered(asked, shape, "Hm.", calls)
        answer.parts = [*answer.parts[:-2], error]
        return answer

    world.model.script = script
    direct, through = both(world, shape, is_stream=True)
    assert through[0] == direct[0] == 200
    assert through[2].endswith(error)
    assert b"search" not in through[2]
    assert not Event.objects.exists()


@forms_in_turns
def test_silence_is_silence_until_the_client_leaves(world: World, shape, is_stream):
    given = answered(_ASKED, shape, "Hm.", [])
    parts = given.parts[:2] if is_stream else []
    world.model.script = lambda asked: Answer(
        [*parts], 200, given.headers if is_stream else JSON, is_chunked=True, ends="silent"
    )
    direct, through = both(world, shape, is_stream, timeout=1.5)
    assert direct[2:] == through[2:]
    assert through[3] == "ReadTimeout"
    wait_for(lambda: world.model.gone == 2)  # the request to the model server ends with that of the client


@pytest.mark.parametrize("shape", PATHS)
def test_a_stream_that_nobody_asked_for_is_guarded(world: World, shape):
    whole = answered(_ASKED, shape, "Let me see.", [call()])
    world.model.script = lambda asked: of_events([*whole.parts])
    direct, through = both(world, shape, is_stream=False)
    assert direct == through
    assert [row.tool for row in calls_of()] == ["search"]


@pytest.mark.parametrize("shape", PATHS)
def test_a_document_instead_of_a_stream_is_guarded(world: World, shape):
    def script(asked):
        asked.body = json.dumps(asked.document | {"stream": False}).encode()
        return answered(asked, shape, "Let me see.", [call()])

    world.model.script = script
    direct, through = both(world, shape, is_stream=True)
    assert (direct[0], direct[3]) == (through[0], through[3]) == (200, None)
    assert [row.tool for row in calls_of()] == ["search"]


@forms_in_turns
@pytest.mark.parametrize("status", [400, 500])
def test_a_model_server_that_fails_when_it_is_asked_again_ends_in_the_reasons(
    world: World, shape, is_stream, status
):
    def script(asked):
        if len(world.model.asked) > 4:
            return of_json({"error": {"message": "no"}}, status)
        return answered(asked, shape, "", [call()])

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    last = agent.run()
    assert agent.runs == 3
    assert "not run" in last.text
    assert len(world.model.asked) == 5
