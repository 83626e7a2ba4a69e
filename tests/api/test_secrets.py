"""Secrets do not come through any door of the API: as values, as names of what reports them, or as names of fields."""

import json

import pytest
from django.apps import apps
from django.test import Client

from detection.models import Event, Role, Session
from detection.services.alerting import delivery
from detection.services.ingestion import import_worker
from detection.services.ingestion.attempts import recorder
from detection.services.keys import principal_cache
from detection.services.sessions.evaluation import evaluate
from tests.api.test_hooks import BEFORE, HookedAgent
from tests.api.test_telemetry import accepted, tool_span
from tests.api.test_telemetry import send as send_spans
from tests.services.redaction.secret_corpus import HEX32, WITH_SECRET, WITHOUT_SECRET, halves
from tests.support.projects import make_member
from tests.support.transcripts import claude_code, lines

NAMES = (
    "password2", "pwd1", "passwd_old", "token2", "ssh_key", "pw", "passwort", "Kennwort", "contraseña", "mot_de_passe",
    "senha", "пароль", "密码", "ｐａｓｓｗｏｒｄ", "pass\u200bword", "pаsswоrd",
)  # fmt: skip
"""The last two: with a character that does not show, and with two letters of Russian."""


def call(arguments, number=1, **about):
    return {
        "type": "call",
        "session": "s",
        "call_id": f"c{number}",
        "tool": "t",
        "arguments": arguments,
    } | about


def result(content, number=1, **about):
    return {"type": "result", "session": "s", "call_id": f"c{number}", "content": content} | about


def stored_texts():
    """All that is stored of events, without what the database adds."""
    return json.dumps([*Event.objects.order_by("seq").values()], default=str, ensure_ascii=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_beside_its_name_is_redacted_however_the_name_is_written(api, name):
    sent = {
        "events": [
            call({"set": {name: "Zk7-pq9Rx"}}),
            result(f"export {name}=Zk7-pq9Rx\n{name}: 'Zk7-pq9Rx'"),
        ]
    }
    assert api.post("/events", sent).json()["accepted"] == 2
    assert "Zk7-pq9Rx" not in stored_texts()


def test_what_only_resembles_a_name_of_a_secret_stays(api):
    harmless = [text for text in WITHOUT_SECRET if len(text) < 16_000]
    sent = [event for at, text in enumerate(harmless) for event in (call({"q": text}, at), result(text, at))]
    assert api.post("/events", {"events": sent}).json()["accepted"] == len(sent)
    assert "[redacted:" not in stored_texts()


def test_no_secret_of_the_corpus_is_stored(api):
    texts = [halves(text) for text in WITH_SECRET]
    sent = [event for at, (text, _) in enumerate(texts) for event in (call({"q": at}, at), result(text, at))]
    assert api.post("/events", {"events": sent}).json()["accepted"] == len(sent)
    contents = dict(Event.objects.filter(type="result").values_list("call_id", "content"))
    assert [text for at, (text, secret) in enumerate(texts) if secret in contents[f"c{at}"]] == []


def test_a_token_of_a_service_is_redacted_without_a_name_and_a_digest_is_not(api):
    token, digest = "SK" + HEX32, f"sha256:{HEX32}{HEX32}"
    api.post("/events", {"events": [call({"q": 1}), result(f"use {token} for {digest}")]})
    assert token not in stored_texts()
    assert "[redacted:twilio-token:" in stored_texts()
    assert digest in stored_texts()


# Names

TOKEN = "ghp_" + "0a1B2c3D4e5F6g7H8j9K0a1B2c3D4e5F6g7H"
OTHER = "ghp_" + "9z8Y7x6W5v4U3t2S1r0Q9z8Y7x6W5v4U3t2S"


def everything_stored():
    """The values of all tables as one text."""
    rows = [
        row
        for model in apps.get_app_config("detection").get_models()
        for row in model._default_manager.values_list()
    ]
    return "\n".join(
        bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value)
        for row in rows
        for value in row
    )


def evaluate_all():
    for session in Session.objects.all():
        while evaluate(session.key):
            pass


@pytest.fixture
def nothing_readable(db, caplog):
    """What the test did left the token in no table and in no line of the log."""
    caplog.set_level("DEBUG")
    yield
    evaluate_all()
    recorder.flush()
    assert Session.objects.exists()
    assert TOKEN not in everything_stored()
    assert TOKEN not in caplog.text


@pytest.mark.usefixtures("nothing_readable")
@pytest.mark.parametrize(
    "field", ["session", "parent_session", "run", "round", "call_id", "tool", "agent", "backend", "model"]
)
def test_a_token_as_a_name_is_stored_by_neither_events_nor_guard(api, field):
    events = [one | {field: TOKEN} for at in range(8) for one in (call({"q": 1}, at), result("0 hits", at))]
    assert api.post("/events", {"events": events}).json()["accepted"] > 0
    for at in range(8):
        asked = {"call_id": f"g{at}", "tool": "t", "arguments": {"q": 1}}
        shared = {"session": "guarded"}
        (shared if field not in ("call_id", "tool") else asked)[field] = TOKEN
        answer = api.post("/guard", shared | {"calls": [asked]}).json()
        # The client finds its verdicts by the names that it sent.
        assert (answer["session"], answer["verdicts"][0]["call_id"]) == (shared["session"], asked["call_id"])


def test_two_tokens_are_two_sessions_which_are_found_by_their_original_names(api):
    for at, name in enumerate((TOKEN, OTHER, TOKEN)):
        api.post(
            "/guard", {"session": name, "calls": [{"call_id": f"c{at}", "tool": "t", "arguments": {"q": at}}]}
        )
    assert Session.objects.count() == 2
    assert len(api.get(f"/sessions/{TOKEN}/calls").json()["items"]) == 2
    assert len(api.get(f"/sessions/{OTHER}/calls").json()["items"]) == 1
    stored = api.get(f"/sessions/{TOKEN}").json()["session"]
    assert stored.startswith("[redacted:github-token:")
    assert api.get(f"/sessions/{stored}").json()["session"] == stored
    assert api.get("/policy", session=TOKEN).json()["session"] == stored
    assert api.post(f"/sessions/{TOKEN}/stop").json()["state"] == "stopping"
    stopped = api.post("/guard", {"session": TOKEN, "calls": [{"tool": "t", "arguments": {"q": 9}}]}).json()
    assert stopped["decision"] == "stop"
    assert api.post("/erasures", {"session": TOKEN}).status_code == 202


def test_lists_are_filtered_by_the_original_names(api):
    for agent in (TOKEN, OTHER):
        api.post("/events", call({"q": 1}, session=agent, agent=agent))
    assert [one["agent"][:22] for one in api.get("/sessions", agent=TOKEN).json()["items"]] == [
        "[redacted:github-token"
    ]
    assert len(api.get("/sessions", q=f"agent:{TOKEN},{OTHER}").json()["items"]) == 2
    assert len(api.get("/sessions", q=TOKEN).json()["items"]) == 1
    assert api.get("/sessions", q=f"-agent:{TOKEN} -agent:{OTHER}").json()["items"] == []


def test_a_session_that_is_older_than_the_rule_keeps_its_name(api, project):
    Session.objects.create(project=project, external_id=TOKEN)
    assert api.get(f"/sessions/{TOKEN}").json()["session"] == TOKEN


def test_a_name_of_any_length_fits_and_stays_the_same_when_redacted_again(api):
    names = [" ".join([f"password=wxyz{at:04}"] * 12)[:256] for at in range(2)]
    events = [
        call({"q": 1}, session=name, agent=name[:128], tool=name[:128], model=name[:200]) for name in names
    ]
    assert api.post("/events", {"events": events}).json()["accepted"] == 2
    assert Session.objects.count() == 2
    for name in names:
        stored = api.get("/sessions", q=f'agent:"{name[:128]}"').json()["items"][0]["session"]
        assert len(stored) <= 128
        assert "wxyz" not in stored
        assert api.get(f"/sessions/{stored}").status_code == 200


@pytest.mark.usefixtures("nothing_readable")
def test_a_token_as_a_name_of_a_field_is_redacted_at_any_depth(api):
    arguments = {TOKEN: 1, "a": [{f"x {TOKEN}": {TOKEN: None}}], "b": json.dumps({TOKEN: {"c": 1}})}
    api.post("/events", {"events": [call(arguments), result(json.dumps(arguments))]})
    stored = json.loads(Event.objects.get(type="call").arguments)
    assert [key[:23] for key in stored if key not in "ab"] == ["[redacted:github-token:"]


@pytest.mark.usefixtures("nothing_readable")
def test_a_token_in_the_name_of_an_unknown_field_is_not_in_the_list_of_attempts(api):
    api.post("/events", call({}) | {TOKEN: 1})
    assert api.post("/events", {"events": [call({})], TOKEN: 1}).status_code == 422
    assert api.post("/events", {"events": [call({}), call({}, agent=5) | {TOKEN: 2}]}).json()["rejected"]


@pytest.mark.usefixtures("nothing_readable")
@pytest.mark.parametrize("host", BEFORE)
def test_a_token_as_a_name_does_not_come_through_a_hook(api, host):
    agent = HookedAgent(api, host)
    for _ in range(5):
        agent.before(session_id=TOKEN, model=TOKEN, agent_id=TOKEN)
        agent.after(session_id=TOKEN, model=TOKEN, agent_id=TOKEN)
    agent.before(session_id="other", tool_name=f"mcp__{TOKEN}__search", tool_input={TOKEN: 1})


@pytest.mark.usefixtures("nothing_readable")
def test_a_token_as_a_name_does_not_come_through_telemetry(api):
    names = (
        "gen_ai.conversation.id",
        "gen_ai.agent.name",
        "gen_ai.request.model",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
    )
    called = {"gen_ai.tool.call.arguments": '{"q": 1}', "gen_ai.tool.call.result": "0 hits"}
    for at in range(6):
        span = tool_span(
            span=bytes([at + 1]) * 8, start=10**18 + at * 10**9, **called, **dict.fromkeys(names, TOKEN)
        )
        assert accepted(send_spans(api, span)).rejected_spans == 0
    assert Session.objects.get().call_count in (0, 6)
    assert len(api.get(f"/sessions/{TOKEN}/calls").json()["items"]) == 6


@pytest.mark.usefixtures("nothing_readable")
def test_a_token_as_a_name_does_not_come_through_an_import(api, settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")
    content = lines(claude_code(["make test"] * 8, session=TOKEN))
    made = api.request(
        "POST", "/imports", content=content, headers={"Content-Type": "application/x-ndjson"}
    ).json()
    for _ in range(2):  # again: what is stored is not imported twice
        import_worker.run_waiting(lambda: False)
        api.request("POST", "/imports", content=content, headers={"Content-Type": "application/x-ndjson"})
    assert api.get(f"/imports/{made['id']}").json()["summary"]["loops"] == 1
    assert api.get(f"/sessions/{TOKEN}").json()["state"] == "ended"
    assert Session.objects.get().call_count == 8


@pytest.mark.usefixtures("nothing_readable")
def test_a_token_as_a_name_is_in_no_alert(api, receiver):
    hook = {"name": "hook", "kind": "webhook", "address": receiver.url}
    made = api.post("/alerts/destinations", hook).json()["id"]
    api.post("/alerts/routes", {"name": "all", "destinations": [made], "group_wait_seconds": 0})
    for at in range(8):
        asked = [{"call_id": f"c{at}", "tool": TOKEN, "arguments": {"q": 1}}]
        api.post("/guard", {"session": TOKEN, "agent": TOKEN, "model": TOKEN, "calls": asked})
        api.post("/events", result("0 hits", at, session=TOKEN))
    delivery.run(5)
    sent = b"".join(body for _, _, body in receiver.requests)
    assert b"[redacted:github-token:" in sent
    assert TOKEN.encode() not in sent


def test_a_pattern_of_the_project_redacts_names_too_and_not_the_marks_in_them(api, project):
    project.redaction_patterns = ["EMP-[0-9]{6}", "[0-9a-f]{4}"]
    project.save()
    principal_cache.clear()
    for at in range(2):
        api.post(
            "/guard",
            {"session": "of EMP-123456", "calls": [{"call_id": f"c{at}", "tool": "t", "arguments": {}}]},
        )
    assert Session.objects.get().external_id.startswith("of [redacted:pattern:")
    assert len(api.get("/sessions/of EMP-123456/calls").json()["items"]) == 2


def test_the_console_finds_a_session_by_its_original_name(api, project):
    api.post("/events", call({"q": 1}, session=TOKEN))
    client = Client()
    client.force_login(make_member(project, Role.OPERATOR))
    page = client.get(f"/p/{project.slug}/sessions/{TOKEN}")
    assert page.status_code == 200
    assert "[redacted:github-token:" in page.text
    found = client.get(f"/p/{project.slug}/session", {"name": TOKEN, "or": "search"})
    assert found.status_code == 200
    acted = client.post(f"/p/{project.slug}/session/act", {"name": TOKEN, "action": "stop"})
    assert acted.status_code == 302
    assert TOKEN not in acted.headers["Location"]
    assert Session.objects.get().is_stopped_by_person
